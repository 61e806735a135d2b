"""Topics: logs of messages beside the map. topics.py is what records change of them, delivery.py who reads them, and
filling.py how a passive gets those that it lacks. The messages themselves lie in the journal."""
