"""Topics: logs of messages beside the map. topic.py is what an application has of one, reader.py how it is read, and
aiotopic.py the same for asyncio (docs/topics.md)."""
