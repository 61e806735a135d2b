"""The connections to P+1: who comes and leaves, who falls behind, and who is cut off.

libzmq bounds what waits for a subscriber by a number of messages, whatever their size, and has no way to cut one
connection. The kernel has both: how much of what was written to a connection has been taken, and an end to it. So what
waits for a reader is estimated as what was published since it kept up, less what it has taken since; a reader that has
kept up has nothing in the kernel that was not sent. It is too much for one that hears only a part of all, and then it
is a slow one. One for which too much waits is cut off: what waits is let go at once, its socket connects again by
itself, and it finds a hole, which heals. (A reader of CHP/1 finds none, as when messages are dropped at a mark.)

The same for one that subscribes to more than any client: libzmq keeps some fifty bytes for each byte of a topic.

The monitor of libzmq tells of connections by their descriptors (connections.py).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from .. import logs
from ..access.zap import FAILED
from . import connections

log = logs.get_log(__name__)
EVENTS_MAX = 10_000  # of one look
LOOK_BYTES = 4 << 20  # published between two looks
IDLE_BYTES, IDLE_S = 1 << 20, 10.0  # so little is looked after no more often, as each reader costs some system calls
MESSAGE_BYTES = 80  # what a frame takes in libzmq, beside its content
_EVENT = struct.Struct("=HI")
_NOBLOCK = int(zmq.NOBLOCK)


@dataclass(slots=True)
class Subscriber:
    """A connection."""

    place: connections.Place  # its other end
    taken: int = 0
    behind: int = 0  # bytes that wait for it, at most
    topics: Counter[bytes] = field(default_factory=Counter)  # what it has subscribed to, and how often
    topic_bytes: int = 0  # of all these

    def subscribed(self, topic: bytes, *, more: bool) -> None:
        """It subscribed to a topic, or takes that back; what it never subscribed to it can't take back."""
        if more:
            self.topics[topic] += 1
            self.topic_bytes += len(topic)
        elif topic in self.topics:
            self.topics[topic] -= 1
            self.topic_bytes -= len(topic)
            if not self.topics[topic]:
                del self.topics[topic]


class Subscribers:
    """All connections to the publishing socket."""

    def __init__(
        self,
        socket_: zmq.Socket[bytes],
        behind_max: int,
        topics_max: int,
        failed: Callable[[int], None] | None = None,
    ) -> None:
        self._socket = socket_
        self._monitor = socket_.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | (0 if failed is None else FAILED)
        )
        self._failed = failed  # to be told of handshakes that fail
        self._behind_max, self._topics_max = behind_max, topics_max
        self._readers: dict[int, Subscriber] = {}
        self._published = 0  # since the last look
        self._looked_at = 0.0
        self._waits = False  # something waited for somebody then
        self.cut = 0
        self.ended: set[int] = set()  # descriptors of connections that have ended, until another has them
        self._untold: list[int] = []

    # -- who is there

    def __len__(self) -> int:
        return len(self._readers)

    def hear(self) -> None:
        """Take what libzmq tells of connections; call this now and then, as libzmq keeps its messages until then."""
        try:
            for _ in range(EVENTS_MAX):
                event, fd = _EVENT.unpack(self._monitor.recv_multipart(_NOBLOCK)[0])
                if event == zmq.EVENT_ACCEPTED:
                    self.ended.discard(fd)
                    self._came(fd)
                elif event & FAILED:
                    if self._failed is not None:
                        self._failed(fd)  # the value is the reason here
                else:
                    self._readers.pop(fd, None)
                    self.ended.add(fd)
                    self._untold.append(fd)
        except zmq.Again:
            pass

    def take_ended(self) -> list[int]:
        """The connections that have ended since the last call."""
        ended, self._untold = self._untold, []
        return ended

    def _came(self, fd: int) -> None:
        place = connections.place_of(fd)
        if place is not None:
            self._readers[fd] = Subscriber(place)

    # -- who takes too little

    def publishing(self, size: int, now: float) -> None:
        """So many bytes are published next: who has not taken what came before is looked for first, not right after."""
        if self._published >= LOOK_BYTES:
            self.look(now)
        self._published += size

    def look_now_and_then(self, now: float) -> None:
        """As `look`, unless hardly anything was published and everybody had kept up."""
        if self._waits or self._published >= IDLE_BYTES or now - self._looked_at >= IDLE_S:
            self.look(now)

    def look(self, now: float) -> None:
        """See who has taken what, and cut off who is too far behind."""
        self.hear()
        self._looked_at, self._waits = now, False
        published, self._published = self._published, 0
        for fd, reader in list(self._readers.items()):
            told = connections.taken(fd, reader.place)
            if told is None:
                del self._readers[fd]
                continue
            taken, waiting = told
            reader.behind = reader.behind + published - (taken - reader.taken) if waiting else 0
            reader.taken = taken
            self._waits |= reader.behind > 0
            if reader.behind > self._behind_max:
                self._cut(fd, reader, f"about {reader.behind >> 20} MiB wait for it")

    # -- who asks for too much

    def subscribed(self, fd: int, topic: bytes, *, more: bool) -> None:
        """A connection subscribed to a topic, or has taken that back."""
        reader = self._readers.get(fd)
        if reader is None:
            return
        reader.subscribed(topic, more=more)
        if reader.topic_bytes > self._topics_max:
            why = f"it has subscribed to topics of {reader.topic_bytes} bytes; {self._topics_max} are enough"
            self._cut(fd, reader, why)

    def cut_off(self, fd: int, why: str) -> None:
        """End a connection, if it has not ended."""
        if fd not in self._readers and fd not in self.ended:
            self._came(fd)  # of which libzmq has not told yet, among so many
        reader = self._readers.get(fd)
        if reader is not None:
            self._cut(fd, reader, why)

    def _cut(self, fd: int, reader: Subscriber, why: str) -> None:
        self._readers.pop(fd, None)
        if not connections.cut(fd, reader.place):
            return
        self.cut += 1
        log.limited("a subscriber is cut off", why=why, place=f"{reader.place[0]}:{reader.place[1]}")
        self._socket.get(zmq.EVENTS)  # lets libzmq see to it now

    def close(self) -> None:
        """No more events are asked for."""
        self._socket.disable_monitor()
        self._monitor.close(0)
