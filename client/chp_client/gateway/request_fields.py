"""Request fields: names, numbers, conditions and bodies of a request. The error for an unknown field names the field.

Paths and queries are UTF-8, percent-encoded. A key is the part of the path behind `/v1/keys`, with its slash. A key
that begins otherwise is given as `?key=`. Revisions are texts such as 1.42, and headers quote them.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from chp.errors import BadInput
from chp.numbers import Revision

from .. import checks
from .problems import Problem

# A query has at most this many fields. No route takes more than six.
FIELDS_MAX = 16
# The gateway waits this many seconds for a body. 16 MiB take about as long at 5 Mbit/s.
BODY_S = 30.0
# The revision of a key that is absent.
ABSENT = 0
# A Host header is checked by its grammar (RFC 9110, section 7.2). A URL parser would not do: parsers differ in the
# characters that they skip.
HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
LOCAL = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)


class RequestLimits(NamedTuple):
    """The bounds of one gateway.

    `body_bytes`    bytes of a body: a value of 16 MiB or a batch of the protocol fits
    `small_bytes`   bytes of a body that has neither a value nor rows: settings, receipts
    `bodies_bytes`  bytes of all bodies under way together
    `head_bytes`    bytes of a head. A key of 1 KiB is three times as long when it is percent-encoded
    `head_s`        seconds within which a head has to come
    `connections`   connections of callers: fewer than the 4,096 files that a service may usually open
    `requests`      requests that wait for the pair; the next request gets 429
    `readers`       readers of changes
    `lines`         WebSockets. Each has six sockets to a pair, and each socket has two descriptors
    `page`          keys of a page
    `receiving`     members of groups that wait for messages, each with a thread and a socket
    """

    body_bytes: int = 17 << 20
    small_bytes: int = 64 << 10
    bodies_bytes: int = 256 << 20
    head_bytes: int = 32 << 10
    head_s: float = 10.0
    connections: int = 2000
    requests: int = 1000
    readers: int = 1500
    lines: int = 100
    page: int = 10_000
    receiving: int = 64


def query(request: Request, names: Sequence[str]) -> dict[str, str]:
    """Return the fields of the query; raise `Problem` for a field that is given twice or is not in `names`."""
    text = request.scope.get("query_string", b"").decode("latin-1")
    if not text:
        return {}
    try:
        fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise Problem(400, "bad-query", f"the query can't be read ({error}); percent-encode it as UTF-8") from None
    found: dict[str, str] = {}
    for name, value in fields:
        if name in found:
            raise Problem(400, "bad-query", f"the parameter {name!r:.80} is given twice; give it once")
        found[name] = value
    only(found, names)
    return found


def only(fields: dict[str, str], names: Sequence[str]) -> None:
    """Raise `Problem` if there is a field that is not in `names`."""
    unknown = next((name for name in fields if name not in names), None)
    if unknown is not None:
        known = ", ".join(names) or "none"
        raise Problem(400, "bad-query", f"there is no parameter {unknown[:60]!r} here; there is: {known}")


def key_of(request: Request, fields: dict[str, str]) -> str:
    """Return the key that a request names, unchecked."""
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    inside = path.partition(b"?")[0].removeprefix(b"/v1/keys")
    if not inside:
        if "key" not in fields:
            raise Problem(400, "bad-key", "no key is given; name it in the path, as /v1/keys/config/a, or as ?key=")
        return fields["key"]
    if "key" in fields:
        raise Problem(400, "bad-key", "a key is given in the path and as ?key=; give one")
    try:
        return unquote_to_bytes(inside).decode()
    except UnicodeDecodeError:
        raise Problem(400, "bad-key", "the path is not UTF-8; percent-encode the key's UTF-8") from None


def number(fields: dict[str, str], name: str, default: int, most: int) -> int:
    """Return a whole number from 1 to `most`."""
    text = fields.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is not a whole number from 1 to {most}")
    return int(text)


def ttl_of(fields: dict[str, str]) -> int | None:
    """Return `?ttl=` in ms, or None without it; raise `Problem` or `BadTtl` if it is no time to live."""
    if (text := fields.get("ttl")) is None:
        return None
    try:
        seconds = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise Problem(400, "bad-ttl", f"ttl={text[:40]!r} is not a number of seconds; give one above 0, such as 30")
    return checks.ttl_in_ms(seconds, ", or leave ttl out for a key that stays")


def flag(fields: dict[str, str], name: str) -> bool:
    """Return True for `?NAME` and `?NAME=1`, and False without the field or for `?NAME=0`."""
    text = fields.get(name, "0")
    if text not in ("", "0", "1"):
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is a flag; write ?{name}, or leave it out")
    return text != "0"


def tag(revision: int) -> str:
    """Return a revision as an ETag."""
    return f'"{Revision(revision)}"'


def condition(request: Request) -> int | None:
    """Return the revision that the key must have for a set or a delete: 0 if it must be absent, None for any."""
    match, none = request.headers.get("if-match"), request.headers.get("if-none-match")
    if match is not None and none is not None:
        raise Problem(400, "bad-condition", "If-Match and If-None-Match are both given; give one")
    if none is not None:
        if none.strip() != "*":
            raise Problem(400, "bad-condition", f"If-None-Match: {none[:60]} is not *, which a set or delete may have")
        return ABSENT
    return None if match is None else revision_of("If-Match", match)


def revision_of(name: str, text: str) -> int:
    """Return the revision in an entity tag."""
    inner = text.strip()
    if len(inner) < 3 or inner[0] != '"' or inner[-1] != '"' or inner.count('"') != 2:
        raise Problem(400, "bad-condition", f'{name}: {text[:60]} is not one ETag as it was given, such as "1.42"')
    try:
        return Revision(inner[1:-1])
    except BadInput as error:
        raise Problem(400, "bad-condition", f"{name}: {error}") from None


def is_host(host: bytes) -> bool:
    """Return True if a Host header is one name, with or without a port."""
    return HOST.fullmatch(host) is not None


def is_local(host: bytes) -> bool:
    """Return True if a Host header is a name of this machine."""
    return LOCAL.fullmatch(host) is not None


class Bodies:
    """The reader of bodies. `held` counts the bytes of each body until its request is answered."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits, self.held = limits, 0

    def room(self, size: int) -> bool:
        """Return True if a body of `size` bytes is within the bound of one body and that of all bodies."""
        return size <= self._limits.body_bytes and self.held + size <= self._limits.bodies_bytes

    @asynccontextmanager
    async def taken(self, request: Request, most: int = 0) -> AsyncIterator[bytes]:
        """Read the whole body, of at most `most` bytes if given; raise `Problem` if it is too large, late or cut."""
        most = min(most or self._limits.body_bytes, self._limits.body_bytes)
        self._announced(request, most)
        parts: list[bytes] = []
        try:
            await self._read(request, parts, most)
            yield b"".join(parts)
        finally:
            self.held -= sum(map(len, parts))

    async def _read(self, request: Request, parts: list[bytes], most: int) -> None:
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    size += len(part)
                    self.held += len(part)
                    parts.append(part)
                    self._bounded(size, most)
        except TimeoutError:
            raise Problem(408, "slow-body", f"the body was not there within {BODY_S:g} s; send it at once") from None
        except ClientDisconnect:
            raise Problem(400, "half-body", "the connection ended before the body did; send it again") from None

    def _announced(self, request: Request, most: int) -> None:
        text = request.headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit()):
            raise Problem(400, "bad-length", f"Content-Length: {text[:40]} is not a number of bytes")
        self._bounded(int(text[:20]), most)

    def _bounded(self, size: int, most: int) -> None:
        if size > most:
            raise Problem(413, "too-large", f"the body has more than {most} bytes; send it in parts")
        if self.held > self._limits.bodies_bytes:
            raise Problem(429, "busy", "too many bodies are under way; send it again in a moment", retry_s=1)
