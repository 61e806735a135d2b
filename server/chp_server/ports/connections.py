"""A connection of libzmq's, by its descriptor: where it leads, what its other end has taken, and an end to it.

libzmq has no way to cut one connection; the kernel has. A descriptor that has just been closed may be another
connection's by now, so it is looked at first whether it still leads to where it did.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any, NamedTuple

from chp.fair import FairTable

from .. import logs

log = logs.get_log(__name__)
NOTHING = (0, "")
Place = tuple[Any, ...]  # of the other end: host and port, or the process at the other end of a file
_INFO_BYTES = 148
_ACKED, _RECEIVED, _NOT_SENT = 120, 128, 144  # tcpi_bytes_acked, _received, tcpi_notsent_bytes in Linux's struct


_PID = struct.Struct("=i")


class ConnectionStats(NamedTuple):
    """How much has come by a connection, and whose it is."""

    place: Place
    size: int


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


def described(place: Place) -> str:
    """A place for people: host and port, or the process."""
    host, port = place[:2]
    return f"{host} {port}" if host == "process" else f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


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


def accepted(ports: set[int]) -> dict[int, dict[int, ConnectionStats]]:
    """The connections of TCP that others have with these ports of this process, by port and descriptor.

    None are found while there is no descriptor left to look with.
    """
    found: dict[int, dict[int, ConnectionStats]] = {port: {} for port in ports}
    try:
        ours = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return found
    for fd in filter(_is_socket, ours):
        with _connection(fd) as one:
            if one is None or one[0].family == socket.AF_UNIX:
                continue
            port = one[0].getsockname()[1]
            info = one[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES) if port in ports else b""
            if len(info) == _INFO_BYTES:
                found[port][fd] = ConnectionStats(one[1], struct.unpack_from("=Q", info, _RECEIVED)[0])
    return found


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False  # it was the list's own


def open_files() -> int:
    """Return how many files and sockets this process has open; 0 if it can't be told."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


class Users:
    """Whose connections there are, as far as their messages told; they share what this process may open.

    A connection whose user is not known, as it has said nothing, is nobody's.
    """

    def __init__(self, most: int, files: Callable[[], int]) -> None:
        self.files = files  # how many are open
        self.most = most  # files and sockets, of all kinds; what is above it is for journals and the next connections
        self.cut = 0
        self._heard: dict[int, tuple[int, str]] = {}  # the number of each one's last message, and its user
        self._messages = 0

    def came(self, fd: int | None, user: str) -> None:
        """Note that a user's message came by a connection."""
        if fd is not None:
            self._messages += 1
            self._heard[fd] = self._messages, user

    def look(self, ports: set[int]) -> None:
        """If too much is open, cut connections with these ports of the user who has most of them."""
        if (there := self.files()) <= self.most:
            return
        ctx = {fd: one.place for of_port in accepted(ports).values() for fd, one in of_port.items()}
        self._heard = {fd: heard for fd, heard in self._heard.items() if fd in ctx}
        table: FairTable[int, Place] = FairTable(self.most)
        for fd in sorted(ctx, key=lambda fd: self._heard.get(fd, NOTHING)):
            table.put(fd, ctx[fd], self._heard.get(fd, NOTHING)[1])
        for _ in range(there - self.most):
            if (user := table.crowding()) is None:
                return
            fd = table.loser()
            if cut(fd, table.pop(fd)):
                self.cut += 1
                log.limited("a connection is cut off", why=f"too many are open, and user {user!r} has most of them")
