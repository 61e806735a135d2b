"""covers: the gateway's WebSocket at /v1/clone: heads, messages and numbers of strangers that it refuses."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from chp.batch import packb
from chp.messages import ICANHAZ
from chp_client.gateway.channels.websocket import BINARY, CLOSE, PING, PONG, TEXT, put, taken
from chp_client.gateway.request_fields import RequestLimits
from chp_client.mount_table import Mounts
from tests.unit.test_websocket import masked
from tests.wire.gateways import RunningGateway

pytestmark = pytest.mark.gateway(limits=RequestLimits(lines=2))
HEAD = {
    "Host": "127.0.0.1", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


class Stranger:
    """A WebSocket by hand."""

    def __init__(self, gateway: RunningGateway, path: str = "/v1/clone", **head: str | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        said = {**HEAD, **{name.replace("_", "-"): value for name, value in head.items()}}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items() if value is not None)]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self.socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = dict(
            line.decode().rstrip().lower().split(": ", 1) for line in iter(self._file.readline, b"\r\n")
        )

    def problem(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self._file.read(int(self.headers["content-length"])))

    def hear(self, opcode: int) -> bytes:
        """Return the next frame of a kind."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            kind, size = self._file.read(2)
            if size >= 126:
                size = int.from_bytes(self._file.read(2 if size == 126 else 8), "big")
            payload = self._file.read(size)
            if kind == 0x80 | opcode:
                return payload
        raise AssertionError(f"no frame {opcode} came")


@pytest.mark.parametrize(
    ("path", "head", "status", "code"),
    [
        ("/v1/keys", {}, 404, "no-path"),
        ("/v1/clone?subtree=/a/", {}, 400, "bad-query"),
        ("/v1/clone", {"Host": "evil.example"}, 421, "bad-host"),
        ("/v1/clone", {"Origin": "http://evil.example"}, 403, "bad-origin"),
        ("/v1/clone", {"Sec_Fetch_Site": "cross-site"}, 403, "bad-origin"),
        ("/v1/clone", {"Sec_WebSocket_Key": "short"}, 400, "bad-websocket"),
        ("/v1/clone", {"Sec_WebSocket_Key": None}, 400, "bad-websocket"),
        ("/v1/clone", {"Sec_WebSocket_Version": "8"}, 400, "bad-websocket"),
    ],
)
def test_a_refused_websocket_request_is_answered_with_a_problem(
    gateway: RunningGateway, path: str, head: dict[str, str | None], status: int, code: str
) -> None:
    stranger = Stranger(gateway, path, **head)
    assert stranger.status == status and stranger.problem()["code"] == code


def test_the_websocket_first_sends_the_servers_and_answers_pings(gateway: RunningGateway) -> None:
    stranger = Stranger(gateway)
    assert stranger.status == 101 and stranger.headers["sec-websocket-accept"] == "s3pplmbitxaq9kygzzhzrbk+xoo="
    server, port, frames = taken(stranger.hear(BINARY))
    servers = gateway.gateway.servers
    assert not isinstance(servers, Mounts)
    assert (server, port) == (2, 3) and [frame.decode() for frame in frames] == list(servers)
    stranger.socket.sendall(masked(PING, b"there?"))
    assert stranger.hear(PONG) == b"there?"
    stranger.socket.sendall(masked(CLOSE, b""))
    assert stranger.hear(CLOSE)[:2] == (1000).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("sent", "code", "why"),
    [
        (masked(TEXT, b"hello"), 1003, "binary"),
        (b"\x82\x01x", 1002, "masks"),
        (masked(BINARY, b""), 1002, "octet each"),
        (masked(BINARY, put(7, 0, [])), 1002, "2 servers"),
        (masked(BINARY, put(0, 0, [ICANHAZ, b"\x02switch\x03", packb({"chp": 4, "id": 1})])), 1008, "operators"),
        (masked(BINARY, put(0, 1, [b"\1plain"])), 1008, "channel"),
    ],
)
def test_a_refused_message_closes_the_websocket_with_a_reason(
    gateway: RunningGateway, sent: bytes, code: int, why: str
) -> None:
    stranger = Stranger(gateway)
    stranger.socket.sendall(sent)
    closed = stranger.hear(CLOSE)
    assert int.from_bytes(closed[:2], "big") == code and why in closed[2:].decode()


def test_a_websocket_beyond_the_limit_is_refused_until_others_close(gateway: RunningGateway) -> None:
    both = [Stranger(gateway), Stranger(gateway)]
    third = Stranger(gateway)
    assert third.status == 429 and third.headers["retry-after"] == "5"
    for each in both:
        each.socket.sendall(masked(CLOSE, b""))
        each.hear(CLOSE)
    assert Stranger(gateway).status == 101
