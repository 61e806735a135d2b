"""Fan-out of changes: the events of server-sent events, and the part that all readers of one prefix share.

    watch --> events, the latest of them kept --> wake --> each reader takes what it lacks, in one write

Each record becomes one event, so no reader sees a part of a record. A reader that comes back with Last-Event-ID misses
nothing and gets nothing twice. A delete by an expiry also has `"expired": true`.

    id: 1.136
    event: change
    data: {"number": "1.136", "changes": [{"key": "/a", "value": "1"}, {"key": "/b", "deleted": true}]}

A reader has a place among the kept events. If the event at its place is dropped, it gets None and has to catch up by
itself. All readers are woken together; with more readers they are woken less often.

A channel belongs to one mount. A gateway of several pairs puts the mount into each event, and the id is a position
(positions.py). A reader of several mounts reads a channel of each mount, and its events have ids of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter

from chp.errors import ChpError
from chp.numbers import Revision

from ...agent.aioparts import AsyncWatch
from ...agent.changes import Changes
from ...errors import Closed
from ..answers import shown
from . import positions
from .mounts import GatewayMount

# An event of a snapshot has at most this many rows.
SNAPSHOT_ROWS = 500
# A channel keeps at most KEPT events and KEPT_BYTES bytes, and all channels together ALL_KEPT_BYTES bytes.
KEPT = 10_000
KEPT_BYTES = 4 << 20
ALL_KEPT_BYTES = 64 << 20
# A channel may be at most this many changes behind. If it falls further behind, its readers have to catch up.
QUEUE = 100_000
# Events are joined into one write up to about this many bytes.
TOGETHER = 1 << 20
# Between two wake-ups the channel waits at least this many seconds for each reader, which leaves most of a core free.
WRITE_S = 0.0002
QUIET_S = 1.0


def events(changes: Changes, mount: GatewayMount) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the event of each record, without the keys of mounts inside this one."""
    nested, expired = mount.nested, list(map(set(changes.expiries).__contains__, range(len(changes))))
    rows = zip(changes.revisions, changes.keys, changes.values, expired, strict=True)
    for revision, record in groupby(rows, key=itemgetter(0)):
        shown_rows = [_row(*row) for _, *row in record if not (nested and row[0].startswith(nested))]
        if shown_rows:
            yield int(revision), _event(str(revision), mount.prefix, shown_rows)


def snapshot(found: Sequence[tuple[GatewayMount, Changes]], position: str) -> Iterator[bytes]:
    """Yield the events of a snapshot. Only the last event has an id, so a reader that got a part begins again."""
    rows = {mount.prefix: list(_entries(mount, changes)) for mount, changes in found}
    yield _said("snapshot", {"keys": sum(map(len, rows.values()))})
    for prefix, entries in rows.items():
        for i in range(0, len(entries), SNAPSHOT_ROWS):
            yield _said("entries", _of(prefix) | {"changes": entries[i : i + SNAPSHOT_ROWS]})
    yield f"id: {position}\n".encode() + _said("current", {"number": position})


def _entries(mount: GatewayMount, changes: Changes) -> Iterator[dict[str, object]]:
    for key, value, revision in zip(changes.keys, changes.values, changes.revisions, strict=True):
        if not key.startswith(mount.nested):
            yield {**_row(key, value), "revision": str(revision)}


def _of(prefix: str) -> dict[str, object]:
    """Return the JSON member that names the mount of an event; no member if the gateway has one pair."""
    return {"mount": prefix} if prefix else {}


def _event(number: str, prefix: str, rows: list[dict[str, object]]) -> bytes:
    position = positions.named(prefix, Revision(number)) if prefix else number
    return f"id: {position}\n".encode() + _said("change", {"number": number, **_of(prefix), "changes": rows})


def with_id(event: bytes, position: str) -> bytes:
    """Return an event with this position as its id, for a reader of several mounts."""
    return f"id: {position}".encode() + event[event.index(b"\n") :]


