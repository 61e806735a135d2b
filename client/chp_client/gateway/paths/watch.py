"""GET /v1/watch: changes as they happen, by server-sent events.

    with Last-Event-ID            --> the changes after it, out of the servers' log
    without, or older than the log --> event: snapshot, then the entries, then changes
    up to date                    --> the events of its channel, which all readers share (fanout.py), in one write
    behind what the channel keeps --> the latest value of each key that it missed, then the events of its channel
    over several mounts           --> the events of each mount's channel; their ids have the number of every mount
    takes nothing for 30 s        --> cut off
    loses its right or its token  --> the stream ends

A slow reader costs one write and the bytes in the buffer of its socket. While a reader takes nothing, no events are
gathered for it. After each second without a change a reader gets a comment with the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from starlette.responses import Response

from chp.errors import BadInput
from chp.numbers import Revision

from ...agent.changes import Changes, changes_of
from ...errors import Lagging, NotRetained
from ..call import Call
from ..gateway import Gateway
from ..problems import Problem
from ..shared import fanout, positions
from ..shared.fanout import FanoutChannel, events, snapshot
from ..shared.mounts import GatewayMount, Touched, position_of
from ..shared.positions import Position
from .stream import Stream

# At most this many changes are queued while a reader catches up. If more come, it begins again to catch up.
QUEUE = 1000


async def watch(call: Call) -> Response:
    """Answer GET /v1/watch: check the request, and open the stream."""
    gateway, prefix = call.gateway, call.fields.get("prefix", "")
    within = call.readable(prefix)
    after = _after(call, [each.mount.prefix for each in within])
    with ExitStack() as counted:
        counted.enter_context(_reading(gateway))
        # A bad prefix raises here, so that the answer has the status of the error and is no stream.
        for each in within:
            each.mount.clone.watch(each.prefix).close()
        stream = EventStream(call, prefix, within, after)
        stream.counted = counted.pop_all()
    return stream


@contextmanager
def _reading(gateway: Gateway) -> Iterator[None]:
    """Count one more reader of changes; raise `Problem` if there are too many."""
    if gateway.readers >= gateway.limits.readers:
        raise Problem(429, "busy", f"{gateway.readers} readers are too many for one gateway; ask another", retry_s=5)
    gateway.readers += 1
    try:
        yield
    finally:
        gateway.readers -= 1


def _after(call: Call, prefixes: Sequence[str]) -> Position | None:
    """Return the number of each mount after which a reader wants the changes; None if it begins with a snapshot."""
    # The header counts first: a browser that comes back sends it beside the `after` of its first request.
    if seen := call.header("last-event-id"):
        # A browser can't send another id if the gateway got other mounts meanwhile. So it begins with a snapshot.
        named = call.gateway.mounts.several
        return _read("Last-Event-ID", seen, prefixes) if named == ("=" in seen) else None
    if not (text := call.fields.get("after")):
        return None
    found = _read("after", text, prefixes)
    if found is None:
        known = ", ".join(map(repr, prefixes))
        raise Problem(400, "bad-number", f"after: {text[:80]!r} is no position of the mounts {known}; leave it out")
    return found


def _read(name: str, text: str, prefixes: Sequence[str]) -> Position | None:
    try:
        return positions.read(text, prefixes)
    except BadInput as error:
        raise Problem(400, "bad-number", f"{name}: {error}") from None


class _Part:
    """The part of a stream that comes from one mount. The reader has everything of that mount up to the number `at`."""

    def __init__(self, within: Touched, at: Revision | None) -> None:
        self.mount, self.prefix = within
        self.at: int | None = at
        self.channel: FanoutChannel
        # The place in the channel, or None while the reader catches up.
        self.place: int | None = None
        # The reader has the events of the channel up to this number when it begins with the channel.
        self.skip = 0
        # True if the reader gets only the latest value of each key that it missed.
        self.behind = False

    def begin(self) -> None:
        """Begin to read the channel, if it still has all events that the reader lacks."""
        self.skip = self.at or 0
        self.place = self.channel.place(self.skip)
        self.behind = self.behind and self.place is None


class EventStream(Stream):
    """The events of a prefix for one reader."""

    def __init__(self, call: Call, prefix: str, within: Sequence[Touched], after: Position | None) -> None:
        super().__init__(call, call.gateway.freshness(*(each.mount for each in within)))
        self._prefix = prefix
        self._parts = [_Part(each, None if after is None else after[each.mount.prefix]) for each in within]
        self._waits: asyncio.Future[None] | None = None

    def check_right(self) -> None:
        """Raise `Problem` unless the caller may read all of the prefix."""
        self.caller.read_all(self._prefix)

    def leave(self) -> None:
        """Note that the reader has left, and end its wait."""
        super().leave()
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def run(self) -> None:
        """Send events until the stream is over."""
        gateway = self.gateway
        for part in self._parts:
            part.channel = gateway.channels.join(part.mount, part.prefix)
        try:
            await self._follow()
        finally:
            for part in self._parts:
                gateway.channels.leave(part.channel)

    async def _follow(self) -> None:
        while not self.over():
            if any(part.at is None for part in self._parts):
                # A snapshot covers all mounts, as a reader forgets everything when a snapshot begins.
                await self._put_snapshot()
                for part in self._parts:
                    part.begin()
                continue
            quiet = True
            for part in self._parts:
                if await self._step(part):
                    quiet = False
                if self.over():
                    return
            if quiet:
                await self._quiet()

    async def _step(self, part: _Part) -> bool:
        """Send the next events of one mount; return False if there are none."""
        if part.place is None:
            if await self._catch_up(part):
                part.begin()
            return True
        sent = await (self._share(part, part.place) if len(self._parts) == 1 else self._put_own(part, part.place))
        if sent is None:
            part.place, part.behind = None, True
            self.gateway.metrics.conflated += 1
            return True
        return sent

    async def _share(self, part: _Part, place: int) -> bool | None:
        """Send the events that all readers of the prefix get; return None if the channel has dropped some."""
        found = part.channel.since(place, part.skip)
        if found is None:
            return None
        if found[0]:
            part.skip = 0
            piece, part.place, part.at = found
            await self.put(piece, part.place - place)
        return bool(found[0])

    async def _put_own(self, part: _Part, place: int) -> bool | None:
        """Send the events of one of several mounts; return None if the channel has dropped some."""
        found = part.channel.each_since(place, part.skip)
        if found is None:
            return None
        own, part.place = found
        if own:
            part.skip = 0
            await self._put_all(own, part)
        return bool(own)

    async def _quiet(self) -> None:
        channels = [part.channel for part in self._parts]
        before = [channel.latest for channel in channels]
        self._waits = asyncio.get_running_loop().create_future()
        for channel in channels:
            channel.tell(self._waits)
        await self._waits
        if [channel.latest for channel in channels] == before and not self.over():
            await self.put(f": {position_of(part.mount for part in self._parts)}\n\n".encode())

    # -- for a reader that its channel can't serve yet

    async def _catch_up(self, part: _Part) -> bool:
        """Send the changes of one mount that the reader lacks; return False if it has to begin again."""
        assert part.at is not None, "a snapshot comes first"
        try:
            async with part.mount.clone.watch(
                part.prefix, Revision(part.at), conflate=part.behind, queue_max=QUEUE
            ) as missed:
                changes = await missed.missed()
                while changes.keys and not self.over():
                    at = Revision(changes.revisions[-1])
                    await self._put_all(events(changes, part.mount), part)
                    part.at = at
                    changes = await missed.missed()
        except (Lagging, NotRetained) as error:
            if isinstance(error, NotRetained) or part.behind:
                part.at = None
            part.behind = True
            return False
        return True

    async def _put_snapshot(self) -> None:
        found: list[tuple[GatewayMount, Changes]] = []
        for part in self._parts:
            clone = part.mount.clone
            before = clone.revision
            async with clone.watch(part.prefix, "snapshot") as source:
                first = source.queue.poll()
            changes = changes_of(first, None) if first is not None else Changes([], [], [], [], [])
            part.at = max([before, *changes.revisions])
            found.append((part.mount, changes))
        await self._put_all((0, piece) for piece in snapshot(found, self._position()))

    def _position(self) -> str:
        """Return the position of the reader."""
        return positions.text_of((part.mount.prefix, part.at or 0) for part in self._parts)

    async def _put_all(self, found: Iterable[tuple[int, bytes]], own: _Part | None = None) -> None:
        """Send events, many of them in one write. With `own` they are the next events of that mount."""
        parts, size = list[bytes](), 0
        for number, shared in found:
            event = shared
            if own is not None:
                own.at = number
                if len(self._parts) > 1:
                    event = fanout.with_id(shared, self._position())
            parts.append(event)
            size += len(event)
            if size > fanout.TOGETHER:
                if self.over():
                    return
                await self.put(b"".join(parts), len(parts))
                parts, size = [], 0
        if parts and not self.over():
            await self.put(b"".join(parts), len(parts))
