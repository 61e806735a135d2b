"""The thread that owns the sockets of a Clone (`agent`), and what it and the application's threads tell each other.

The application's threads write to `mailbox` and `open_batch`, and wait for `tickets`. They read a `watch`, which gives
`changes`. `dispatch` is the thread of callbacks.
"""
