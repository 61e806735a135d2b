"""Commands on topics: `chp pub` and `chp sub` in messages.py, `sub --group` in consume.py, `chp topic` in topic.py."""
