"""covers: each path of the gateway refuses forty malformed requests with problem+json, and they leave nothing behind.

Requests that are wrong for one path only are in test_gateway_bad_input.py, and beside the tests of that path.
"""

from __future__ import annotations

import json
import socket

import pytest

from chp_client.gateway.openapi import document
from chp_client.gateway.request_fields import RequestLimits
from chp_client.gateway.routes import ROUTES
from tests.wire.gateways import RunningGateway

SMALL = RequestLimits(body_bytes=100_000, head_bytes=8192, head_s=5.0)
pytestmark = pytest.mark.gateway(limits=SMALL)
NAMES = {"{key}": "bad/x", "{topic}": "bad", "{group}": "g", "{name}": "n"}
BODIED = ("put", "post")
WORSE = b"x" * 9000
FORTY = b"&".join(b"a%d=1" % n for n in range(40))


def filled(path: str) -> str:
    """Return a path of the OpenAPI page, with names filled in."""
    for name, value in NAMES.items():
        path = path.replace(name, value)
    return path


PATHS = [
    (method, filled(path)) for path, methods in document(ROUTES)["paths"].items() for method in methods
] + [("get", "/v1/clone"), ("get", "/console/console.js")]  # fmt: skip
OK = b"Host: 127.0.0.1\r\nConnection: close\r\n"

