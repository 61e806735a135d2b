"""The pair, its clients and groups, the hand-over, and the paths for probes: /v1/pair, /health, /metrics and others."""

from __future__ import annotations

from starlette.responses import Response

from chp.access import TOPICS
from chp.numbers import describe

from ...core.events import State
from ..answers import json_answer
from ..call import Call
from ..problems import RETRY_S, Problem
from ..shared.pair_view import APART


async def show_pair(call: Call) -> Response:
    """Answer GET /v1/pair: both servers, and this gateway."""
    gateway = call.gateway
    servers = [{k: v for k, v in each.items() if k not in APART} for each in await gateway.pair.look()]
    clone = gateway.clone
    own = {"state": str(clone.state), "number": str(clone.revision), "keys": len(gateway.keys), "write": gateway.write,
           "staleness_s": _finite(clone.staleness_s), "readers": gateway.readers, "active": clone.active,
           "lag_ms": round(clone.lag_s * 1000, 3), "answers": gateway.metrics.quantiles(),
           "hand_over": call.caller.may_command("switch")}  # fmt: skip
    return json_answer({"servers": servers, "gateway": own})


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else round(seconds, 3)


async def hand_over(call: Call) -> Response:
    """Answer POST /v1/pair/switch: have the server that is named hand over, and no other."""
    gateway, server = call.gateway, call.fields.get("from", "")
    if server not in gateway.servers:
        known = ", ".join(gateway.servers)
        text = f"from={server!r:.120} is no server of this pair; name the active one of {known}"
        raise Problem(400, "bad-query", text)
    return json_answer(await gateway.pair.hand_over(server))


async def show_history(call: Call) -> Response:
    """Answer GET /v1/history: the epochs."""
    return json_answer({"epochs": await call.gateway.pair.epochs()})


async def show_clients(call: Call) -> Response:
    """Answer GET /v1/clients: the clients that are connected to the pair."""
    told = await call.gateway.pair.clients()
    rows = [{**each, "number": describe(each["number"])} for each in told["clients"]]
    return json_answer({**told, "clients": rows})


async def show_groups(call: Call) -> Response:
    """Answer GET /v1/groups: the groups of all topics that are served here and that the caller may read."""
    subtrees, sees = call.gateway.subtrees, call.caller.sees_topic
    found = [each for each in await call.gateway.pair.groups() if sees(each["topic"])]
    return json_answer({"groups": [each for each in found if f"{TOPICS}{each['topic']}/".startswith(subtrees)]})


async def health(call: Call) -> Response:
    """Answer GET /health: the loop answers."""
    return json_answer({"status": "ok"}, headers={})


async def ready(call: Call) -> Response:
    """Answer GET /ready: the copy is current; and whether pages may write."""
    gateway, clone = call.gateway, call.gateway.clone
    if gateway.callers.why:
        raise Problem(503, "no-rules", gateway.callers.why, retry_s=RETRY_S)
    if clone.state is not State.SYNCED:
        raise Problem(503, "not-synced", clone.describe(), retry_s=RETRY_S)
    return json_answer({"status": "ready", "number": str(clone.revision), "write": gateway.write}, headers={})


async def show_metrics(call: Call) -> Response:
    """Answer GET /metrics: the text for Prometheus."""
    gateway = call.gateway
    return Response(gateway.metrics.text(gateway.gauges()), media_type="text/plain; version=0.0.4")
