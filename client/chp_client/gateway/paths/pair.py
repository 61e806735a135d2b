"""The pairs, their clients and groups, the hand-over, and the paths for probes: /v1/pair, /health, /metrics and others.

A gateway of several pairs shows only the pairs at which the caller may use the command. Each row names its mount.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from chp.access import TOPICS
from chp.numbers import describe

from ...core.events import State
from ..answers import json_answer
from ..call import Call
from ..problems import RETRY_S, Problem
from ..shared.mounts import GatewayMount, position_of
from ..shared.pair_view import APART


def _seen(call: Call, command: str) -> list[GatewayMount]:
    """Return the mounts at whose pair the caller may use a command: at least one if the route needs this command."""
    return [each for each in call.gateway.mounts if _may(call, command, each)]


def _may(call: Call, command: str, mount: GatewayMount) -> bool:
    try:
        return call.caller.at(mount.prefix).may_command(command)
    except Problem:
        return False


def _of(mount: GatewayMount) -> dict[str, Any]:
    """Return the JSON member that names the mount of a row; no member if the gateway has one pair."""
    return {"mount": mount.prefix} if mount.prefix else {}


async def show_pair(call: Call) -> Response:
    """Answer GET /v1/pair: all servers, and this gateway."""
    gateway, mounts = call.gateway, _seen(call, "status")
    told = await asyncio.gather(*(each.pair.look() for each in mounts))
    servers = [
        {**_of(mount), **{name: fact for name, fact in each.items() if name not in APART}}
        for mount, views in zip(mounts, told, strict=True) for each in views
    ]  # fmt: skip
    everything = gateway.mounts
    own: dict[str, Any] = {
        "state": str(everything.state), "number": position_of(everything), "keys": everything.count,
        "write": gateway.write, "staleness_s": _finite(everything.staleness_s), "readers": gateway.readers,
        "lag_ms": round(everything.lag_s * 1000, 3), "answers": gateway.metrics.quantiles(),
        "hand_over": bool(_seen(call, "switch")),
    }  # fmt: skip
    if everything.several:
        own["mounts"] = [_mount(each) for each in everything]
    else:
        own["active"] = next(iter(everything)).clone.active
    return json_answer({"servers": servers, "gateway": own})


def _mount(mount: GatewayMount) -> dict[str, Any]:
    clone = mount.clone
    return {
        "mount": mount.prefix, "state": str(clone.state), "number": str(clone.revision), "active": clone.active,
        "staleness_s": _finite(clone.staleness_s),
    }  # fmt: skip


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else round(seconds, 3)


async def hand_over(call: Call) -> Response:
    """Answer POST /v1/pair/switch: have the server in ?from= hand over to its peer, and no other server."""
    gateway, server = call.gateway, call.fields.get("from", "")
    mount = next((each for each in gateway.mounts if server in each.servers), None)
    if mount is None:
        known = ", ".join(known for each in gateway.mounts for known in each.servers)
        text = f"from={server!r:.120} is no server of this pair; name the active one of {known}"
        raise Problem(400, "bad-query", text)
    call.caller.at(mount.prefix).command("switch")
    return json_answer(await mount.pair.hand_over(server))


async def show_history(call: Call) -> Response:
    """Answer GET /v1/history: the epochs of each pair, the newest first."""
    mounts = _seen(call, "status")
    told = await asyncio.gather(*(each.pair.epochs() for each in mounts))
    epochs = [{**_of(mount), **each} for mount, found in zip(mounts, told, strict=True) for each in found]
    return json_answer({"epochs": epochs})


async def show_clients(call: Call) -> Response:
    """Answer GET /v1/clients: the clients that are connected to the pairs."""
    mounts = _seen(call, "clients")
    told = await asyncio.gather(*(each.pair.clients() for each in mounts))
    rows = [
        {**_of(mount), **each, "number": describe(each["number"])}
        for mount, page in zip(mounts, told, strict=True) for each in page["clients"]
    ]  # fmt: skip
    return json_answer({**told[0], "clients": rows, "count": sum(page["count"] for page in told)})


async def show_groups(call: Call) -> Response:
    """Answer GET /v1/groups: the groups of all topics that are served here and that the caller may read."""
    mounts, subtrees, sees = call.gateway.mounts, call.gateway.subtrees, call.caller.sees_topic
    told = await asyncio.gather(*(each.pair.groups() for each in mounts))
    found = [each for mount, groups in zip(mounts, told, strict=True) for each in groups
             if mounts.has_topic(mount, each["topic"]) and sees(each["topic"])]  # fmt: skip
    return json_answer({"groups": [each for each in found if f"{TOPICS}{each['topic']}/".startswith(subtrees)]})


async def health(call: Call) -> Response:
    """Answer GET /health with 200, which shows that the event loop runs."""
    return json_answer({"status": "ok"}, headers={})


async def ready(call: Call) -> Response:
    """Answer GET /ready: 200 if the rules are known and all copies are current, and whether pages may write."""
    gateway, mounts = call.gateway, call.gateway.mounts
    if gateway.callers.why:
        raise Problem(503, "no-rules", gateway.callers.why, retry_s=RETRY_S)
    if mounts.state is not State.SYNCED:
        raise Problem(503, "not-synced", mounts.describe(), retry_s=RETRY_S)
    return json_answer({"status": "ready", "number": position_of(mounts), "write": gateway.write}, headers={})


async def show_metrics(call: Call) -> Response:
    """Answer GET /metrics: the text for Prometheus."""
    gateway = call.gateway
    return Response(gateway.metrics.text(gateway.gauges()), media_type="text/plain; version=0.0.4")
