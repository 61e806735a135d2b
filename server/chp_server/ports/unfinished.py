"""Messages that never end: a connection that sends frame after frame of one message is cut off.

libzmq bounds the size of a frame, and the number of messages that it reads ahead, but not the frames of one message. It
keeps all frames until the last one has come, and shows none before. The kernel knows how many bytes came by a
connection, and this server knows from which connections it took messages. So a connection that sent more bytes than any
message has, and from which no message was taken, sends an endless message.

    came           notes that a message of a connection was taken
    look_if_grown  checks how many bytes each connection sent since its last message, if resident memory has grown. It
                   waits until no message is left, or until so many were taken that each connection had a turn

Only connections of TCP are checked; those of `ipc` come from processes of this host that may open a private directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from .. import logs
from . import connections

log = logs.get_log(__name__)
# A search is due when resident memory has grown by this many bytes.
GROWN_BYTES = 8 << 20
# Searches take less than one part in SHARE of the time.
SHARE = 20
# A look at the memory is due after this many seconds. What can come in that time does no harm.
LOOK_S = 0.005


@dataclass(slots=True)
class BoundSocket:
    """A socket to which others connect."""

    socket: zmq.Socket[bytes]
    # At most this many bytes come between two messages: those of a message, and what came early of the next one.
    most: int
    ports: set[int] = field(default_factory=set)
    # The number of messages that were taken since the last search.
    taken: int = 0
    # The connections of these messages.
    spoke: set[int | None] = field(default_factory=set)
    # The bytes that had come by each connection when its last message was taken.
    since: dict[int, connections.ConnectionStats] = field(default_factory=dict)

    def came(self, fd: int | None) -> None:
        """Note that a message of a connection was taken."""
        self.taken += 1
        self.spoke.add(fd)

    def everybody_had_a_turn(self, connected: int) -> bool:
        """Return True if each connection that has sent a whole message had a message taken."""
        return self.taken > 2 * connected or not int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN


class UnfinishedMessages:
    """The search for endless messages on all sockets.

    `resident` returns the memory of this process. `looked` is called after a search: a search asks sockets for events,
    so a poller has to look at these sockets again.
    """

    def __init__(self, resident: Callable[[], int], looked: Callable[[], None]) -> None:
        self._resident, self._looked = resident, looked
        self._bound: list[BoundSocket] = []
        self._least = resident()
        # The time of the next look.
        self.due = 0.0
        self.cut = 0
        # The peer's connection: its messages may be larger than all others.
        self.peer: int | None = None

    def watch(self, socket: zmq.Socket[bytes], most: int) -> BoundSocket:
        """Watch a socket too."""
        self._bound.append(BoundSocket(socket, most))
        return self._bound[-1]

    def look_if_grown(self, clock: Callable[[], float]) -> None:
        """Search if memory has grown; call this from `due` on, after the messages that had arrived were taken."""
        resident, now = self._resident(), clock()
        self._least, self.due = min(self._least, resident), now + LOOK_S
        if resident - self._least < GROWN_BYTES:
            return
        self._least = resident
        self._look()
        self._looked()
        self.due = now + max(LOOK_S, SHARE * (clock() - now))

    def _look(self) -> None:
        connected = connections.accepted(set().union(*(bound.ports for bound in self._bound)))
        for bound in self._bound:
            present = {fd: came for port in bound.ports for fd, came in connected[port].items()}
            if bound.everybody_had_a_turn(len(present)):
                bound.since = {fd: self._since(bound, fd, came) for fd, came in present.items()}
                bound.spoke, bound.taken = set(), 0

    def _since(self, bound: BoundSocket, fd: int, came: connections.ConnectionStats) -> connections.ConnectionStats:
        if fd in bound.spoke or fd == self.peer:
            return came
        before = bound.since.get(fd)
        if before is None or before.place != came.place:
            before = connections.ConnectionStats(came.place, 0)
        if came.size - before.size > bound.most and connections.cut(fd, came.place):
            self.cut += 1
            place, mib = f"{came.place[0]}:{came.place[1]}", (came.size - before.size) >> 20
            log.limited("a message without an end", ports=sorted(bound.ports), place=place, mib=mib)
            # Asking for events lets libzmq notice the cut connection now.
            bound.socket.get(zmq.EVENTS)
        return before
