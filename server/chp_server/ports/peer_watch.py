"""What becomes of the connection to the peer's P+3, as libzmq tells it by a monitor of the socket.

A connection stands once its handshake has succeeded. The kernel of a stopped process takes a connection too, and a peer
that does not know our key shakes no hands: neither of them has a connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count

import zmq

UP, DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
_numbers = count()  # libzmq frees the name of a monitor some time after the socket is closed


class PeerWatch:
    """The monitor of a socket that is about to connect to the peer."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        endpoint = f"inproc://peer.{next(_numbers)}"
        socket.monitor(endpoint, UP | DOWN)
        self.events = socket.context.socket(zmq.PAIR)
        self.events.linger = 0
        self.events.rcvhwm = 0  # full, it would stop libzmq's own thread
        self.events.connect(endpoint)

    def changes(self) -> Iterator[bool]:
        """Yield True for each connection that came to stand since the last call, and False for each that broke."""
        while True:
            try:
                event, *_ = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield int.from_bytes(event[:2], sys.byteorder) == UP

    def close(self) -> None:
        """End the watch, before the socket is closed."""
        self._socket.disable_monitor()
        self.events.close(0)
