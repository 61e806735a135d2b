"""The thread that owns the sockets (`agent`), and what it and the application's threads tell each other.

`mailbox` and `openbatch` are what threads write to; `tickets` what they wait for; `dispatch` the thread of callbacks.
"""
