"""Commands on topics: messages.py, `chp pub`, `chp sub`; consuming.py, `--group`; topic.py, groups.py, `chp topic`."""
