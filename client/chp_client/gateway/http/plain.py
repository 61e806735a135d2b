"""One whole plain request out of what was received, read without a parser; whatever is not exactly that is for it.

    GET or PUT /v1/keys/... HTTP/1.1     a path without a query or an escape
    fields                               each on a line of its own, each name once, printable ASCII, nothing folded
    as many bytes as Content-Length says, of a PUT; nothing of a GET

So it is stricter than any parser: there is nothing in it that two could read in two ways. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

HEAD_MAX = 4096  # bytes; a longer head is looked at in full
_FIRST = re.compile(rb"(GET|PUT) (/v1/keys/[A-Za-z0-9/_.~!$&'()*+,;=:@-]+) HTTP/1\.1")
_FIELD = re.compile(rb"([A-Za-z-]+):[ \t]*([!-~](?:[ -~]*[!-~])?)?[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,8}")
Headers = list[tuple[bytes, bytes]]


class Plain(NamedTuple):
    """A request."""

    method: bytes
    path: bytes
    headers: Headers
    body: bytes


def whole(data: bytes) -> Plain | None:
    """The one request that was received; None if it is not plain, or not one."""
    end = data.find(b"\r\n\r\n")
    if not 0 < end <= HEAD_MAX:
        return None
    line_end = data.find(b"\r\n")
    first = _FIRST.fullmatch(data, 0, line_end)
    if first is None or (read := _fields(data[line_end + 2 : end])) is None:
        return None
    headers, length = read
    method, path = first.groups()
    if len(data) != end + 4 + max(length, 0) or (length < 0) != (method == b"GET"):
        return None
    return Plain(method, path, headers, data[end + 4 :])


@lru_cache(1024)  # who asks again says the same of itself
def _fields(block: bytes) -> tuple[Headers, int] | None:
    """The fields, and the length of the body (-1 if none is said)."""
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n"):
        field = _FIELD.fullmatch(line)
        if field is None or (name := field[1].lower()) in found:
            return None
        found[name] = field[2] or b""
    if found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = found.get(b"content-length")
    if length is None:
        return [*found.items()], -1
    return ([*found.items()], int(length)) if _LENGTH.fullmatch(length) else None
