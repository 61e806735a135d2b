"""Keys: one key, pages of keys, batches and versions.

A read is answered from the copy. A write is answered when the pair has acknowledged it.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from chp.limits import DEFAULT
from chp.numbers import describe

from ...clone.mapping import Entry
from ...errors import NotRetained
from ...port.history import Version
from ..answers import entry_json, json_answer, shown
from ..call import Call, check_readable
from ..gateway import Gateway
from ..problems import RETRY_S, Problem
from ..request_fields import flag, number, only, tag, ttl_of
from ..shared.mounts import GatewayMount
from ..shared.rows import NDJSON, BatchRows, kind_of, rows_of
from ..shared.writes import WriteResult, marker_of

OCTETS = "application/octet-stream"
PAGE = 1000
# A page ends at this many bytes of keys and values, and says where to go on.
PAGE_BYTES = 8 << 20
VERSIONS, VERSIONS_MAX = 50, 1000
# Reading through the log of the servers may take this long.
LOG_S = 10.0


async def read_key(call: Call) -> Response:
    """Answer GET /v1/keys/{key}: the value, byte for byte."""
    mount = call.gateway.mounts.of_key(call.key)
    check_readable(mount, fresh=flag(call.fields, "fresh"))
    entry = mount.clone.entry(call.key)
    if entry is None:
        raise Problem(404, "absent", f"there is no key {call.key!r:.120}")
    headers = entry_headers(call.gateway, mount, entry)
    asked = [each.strip().removeprefix("W/") for each in call.header("if-none-match").split(",")]
    if headers["ETag"] in asked or asked == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(entry.value, headers=headers, media_type=OCTETS)


def entry_headers(gateway: Gateway, mount: GatewayMount, entry: Entry) -> dict[str, str]:
    """Return the headers of an answer that has the value of an entry."""
    headers = {**gateway.freshness(mount), "ETag": tag(entry.revision)}
    if entry.ttl is not None:
        headers["CHP-TTL"] = f"{entry.ttl:.3f}"
    return headers


async def set_key(call: Call) -> Response:
    """Answer PUT /v1/keys/{key}: set it to the body."""
    ttl_ms, rows = ttl_of(call.fields), BatchRows(call.gateway.subtrees)
    async with call.body() as body:
        if len(body) > DEFAULT.value_bytes_max:
            raise Problem(413, "too-large", f"a value has at most {DEFAULT.value_bytes_max} bytes; split it")
        rows.append(call.key, body, ttl_ms, call.condition)
        return await written(call, rows, body)


async def delete_key(call: Call) -> Response:
    """Answer DELETE /v1/keys/{key}: delete it, present or absent."""
    rows = BatchRows(call.gateway.subtrees)
    rows.append(call.key, None, None, call.condition)
    return await written(call, rows, b"")


async def batch(call: Call) -> Response:
    """Answer POST /v1/batch: do all rows of the body, or none."""
    gateway, kind = call.gateway, kind_of(call.header("content-type"))
    async with call.body() as body:
        rows = await gateway.slices.read(len(body), rows_of(kind, body, BatchRows(gateway.subtrees)))
        return await written(call, rows, body)


async def written(call: Call, rows: BatchRows, body: bytes, status: int = 200) -> Response:
    """Write rows and answer with the result. If the condition of a single key does not hold, show its entry."""
    gateway, one = call.gateway, rows.keys[0] if len(rows.keys) == 1 else None
    tagged = one is not None and not rows.deletes
    mount = gateway.mounts.of_rows(rows)
    call.caller.write(rows.keys, rows.conditions[0])
    try:
        done = await mount.writes.write(rows, await marker_of(call.request, call.caller.at(mount.prefix).user, body))
    except Problem:
        raise
    except Exception as error:
        raise gateway.write_problem(error, one) from error
    return written_answer(gateway, mount, done, tagged, status)


def written_answer(
    gateway: Gateway, mount: GatewayMount, done: WriteResult, tagged: bool, status: int = 200
) -> Response:
    """Return the answer to a write; `tagged` gives it the ETag of the one key that was set."""
    revision = describe(done.revision)
    headers = {**gateway.freshness(mount), "CHP-Durability": done.durability or "known"}
    if tagged:
        headers["ETag"] = f'"{revision}"'
    return result_answer({"revision": revision}, done, status, headers)


def result_answer(
    told: dict[str, Any], done: WriteResult, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return the answer to a write that was done now, or before under the same Idempotency-Key."""
    answer = json_answer(told | ({"durability": done.durability} if done.durability else {}), status, headers)
    if done.again:
        answer.headers["Idempotency-Replayed"] = "true"
    return answer


async def show_page(call: Call) -> Response:
    """Answer GET /v1/keys: a sorted page, or with ?key= one value."""
    gateway, fields = call.gateway, call.fields
    if "key" in fields:
        only(fields, ("key", "fresh"))
        return await read_key(call)
    prefix, mounts = fields.get("prefix", ""), gateway.mounts
    within = [each.mount for each in call.readable(prefix, fresh=flag(fields, "fresh"))]
    limit = number(fields, "limit", PAGE, gateway.limits.page)
    keys, more = await mounts.page(prefix, fields.get("after", ""), limit)
    found: list[dict[str, Any]] = []
    size, last = 0, ""
    for key in keys:
        if size > PAGE_BYTES:
            more = True
            break
        last = key
        if (entry := mounts.of_key(key).clone.entry(key)) is not None:
            found.append(entry_json(entry))
            size += len(key) + len(entry.value)
    after, headers = last if more else None, gateway.freshness(*within)
    if NDJSON in call.header("accept"):
        lines = "".join(json.dumps(each) + "\n" for each in [*found, {"next": after}])
        return Response(lines, headers=headers, media_type=NDJSON)
    return json_answer({"keys": found, "next": after, "number": headers["CHP-Number"]}, headers=headers)


async def show_versions(call: Call) -> Response:
    """Answer GET /v1/versions: the versions of a key in the log of the servers, the newest first."""
    gateway, most = call.gateway, number(call.fields, "limit", VERSIONS, VERSIONS_MAX)
    mount = gateway.mounts.of_key(call.named_key)
    async with mount.reading:
        try:
            found = await mount.clone.history(call.named_key, most, LOG_S)
        except NotRetained as error:
            raise Problem(503, "busy", f"the log moves on faster than it is read: {error}", retry_s=RETRY_S) from None
    return json_answer({"key": call.named_key, "versions": [_version_json(each) for each in reversed(found)]})


def _version_json(version: Version) -> dict[str, Any]:
    told: dict[str, Any] = {"revision": str(version.revision), "wall_ms": round(version.when.timestamp() * 1000)}
    if version.by is not None:
        told["by"] = version.by
    if version.value is None:
        return {**told, "deleted": True, "expired": version.expired}
    return {**told, **shown(version.value)}
