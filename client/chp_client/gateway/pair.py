"""What the servers say of themselves: asked for all who look, at most twice a second; and the hand-over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from chp.numbers import describe

from ..core.events import State
from ..errors import Refused
from ..port.admin import Admin, AdminError, AdminReply, Answer
from .access.caller import caller_of
from .problems import RETRY_S, Problem
from .request_fields import query

ASK_S = 0.8  # a server that takes longer is shown as unreachable
KEEP_S = 0.5  # less than a page waits between two looks, or it would be shown what was before the last one
HAND_OVER_S, LOOK_S = 5.0, 0.05  # until the other server serves, or it is said that it does not; between two looks
TOLD = (
    "name", "role", "epoch", "sequence", "keys", "in_sync", "since_s", "uptime_s", "sessions", "leases", "version",
    "waits_for",
)  # fmt: skip
TURNS = ("turns", "seconds", "longest_ms")
ROOM = ("full", "why", "memory", "memory_max", "disk_free")
APART = ("epochs", "groups")  # these have paths of their own


class PairView:
    """The last answers of the servers of a pair; they are asked by one thread at a time."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._admin = Admin(servers, timeout_s=ASK_S)
        self._lock = asyncio.Lock()
        self._told: list[dict[str, Any]] = []
        self._at = self._clients_at = float("-inf")
        self._clients: dict[str, Any] = {"clients": [], "count": 0}
        self._closed = False

    async def look(self) -> list[dict[str, Any]]:
        """A map for each server: its address, state, and what else it said."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._at > KEEP_S and not self._closed:
                answers = await asyncio.to_thread(self._admin.ask_all, "status")
                self._told = [_said(server, answer) for server, answer in answers.items()]
                self._at = now
        return self._told

    async def epochs(self) -> list[dict[str, Any]]:
        """The epochs that any of them remembers, the newest first: when each began, who opened it, and because."""
        found: dict[int, dict[str, Any]] = {}
        for server in await self.look():
            for each in server.get("epochs") or []:
                found.setdefault(each["epoch"], each)
        return [found[epoch] for epoch in sorted(found, reverse=True)]

    async def groups(self) -> list[dict[str, Any]]:
        """The groups of topics, as the active server tells them: 100 at most."""
        active = (each for each in await self.look() if each["state"] == "active")
        return next(active, {}).get("groups") or []

    async def clients(self) -> dict[str, Any]:
        """Who told the active server that it is connected: the first page, and how many there are."""
        active = next((each["server"] for each in await self.look() if each["state"] == "active"), None)
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if active is not None and now - self._clients_at > KEEP_S and not self._closed:
                answer = (await asyncio.to_thread(self._admin.ask_some, [active], "clients"))[active]
                self._clients_at = now
                if isinstance(answer, AdminReply):
                    self._clients = answer.facts
        return self._clients

    async def access(self) -> Mapping[str, Answer]:
        """What each server says that the rules are; nothing, if no more is asked."""
        async with self._lock:
            return {} if self._closed else await asyncio.to_thread(self._admin.ask_all, "access")

    async def hand_over(self, server: str) -> dict[str, Any]:
        """Have a server hand over to the other, and wait until that one serves; `Problem` if it does not."""
        async with self._lock:
            self._at = float("-inf")
            return await asyncio.to_thread(self._hand_over, server)

    def _hand_over(self, server: str) -> dict[str, Any]:
        admin, began = self._admin, time.monotonic()
        patience, admin.timeout_s = admin.timeout_s, HAND_OVER_S
        try:
            number = describe(admin.ask(server, "switch").number)  # once: a second would undo the first
        except Refused as error:
            raise _not_handed_over(error) from None
        except AdminError as error:
            raise Problem(503, "unanswered", f"{error}; see who serves before you ask again") from None
        finally:
            admin.timeout_s = patience
        while time.monotonic() < began + HAND_OVER_S:
            for other, answer in admin.ask_all("status").items():
                if other != server and isinstance(answer, AdminReply) and answer.facts.get("state") == "active":
                    seconds = round(time.monotonic() - began, 4)
                    return {"active": other, "was": server, "number": number, "seconds": seconds}
            threading.Event().wait(LOOK_S)
        text = f"no other server serves after {HAND_OVER_S:g} s; see who does before you ask again"
        raise Problem(503, "unanswered", text)

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if not self._lock.locked():  # else a thread is using it, for less than a second, and the process ends
            self._admin.close()


def _not_handed_over(error: Refused) -> Problem:
    if error.code == "access":
        return Problem(403, "access", f"the gateway's own user may not: {error}; grant it admin switch")
    return Problem(429 if error.code == "busy" else 409, error.code or "refused", str(error))


def _said(server: str, answer: Any) -> dict[str, Any]:
    if not isinstance(answer, AdminReply):
        return {"server": server, "state": "unreachable", "problem": answer.text}
    facts = answer.facts
    said = {name: facts[name] for name in TOLD if name in facts}
    room, journal, turns = (facts.get(name) or {} for name in ("room", "journal", "turns"))
    said["room"] = {name: room[name] for name in ROOM if room.get(name) is not None}
    said["turns"] = {name: turns[name] for name in TURNS if name in turns}
    said["turns"]["above_50_ms"] = turns.get("above_ms", {}).get("50", 0)
    said["syncs_ms"] = {
        name: round(1000 * journal[f"sync_{name}_s"], 3)
        for name in ("last", "p50", "p99")
        if f"sync_{name}_s" in journal
    }
    apart = {name: facts.get(name) for name in APART}
    return {"server": server, "state": str(facts.get("state", "")).lower(), **said, **apart}


async def show_pair(request: Request) -> Response:
    """GET /v1/pair: both servers, and this gateway."""
    query(request)
    caller_of(request).command("status")
    gateway = request.app.state.gateway
    servers = [{k: v for k, v in each.items() if k not in APART} for each in await gateway.pair.look()]
    clone = gateway.clone
    may = caller_of(request).may_command("switch")
    own = {"state": str(clone.state), "number": str(clone.revision), "keys": len(gateway.keys), "write": gateway.write,
           "staleness_s": _finite(clone.staleness_s), "readers": gateway.readers, "active": clone.active,
           "lag_ms": round(clone.lag_s * 1000, 3), "answers": gateway.metrics.quantiles(),
           "hand_over": may}  # fmt: skip
    return JSONResponse({"servers": servers, "gateway": own}, headers={"Cache-Control": "no-store"})


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else round(seconds, 3)


async def hand_over(request: Request) -> Response:
    """POST /v1/pair/switch?from=: the server that is named, and no other, hands over."""
    caller_of(request).command("switch")
    gateway, server = request.app.state.gateway, query(request, "from").get("from")
    if server not in gateway.servers:
        known = ", ".join(gateway.servers)
        raise Problem(
            400, "bad-query", f"from={server!r:.120} is no server of this pair; name the active one of {known}"
        )
    return JSONResponse(await gateway.pair.hand_over(server), headers={"Cache-Control": "no-store"})


async def show_history(request: Request) -> Response:
    """GET /v1/history: the epochs."""
    query(request)
    caller_of(request).command("status")
    epochs = await request.app.state.gateway.pair.epochs()
    return JSONResponse({"epochs": epochs}, headers={"Cache-Control": "no-store"})


async def show_clients(request: Request) -> Response:
    """GET /v1/clients: who is connected to the pair."""
    query(request)
    caller_of(request).command("clients")
    told = await request.app.state.gateway.pair.clients()
    rows = [{**each, "number": describe(each["number"])} for each in told["clients"]]
    return JSONResponse({**told, "clients": rows}, headers={"Cache-Control": "no-store"})


async def health(request: Request) -> Response:
    """GET /health: the loop answers."""
    query(request)
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: the copy is current; and whether pages may write."""
    query(request)
    gateway = request.app.state.gateway
    clone = gateway.clone
    if gateway.callers.why:
        raise Problem(503, "no-rules", gateway.callers.why, retry_s=RETRY_S)
    if clone.state is not State.SYNCED:
        raise Problem(503, "not-synced", clone.describe(), retry_s=RETRY_S)
    return JSONResponse({"status": "ready", "number": str(clone.revision), "write": gateway.write})


async def show_metrics(request: Request) -> Response:
    """GET /metrics: for Prometheus."""
    query(request)
    caller_of(request).command("status")
    gateway = request.app.state.gateway
    return Response(gateway.metrics.text(gateway.gauges()), media_type="text/plain; version=0.0.4")
