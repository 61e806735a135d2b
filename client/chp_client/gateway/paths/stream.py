"""A stream: the endless answer that one reader of server-sent events gets."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..call import Call
from ..problems import Problem

# A reader that takes nothing for this long is cut off.
SEND_S = 30.0
MEDIA_TYPE = "text/event-stream"


class Stream(Response, ABC):
    """An answer in pieces. It ends when the reader leaves, the gateway ends, or the reader loses its right."""

    def __init__(self, call: Call, headers: dict[str, str]) -> None:
        told = {**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=told, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self.gateway, self.caller = call.gateway, call.caller
        self.gone = False
        # The handler puts here what counts the reader. The end of the stream closes it.
        self.counted = ExitStack()
        self._send: Send
        self._abort: Callable[[], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write to the reader until the stream is over."""
        self._send, self._abort = send, scope.get("state", {}).get("abort")
        leaving = asyncio.ensure_future(self._await_end(receive))
        try:
            with self.counted:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self.run()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()

    @abstractmethod
    async def run(self) -> None:
        """Send pieces with `put` until the stream is over."""

    @abstractmethod
    def check_right(self) -> None:
        """Raise `Problem` if the caller may not read on."""

    def leave(self) -> None:
        """Note that the reader has left."""
        self.gone = True

    def over(self) -> bool:
        """Return True if the reader has left, the gateway ends, or the rules do not let the caller read on."""
        if self.gone or self.gateway.closing.is_set():
            return True
        try:
            before, self.caller = self.caller, self.gateway.callers.still(self.caller)
            if self.caller is not before:
                self.check_right()
        except Problem:
            self.gone = True
        return self.gone

    async def put(self, piece: bytes, events: int = 0) -> None:
        """Send a piece and count its events; cut the reader off if it does not take the piece in time."""
        metrics = self.gateway.metrics
        if events:
            metrics.events += events
            metrics.event_bytes += len(piece)
        try:
            async with asyncio.timeout(SEND_S):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            self.gone = True
            metrics.cut_off += 1
            if self._abort is not None:
                self._abort()

    async def _await_end(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()
