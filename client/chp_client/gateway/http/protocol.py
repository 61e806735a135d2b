"""uvicorn's HTTP/1.1 by httptools, bounded: how many connections, how large and how slow a head may be.

A request that is received whole, and plain (plain.py), is done without it where it can be (paths/quick.py): between
two others of its connection, of which the parser then knows nothing. What comes while such a PUT is under way waits.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chp.fair import making_room

from ..access.caller import Caller
from ..request_fields import RequestLimits
from . import plain

if TYPE_CHECKING:
    from ..paths.fast_path import FastPath

VERSIONS = ("1.1", "1.0")  # what httptools reads as others, or as none, is no request to be done
LATER = 65_536  # bytes that wait while a PUT is under way, or to be parsed; then no more are received
# Bytes that are parsed in one turn of the loop, but for a body of a known length. They are at most 230 pipelined
# requests, 1,024 fields or 680 chunks, which take 20 ms.
SLICE = 4096


def _canned(status: str, code: str, detail: str, more: str = "") -> bytes:
    said = {"type": "about:blank", "title": status.partition(" ")[2], "status": int(status[:3])}
    body = json.dumps({**said, "code": code, "detail": detail}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n{more}"
    return head.encode() + b"Connection: close\r\n\r\n" + body


_CROWDED = _canned("429 Too Many Requests", "busy", "too many connections; try again in a moment", "Retry-After: 1\r\n")
_LARGE = _canned("431 Request Header Fields Too Large", "head", "the head of the request is too large; send less")
_SLOW = _canned("408 Request Timeout", "slow-head", "the head of the request did not come in time; send it at once")
_BROKEN = _canned("400 Bad Request", "bad-http", "this is not HTTP/1.1 that can be read")


class _Flow(FlowControl):  # type: ignore[misc, unused-ignore]  # Any where httptools has no types
    """What the connection is not read for: uvicorn's reasons, and that something has to be parsed first."""

    held = False
    _paused = False

    def pause_reading(self) -> None:
        """Read no more, for a reason of uvicorn's."""
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless it is held."""
        self._paused = False
        if not self.held:
            super().resume_reading()

    def hold(self, held: bool) -> None:
        """Read no more while it is held; then read on, unless uvicorn has a reason not to."""
        self.held = held
        if held:
            super().pause_reading()
        elif not self._paused:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]  # Any where httptools has no types
    """One connection."""

    bounds = RequestLimits()
    flow: _Flow
    quick: FastPath | None = None
    _common: tuple[object, bytes] = (None, b"")  # the lines of every answer, made once for a list of them
    _head = 0  # bytes of the head that is coming
    _in_head = True
    _between = True  # whether the parser is at the end of a request
    _alarm: asyncio.TimerHandle | None = None
    _user = ""  # of the last plain request
    heard = 0.0  # when something came last
    _used = 0.0  # when a plain request was answered last
    _later: bytearray | None = None  # while a plain PUT is under way: what was received since
    _rest = b""  # what was received, and is parsed in turns to come
    _going = False  # whether that turn is asked for
    _known = 0  # bytes of the body that are still to come, if its length was announced
    _quiet = 0  # bytes since the head or the last byte of a body: trailers, and what stands beside the sizes of chunks
    _last = False  # whether the connection ends with its answer

    def connection_made(self, transport: Any) -> None:
        """Taken, unless there are too many."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.heard = self.loop.time()
        if len(self.connections) > self.bounds.connections and not self._is_let_in():
            transport.write(_CROWDED)
            transport.close()
            return
        self._alarm = self.loop.call_later(self.bounds.head_s, self._late)

    def _is_let_in(self) -> bool:
        """Whether a connection of the user who has most of them is closed for this one, whose user is not known yet."""
        others = {each: each.user for each in self.connections if isinstance(each, BoundedProtocol) and each.lasts}
        others.pop(self, None)
        lost = making_room(others, self.bounds.connections, "", lambda each: (each.busy, each.heard))
        if lost is not None:
            lost.transport.close()
        return lost is not None

    @property
    def user(self) -> str:
        """Who asked here last; "" if nobody did, or everybody is let in."""
        caller = self.scope.get("caller") if self.scope else None
        return self._user or (caller.user if isinstance(caller, Caller) else "")

    @property
    def lasts(self) -> bool:
        """Whether it is not about to be closed."""
        return not self.transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self._later is not None or (self.cycle is not None and not self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        if self.transport.is_closing():
            return
        self.heard = self.loop.time()
        if self._rest:
            self._rest += data
        elif self._later is not None:
            self._wait(self._later, data)
        elif not (self._between and self.quick is not None and self._plainly(data, self.quick)):
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parse a slice. What is behind it waits for a later turn, and until the pipelined requests are answered."""
        size = max(SLICE, self._known)
        self._rest = data[size:]
        self._parse(data[:size])
        if not self._rest or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._rest = b""
            if self.flow.held:
                # A turn later: the request that is whole now is begun before the end of the connection is read.
                self.loop.call_soon(self._receive_on)
            return
        self.flow.hold(True)
        self._soon()

    def _receive_on(self) -> None:
        if not self._rest and not self.transport.is_closing():
            self.flow.hold(False)

    def _soon(self) -> None:
        if self._rest and not self.pipeline and not self._going:
            self._going = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going = False
        rest, self._rest = self._rest, b""
        if rest and not self.transport.is_closing():
            self._read(rest)

    def on_response_complete(self) -> None:
        """One answer is out: the next request may be parsed."""
        super().on_response_complete()
        self._soon()

    def _parse(self, data: bytes) -> None:
        if self._in_head:
            self._head += len(data)
        else:
            self._quiet += len(data)
        super().data_received(data)
        if (self._in_head and self._head > self.bounds.head_bytes) or self._quiet > self.bounds.head_bytes:
            self._end(_LARGE)
        elif self._in_head and self._head and self._alarm is None and not self._rest:
            self._alarm = self.loop.call_later(self.bounds.head_s, self._late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; one behind the body (a trailer) is dropped, as the head was judged without it."""
        if self._in_head:
            super().on_header(name, value)
            if name.lower() == b"content-length" and value.isdigit():
                self._known = int(value[:20])

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._quiet = 0
        self._known = max(0, self._known - len(body))
        super().on_body(body)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._between, self._known = False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("this is not HTTP/1.1")  # which is answered as what can't be read
        self._in_head, self._head, self._quiet = False, 0, 0
        self._no_alarm()
        self.scope["state"]["abort"] = self.transport.abort  # for who has to let go of a reader that takes nothing
        super().on_headers_complete()

    # -- what needs no parser

    def _plainly(self, data: bytes, quick: FastPath) -> bool:
        """Whether it is done, or begun, without the parser."""
        if (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused:
            return False
        if (asked := plain.whole(data)) is None:
            return False
        if asked.method == b"GET":
            answer = quick.answer(asked.path, asked.headers, self._lines())
            if answer is None:
                return False
            self._user = quick.user
            self._said(answer)
            return True
        if not quick.put(asked.path, asked.headers, asked.body, self._lines(), self._answered):
            return False
        self._user, self._later = quick.user, bytearray()
        self._no_alarm()
        return True

    def _said(self, answer: bytes) -> None:
        self._no_alarm()
        self.transport.write(answer)
        self.server_state.total_requests += 1
        self._used = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def _answered(self, answer: bytes) -> None:
        """The end of a PUT."""
        later, self._later = self._later, None
        if self.transport.is_closing():
            return
        self._said(answer)
        if self._last:
            self.transport.close()
        elif later:
            self.flow.resume_reading()
            self.data_received(bytes(later))

    def _wait(self, later: bytearray, data: bytes) -> None:
        later += data
        if len(later) > LATER:
            self.flow.pause_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long; or what came was plain, and began no time of its own."""
        left = self._used + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self._later is None:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1.0), self.timeout_keep_alive_handler)

    def shutdown(self) -> None:
        """The gateway ends: with what is under way."""
        if self._later is None:
            super().shutdown()
        self._last = True

    def _lines(self) -> bytes:
        headers = self.server_state.default_headers  # another list each second
        kind = type(self)
        if kind._common[0] is not headers:
            kind._common = headers, b"".join(b"%s: %s\r\n" % each for each in headers)
        return kind._common[1]

    def on_message_complete(self) -> None:
        """The body too: what comes is the next head."""
        super().on_message_complete()
        self._in_head = self._between = True
        self._quiet = self._known = 0

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
