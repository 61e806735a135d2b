"""What people look at beside keys: the versions of one key, and the groups of all topics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from chp.access import TOPICS
from chp.keys import check_key

from ...errors import NotRetained
from ...port.history import Version
from ..access.caller import caller_of
from ..gateway import gateway_of
from ..problems import RETRY_S, Problem
from ..request_fields import number, query
from .entries import shown

VERSIONS, VERSIONS_MAX = 50, 1000
LOG_S = 10.0  # that the servers' log may take to be read through
UNCACHED = {"Cache-Control": "no-store"}


async def show_versions(request: Request) -> Response:
    """GET /v1/versions?key=&limit=: what a key was, since when and by whom, as the log has it; the newest first."""
    gateway, fields = gateway_of(request), query(request, "key", "limit")
    most = number(fields, "limit", VERSIONS, VERSIONS_MAX)
    if "key" not in fields:
        raise Problem(400, "bad-query", "of which key? Give ?key=")
    key = check_key(fields["key"])
    gateway.held(key)
    caller_of(request).read(key)
    async with gateway.reading:
        try:
            found = await gateway.clone.history(key, most, LOG_S)
        except NotRetained as error:
            raise Problem(503, "busy", f"the log moves on faster than it is read: {error}", retry_s=RETRY_S) from None
    return JSONResponse({"key": key, "versions": [_json(each) for each in reversed(found)]}, headers=UNCACHED)


def _json(version: Version) -> dict[str, Any]:
    told: dict[str, Any] = {"revision": str(version.revision), "wall_ms": round(version.when.timestamp() * 1000)}
    if version.by is not None:
        told["by"] = version.by
    if version.value is None:
        return {**told, "deleted": True, "expired": version.expired}
    return {**told, **shown(version.value)}


async def show_groups(request: Request) -> Response:
    """GET /v1/groups: of all topics that are served here, with lag and members; 100 at most."""
    query(request)
    gateway, sees = gateway_of(request), caller_of(request).sees_topic
    found = [each for each in await gateway.pair.groups() if sees(each["topic"])]
    found = [each for each in found if f"{TOPICS}{each['topic']}/".startswith(gateway.subtrees)]
    return JSONResponse({"groups": found}, headers=UNCACHED)
