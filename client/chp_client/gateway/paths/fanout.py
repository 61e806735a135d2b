"""What readers of one prefix have in common: one watch, each event encoded once, and when they are woken.

    watch --> events, the latest of them kept --> wake --> each reader takes what it has not had, in one write

A reader is a place in what is kept. One that falls out of it (it is slow, or the loop was) is told None, and has to
catch up by itself; nothing is held for it meanwhile. Readers are woken together, the more of them the more seldom: what
is due then goes out in one write each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from chp.errors import ChpError

from ...agent.aioparts import AsyncWatch
from ...clone.aio import AsyncClone
from ...errors import Closed
from .events import events

KEPT = 10_000  # events of one prefix
KEPT_BYTES = 4 << 20  # of those
ALL_KEPT_BYTES = 64 << 20  # of all prefixes, in equal parts
QUEUE = 100_000  # changes that the loop may be behind
TOGETHER = 1 << 20  # bytes of one write, or one event
WRITE_S = 0.0002  # between two times for each reader: so writes leave most of a core to others
QUIET_S = 1.0


class FanoutChannel:
    """One prefix."""

    def __init__(self, channels: FanoutChannels, prefix: str) -> None:
        self.prefix, self.readers = prefix, 0
        self._channels, self._clone = channels, channels.clone
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[int, bytes]] = deque()
        self._first = self._bytes = 0  # the place of the first of them; bytes of all
        self._floor = 0  # the number up to which nothing is kept
        self.latest = 0  # how many there were
        self._made: tuple[int, int, bytes, int] = (-1, -1, b"", 0)  # what was joined last
        self._waiting: list[asyncio.Future[None]] = []
        self._due, self._alarm = 0.0, None  # type: float, asyncio.TimerHandle | None
        self._watch = self._begin()
        self._task = asyncio.create_task(self._follow())
        self._quiet = self._loop.call_later(QUIET_S, self._tick)

    def _begin(self) -> AsyncWatch:
        watch = self._clone.watch(self.prefix, queue_max=QUEUE)
        self._floor = self._clone.revision  # looked at when it is there: what came before is not in it for sure
        return watch

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._watch.batches():
                    for number, event in events(changes):
                        self._add(number, event)
                    self._ring()
                return
            except Closed:
                return
            except ChpError:  # Lagging: there is a gap, so every reader is behind
                self._watch.close()
                self._first += len(self._events) + 1
                self._events.clear()
                self._bytes = 0
                self._watch = self._begin()
                self._ring()

    def _add(self, number: int, event: bytes) -> None:
        self._events.append((number, event))
        self.latest += 1
        self._bytes += len(event)
        most = self._channels.share()
        while len(self._events) > KEPT or (self._bytes > most and len(self._events) > 1):
            self._floor, gone = self._events.popleft()
            self._bytes -= len(gone)
            self._first += 1

    # -- for readers

    def place(self, after: int) -> int | None:
        """Where a reader goes on who has all up to a number; None if that is not kept."""
        if after < self._floor:
            return None
        place = self._first + len(self._events)
        for number, _ in reversed(self._events):
            if number <= after:
                break
            place -= 1
        return place

    def since(self, place: int, after: int) -> tuple[bytes, int, int] | None:
        """What comes at a place, as much as goes into one write, the place behind it, and its last number.

        None if that is not kept any more. Of what has a number up to `after` the reader knows.
        """
        at = place - self._first
        if at < 0:
            return None
        while at < len(self._events) and self._events[at][0] <= after:
            at, place = at + 1, place + 1
        if self._made[0] != place or self._made[1] == place:
            self._made = self._join(place, at, after)
        return self._made[2], self._made[1], self._made[3]

    def _join(self, place: int, at: int, number: int) -> tuple[int, int, bytes, int]:
        parts, size = list[bytes](), 0
        for found, event in islice(self._events, at, None):
            if parts and size + len(event) > TOGETHER:
                break
            parts.append(event)
            size += len(event)
            number = found
        return place, place + len(parts), b"".join(parts), number

    def news(self) -> asyncio.Future[None]:
        """Done when there is something, or nothing was for a second."""
        waits = self._loop.create_future()
        self._waiting.append(waits)
        return waits

    def wake(self) -> None:
        """All who wait."""
        self._alarm = None
        self._due = self._loop.time() + self._channels.readers * WRITE_S
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _ring(self) -> None:
        if self._alarm is None:
            self._alarm = self._loop.call_at(max(self._loop.time(), self._due), self.wake)
            self._quiet.cancel()
            self._quiet = self._loop.call_later(QUIET_S, self._tick)

    def _tick(self) -> None:
        self._quiet = self._loop.call_later(QUIET_S, self._tick)
        self.wake()

    def close(self) -> None:
        """The last reader has gone."""
        self._watch.close()
        self._task.cancel()
        self._quiet.cancel()
        if self._alarm is not None:
            self._alarm.cancel()


class FanoutChannels:
    """All prefixes that somebody reads."""

    def __init__(self, clone: AsyncClone) -> None:
        self.clone = clone
        self._open: dict[str, FanoutChannel] = {}

    @property
    def readers(self) -> int:
        """Of all of them."""
        return sum(each.readers for each in self._open.values())

    def share(self) -> int:
        """How many bytes each may keep."""
        return min(KEPT_BYTES, ALL_KEPT_BYTES // max(1, len(self._open)))

    def join(self, prefix: str) -> FanoutChannel:
        """One more reader."""
        if prefix not in self._open:
            self._open[prefix] = FanoutChannel(self, prefix)
        channel = self._open[prefix]
        channel.readers += 1
        return channel

    def leave(self, channel: FanoutChannel) -> None:
        """One less."""
        channel.readers -= 1
        if not channel.readers:
            del self._open[channel.prefix]
            channel.close()
