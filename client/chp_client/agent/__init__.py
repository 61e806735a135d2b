"""The thread that owns the sockets (`agent`), and what it and the application's threads tell each other.

`mailbox` and `openbatch` are what threads write to; `tickets` what they wait for; `watch` has what
they are told, as `changes`; `dispatch` is the thread of callbacks.
"""