# name -> (request, allowed statuses). In a request {m} stands for the method, {p} for the path and {ok} for headers.
WRONG: dict[str, tuple[bytes, set[int]]] = {
    "a method that is not HTTP's": (b"FOO {p} HTTP/1.1\r\n{ok}\r\n", {400}),
    "a method in small letters": (b"get {p} HTTP/1.1\r\n{ok}\r\n", {400}),
    "PATCH": (b"PATCH {p} HTTP/1.1\r\n{ok}\r\n", {404, 405}),
    "TRACE": (b"TRACE {p} HTTP/1.1\r\n{ok}\r\n", {404, 405}),
    "OPTIONS": (b"OPTIONS {p} HTTP/1.1\r\n{ok}\r\n", {404, 405}),
    "CONNECT": (b"CONNECT {p} HTTP/1.1\r\n{ok}\r\n", {400, 404, 405}),
    "PROPFIND": (b"PROPFIND {p} HTTP/1.1\r\n{ok}\r\n", {404, 405}),
    "an unknown parameter": (b"{m} {p}?nobody=1 HTTP/1.1\r\n{ok}\r\n", {400, 404}),
    "a parameter without a name": (b"{m} {p}?=1 HTTP/1.1\r\n{ok}\r\n", {400, 404}),
    "a parameter in escapes that are none": (b"{m} {p}?%zz=%zz HTTP/1.1\r\n{ok}\r\n", {400, 404}),
    "a query that is not UTF-8": (b"{m} {p}?key=%ff%fe HTTP/1.1\r\n{ok}\r\n", {400, 404}),
    "forty parameters": (b"{m} {p}?" + FORTY + b" HTTP/1.1\r\n{ok}\r\n", {400, 404}),
    "a query of 9,000 bytes": (b"{m} {p}?" + WORSE + b" HTTP/1.1\r\n{ok}\r\n", {400, 404, 431}),
    "a path of 9,000 bytes": (b"{m} {p}/" + WORSE + b" HTTP/1.1\r\n{ok}\r\n", {400, 404, 405, 431}),
    "a path that goes on": (b"TRACE {p}/and/on HTTP/1.1\r\n{ok}\r\n", {404, 405}),
    "no path": (b"{m}  HTTP/1.1\r\n{ok}\r\n", {400}),
    "a path without a slash": (b"{m} keys HTTP/1.1\r\n{ok}\r\n", {400}),
    "a space in the path": (b"{m} {p} x HTTP/1.1\r\n{ok}\r\n", {400}),
    "no version": (b"{m} {p}\r\n{ok}\r\n", {400}),
    "a version that is none": (b"{m} {p} HTTP/x\r\n{ok}\r\n", {400}),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 {p}\r\n\r\n", {400}),
    "zeros": (bytes(64) + b"\r\n\r\n", {400}),
    "another protocol": (b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL {p}\r\n\r\n", {400}),
    "no Host": (b"{m} {p} HTTP/1.1\r\nConnection: close\r\n\r\n", {421}),
    "a foreign Host": (b"{m} {p} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", {421}),
    "a Host that can't be": (b"{m} {p} HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n", {421}),
    "a second Host": (b"{m} {p} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", {421}),
    "a foreign Origin": (b"{m} {p} HTTP/1.1\r\n{ok}Origin: http://evil.example\r\n\r\n", {403}),
    "an Origin of null": (b"{m} {p} HTTP/1.1\r\n{ok}Origin: null\r\n\r\n", {403}),
    "another port's Origin": (b"{m} {p} HTTP/1.1\r\n{ok}Origin: http://127.0.0.1:1\r\n\r\n", {403}),
    "a page of another site": (b"{m} {p} HTTP/1.1\r\n{ok}Sec-Fetch-Site: cross-site\r\n\r\n", {403}),
    "a page of a sister's": (b"{m} {p} HTTP/1.1\r\n{ok}Sec-Fetch-Site: same-site\r\n\r\n", {403}),
    "a header without a colon": (b"{m} {p} HTTP/1.1\r\n{ok}header\r\n\r\n", {400}),
    "a header with a space": (b"{m} {p} HTTP/1.1\r\n{ok}a b: c\r\n\r\n", {400}),
    "a header without a name": (b"{m} {p} HTTP/1.1\r\n{ok}: c\r\n\r\n", {400}),
    "a header with a zero": (b"{m} {p} HTTP/1.1\r\n{ok}A: b\x00c\r\n\r\n", {400}),
    "a header that goes on": (b"{m} {p} HTTP/1.1\r\n{ok}A: b\r\n c\r\nB\r\n\r\n", {400}),
    "a header of 9,000 bytes": (b"{m} {p} HTTP/1.1\r\n{ok}A: " + WORSE + b"\r\n\r\n", {431}),
    "two thousand headers": (b"{m} {p} HTTP/1.1\r\n{ok}" + b"A: bcdef\r\n" * 2000 + b"\r\n", {431}),
    "a length that is no number": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: ten\r\n\r\n", {400}),
    "a negative length": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: -1\r\n\r\n", {400}),
    "a length of forty digits": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: " + b"9" * 40 + b"\r\n\r\n", {400}),
    "two lengths": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", {400}),
    "a length and chunks": (
        b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400},
    ),
}  # fmt: skip
OF_BODIES: dict[str, tuple[bytes, set[int]]] = {
    "half a body": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: 9\r\n\r\nhalf", {400, 404, 415}),
    "a chunk that is none": (b"{m} {p} HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 404, 415}),
    "half a chunk": (b"{m} {p} HTTP/1.1\r\n{ok}Transfer-Encoding: chunked\r\n\r\n9\r\nhalf", {400, 404, 415}),
    "a body that is too large": (b"{m} {p} HTTP/1.1\r\n{ok}Content-Length: 100001\r\n\r\n", {400, 404, 413, 415}),
}


def told(gateway: RunningGateway, sent: bytes) -> bytes:
    """Send bytes and close, and return the answer until the gateway closes."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        came = b""
        while part := sock.recv(1 << 16):
            came += part
        return came


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_path_refuses_every_malformed_request(gateway: RunningGateway, method: str, path: str) -> None:
    wrong = WRONG | (OF_BODIES if method in BODIED else {})
    assert len(wrong) >= 40
    for name, (form, statuses) in wrong.items():
        sent = form.replace(b"{m}", method.upper().encode()).replace(b"{p}", path.encode()).replace(b"{ok}", OK)
        came = told(gateway, sent)
        head, _, body = came.partition(b"\r\n\r\n")
        # The client closed its side in the middle of the body, so the gateway may give no answer.
        if not came:
            assert name in ("half a body", "half a chunk"), name
            continue
        assert int(head.split()[1]) in statuses, (name, came)
        assert b"application/problem+json" in head.lower(), (name, came)
        said = json.loads(body) if b"chunked" not in head.lower() else {}
        assert said["code"] and 10 < len(said["detail"]) < 500, (name, came)


def test_refused_requests_leave_nothing_behind(gateway: RunningGateway) -> None:
    assert gateway.gateway.under_way == 0 == gateway.gateway.bodies.held
    assert (
        gateway.client.get("/v1/keys").json()["keys"] == [] and gateway.client.get("/v1/topics").json()["topics"] == []
    )
    assert gateway.client.get("/health").status_code == 200
