"""What a request says, read strictly: what is not understood is refused by name, never passed over.

Paths and queries are UTF-8, percent-encoded. A key is what comes after `/v1/keys`, with its slash; one that begins
otherwise is given as `?key=`. Revisions are texts such as 1.42, in ETag, If-Match and If-None-Match between quotes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from chp.errors import BadInput
from chp.keys import check_key
from chp.numbers import Revision

from .. import checks
from .problems import Problem

FIELDS_MAX = 16  # of a query: no path has more than five
BODY_S = 30.0  # until a body is there: 16 MiB at 5 Mbit/s
ABSENT = 0  # the revision of a key that is not there


class RequestLimits(NamedTuple):
    """What this gateway bears at once, each with its reason."""

    body_bytes: int = 17 << 20  # a value of 16 MiB; one batch of the protocol
    small_bytes: int = 64 << 10  # a body that is neither a value nor rows: settings, receipts
    bodies_bytes: int = 256 << 20  # of all requests under way
    head_bytes: int = 32 << 10  # a key of 1 KiB is three times that when it is percent-encoded
    head_s: float = 10.0  # until the head is there
    connections: int = 2000  # sockets: below the usual 4,096 files of a service
    requests: int = 1000  # that wait for the pair; more are sent back with 429
    readers: int = 1500  # of changes: each is a queue
    lines: int = 100  # WebSockets: each has six sockets of its own to a pair, of two descriptors each
    page: int = 10_000  # keys
    receiving: int = 64  # members of groups that wait for messages: each has a thread and a socket


def query(request: Request, *names: str) -> dict[str, str]:
    """The query's fields, each at most once, none but `names`."""
    text = request.scope.get("query_string", b"").decode("latin-1")
    try:
        fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise Problem(400, "bad-query", f"the query can't be read ({error}); percent-encode it as UTF-8") from None
    found: dict[str, str] = {}
    for name, value in fields:
        if name not in names:
            known = ", ".join(names) or "none"
            raise Problem(400, "bad-query", f"there is no parameter {name[:60]!r} here; there is: {known}")
        if name in found:
            raise Problem(400, "bad-query", f"the parameter {name!r} is given twice; give it once")
        found[name] = value
    return found


def key_of(request: Request, fields: dict[str, str]) -> str:
    """The key that a request is about; `BadKey` if it is none."""
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    inside = path.partition(b"?")[0].removeprefix(b"/v1/keys")
    if not inside:
        if "key" not in fields:
            raise Problem(400, "bad-key", "no key is given; name it in the path, as /v1/keys/config/a, or as ?key=")
        return check_key(fields["key"])
    if "key" in fields:
        raise Problem(400, "bad-key", "a key is given in the path and as ?key=; give one")
    try:
        return check_key(unquote_to_bytes(inside).decode())
    except UnicodeDecodeError:
        raise Problem(400, "bad-key", "the path is not UTF-8; percent-encode the key's UTF-8") from None


def number(fields: dict[str, str], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = fields.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is not a whole number from 1 to {most}")
    return int(text)


def ttl_of(fields: dict[str, str]) -> int | None:
    """`?ttl=` in ms; `BadTtl` if it is no time to live."""
    if (text := fields.get("ttl")) is None:
        return None
    try:
        seconds = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise Problem(400, "bad-ttl", f"ttl={text[:40]!r} is not a number of seconds; give one above 0, such as 30")
    return checks.ttl_in_ms(seconds)


def flag(fields: dict[str, str], name: str) -> bool:
    """`?fresh`, or `?fresh=1`."""
    text = fields.get(name, "0")
    if text not in ("", "0", "1"):
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is a flag; write ?{name}, or leave it out")
    return text != "0"


def tag(revision: int) -> str:
    """A revision as an ETag."""
    return f'"{Revision(revision)}"'


def condition(request: Request) -> int | None:
    """The revision that the key must have for a set or a delete, 0 for none at all; None if any will do."""
    match, none = request.headers.get("if-match"), request.headers.get("if-none-match")
    if match is not None and none is not None:
        raise Problem(400, "bad-condition", "If-Match and If-None-Match are both given; give one")
    if none is not None:
        if none.strip() != "*":
            raise Problem(400, "bad-condition", f"If-None-Match: {none[:60]} is not *, which a set or delete may have")
        return ABSENT
    return None if match is None else revision_of("If-Match", match)


def revision_of(name: str, text: str) -> int:
    """The revision in an entity tag."""
    inner = text.strip()
    if len(inner) < 3 or inner[0] != '"' or inner[-1] != '"' or inner.count('"') != 2:
        raise Problem(400, "bad-condition", f'{name}: {text[:60]} is not one ETag as it was given, such as "1.42"')
    try:
        return Revision(inner[1:-1])
    except BadInput as error:
        raise Problem(400, "bad-condition", f"{name}: {error}") from None


class Bodies:
    """Takes bodies in, so many bytes of all that are under way at once: each counts until its request is answered."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits, self.held = limits, 0

    def room(self, size: int) -> bool:
        """Whether a body of so many bytes is within both bounds."""
        return size <= self._limits.body_bytes and self.held + size <= self._limits.bodies_bytes

    @asynccontextmanager
    async def taken(self, request: Request, most: int = 0) -> AsyncIterator[bytes]:
        """Take the whole body, of at most `most` bytes if that is given; `Problem` if it is too large, late or cut."""
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
