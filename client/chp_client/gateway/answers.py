"""Answers: how values become JSON, and how an answer becomes the bytes of HTTP/1.1."""

from __future__ import annotations

import base64
import json
from typing import Any

from starlette.responses import Response

from ..clone.mapping import Entry

Headers = list[tuple[bytes, bytes]]
POLICY = b"content-security-policy"
# The headers of every answer.
ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY"),
]  # fmt: skip
# The policy of every answer that has none of its own.
NOTHING = (POLICY, b"default-src 'none'; frame-ancestors 'none'")


def shown(value: bytes) -> dict[str, str]:
    """Return a value as a member of JSON: text if it is UTF-8, else base64."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as a map for JSON."""
    told = {"key": entry.key, **shown(entry.value), "revision": str(entry.revision)}
    return told if entry.ttl is None else {**told, "ttl": round(entry.ttl, 3)}


def json_answer(told: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer; without `headers` it says that no cache may keep it."""
    named = {"Cache-Control": "no-store"} if headers is None else headers
    return Response(json.dumps(told) + "\n", status, named, media_type="application/json")


def with_always(headers: Headers) -> Headers:
    """Return the headers of an answer and those that every answer has."""
    for name, _ in headers:
        if name == POLICY:
            return [*headers, *ALWAYS]
    return [*headers, *ALWAYS, NOTHING]


def header_lines(headers: Headers) -> bytes:
    """Return headers as the lines of a head."""
    return b"".join(map(b"%b: %b\r\n".__mod__, headers))


ALWAYS_LINES = header_lines([*ALWAYS, NOTHING])


def raw_answer(response: Response, more: bytes = b"") -> bytes:
    """Return a whole answer of JSON or of a problem as bytes; `more` has further lines of its head."""
    lines = header_lines(response.raw_headers) + ALWAYS_LINES
    reason = b"OK" if response.status_code == 200 else b"Problem"
    return b"HTTP/1.1 %d %b\r\n%b%b\r\n%b" % (response.status_code, reason, lines, more, bytes(response.body))
