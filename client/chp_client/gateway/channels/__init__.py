"""GET /v1/clone: CHP/2 by WebSocket, for a Clone that has no ZeroMQ (SPEC.md, section 37).

websocket    the frames of RFC 6455, and the messages of a pair's ports in them: pure
admission    the messages that may pass: pure
connection   one connection, with sockets of its own to the pair
"""
