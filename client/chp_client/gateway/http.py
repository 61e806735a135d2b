"""uvicorn's HTTP/1.1 by httptools, bounded: how many connections, how large and how slow a head may be.

A GET that can be answered at once (paths/quick.py) is, where uvicorn would begin a task, and a PUT whose body came with
its head is begun there; if another version of it does not call `_start_asgi_task`, they go the long way.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .asked import Limits

if TYPE_CHECKING:
    from .access.caller import Caller
    from .paths.quick import Quick

VERSIONS = ("1.1", "1.0")  # what httptools reads as others, or as none, is no request to be done
QUICK_HEAD = 4096  # bytes; a longer head is looked at in full


def _canned(status: str, code: str, detail: str, more: str = "") -> bytes:
    said = {"type": "about:blank", "title": status.partition(" ")[2], "status": int(status[:3])}
    body = json.dumps({**said, "code": code, "detail": detail}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n{more}"
    return head.encode() + b"Connection: close\r\n\r\n" + body


_CROWDED = _canned("429 Too Many Requests", "busy", "too many connections; try again in a moment", "Retry-After: 1\r\n")
_LARGE = _canned("431 Request Header Fields Too Large", "head", "the head of the request is too large; send less")
_SLOW = _canned("408 Request Timeout", "slow-head", "the head of the request did not come in time; send it at once")
_BROKEN = _canned("400 Bad Request", "bad-http", "this is not HTTP/1.1 that can be read")


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]  # Any where httptools has no types
    """One connection."""

    bounds = Limits()
    quick: Quick | None = None
    _common: tuple[object, bytes] = (None, b"")  # the lines of every answer, made once for a list of them
    _head = 0  # bytes of the head that is coming
    _in_head = True
    _small = False  # whether the last head was
    _alarm: asyncio.TimerHandle | None = None
    _feeding = False  # whether what was received is being read
    _put: tuple[Any, Any, Caller] | None = None  # a PUT of which the head was read: its cycle, and who asks

    def connection_made(self, transport: Any) -> None:
        """Taken, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            transport.write(_CROWDED)
            transport.close()
            return
        self._alarm = self.loop.call_later(self.bounds.head_s, self._late)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head += len(data)
        self._feeding = True
        super().data_received(data)
        self._feeding = False
        if self._put is not None:
            (cycle, app, caller), self._put = self._put, None
            if cycle.more_body or not self._begun(cycle, caller):
                super()._start_asgi_task(cycle, app)
        if self._in_head and self._head > self.bounds.head_bytes:
            self._end(_LARGE)
        elif self._in_head and self._head and self._alarm is None:
            self._alarm = self.loop.call_later(self.bounds.head_s, self._late)

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("this is not HTTP/1.1")  # which is answered as what can't be read
        self._in_head, self._small, self._head = False, self._head <= QUICK_HEAD, 0
        self._no_alarm()
        self.scope["state"]["abort"] = self.transport.abort  # for who has to let go of a reader that takes nothing
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """A request's turn has come."""
        plain = cycle.keep_alive and self._small and not cycle.scope["query_string"]
        if plain and self._feeding and cycle.scope["method"] == "PUT" and self.quick is not None:
            caller = self.quick.takes(cycle.scope["raw_path"], cycle.scope["headers"])
            if caller is not None:
                self._put = cycle, app, caller
                return
        answer = self._at_once(cycle.scope) if plain else None
        if answer is None:
            super()._start_asgi_task(cycle, app)
            return
        self._answer(cycle, answer)

    def _answer(self, cycle: Any, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:  # it was told meanwhile that the gateway ends
            self.transport.close()
        self.on_response_complete()

    def _begun(self, cycle: Any, caller: Caller) -> bool:
        assert self.quick is not None, "it took the head"
        url, body = cycle.scope["raw_path"], bytes(cycle.body)
        return self.quick.put(url, caller, body, self._lines(), partial(self._answer, cycle))

    def _at_once(self, scope: Any) -> bytes | None:
        if scope["method"] != "GET" or self.quick is None:
            return None
        if self.pipeline or self.flow.write_paused:
            return None  # of several that wait, each would be answered from within the one before
        return self.quick.answer(scope["raw_path"], scope["headers"], self._lines())

    def _lines(self) -> bytes:
        headers = self.server_state.default_headers  # another list each second
        kind = type(self)
        if kind._common[0] is not headers:
            kind._common = headers, b"".join(b"%s: %s\r\n" % each for each in headers)
        return kind._common[1]

    def on_message_complete(self) -> None:
        """The body too: what comes is the next head."""
        super().on_message_complete()
        self._in_head = True

    def send_400_response(self, msg: str) -> None:
        """What can't be read is answered as every other error is."""
        self._end(_BROKEN)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._no_alarm()
        super().connection_lost(exc)

    def _late(self) -> None:
        self._alarm = None
        self._end(_SLOW if self._head else b"")

    def _end(self, last: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(last)
            self.transport.close()

    def _no_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
