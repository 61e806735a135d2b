"""The connections to P+1: subscribers that come and leave, fall behind, and are cut off.

libzmq bounds what waits for a subscriber by a number of messages, whatever their size, and can't cut a single
connection. The kernel can end a connection, and knows how many bytes its other end has taken. So the bytes that wait
for a subscriber are estimated: what was published since the subscriber kept up, less what it has taken since. A
subscriber has kept up if the kernel has no unsent bytes for it. The estimate is too high for a subscriber that hears
only some topics, but that matters only if the subscriber is slow.

A subscriber for which too much waits is cut off. Its messages are dropped at once, and its socket connects again by
itself. Its client finds a hole in the updates, and closes the hole. (A CHP/1 client does not notice the hole, as it
does not either when libzmq drops messages at a high-water mark.)

A subscriber with more topics than any client has is cut off too: libzmq keeps some fifty bytes for each byte of a
topic.

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
# `hear` takes at most this many events of libzmq's monitor.
EVENTS_MAX = 10_000
# `publishing` looks for slow subscribers once this many bytes were published.
LOOK_BYTES = 4 << 20
# If less than IDLE_BYTES was published, the server looks only every IDLE_S, because each subscriber costs system calls.
IDLE_BYTES, IDLE_S = 1 << 20, 10.0
# libzmq needs this many bytes for a frame, in addition to its content.
MESSAGE_BYTES = 80
_EVENT = struct.Struct("=HI")
_NOBLOCK = int(zmq.NOBLOCK)


@dataclass(slots=True)
class Subscriber:
    """A connection to the publishing socket, and what waits for it."""

    # The place of the other end.
    place: connections.Place
    taken: int = 0
    # The bytes that wait for the subscriber, at most.
    behind: int = 0
    # The topics of the subscriber, and how often it subscribed to each.
    topics: Counter[bytes] = field(default_factory=Counter)
    # The bytes of all topics.
    topic_bytes: int = 0

    def subscribed(self, topic: bytes, *, more: bool) -> None:
        """Count a subscription to a topic, or its end; an end without a subscription is ignored."""
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
        # This function is called with the reason of each handshake that fails.
        self._failed = failed
        self._behind_max, self._topics_max = behind_max, topics_max
        self._readers: dict[int, Subscriber] = {}
        # The bytes that were published since the last look.
        self._published = 0
        self._looked_at = 0.0
        # True if something waited for a subscriber at the last look.
        self._waits = False
        self.cut = 0
        # Descriptors of connections that have ended, until another connection has them.
        self.ended: set[int] = set()
        self._untold: list[int] = []

    # -- connections

    def __len__(self) -> int:
        return len(self._readers)

    def hear(self) -> None:
        """Take what libzmq tells of connections. Call this now and then, because libzmq keeps its events until then."""
        try:
            for _ in range(EVENTS_MAX):
                event, fd = _EVENT.unpack(self._monitor.recv_multipart(_NOBLOCK)[0])
                if event == zmq.EVENT_ACCEPTED:
                    self.ended.discard(fd)
                    self._came(fd)
                elif event & FAILED:
                    if self._failed is not None:
                        # In this event the second value is the reason, not a descriptor.
                        self._failed(fd)
                else:
                    self._readers.pop(fd, None)
                    self.ended.add(fd)
                    self._untold.append(fd)
        except zmq.Again:
            pass

    def take_ended(self) -> list[int]:
        """Return the connections that have ended since the last call."""
        ended, self._untold = self._untold, []
        return ended

    def _came(self, fd: int) -> None:
        place = connections.place_of(fd)
        if place is not None:
            self._readers[fd] = Subscriber(place)

    # -- subscribers that take too little

    def publishing(self, size: int, now: float) -> None:
        """Note that `size` bytes are published next. First look for slow subscribers, if much was published before."""
        if self._published >= LOOK_BYTES:
            self.look(now)
        self._published += size

    def look_now_and_then(self, now: float) -> None:
        """Call `look`, unless hardly anything was published and all subscribers had kept up."""
        if self._waits or self._published >= IDLE_BYTES or now - self._looked_at >= IDLE_S:
            self.look(now)

    def look(self, now: float) -> None:
        """Estimate what waits for each subscriber, and cut off those that are too far behind."""
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

    # -- subscribers that ask for too much

    def subscribed(self, fd: int, topic: bytes, *, more: bool) -> None:
        """Note that a connection subscribed to a topic, or ended a subscription; cut it off if it has too many."""
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
            # `hear` has not come to this connection yet, because so many events wait.
            self._came(fd)
        reader = self._readers.get(fd)
        if reader is not None:
            self._cut(fd, reader, why)

    def _cut(self, fd: int, reader: Subscriber, why: str) -> None:
        self._readers.pop(fd, None)
        if not connections.cut(fd, reader.place):
            return
        self.cut += 1
        log.limited("a subscriber is cut off", why=why, place=f"{reader.place[0]}:{reader.place[1]}")
        # Asking for events lets libzmq notice the cut connection now.
        self._socket.get(zmq.EVENTS)

    def close(self) -> None:
        """Close the monitor."""
        self._socket.disable_monitor()
        self._monitor.close(0)
