"""Messages that never end: a connection that sends frame after frame of one message is cut off.

libzmq bounds a frame, and the number of messages that it reads ahead, but not the frames of one message: it keeps them
all until the last has come, and shows nothing of them. The kernel knows how much came by a connection, and we know
whose messages were taken. So who sent more than any message has, while none of its messages came, is at that.

    came           a message was taken, by such a connection
    look_if_grown  when resident memory has grown: who sent how much since it was last heard; only where nothing waits
                   to be taken, or so much was taken that everybody had a turn, as libzmq takes of each in turn

Looked at are connections of TCP; those of `ipc` are of processes of this host that may open a private directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from .. import logs
from . import connections

log = logs.get_log(__name__)
GROWN_BYTES = 8 << 20  # of resident memory, between two looks
SHARE = 20  # a look takes less than such a part of the time


@dataclass(slots=True)
class BoundSocket:
    """A socket that others connect to."""

    socket: zmq.Socket[bytes]
    most: int  # bytes of a message, and what may have come of the next
    ports: set[int] = field(default_factory=set)
    taken: int = 0  # messages since the last look ...
    spoke: set[int | None] = field(default_factory=set)  # ... and whose
    since: dict[int, connections.ConnectionStats] = field(
        default_factory=dict
    )  # what had come of whom, when it was last heard

    def came(self, fd: int | None) -> None:
        """A message was taken."""
        self.taken += 1
        self.spoke.add(fd)

    def everybody_had_a_turn(self, connected: int) -> bool:
        """Whether who sent a message that is whole has spoken."""
        return self.taken > 2 * connected or not int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN


class UnfinishedMessages:
    """All of them; `resident` tells how much memory this process has, and `looked` is told that events were taken."""

    def __init__(self, resident: Callable[[], int], looked: Callable[[], None]) -> None:
        self._resident, self._looked = resident, looked
        self._gates: list[BoundSocket] = []
        self._least = resident()
        self._due = 0.0
        self.cut = 0
        self.peer: int | None = None  # the peer's connection: its messages may be larger than all others

    def gate(self, socket: zmq.Socket[bytes], most: int) -> BoundSocket:
        """Look after a socket, too."""
        self._gates.append(BoundSocket(socket, most))
        return self._gates[-1]

    def look_if_grown(self, clock: Callable[[], float]) -> None:
        """To be called now and then, after what had arrived was taken."""
        resident, now = self._resident(), clock()
        self._least = min(self._least, resident)
        if resident - self._least < GROWN_BYTES or now < self._due:
            return
        self._least = resident
        self._look()
        self._looked()
        self._due = now + SHARE * (clock() - now)

    def _look(self) -> None:
        connected = connections.accepted(set().union(*(gate.ports for gate in self._gates)))
        for gate in self._gates:
            ctx = {fd: came for port in gate.ports for fd, came in connected[port].items()}
            if gate.everybody_had_a_turn(len(ctx)):
                gate.since = {fd: self._since(gate, fd, came) for fd, came in ctx.items()}
                gate.spoke, gate.taken = set(), 0

    def _since(self, gate: BoundSocket, fd: int, came: connections.ConnectionStats) -> connections.ConnectionStats:
        if fd in gate.spoke or fd == self.peer:
            return came
        before = gate.since.get(fd)
        if before is None or before.place != came.place:
            before = connections.ConnectionStats(came.place, 0)
        if came.size - before.size > gate.most and connections.cut(fd, came.place):
            self.cut += 1
            place, mib = f"{came.place[0]}:{came.place[1]}", (came.size - before.size) >> 20
            log.limited("a message without an end", ports=sorted(gate.ports), place=place, mib=mib)
            gate.socket.get(zmq.EVENTS)  # lets libzmq see to it now
        return before
