"""Topics: logs of messages beside the map (docs/topics.md). topic.py is for applications, aiotopic.py is for
applications of asyncio, and reader.py reads a topic."""
