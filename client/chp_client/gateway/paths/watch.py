"""GET /v1/watch: changes as they happen, by server-sent events.

    Last-Event-ID  --> from there on, out of the servers' log: over a restart of the gateway, and a failover
    else, or if the log does not reach back so far  --> event: snapshot, then what there is, then changes
    up to date  --> its channel's events, which are shared (fanout.py), what is due in one write
    fallen out of what the channel keeps  --> of what it missed, of each key the latest; then its channel's events again
    takes nothing for SEND_S  --> cut off
    may not read it any more, or its token is revoked  --> ends

A slow reader costs one write and what lies in the socket's buffer: while it takes nothing, nothing is gathered for it.
Each second in which nothing happened there is a comment with the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chp.errors import BadInput
from chp.numbers import Revision

from ...agent.changes import Changes, changes_of
from ...errors import Lagging, NotRetained
from ..access.caller import Caller, caller_of
from ..gateway import Gateway, gateway_of
from ..problems import Problem
from ..request_fields import query
from . import fanout
from .events import events, snapshot
from .fanout import FanoutChannel
from .keys import freshness, readable

QUEUE = 1000  # changes that come while a reader catches up; one that has more to take begins again
SEND_S = 30.0  # a reader that takes nothing for so long holds a connection for nothing
STREAM = "text/event-stream"
Abort = Callable[[], None]


async def watch(request: Request) -> Response:
    """Open the stream; what is wrong is told before it begins."""
    gateway, fields = gateway_of(request), query(request, "prefix", "after")
    prefix, caller = fields.get("prefix", ""), caller_of(request)
    caller.read_all(prefix)
    after = _after(fields, request)
    readable(gateway)
    if gateway.readers >= gateway.limits.readers:
        raise Problem(429, "busy", f"{gateway.readers} readers are too many for one gateway; ask another", retry_s=5)
    gateway.clone.watch(prefix).close()  # what is wrong with the prefix is told with a status
    return EventStream(gateway, caller, prefix, after)


def _after(fields: dict[str, str], request: Request) -> Revision | None:
    # the header first: a browser that comes back sends it beside the `after` with which it once began
    for name, text in (("Last-Event-ID", request.headers.get("last-event-id")), ("after", fields.get("after"))):
        if text:
            try:
                return Revision(text)
            except BadInput as error:
                raise Problem(400, "bad-number", f"{name}: {error}") from None
    return None


class EventStream(Response):
    """The answer: it ends when the reader leaves, or the gateway does."""

    def __init__(self, gateway: Gateway, caller: Caller, prefix: str, after: Revision | None) -> None:
        headers = {**freshness(gateway), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=STREAM)
        del self.headers["content-length"]
        self._gateway, self._caller, self._prefix, self._after = gateway, caller, prefix, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write to one reader, and nobody else."""
        gateway = self._gateway
        channel = gateway.channels.join(self._prefix)
        gateway.readers += 1
        abort = scope.get("state", {}).get("abort")
        reader = _Reader(gateway, self._caller, channel, self._after, (send, abort))
        leaving = asyncio.ensure_future(_left(receive, reader))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await reader.run()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            gateway.readers -= 1
            gateway.channels.leave(channel)


async def _left(receive: Receive, reader: _Reader) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.leave()


class _Reader:
    """Where one reader is: `_at`, the number up to which it has everything."""

    def __init__(
        self, gateway: Gateway, caller: Caller, channel: FanoutChannel, after: int | None, to: tuple[Send, Abort | None]
    ) -> None:
        self._gateway, self._caller, self._channel, self._at = gateway, caller, channel, after
        self._send_on, self._abort = to
        self._skip = 0  # when it begins with its channel: of what comes there it has what is up to this number
        self._behind = False  # of what it missed it gets the latest of each key
        self._gone = False
        self._waits: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Nobody reads any more."""
        self._gone = True
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def run(self) -> None:
        """Until one of both ends has gone."""
        place: int | None = None
        while not self._over():
            if place is None:
                place = await self._catch_up()
                self._skip, self._behind = self._at or 0, self._behind and place is None
            elif (found := self._channel.since(place, self._skip)) is None:
                place, self._behind = None, True
                self._gateway.metrics.conflated += 1
            elif found[0]:
                first, self._skip = place, 0
                piece, place, self._at = found
                await self._send(piece, place - first)
            else:
                await self._quiet()

    def _over(self) -> bool:
        return self._gone or self._gateway.closing.is_set() or not self._may()

    def _may(self) -> bool:
        """Whether the rules let it go on: they are looked at before anything is sent."""
        try:
            caller = self._gateway.callers.still(self._caller)
            if caller is not self._caller:
                caller.read_all(self._prefix)
                self._caller = caller
        except Problem:
            return False
        return True

    async def _quiet(self) -> None:
        before = self._channel.latest
        self._waits = self._channel.news()
        await self._waits
        if self._channel.latest == before and not self._over():
            await self._send(f": {self._gateway.clone.revision}\n\n".encode(), 0)

    async def _send(self, piece: bytes, events: int) -> None:
        if self._over():
            return
        self._gateway.metrics.events += events
        self._gateway.metrics.event_bytes += len(piece)
        try:
            async with asyncio.timeout(SEND_S):
                await self._send_on({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            self._gone = True
            self._gateway.metrics.cut_off += 1
            if self._abort is not None:
                self._abort()

    # -- until its channel has what comes next

    async def _catch_up(self) -> int | None:
        """Send what it lacks; its place then, or None if it has to be looked at again."""
        if self._at is None:
            await self._snapshot()
            return self._channel.place(self._at or 0)
        try:
            async with self._gateway.clone.watch(
                self._prefix, self._at, conflate=self._behind, queue_max=QUEUE
            ) as missed:
                changes = await missed.missed()
                while changes.keys and not self._over():
                    await self._send_all(changes)
                    changes = await missed.missed()
        except (Lagging, NotRetained) as error:
            if isinstance(error, NotRetained) or self._behind:
                self._at = None
            self._behind = True
            return None
        return self._channel.place(self._at)

    @property
    def _prefix(self) -> str:
        return self._channel.prefix

    async def _snapshot(self) -> None:
        clone = self._gateway.clone
        before = clone.revision
        async with clone.watch(self._prefix, "snapshot") as source:
            first = source.queue.poll()
        changes = changes_of(first, None) if first is not None else Changes([], [], [], [], [])
        number = max([before, *changes.revisions])
        parts, size = list[bytes](), 0
        for piece in snapshot(changes, str(number)):
            parts.append(piece)
            size += len(piece)
            if size > fanout.TOGETHER:
                await self._send(b"".join(parts), len(parts))
                parts, size = [], 0
        await self._send(b"".join(parts), len(parts))
        self._at = number

    async def _send_all(self, changes: Changes) -> None:
        parts, size = list[bytes](), 0
        for number, event in events(changes):
            parts.append(event)
            size += len(event)
            self._at = Revision(number)
            if size > fanout.TOGETHER:
                await self._send(b"".join(parts), len(parts))
                parts, size = [], 0
        await self._send(b"".join(parts), len(parts))