def _said(event: str, data: dict[str, object]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _row(key: str, value: bytes | None, expired: bool = False) -> dict[str, object]:
    if value is not None:
        return {"key": key, **shown(value)}
    return {"key": key, "deleted": True, "expired": True} if expired else {"key": key, "deleted": True}


class FanoutChannel:
    """The events of one prefix within one mount."""

    def __init__(self, channels: FanoutChannels, mount: GatewayMount, prefix: str) -> None:
        self.mount, self.prefix, self.readers = mount, prefix, 0
        self._channels, self._clone = channels, mount.clone
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[int, bytes]] = deque()
        # The place of the first kept event, and the bytes of all kept events.
        self._first = self._bytes = 0
        # Events up to this number are not kept.
        self._floor = 0
        # The count of all events so far.
        self.latest = 0
        # The last result of `_join`: the first place, the place behind the last event, the bytes, and the last number.
        self._made: tuple[int, int, bytes, int] = (-1, -1, b"", 0)
        self._waiting: list[asyncio.Future[None]] = []
        self._due, self._alarm = 0.0, None  # type: float, asyncio.TimerHandle | None
        self._watch = self._begin()
        self._task = asyncio.create_task(self._follow())
        self._quiet = self._loop.call_later(QUIET_S, self._tick)

    def _begin(self) -> AsyncWatch:
        watch = self._clone.watch(self.prefix, queue_max=QUEUE)
        # The revision is read after the watch began, as the watch may lack changes from before its begin.
        self._floor = self._clone.revision
        return watch

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._watch.batches():
                    for number, event in events(changes, self.mount):
                        self._add(number, event)
                    self._ring()
                return
            except Closed:
                return
            except ChpError:
                # The watch lagged and has a gap, so every reader is behind.
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
        """Return the place of a reader that has everything up to `after`; None if its next events are not all kept."""
        if after < self._floor:
            return None
        place = self._first + len(self._events)
        for number, _ in reversed(self._events):
            if number <= after:
                break
            place -= 1
        return place

    def since(self, place: int, after: int) -> tuple[bytes, int, int] | None:
        """Return the events from a place on for one write, the place behind them, and their last number.

        The reader has the events up to the number `after`. Return None if the place is not kept any more.
        """
        if (at := self._at(place, after)) < 0:
            return None
        place = self._first + at
        if self._made[0] != place or self._made[1] == place:
            self._made = self._join(place, at, after)
        return self._made[2], self._made[1], self._made[3]

    def each_since(self, place: int, after: int) -> tuple[list[tuple[int, bytes]], int] | None:
        """Return the events from a place on for one write, each with its number, and the place behind them.

        The events are those that `since` would join. A reader of several mounts gives them other ids.
        """
        if (at := self._at(place, after)) < 0:
            return None
        found, size = list[tuple[int, bytes]](), 0
        for each in islice(self._events, at, None):
            if found and size + len(each[1]) > TOGETHER:
                break
            found.append(each)
            size += len(each[1])
        return found, self._first + at + len(found)

    def _at(self, place: int, after: int) -> int:
        """Return the index of the first event from a place on with a number above `after`; below 0 if it is gone."""
        at = place - self._first
        while 0 <= at < len(self._events) and self._events[at][0] <= after:
            at += 1
        return at

    def _join(self, place: int, at: int, number: int) -> tuple[int, int, bytes, int]:
        parts, size = list[bytes](), 0
        for found, event in islice(self._events, at, None):
            if parts and size + len(event) > TOGETHER:
                break
            parts.append(event)
            size += len(event)
            number = found
        return place, place + len(parts), b"".join(parts), number

    def tell(self, waits: asyncio.Future[None]) -> None:
        """Resolve a future at the next event, or after a second without one."""
        self._waiting.append(waits)

    def wake(self) -> None:
        """Wake all waiting readers."""
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
        """End the watch, as the last reader has left."""
        self._watch.close()
        self._task.cancel()
        self._quiet.cancel()
        if self._alarm is not None:
            self._alarm.cancel()


class FanoutChannels:
    """The channels of all prefixes that have readers."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], FanoutChannel] = {}

    @property
    def readers(self) -> int:
        """The readers of all prefixes."""
        return sum(each.readers for each in self._open.values())

    def share(self) -> int:
        """Return the bytes that each channel may keep."""
        return min(KEPT_BYTES, ALL_KEPT_BYTES // max(1, len(self._open)))

    def join(self, mount: GatewayMount, prefix: str) -> FanoutChannel:
        """Add a reader to the channel of a prefix within a mount."""
        name = mount.prefix, prefix
        if name not in self._open:
            self._open[name] = FanoutChannel(self, mount, prefix)
        channel = self._open[name]
        channel.readers += 1
        return channel

    def leave(self, channel: FanoutChannel) -> None:
        """Remove a reader from a channel."""
        channel.readers -= 1
        if not channel.readers:
            del self._open[channel.mount.prefix, channel.prefix]
            channel.close()
