"""Taking what has arrived on a socket, without waiting and in bounded portions."""

from __future__ import annotations

from typing import Any

import zmq
from zmq.backend import Socket as Backend

TURN_BYTES = 8 << 20
_DONTWAIT, _EVENTS, _POLLIN = int(zmq.DONTWAIT), int(zmq.EVENTS), int(zmq.POLLIN)
_get_option: Any = Backend.get


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has arrived."""
    return bool(_get_option(socket, _EVENTS) & _POLLIN)


def drain(socket: zmq.Socket[bytes], messages_max: int) -> list[list[bytes]]:
    """Whatever has arrived, up to a number of messages and bytes."""
    return receive(socket, messages_max)[0]


def receive(socket: zmq.Socket[bytes], messages_max: int) -> tuple[list[list[bytes]], bool]:
    """Whatever has arrived, up to a number of messages and bytes; and whether there may be more.

    A `Frame` knows whether another follows; asking the socket (as recv_multipart does) takes longer. Where a message
    came alone, asking for another costs less than the exception that says there is none.
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
