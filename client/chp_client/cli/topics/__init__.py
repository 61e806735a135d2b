"""Commands on topics: messages.py, `chp pub`, `chp sub`; consume.py, `--group`; topic.py, `chp topic`."""
