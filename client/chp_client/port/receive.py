"""The messages that have arrived on a socket, taken in bounded portions and without waiting."""

from __future__ import annotations

from typing import Any

import zmq
from zmq.backend import Socket as Backend

TURN_BYTES = 8 << 20
_DONTWAIT, _EVENTS, _POLLIN = int(zmq.DONTWAIT), int(zmq.EVENTS), int(zmq.POLLIN)
_get_option: Any = Backend.get


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Return True if a message has arrived."""
    return bool(_get_option(socket, _EVENTS) & _POLLIN)


def drain(socket: zmq.Socket[bytes], messages_max: int) -> list[list[bytes]]:
    """Return the messages that have arrived, up to a number of messages and bytes."""
    return receive(socket, messages_max)[0]


def receive(socket: zmq.Socket[bytes], messages_max: int) -> tuple[list[list[bytes]], bool]:
    """Return the messages that have arrived, up to a number of messages and bytes; and True if there may be more.

    A `Frame` knows whether another frame follows. `recv_multipart` would ask the socket, which takes longer. After one
    or two messages, `has_input` shows the end for less than the exception that a socket without a message raises.
    """
    messages: list[list[bytes]] = []
    size = 0
    recv: Any = socket.recv
    try:
        while len(messages) < messages_max and size < TURN_BYTES:
            frame = recv(_DONTWAIT, False)
            frames = [frame.bytes]
            while frame.more:
                frame = recv(_DONTWAIT, False)
                frames.append(frame.bytes)
            messages.append(frames)
            size += len(frames[-1])
            if len(messages) <= 2 and not has_input(socket):
                return messages, False
    except zmq.Again:
        return messages, False
    return messages, True
