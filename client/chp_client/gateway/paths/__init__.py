"""What each path of the gateway answers: keys, batches of them, pages, watches and their events."""
