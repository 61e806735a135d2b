"""What is written, and written once: with an Idempotency-Key the same request does nothing a second time.

A write with such a key sets a key of the gateways' own too, in the same record and only if it is absent. So whoever
asks again, at whichever gateway and after whichever failover, is refused by the pair itself if it was done; and since
both have the same revision, the first answer can be given again. What was refused leaves nothing, and is judged anew.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import NamedTuple

from starlette.requests import Request

from chp.numbers import Revision

from ..clone.aio import AsyncClone
from ..errors import Conflict
from .access.caller import caller_of
from .paths.batches import RESERVED, BatchRows
from .paths.writes import Writes
from .problems import Problem
from .slices import SLICE_BYTES

MARKERS = RESERVED + "once/"
REMEMBERED_MS = 86_400_000  # a day: whoever has not asked again by then does not
NAME_MAX = 255  # of an Idempotency-Key
SHOWN_S = 5.0  # until a copy has what its pair has refused because of


class IdempotentResult(NamedTuple):
    """What became of a write."""

    revision: Revision
    durability: str  # "" if this is an answer that is given again
    again: bool = False


async def marker_of(request: Request, body: bytes) -> tuple[str, bytes] | None:
    """Return the key that remembers this request, and what tells it from others; None without an Idempotency-Key."""
    name = request.headers.get("idempotency-key")
    if name is None:
        return None
    if not 1 <= len(name) <= NAME_MAX:
        raise Problem(400, "bad-idempotency-key", f"an Idempotency-Key has 1 to {NAME_MAX} characters; use a UUID")
    about = sha256()
    headers = [request.headers.get(each, "") for each in ("if-match", "if-none-match", "content-type")]
    path = request.scope.get("raw_path", b"").partition(b"?")[0]
    for part in (request.method.encode(), path, request.scope["query_string"], *(h.encode() for h in headers)):
        about.update(len(part).to_bytes(8, "big") + part)
    about.update(len(body).to_bytes(8, "big"))
    if len(body) <= SLICE_BYTES:
        about.update(body)
    else:
        # The hash of 16 MiB takes 50 ms, for which it lets go of Python's lock.
        await asyncio.to_thread(about.update, body)
    if user := caller_of(request).user:
        name = f"{user} {name}"  # of two users each has its own
    return MARKERS + sha256(name.encode()).hexdigest(), about.hexdigest().encode()


async def write(
    clone: AsyncClone, writes: Writes, rows: BatchRows, marker: tuple[str, bytes] | None
) -> IdempotentResult:
    """Do it, all of it or nothing; or learn that it was done before."""
    if marker is not None:
        rows.append(marker[0], marker[1], REMEMBERED_MS, 0)
    try:
        ack = await writes.write(rows, alone=marker is not None)
    except Conflict as conflict:
        if marker is None or not (revision := conflict.revisions.get(marker[0])):
            raise
        await _same(clone, *marker)
        return IdempotentResult(revision, "", again=True)
    return IdempotentResult(ack.revision, ack.durability)


async def _same(clone: AsyncClone, key: str, about: bytes) -> None:
    """That what was done was the same request."""
    until = asyncio.get_running_loop().time() + SHOWN_S
    while (found := clone.get(key)) is None:
        if asyncio.get_running_loop().time() > until:
            raise Problem(503, "unacknowledged", "it was done, but this copy does not have it yet", retry_s=1)
        await asyncio.sleep(0.01)
    if found != about:
        text = "another request had this Idempotency-Key, and was done; use a new key for a new request"
        raise Problem(422, "idempotency-key", text)
