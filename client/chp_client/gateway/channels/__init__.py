"""GET /v1/clone: CHP/2 by WebSocket, for a Clone that has no ZeroMQ (SPEC.md, section 37).

framing    RFC 6455, and which messages of a pair's ports one of its messages is: pure
allowed    what of all that a server would take may pass here: pure
line       one connection, and the sockets to the pair that are its own
"""
