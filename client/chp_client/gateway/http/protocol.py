"""The HTTP/1.1 protocol of uvicorn and httptools, with bounds on connections, and on the size and the time of a head.

A plain request that is received whole is answered without the parser (fast_path.py). This is done only while the
parser is between two requests, so the parser never sees the plain request. Bytes that come while a plain PUT is under
way wait for its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chp.fair import making_room

from ..access.caller import Caller
from ..answers import header_lines, raw_answer
from ..problems import Problem
from ..request_fields import RequestLimits
from .fast_path import plain_request

if TYPE_CHECKING:
    from .fast_path import FastPath

# Only these HTTP versions are served; httptools would read others too.
VERSIONS = ("1.1", "1.0")
# If more than this many bytes wait for the answer to a plain PUT, no more are received until then.
LATER = 65_536
# At most this many bytes are parsed in one turn of the loop, except for a body of a known length. They hold at most 230
# pipelined requests, 1,024 fields or 680 chunks, which take 20 ms.
SLICE = 4096
_LAST = b"connection: close\r\n"
_CROWDED = raw_answer(Problem(429, "busy", "too many connections; try again in a moment", retry_s=1).response(), _LAST)
_LARGE = raw_answer(Problem(431, "head", "the head of the request is too large; send less").response(), _LAST)
_SLOW = raw_answer(
    Problem(408, "slow-head", "the head of the request did not come in time; send it at once").response(), _LAST
)
_BROKEN = raw_answer(Problem(400, "bad-http", "this is not HTTP/1.1 that can be read").response(), _LAST)


class _Flow(FlowControl):  # type: ignore[misc, unused-ignore]  # Any where httptools has no types
    """The reasons why a connection is not read: those of uvicorn, and bytes that have to be parsed first."""

    held = False
    _paused = False

    def pause_reading(self) -> None:
        """Stop reading for a reason of uvicorn."""
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless the connection is held."""
        self._paused = False
        if not self.held:
            super().resume_reading()

    def hold(self, held: bool) -> None:
        """Stop reading if `held`; else read on, unless uvicorn has a reason not to read."""
        self.held = held
        if held:
            super().pause_reading()
        elif not self._paused:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]  # Any where httptools has no types
    """One connection.

    `fast_path`   the fast path of the gateway
    `heard`       the time of the last bytes
    `_common`     uvicorn's list of the headers of every answer, and their lines, made once for each list
    `_head`       the bytes so far of the head that is coming
    `_between`    True if the parser is at the end of a request
    `_user`       the user of the last plain request
    `_used`       the time of the last answer to a plain request
    `_later`      bytes that were received while a plain PUT is under way; None if there is no such PUT
    `_rest`       bytes that are parsed in later turns
    `_going`      True if a turn that parses `_rest` is scheduled
    `_known`      bytes of the body that are still to come, if its length was announced
    `_quiet`      bytes since the head, or since the last bytes of the body: trailers, and extensions of chunks
    `_last`       True if the connection is closed after the answer that is under way
    """

    bounds = RequestLimits()
    flow: _Flow
    fast_path: FastPath | None = None
    heard = 0.0
    _common: tuple[object, bytes] = (None, b"")
    _head = 0
    _in_head = True
    _between = True
    _alarm: asyncio.TimerHandle | None = None
    _user = ""
    _used = 0.0
    _later: bytearray | None = None
    _rest = b""
    _going = False
    _known = 0
    _quiet = 0
    _last = False

    def connection_made(self, transport: Any) -> None:
        """Take the connection, unless there are too many."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.heard = self.loop.time()
        if len(self.connections) > self.bounds.connections and not self._has_room():
            transport.write(_CROWDED)
            transport.close()
            return
        self._alarm = self.loop.call_later(self.bounds.head_s, self._late)

    def _has_room(self) -> bool:
        """Close a connection of the user with the most of them; return False if there is none to close."""
        others = {each: each.user for each in self.connections if isinstance(each, BoundedProtocol) and each.lasts}
        others.pop(self, None)
        lost = making_room(others, self.bounds.connections, "", lambda each: (each.busy, each.heard))
        if lost is not None:
            lost.transport.close()
        return lost is not None

    @property
    def user(self) -> str:
        """The user of the last request; "" if there was none, or if users are not told apart."""
        caller = self.scope.get("caller") if self.scope else None
        return self._user or (caller.user if isinstance(caller, Caller) else "")

    @property
    def lasts(self) -> bool:
        """True unless the connection is about to be closed."""
        return not self.transport.is_closing()

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return self._later is not None or (self.cycle is not None and not self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        if self.transport.is_closing():
            return
        self.heard = self.loop.time()
        if self._rest:
            self._rest += data
        elif self._later is not None:
            self._wait(self._later, data)
        elif not (self._between and self.fast_path is not None and self._plainly(data, self.fast_path)):
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parse a slice. The rest waits for a later turn, and until the pipelined requests are answered."""
        size = max(SLICE, self._known)
        self._rest = data[size:]
        self._parse(data[:size])
        if not self._rest or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._rest = b""
            if self.flow.held:
                # Receive again in the next turn. So a request that is whole now begins before the loop sees that the
                # client has closed the connection.
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
        """Parse the next request, as the answer has been sent."""
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
        """Take a field of the head; drop a trailer, which comes after the head was checked."""
        if self._in_head:
            super().on_header(name, value)
            if name.lower() == b"content-length" and value.isdigit():
                self._known = int(value[:20])

    def on_body(self, body: bytes) -> None:
        """Take some bytes of the body."""
        self._quiet = 0
        self._known = max(0, self._known - len(body))
        super().on_body(body)

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        self._between, self._known = False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the request, as its head has come."""
        if self.parser.get_http_version() not in VERSIONS:
            # The error is answered like any request that cannot be read.
            raise ValueError("this is not HTTP/1.1")
        self._in_head, self._head, self._quiet = False, 0, 0
        self._no_alarm()
        # A `Stream` calls this to abort the connection of a reader that takes nothing.
        self.scope["state"]["abort"] = self.transport.abort
        super().on_headers_complete()

    # -- plain requests, which need no parser

    def _plainly(self, data: bytes, fast_path: FastPath) -> bool:
        """Answer or begin a plain request; return False if the data has to be parsed."""
        if (self.cycle is not None and not self.cycle.response_complete) or self.flow.write_paused:
            return False
        if (asked := plain_request(data)) is None:
            return False
        if asked.is_get:
            if (answer := fast_path.get(asked, self._lines())) is None:
                return False
            self._send(answer)
        elif fast_path.put(asked, self._lines(), self._answered):
            self._later = bytearray()
            if self._alarm is not None:
                self._no_alarm()
        else:
            return False
        self._user = fast_path.user
        return True

    def _send(self, answer: bytes) -> None:
        if self._alarm is not None:
            self._no_alarm()
        self.transport.write(answer)
        self.server_state.total_requests += 1
        self._used = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()

    def _answered(self, answer: bytes) -> None:
        """Send the answer of a plain PUT, and take the bytes that came meanwhile."""
        later, self._later = self._later, None
        if self.transport.is_closing():
            return
        self._send(answer)
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
        """Close an idle connection. A plain request does not restart the timer, so `_used` is checked here."""
        left = self._used + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self._later is None:
            super().timeout_keep_alive_handler()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1.0), self.timeout_keep_alive_handler)

    def shutdown(self) -> None:
        """End the connection, after the request that is under way."""
        if self._later is None:
            super().shutdown()
        self._last = True

    def _lines(self) -> bytes:
        # uvicorn makes a new list of headers each second, with a new Date.
        headers, kind = self.server_state.default_headers, type(self)
        if kind._common[0] is not headers:
            kind._common = headers, header_lines(headers)
        return kind._common[1]

    def on_message_complete(self) -> None:
        """End the request, as its body has come."""
        super().on_message_complete()
        self._in_head = self._between = True
        self._quiet = self._known = 0

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, in the form of all errors."""
        self._end(_BROKEN)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the alarm, as the connection has ended."""
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
