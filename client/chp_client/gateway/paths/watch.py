"""GET /v1/watch: changes as they happen, by server-sent events.

    with Last-Event-ID            --> the changes after it, out of the servers' log
    without, or older than the log --> event: snapshot, then the entries, then changes
    up to date                    --> the events of its channel, which all readers share (fanout.py), in one write
    behind what the channel keeps --> the latest value of each key that it missed, then the events of its channel
    takes nothing for 30 s        --> cut off
    loses its right or its token  --> the stream ends

A slow reader costs one write and the bytes in the buffer of its socket. While it takes nothing, nothing is gathered
for it. Each second without a change brings a comment with the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.responses import Response

from chp.errors import BadInput
from chp.numbers import Revision

from ...agent.changes import Changes, changes_of
from ...errors import Lagging, NotRetained
from ..call import Call
from ..problems import Problem
from ..shared import fanout
from ..shared.fanout import FanoutChannel, events, snapshot
from .stream import Stream

# Changes that come while a reader catches up. A reader that has more to take begins again.
QUEUE = 1000


async def watch(call: Call) -> Response:
    """Answer GET /v1/watch: check the request, and open the stream."""
    gateway, prefix = call.gateway, call.fields.get("prefix", "")
    after = _after(call)
    call.check_readable()
    if gateway.readers >= gateway.limits.readers:
        raise Problem(429, "busy", f"{gateway.readers} readers are too many for one gateway; ask another", retry_s=5)
    # A bad prefix raises here, so that the answer has its status.
    gateway.clone.watch(prefix).close()
    return EventStream(call, prefix, after)


def _after(call: Call) -> Revision | None:
    # The header counts first: a browser that comes back sends it beside the `after` of its first request.
    for name, text in (("Last-Event-ID", call.header("last-event-id")), ("after", call.fields.get("after"))):
        if text:
            try:
                return Revision(text)
            except BadInput as error:
                raise Problem(400, "bad-number", f"{name}: {error}") from None
    return None


class EventStream(Stream):
    """The events of a prefix for one reader. `_at` is the number up to which the reader has everything."""

    def __init__(self, call: Call, prefix: str, after: Revision | None) -> None:
        super().__init__(call, call.gateway.freshness())
        self._prefix = prefix
        self._at: int | None = after
        self._channel: FanoutChannel
        # The reader has the events of its channel up to this number when it begins with the channel.
        self._skip = 0
        # True if the reader gets only the latest value of each key that it missed.
        self._behind = False
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
        """Put events until the stream is over."""
        gateway = self.gateway
        self._channel = gateway.channels.join(self._prefix)
        gateway.readers += 1
        try:
            await self._follow()
        finally:
            gateway.readers -= 1
            gateway.channels.leave(self._channel)

    async def _follow(self) -> None:
        place: int | None = None
        while not self.over():
            if place is None:
                place = await self._catch_up()
                self._skip, self._behind = self._at or 0, self._behind and place is None
            elif (found := self._channel.since(place, self._skip)) is None:
                place, self._behind = None, True
                self.gateway.metrics.conflated += 1
            elif found[0]:
                first, self._skip = place, 0
                piece, place, self._at = found
                await self.put(piece, place - first)
            else:
                await self._quiet()

    async def _quiet(self) -> None:
        before = self._channel.latest
        self._waits = self._channel.news()
        await self._waits
        if self._channel.latest == before and not self.over():
            await self.put(f": {self.gateway.clone.revision}\n\n".encode())

    # -- until its channel has what comes next

    async def _catch_up(self) -> int | None:
        """Send the changes that the reader lacks; return its place in the channel, or None to look again."""
        if self._at is None:
            await self._put_snapshot()
            return self._channel.place(self._at or 0)
        try:
            async with self.gateway.clone.watch(
                self._prefix, self._at, conflate=self._behind, queue_max=QUEUE
            ) as missed:
                changes = await missed.missed()
                while changes.keys and not self.over():
                    await self._put_all(events(changes))
                    self._at = Revision(changes.revisions[-1])
                    changes = await missed.missed()
        except (Lagging, NotRetained) as error:
            if isinstance(error, NotRetained) or self._behind:
                self._at = None
            self._behind = True
            return None
        return self._channel.place(self._at)

    async def _put_snapshot(self) -> None:
        clone = self.gateway.clone
        before = clone.revision
        async with clone.watch(self._prefix, "snapshot") as source:
            first = source.queue.poll()
        changes = changes_of(first, None) if first is not None else Changes([], [], [], [], [])
        number = max([before, *changes.revisions])
        await self._put_all((number, piece) for piece in snapshot(changes, str(number)))
        self._at = number

    async def _put_all(self, found: Iterable[tuple[int, bytes]]) -> None:
        """Put events, as many in one write as go together."""
        parts, size = list[bytes](), 0
        for _, event in found:
            parts.append(event)
            size += len(event)
            if size > fanout.TOGETHER:
                if self.over():
                    return
                await self.put(b"".join(parts), len(parts))
                parts, size = [], 0
        if parts and not self.over():
            await self.put(b"".join(parts), len(parts))
