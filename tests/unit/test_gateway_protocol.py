"""covers: gateway/http/protocol.py: how much of what was received is parsed in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from chp_client.gateway.http.protocol import SLICE, BoundedProtocol
from chp_client.gateway.request_fields import RequestLimits

HEAD = b"PUT /%d HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /%d HTTP/1.1\r\n\r\n"
CHUNKED = HEAD % 1 + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
TURNS = 4000


class FakeTransport:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.written, self.paused, self.closed = b"", False, False
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_protocol(self) -> Any:
        return self.protocol

    def get_extra_info(self, _: str) -> None:
        return None

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Counting(BoundedProtocol):
    """A protocol that counts what it does in a turn."""

    events = 0

    def on_message_begin(self) -> None:
        self.events += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.events += 1
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self.events += 1
        super().on_body(body)


def served(data: bytes, check: Callable[[Counting, FakeTransport], None]) -> tuple[FakeTransport, list[Any]]:
    """Receive all of `data` at once, and run the loop until it is done. `check` looks after each turn."""
    told: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        told.append((scope["path"], size, dict(scope["headers"])))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> FakeTransport:
        config = uvicorn.Config(app, lifespan="off", log_level="error")
        config.load()
        protocol, transport = Counting(config, ServerState(), {}), FakeTransport()
        transport.protocol = protocol
        protocol.connection_made(transport)
        protocol.data_received(data)
        for _ in range(TURNS):
            check(protocol, transport)
            protocol.events = 0
            await asyncio.sleep(0)
            if transport.closed:
                break
        transport.close()
        protocol.connection_lost(None)
        return transport

    return asyncio.run(run()), told


FORMS = {
    "pipelined requests": b"".join(GET % i for i in range(500)),
    "chunks of a byte": HEAD % 1 + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n",
    "many trailers": CHUNKED + b"0\r\n" + b"a:b\r\n" * 5000 + b"\r\n",
    "many fields": HEAD % 1 + b"a:\r\n" * 7000 + b"\r\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_one_turn_parses_a_bounded_part_of_the_received_bytes(name: str) -> None:
    """The smallest field and chunk have four bytes."""
    most = []

    def check(protocol: Counting, transport: FakeTransport) -> None:
        most.append(protocol.events)
        assert len(protocol.pipeline) < SLICE // len(GET % 1)
        assert not protocol._rest or transport.paused, "nothing more is received while something waits"

    transport, told = served(FORMS[name], check)
    assert max(most) <= SLICE // 4
    assert not transport.paused or transport.closed
    assert [path for path, _, _ in told] == ([f"/{i}" for i in range(500)] if "pipelined" in name else ["/1"])
    assert transport.written.count(b"HTTP/1.1 200 OK") == len(told)


def test_requests_after_a_body_of_known_length_are_parsed_in_slices() -> None:
    body = b"x" * 200_000
    data = HEAD % 1 + b"Content-Length: 200000\r\n\r\n" + body + b"".join(GET % i for i in range(2, 300))
    sizes: list[int] = []

    def check(protocol: Counting, _: FakeTransport) -> None:
        sizes.append(protocol.events)

    _, told = served(data, check)
    assert told[0][:2] == ("/1", 200_000) and [path for path, _, _ in told[1:]] == [f"/{i}" for i in range(2, 300)]
    assert max(sizes) <= SLICE // 4


def test_trailers_are_bounded_and_never_fields_of_the_request() -> None:
    _, told = served(CHUNKED + b"0\r\nIf-Match: x\r\nHost: evil.example\r\n\r\n", lambda *_: None)
    assert told[0][2] == {b"host": b"localhost", b"transfer-encoding": b"chunked"}
    most = RequestLimits().head_bytes
    for trailers in (b"a:" + b"b" * most, b"a:b\r\n" * (most // 4)):
        transport, _ = served(CHUNKED + b"0\r\n" + trailers * 4 + b"\r\n\r\n", lambda *_: None)
        assert transport.closed and b"HTTP/1.1 431 " in transport.written
