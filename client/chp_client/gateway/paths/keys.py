"""One key, pages of keys, and batches: /v1/keys and /v1/batch. Reads are of the copy; writes are awaited."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chp.limits import DEFAULT

from ...core.events import State
from ..access.caller import caller_of
from ..gateway import Gateway, gateway_of
from ..once import IdempotentResult, marker_of, write
from ..problems import RETRY_S, Problem
from ..request_fields import condition, flag, key_of, number, query, tag, ttl_of
from .batches import BatchRows, key_to_set, kind_of, rows_of
from .entries import entry_json

OCTETS = "application/octet-stream"
NDJSON = "application/x-ndjson"
PAGE = 1000
PAGE_BYTES = 8 << 20  # of keys and values; a page ends there, and says where to go on


def freshness(gateway: Gateway) -> dict[str, str]:
    """How current the copy is that an answer is made of."""
    clone = gateway.clone
    return {"CHP-Number": str(clone.revision), "CHP-Staleness": f"{clone.staleness_s:.3f}", "Cache-Control": "no-cache"}


def readable(gateway: Gateway, *, fresh: bool = False) -> None:
    """That there is a copy to read; `fresh`: one that is current."""
    state = gateway.clone.state
    if state in (State.CONNECTING, State.CLOSED):
        text = f"this gateway has no copy yet; {gateway.clone.describe()}"
        raise Problem(503, "not-synced", text, retry_s=RETRY_S)
    if fresh and state is not State.SYNCED:
        text = f"the copy is {gateway.clone.staleness_s:.1f} s old; ask without ?fresh to have it all the same"
        raise Problem(503, "stale", text, retry_s=RETRY_S)


async def read_key(request: Request) -> Response:
    """GET /v1/keys/{key}: the value, as it is."""
    gateway, fields = gateway_of(request), query(request, "key", "fresh")
    key = key_of(request, fields)
    gateway.held(key)
    caller_of(request).read(key)
    readable(gateway, fresh=flag(fields, "fresh"))
    entry = gateway.clone.entry(key)
    if entry is None:
        raise Problem(404, "absent", f"there is no key {key!r:.120}")
    headers = {**freshness(gateway), "ETag": tag(entry.revision)}
    if entry.ttl is not None:
        headers["CHP-TTL"] = f"{entry.ttl:.3f}"
    asked = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if headers["ETag"] in asked or asked == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(entry.value, headers=headers, media_type=OCTETS)


async def set_key(request: Request) -> Response:
    """PUT /v1/keys/{key}: the body is the value."""
    gateway, fields = gateway_of(request), query(request, "key", "ttl")
    key, ttl_ms, if_revision = key_of(request, fields), ttl_of(fields), condition(request)
    rows = BatchRows(gateway.subtrees)
    caller_of(request).write((key_to_set(key, gateway.subtrees),), () if if_revision is None else (0,))
    async with gateway.bodies.taken(request) as body:
        if len(body) > DEFAULT.value_bytes_max:
            raise Problem(413, "too-large", f"a value has at most {DEFAULT.value_bytes_max} bytes; split it")
        rows.add(key, body, ttl_ms, if_revision)
        return await written(gateway, request, rows, body)


async def delete_key(request: Request) -> Response:
    """DELETE /v1/keys/{key}: whether it is there or not, unless If-Match says."""
    gateway, fields = gateway_of(request), query(request, "key")
    rows = BatchRows(gateway.subtrees)
    rows.add(key_of(request, fields), None, None, condition(request))
    return await written(gateway, request, rows, b"")


async def batch(request: Request) -> Response:
    """POST /v1/batch: many of them, all or none."""
    gateway = gateway_of(request)
    query(request)
    kind = kind_of(request.headers.get("content-type", ""))
    caller_of(request).write_anything()
    async with gateway.bodies.taken(request) as body:
        rows = await gateway.slices.read(len(body), rows_of(kind, body, BatchRows(gateway.subtrees)))
        return await written(gateway, request, rows, body)


async def written(gateway: Gateway, request: Request, rows: BatchRows, body: bytes, status: int = 200) -> Response:
    """Do it, and say what became of it; a condition that does not hold tells what is there."""
    one = rows.keys[0] if len(rows.keys) == 1 else None
    sets = len(rows.keys) > len(rows.deletes)
    caller_of(request).write(rows.keys, rows.conditions[0])
    try:
        done = await write(gateway.clone, gateway.writes, rows, await marker_of(request, body))
    except Problem:
        raise
    except Exception as error:
        raise gateway.told(error, one) from error
    if sets:
        gateway.keys.written(done.revision)
    return _answer(gateway, done, one is not None and sets, status)


def _answer(gateway: Gateway, done: IdempotentResult, tagged: bool, status: int) -> Response:
    headers = {**freshness(gateway), "CHP-Durability": done.durability or "known"}
    if tagged:
        headers["ETag"] = tag(done.revision)
    if done.again:
        headers["Idempotency-Replayed"] = "true"
    said = {"revision": str(done.revision)} | ({"durability": done.durability} if done.durability else {})
    return Response(json.dumps(said) + "\n", status, headers, media_type="application/json")


async def pages(request: Request) -> Response:
    """GET /v1/keys: a sorted page."""
    gateway = gateway_of(request)
    fields = query(request, "prefix", "after", "limit", "key", "fresh")
    if "key" in fields:
        return await read_key(request)
    caller_of(request).read_all(fields.get("prefix", ""))
    readable(gateway, fresh=flag(fields, "fresh"))
    limit = number(fields, "limit", PAGE, gateway.limits.page)
    keys, more = await gateway.keys.page(fields.get("prefix", ""), fields.get("after", ""), limit)
    found: list[dict[str, Any]] = []
    size, last = 0, ""
    for key in keys:
        if size > PAGE_BYTES:
            more = True
            break
        last = key
        if (entry := gateway.clone.entry(key)) is not None:
            found.append(entry_json(entry))
            size += len(key) + len(entry.value)
    after = last if more else None
    if NDJSON in request.headers.get("accept", ""):
        lines = "".join(json.dumps(each) + "\n" for each in [*found, {"next": after}])
        return Response(lines, headers=freshness(gateway), media_type=NDJSON)
    said = {"keys": found, "next": after, "number": str(gateway.clone.revision)}
    return Response(json.dumps(said) + "\n", headers=freshness(gateway), media_type="application/json")
