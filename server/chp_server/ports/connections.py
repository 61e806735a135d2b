"""A connection of libzmq's, by its descriptor: where it leads, what its other end has taken, and an end to it.

libzmq has no way to cut one connection; the kernel has. A descriptor that has just been closed may be another
connection's by now, so it is looked at first whether it still leads to where it did.
"""

from __future__ import annotations

import os
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

Place = tuple[Any, ...]  # of the other end: host and port, or the process at the other end of a file
_INFO_BYTES = 148
_ACKED, _NOT_SENT = 120, 144  # tcpi_bytes_acked, tcpi_notsent_bytes in Linux's struct tcp_info


_PID = struct.Struct("=i")


def _is_full(connection: socket.socket) -> bool:
    """Whether the other end of a file leaves so much unread that more waits here; what it took the kernel can't tell.

    So one that is never seen to have kept up is taken for one that takes nothing.
    """
    unread = _PID.unpack(ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
    return bool(unread > connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2)


@contextmanager
def _connection(fd: int) -> Iterator[tuple[socket.socket, Place] | None]:
    try:
        connection = socket.socket(fileno=os.dup(fd))
    except OSError:
        yield None
        return
    with connection:
        try:
            place = connection.getpeername()
            if connection.family == socket.AF_UNIX:
                place = "process", _PID.unpack_from(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except OSError:
            yield None
        else:
            yield connection, place


def place_of(fd: int) -> Place | None:
    """Where a connection leads; None if it is gone."""
    with _connection(fd) as found:
        return None if found is None else found[1]


def cut(fd: int, place: Place) -> bool:
    """End a connection; False if it is gone, or another's by now."""
    with _connection(fd) as found:
        if found is None or found[1] != place:
            return False
        found[0].shutdown(socket.SHUT_RDWR)
    return True


def taken(fd: int, place: Place) -> tuple[int, bool] | None:
    """How much the other end has taken, and whether more waits in the kernel; None if that is gone."""
    with _connection(fd) as found:
        if found is None or found[1] != place:
            return None
        if found[0].family == socket.AF_UNIX:
            return 0, _is_full(found[0])
        info = found[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return 0, False  # an older kernel does not tell
        return struct.unpack_from("=Q", info, _ACKED)[0], struct.unpack_from("=I", info, _NOT_SENT)[0] > 0
