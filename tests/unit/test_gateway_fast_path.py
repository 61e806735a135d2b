"""covers: gateway/http/fast_path.py. What is read without a parser is what no two parsers read in two ways."""

import pytest

from chp_client.gateway.http.fast_path import HEAD_MAX, PlainRequest, plain_request

HOST = b"Host: a:1\r\n"


def put(path: bytes = b"/v1/keys/a", fields: bytes = HOST, length: bytes = b"3", body: bytes = b"one") -> bytes:
    """Return a PUT of these parts."""
    return b"PUT %b HTTP/1.1\r\n%bContent-Length: %b\r\n\r\n%b" % (path, fields, length, body)


def test_the_fast_path_reads_a_plain_get_and_a_plain_put() -> None:
    fields = b"Host:  a:1 \r\nACCEPT:*/*\r\nUser-Agent:\r\n"
    asked = plain_request(b"GET /v1/keys/a/b HTTP/1.1\r\n%b\r\n" % fields)
    assert asked is not None and asked.head.fields == {b"host": b"a:1", b"accept": b"*/*", b"user-agent": b""}
    assert asked == PlainRequest(True, "/a/b", asked.head, b"")
    asked = plain_request(put())
    assert asked is not None and asked.head.fields == {b"host": b"a:1", b"content-length": b"3"}
    assert asked == PlainRequest(False, "/a", asked.head, b"one")
    assert plain_request(put(length=b"0", body=b"")) is not None
    assert plain_request(put(body=b"\r\n\r", length=b"3")) is not None
    assert plain_request(put(fields=HOST + b"Connection: Keep-Alive\r\n")) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        # A parser skips these bytes.
        b"\r\n" + put(),
        put()[:-1],
        put() + b"G",
        put() * 2,
        put(length=b"+3"),
        put(length=b"3 3"),
        put(length=b"3, 3"),
        put(length=b"0x3"),
        put(length=b"3\x00"),
        put(length=b"\xb2"),
        put(length=b"999999999"),
        put(fields=HOST + b"Content-Length: 3\r\n"),
        put(fields=HOST * 2),
        put(fields=HOST + b"Transfer_Encoding: chunked\r\n"),
        put(fields=HOST + b"Accept : x\r\n"),
        put(fields=HOST + b" folded: x\r\n"),
        put(fields=HOST + b"Accept: x\r\n\tfolded\r\n"),
        put(fields=HOST + b"Accept: a\rb\r\n"),
        put(fields=HOST + b"Accept: a\nb: c\r\n"),
        put(fields=HOST + b"Accept: \x00\r\n"),
        put(fields=HOST + b"Accept: \xff\r\n"),
        put(fields=HOST + b": x\r\n"),
        put(fields=HOST + b"Connection: close\r\n"),
        put(fields=HOST + b"Connection: Upgrade\r\n"),
        put(fields=HOST.replace(b"\r\n", b"\n")),
        put(path=b"/v1/keys/a?ttl=1"),
        put(path=b"/v1/keys/%61"),
        put(path=b"/v1/keys/a b"),
        put(path=b"/v1/keys/a#b"),
        put(path=b"/v1/keys/\xc3\xa9"),
        put(path=b"/v1/keys"),
        put(path=b"/v1/keys/"),
        put(path=b"http://a:1/v1/keys/a"),
        put().replace(b"1.1", b"1.0"),
        put().replace(b"PUT", b"put"),
        put().replace(b"PUT", b"POST"),
        put().replace(b"PUT ", b"PUT  "),
        b"PUT /v1/keys/a HTTP/1.1\r\nHost: a:1\r\n\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\nHost: a:1\r\nContent-Length: 0\r\n\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\n\r\n",
        b"GET /v1/keys/a HTTP/1.1\r\n\r\n",
        put(fields=HOST + b"Accept: " + b"x" * HEAD_MAX + b"\r\n"),
    ],
)
def test_the_fast_path_leaves_other_requests_to_the_parser(data: bytes) -> None:
    assert plain_request(data) is None
