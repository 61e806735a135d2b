"""Commands on topics: messages.py, `chp pub` and `chp sub`; topic.py, `chp topic`."""
