"""covers: what chp-gateway refuses, each with a problem that names the thing; and that it goes on after all of it."""

import socket
import subprocess
import sys

import httpx
import msgpack
import pytest

from chp_client.gateway.main import run
from chp_client.gateway.request_fields import RequestLimits
from tests.wire.gateways import RunningGateway

SMALL = RequestLimits(body_bytes=100_000, head_bytes=8192, head_s=0.5, connections=50, readers=2)
pytestmark = pytest.mark.gateway(limits=SMALL)
LINES, PACK = {"Content-Type": "application/x-ndjson"}, {"Content-Type": "application/msgpack"}


BAD = [
    ("GET", "/nowhere", {}, b"", 404, "no-path"),
    ("GET", "/v1/keys/", {}, b"", 404, "absent"),
    ("POST", "/v1/keys/a", {}, b"x", 405, "bad-method"),
    ("PUT", "/v1/batch", {}, b"x", 405, "bad-method"),
    ("TRACE", "/v1/keys/a", {}, b"", 405, "bad-method"),
    ("GET", "/v1/keys/%ff", {}, b"", 400, "bad-key"),
    ("GET", "/v1/keys/a?key=/b", {}, b"", 400, "bad-key"),
    ("GET", "/v1/keys?key=", {}, b"", 400, "bad-key"),
    ("PUT", "/v1/keys", {}, b"x", 400, "bad-key"),
    ("PUT", "/v1/keys?ttl=1", {}, b"x", 400, "bad-key"),
    ("DELETE", "/v1/keys", {}, b"", 400, "bad-key"),
    ("GET", "/v1/keys?key=%02x", {}, b"", 400, "bad-key"),
    ("GET", "/v1/keys?key=HUGZ", {}, b"", 400, "bad-key"),
    ("PUT", "/v1/keys/" + "k" * 1100, {}, b"x", 400, "bad-key"),
    ("PUT", "/v1/keys/.gateway/once/x", {}, b"x", 403, "reserved"),
    ("GET", "/v1/keys?key=%ff", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=0", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=-1", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=10001", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=1e3", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=" + "9" * 5000, {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?limit=1&limit=2", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?sort=up", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?fresh=maybe", {}, b"", 400, "bad-query"),
    ("GET", "/v1/keys?" + "&".join(f"a{n}=1" for n in range(40)), {}, b"", 400, "bad-query"),
    ("GET", "/health?verbose=1", {}, b"", 400, "bad-query"),
    ("PUT", "/v1/keys/a?ttl=0", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a?ttl=-5", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a?ttl=nan", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a?ttl=inf", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a?ttl=1e99", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a?ttl=soon", {}, b"x", 400, "bad-ttl"),
    ("PUT", "/v1/keys/a", {"If-Match": "1.2"}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-Match": "*"}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-Match": '"1.2", "1.3"'}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-Match": '"99999999.1"'}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-None-Match": '"1.2"'}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-None-Match": "*", "If-Match": '"1.2"'}, b"x", 400, "bad-condition"),
    ("PUT", "/v1/keys/a", {"If-Match": '"1.1"'}, b"x", 412, "revision"),
    ("PUT", "/v1/keys/a", {"Idempotency-Key": ""}, b"x", 400, "bad-idempotency-key"),
    ("PUT", "/v1/keys/a", {"Idempotency-Key": "k" * 256}, b"x", 400, "bad-idempotency-key"),
    ("PUT", "/v1/keys/a", {}, b"x" * 100_001, 413, "too-large"),
    ("PUT", "/v1/topics/t", {}, b" " * 65_537, 413, "too-large"),
    ("PUT", "/v1/topics/t/groups/g", {}, b" " * 65_537, 413, "too-large"),
    ("POST", "/v1/topics/t/groups/g/receive", {}, b" " * 65_537, 413, "too-large"),
    ("POST", "/v1/topics/t/groups/g/nack", {}, b" " * 100_001, 413, "too-large"),
    ("POST", "/v1/topics/t/groups/g/extend", {}, b" " * 65_537, 413, "too-large"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done","value":"' + b"x" * 70_000 + b'",}', 400, "bad-row"),
    ("POST", "/v1/batch", PACK, b"\xdd\x00\x01\x00\x00" + b"\x80" * 70_000, 413, "too-large"),
    ("POST", "/v1/batch", PACK, msgpack.packb([{"set": "/a", "value": {"a": {}}}]), 400, "bad-body"),
    ("POST", "/v1/batch", PACK, msgpack.packb([{"set": "/bad/done", "value": b""}]) + b"x", 400, "bad-body"),
    ("POST", "/v1/batch", PACK, msgpack.packb([{"set": "/bad/done", "value": b""}])[:-1], 400, "bad-body"),
    ("PUT", "/v1/keys/a", {"X": "y" * 9000}, b"x", 431, "head"),
    ("GET", "/health", {"Host": "evil.example"}, b"", 421, "bad-host"),
    ("GET", "/health", {"Host": "[::1"}, b"", 421, "bad-host"),
    *(
        ("GET", "/health", {"Host": host}, b"", 421, "bad-host")
        for host in (
            "evil.com\\@127.0.0.1:8080",
            "evil.com@127.0.0.1",
            "evil.com#@127.0.0.1",
            "127.0.0.1/../a.html",
            "127.0.0.1?a",
            "127.0.0.1:80:80",
            "127.0.0.1:x",
            "127.0.0.1,evil.com",
            "127.0.0.1.evil.com",
            "0x7f.1",
            "[::ffff:127.0.0.1]",
        )
    ),
    ("GET", "/health", {"Origin": "http://evil.example"}, b"", 403, "bad-origin"),
    ("GET", "/health", {"Origin": "null"}, b"", 403, "bad-origin"),
    ("GET", "/health", {"Sec-Fetch-Site": "cross-site"}, b"", 403, "bad-origin"),
    ("GET", "/v1/watch", {"Last-Event-ID": "yesterday"}, b"", 400, "bad-number"),
    ("POST", "/v1/batch", {}, b"{}", 415, "bad-kind"),
    ("POST", "/v1/batch", LINES, b"", 400, "empty"),
    ("POST", "/v1/batch", LINES, b"\n" * 70_000, 413, "too-large"),
    ("POST", "/v1/batch", LINES, b"{", 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b"[" * 50_000, 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":[{}\n{}]},{"set":"/b","value":"1"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"1"},{"set":"/b","value":"1"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a"\n"value":"1"}', 400, "bad-row"),
    ("POST", "/v1/topics/t/messages", LINES, b'{"value":[{}\n{}]},{"value":"1"}', 400, "bad-row"),
    ("POST", "/v1/topics/t/messages", LINES, b'{"value":"1"}\n{"value":"1","key":1}', 400, "bad-row"),
    ("POST", "/v1/topics/t/messages", LINES, b'{"value":"1"}\n{"value":"1","key":"k"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b"\xff\xfe", 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b"[]", 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b"{}", 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":1}', 400, "bad-value"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"\\ud800"}', 400, "bad-value"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","base64":"%"}', 400, "bad-value"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","base64":7}', 400, "bad-value"),
    ("POST", "/v1/batch", LINES, b'{"set":7,"value":""}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","delete":"/a","value":""}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"delete":"/a","ttl":1}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"","ttl":"1"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"","if":-1}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"","if":"x"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a","value":"","upsert":true}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done","value":""}\n{"set":"","value":""}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/a}\n{","value":"b"}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done","value":""},{"set":"/b","value":""}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done",\n"value":""}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done","value":""}\n{"set":"/a"}\n{}', 400, "bad-row"),
    ("POST", "/v1/batch", LINES, b'{"set":"/bad/done","value":"a\tb"}', 400, "bad-row"),
    ("POST", "/v1/batch", PACK, b"\xc1", 400, "bad-body"),
    ("POST", "/v1/batch", PACK, b"\x91" * 5000, 400, "bad-body"),
    ("POST", "/v1/batch", PACK, b"\xdd\xff\xff\xff\xff", 400, "bad-body"),
    ("POST", "/v1/batch", PACK, msgpack.packb({"set": "/a"}), 400, "bad-body"),
    ("POST", "/v1/batch", PACK, msgpack.packb([{1: 2}]), 400, "bad-body"),
    ("POST", "/v1/batch", PACK, msgpack.packb([["/a", 1]]), 400, "bad-row"),
]


@pytest.mark.parametrize(("asked", "answered"), [(row[:4], row[4:]) for row in BAD])
def test_a_bad_request_is_refused_with_its_code(
    gateway: RunningGateway, asked: tuple[str, str, dict[str, str], bytes], answered: tuple[int, str]
) -> None:
    (method, path, headers, body), (status, code) = asked, answered
    answer = gateway.client.request(method, path, headers=headers, content=body)
    said = answer.json()
    assert (answer.status_code, said["code"], said["status"]) == (status, code, status), said
    assert answer.headers["Content-Type"] == "application/problem+json" and len(said["detail"]) < 500
    gone = gateway.client.get("/v1/keys?key=/bad/done")
    assert gone.status_code == 404, "of a batch with a bad row nothing is done"


def test_a_wrong_method_is_answered_with_the_allowed_methods(gateway: RunningGateway) -> None:
    answer = gateway.client.request("PATCH", "/v1/keys/a")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, PUT" and answer.headers["Allow"] in answer.json()["detail"]


def raw(gateway: RunningGateway, *pieces: bytes, end: bool = False) -> bytes:
    """Send bytes that are no proper HTTP, and return the answer until the gateway closes or falls silent."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as sock:
        for piece in pieces:
            sock.sendall(piece)
        if end:
            sock.shutdown(socket.SHUT_WR)
        came = b""
        while part := sock.recv(65_536):
            came += part
        return came


def test_malformed_endless_and_slow_requests_are_refused(gateway: RunningGateway) -> None:
    assert b'"bad-http"' in raw(gateway, b"\x16\x03\x01 hello\r\n\r\n")
    assert b" 431 " in raw(gateway, b"GET / HTTP/1.1\r\nA: ", b"a" * 9000)
    assert b" 408 " in raw(gateway, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    assert raw(gateway) == b"", "who says nothing is let go"
    raw(gateway, b"PUT /v1/keys/half HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf", end=True)
    assert gateway.client.get("/v1/keys/half").status_code == 404, "half a body is no value"
    assert gateway.client.get("/health").status_code == 200


def test_a_request_with_two_hosts_is_refused(gateway: RunningGateway) -> None:
    for hosts in (b"Host: evil.example\r\nHost: 127.0.0.1\r\n", b"Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n"):
        came = raw(gateway, b"GET /v1/keys/a HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
        assert came.startswith(b"HTTP/1.1 400") and b'"bad-host"' in came


def test_connections_and_readers_beyond_the_limits_are_refused(gateway: RunningGateway) -> None:
    held = [socket.create_connection(("127.0.0.1", gateway.port), timeout=20) for _ in range(SMALL.connections + 5)]
    assert any(b"429" in sock.recv(4096) for sock in held[-5:])
    for sock in held:
        sock.close()
    fresh = httpx.Client(base_url=gateway.url, timeout=20, trust_env=False, verify=False)
    with fresh, fresh.stream("GET", "/v1/watch") as one, fresh.stream("GET", "/v1/watch") as two:
        assert (one.status_code, two.status_code) == (200, 200)
        third = gateway.client.get("/v1/watch")
        assert (third.status_code, third.json()["code"]) == (429, "busy") and third.headers["Retry-After"]


def test_pages_of_the_gateway_may_write_only_with_the_write_flag(gateway: RunningGateway) -> None:
    own = {"Origin": gateway.url}
    assert gateway.client.get("/v1/keys", headers=own).status_code == 200
    refused = gateway.client.put("/v1/keys/page", content=b"x", headers=own)
    assert (refused.status_code, refused.json()["code"]) == (403, "read-only")
    assert gateway.client.put("/v1/keys/page", content=b"x").status_code == 200, "programs may"
    with RunningGateway(gateway.servers, "--write") as writing:
        assert writing.client.put("/v1/keys/page", content=b"x", headers={"Origin": writing.url}).status_code == 200


@pytest.mark.parametrize("flags", [["--listen", "0.0.0.0:8080"], ["--listen", "localhost"], ["--servers", "no/where"]])
def test_the_gateway_does_not_start_with_invalid_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(flags) == 2
    assert capsys.readouterr().err.startswith("chp-gateway: ")


def test_the_gateway_names_the_missing_extra_to_install() -> None:
    code = "import sys; sys.modules['x'] = None\nimport importlib.util as u\nu.find_spec = lambda name: None\n"
    code += "from chp_client import gateway\ngateway.find_spec = u.find_spec\ngateway.main()"
    run_it = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run_it.returncode == 2 and "pip install 'chp-clone[gateway]'" in run_it.stderr
