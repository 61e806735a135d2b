"""Functions for libzmq's connections, by file descriptor: find the other end, see what it has taken, or cut it off.

libzmq can't cut a single connection, but the kernel can. A descriptor may have been closed, and belong to another
connection by now. So each function that gets a place first checks that the descriptor still leads there.
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
# A place names the other end of a connection: host and port, or "process" and its id for a Unix socket.
Place = tuple[Any, ...]
_INFO_BYTES = 148
# The offsets of tcpi_bytes_acked, tcpi_bytes_received and tcpi_notsent_bytes in Linux's struct tcp_info.
_ACKED, _RECEIVED, _NOT_SENT = 120, 128, 144


_PID = struct.Struct("=i")


class ConnectionStats(NamedTuple):
    """The number of bytes that came by a connection, and its other end."""

    place: Place
    size: int


def _is_full(connection: socket.socket) -> bool:
    """Return True if the reader of a Unix socket leaves more than half of the send buffer unread.

    The kernel does not count what such a reader has taken. So a reader that is found full at every look counts as one
    that takes nothing.
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
    """Return the place to which a connection leads; None if it is gone."""
    with _connection(fd) as found:
        return None if found is None else found[1]


def described(place: Place) -> str:
    """Return a place for people: host and port, or the process."""
    host, port = place[:2]
    return f"{host} {port}" if host == "process" else f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def cut(fd: int, place: Place) -> bool:
    """Cut a connection; return False if it is gone, or if another connection has its descriptor by now."""
    with _connection(fd) as found:
        if found is None or found[1] != place:
            return False
        found[0].shutdown(socket.SHUT_RDWR)
    return True


def taken(fd: int, place: Place) -> tuple[int, bool] | None:
    """Return the bytes that the other end has taken, and whether more bytes wait in the kernel.

    Return None if the connection is gone.
    """
    with _connection(fd) as found:
        if found is None or found[1] != place:
            return None
        if found[0].family == socket.AF_UNIX:
            return 0, _is_full(found[0])
        info = found[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            # An older kernel does not have these counters.
            return 0, False
        return struct.unpack_from("=Q", info, _ACKED)[0], struct.unpack_from("=I", info, _NOT_SENT)[0] > 0


def accepted(ports: set[int]) -> dict[int, dict[int, ConnectionStats]]:
    """Return the TCP connections from others to these ports of this process, by port and descriptor.

    The result has no connections while this process has no free descriptor to list them with.
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
        # This descriptor listed /proc/self/fd itself, and is closed by now.
        return False


def open_files() -> int:
    """Return how many files and sockets this process has open; 0 if that is not known."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


class Users:
    """The user of each connection, as its messages tell; users share the files that this process may open.

    A connection that has sent nothing has no user yet.
    """

    def __init__(self, most: int, files: Callable[[], int]) -> None:
        # This function returns how many files are open.
        self.files = files
        # At most this many files and sockets may be open; the rest is for journals and the next connections.
        self.most = most
        self.cut = 0
        # For each connection: the number of its last message, counted over all connections, and its user.
        self._heard: dict[int, tuple[int, str]] = {}
        self._messages = 0

    def came(self, fd: int | None, user: str) -> None:
        """Note that a user's message came by a connection."""
        if fd is not None:
            self._messages += 1
            self._heard[fd] = self._messages, user

    def look(self, ports: set[int]) -> None:
        """If too many files are open, cut connections to these ports; the user who has most of them loses them."""
        if (there := self.files()) <= self.most:
            return
        present = {fd: one.place for of_port in accepted(ports).values() for fd, one in of_port.items()}
        self._heard = {fd: heard for fd, heard in self._heard.items() if fd in present}
        table: FairTable[int, Place] = FairTable(self.most)
        for fd in sorted(present, key=lambda fd: self._heard.get(fd, NOTHING)):
            table.put(fd, present[fd], self._heard.get(fd, NOTHING)[1])
        for _ in range(there - self.most):
            if (user := table.crowding()) is None:
                return
            fd = table.loser()
            if cut(fd, table.pop(fd)):
                self.cut += 1
                log.limited("a connection is cut off", why=f"too many are open, and user {user!r} has most of them")
