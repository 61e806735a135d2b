"""GET /v1/watch: changes as they happen, by server-sent events.

    Last-Event-ID  --> from there on, out of the servers' log: over a restart of the gateway, and a failover
    else, or if the log does not reach back so far  --> event: snapshot, then what there is, then changes
    too slow (QUEUE changes behind)  --> from the last event sent on, of each key only the latest

What is due goes out in one write. Each second in which nothing happened there is a comment with the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from chp.errors import BadInput
from chp.numbers import Revision

from ...clone.aioparts import AsyncWatch
from ...clone.changes import Changes, changes_of
from ...errors import Lagging, NotRetained
from ..asked import query
from ..gateway import Gateway, gateway_of
from ..problems import Problem
from .events import Encoder, snapshot
from .keys import readable, worth

QUEUE = 1000  # changes; of 4 KiB each, half of what a slow reader may cost
QUIET_S = 1.0
SENT_TOGETHER = 4 << 20  # bytes of one write
STREAM = "text/event-stream"
_encoder = Encoder()


async def watch(request: Request) -> Response:
    """Open the stream; what is wrong is told before it begins."""
    gateway, fields = gateway_of(request), query(request, "prefix", "after")
    prefix = fields.get("prefix", "")
    after = _after(fields.get("after") or request.headers.get("last-event-id"))
    readable(gateway)
    if gateway.readers >= gateway.limits.readers:
        raise Problem(429, "busy", f"{gateway.readers} readers are too many for one gateway; ask another", retry_s=5)
    gateway.clone.watch(prefix).close()  # what is wrong with the prefix is told with a status
    body = _Reader(gateway, prefix, after).stream()
    headers = {**worth(gateway), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body, headers=headers, media_type=STREAM)


def _after(text: str | None) -> Revision | None:
    if not text:
        return None
    try:
        return Revision(text)
    except BadInput as error:
        raise Problem(400, "bad-number", f"Last-Event-ID: {error}") from None


class _Reader:
    """One stream: where it is, and the watch that it is fed from."""

    def __init__(self, gateway: Gateway, prefix: str, after: Revision | None) -> None:
        self._gateway, self._prefix = gateway, prefix
        self._at = after
        self._slow = False  # it gets the latest of each key

    async def stream(self) -> AsyncIterator[bytes]:
        """Until the reader leaves, or the gateway ends."""
        gateway = self._gateway
        gateway.readers += 1
        try:
            while not gateway.closing.is_set():
                try:
                    async for piece in self._read():
                        yield piece
                except Lagging:
                    self._slow = True
                except NotRetained:
                    self._at = None
        finally:
            gateway.readers -= 1

    async def _read(self) -> AsyncIterator[bytes]:
        """From where it is, or from a snapshot, as long as it keeps up."""
        clone = self._gateway.clone
        if self._at is None:
            before = clone.revision
            source = clone.watch(self._prefix, "snapshot", conflate=self._slow, queue_max=QUEUE)
            first = source.queue.poll()
            changes = changes_of(first, None) if first is not None else Changes([], [], [], [], [])
        else:
            source, changes, before = self._since(self._at), None, self._at
        async with source:
            if changes is not None:
                number = max([before, *changes.revisions])
                for piece in snapshot(changes, str(number)):
                    yield piece
                self._at = number
            async for piece in self._changes(source):
                yield piece

    def _since(self, at: Revision) -> AsyncWatch:
        return self._gateway.clone.watch(self._prefix, at, conflate=self._slow, queue_max=QUEUE)

    async def _changes(self, source: AsyncWatch) -> AsyncIterator[bytes]:
        batches = source.batches()
        coming: asyncio.Task[Changes] | None = None
        try:
            while not self._gateway.closing.is_set():
                coming = coming or asyncio.ensure_future(anext(batches))
                done, _ = await asyncio.wait([coming], timeout=QUIET_S)
                if not done:
                    yield f": {self._gateway.clone.revision}\n\n".encode()
                    continue
                changes, coming = coming.result(), None
                yield _encoder.events(self._prefix, changes, whole=not self._slow)
                self._at = changes.revisions[-1]
        except StopAsyncIteration:
            return
        finally:
            if coming is not None:
                coming.cancel()
