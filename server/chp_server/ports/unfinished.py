"""Messages that never end: a connection that sends frame after frame of one message is cut off.

libzmq bounds a frame, and the number of messages that it reads ahead, but not the frames of one message. It keeps them
all until the last has come, and shows none before. The kernel knows how much came by a connection, and we know which
connections had messages taken. So a connection that sent more than any message has, without a message, sends an endless
one.

    came           notes that a message of a connection was taken
    look_if_grown  checks, when resident memory has grown, how much each connection sent since its last message; only
                   if no message waits, or so many were taken that each connection had a turn

Only connections of TCP are checked; those of `ipc` come from processes of this host that may open a private directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from .. import logs
from . import connections

log = logs.get_log(__name__)
# Resident memory grows by this much between two searches.
GROWN_BYTES = 8 << 20
# A search takes less than one part in this many of the time.
SHARE = 20
# A look at the memory is due after this many seconds. As much as comes in that time is of no account.
LOOK_S = 0.005


@dataclass(slots=True)
class BoundSocket:
    """A socket to which others connect."""

    socket: zmq.Socket[bytes]
    # The bytes of a message, and what may have come of the next one.
    most: int
    ports: set[int] = field(default_factory=set)
    # Messages since the last search ...
    taken: int = 0
    # ... and their connections.
    spoke: set[int | None] = field(default_factory=set)
    # What had come by each connection when its last message was taken.
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

    `resident` returns the memory of this process. `looked` is called after a search, which takes events of sockets.
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
            # This lets libzmq notice it now.
            bound.socket.get(zmq.EVENTS)
        return before
