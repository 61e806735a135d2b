"""The server's five sockets, and the programs that connect to them.

`sockets` has the sockets; `replies`, `subscribers` and `connections` watch the connections to P and P+1; `unfinished`
finds messages without an end; `beat_thread` tells the peer that we live. These modules may use zmq and the kernel. They
know only the messages of the core.
"""
