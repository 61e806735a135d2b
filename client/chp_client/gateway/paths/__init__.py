"""The handlers of the gateway's paths: keys, topics, groups, changes, and the pair."""
