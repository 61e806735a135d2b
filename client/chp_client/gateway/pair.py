"""What the servers say of themselves: asked for all who look, at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..admin import Admin, Reply
from ..core.events import State
from .asked import query
from .problems import RETRY_S, Problem

ASK_S = 0.8  # a server that takes longer is shown as unreachable
KEEP_S = 1.0
TOLD = ("name", "role", "epoch", "sequence", "keys", "in_sync", "since_s", "uptime_s", "sessions", "leases", "version")


class PairView:
    """The last answers of the servers of a pair; they are asked by one thread at a time."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._admin = Admin(servers, timeout_s=ASK_S)
        self._lock = asyncio.Lock()
        self._told: list[dict[str, Any]] = []
        self._at = float("-inf")
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

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if not self._lock.locked():  # else a thread is using it, for less than a second, and the process ends
            self._admin.close()


def _said(server: str, answer: Any) -> dict[str, Any]:
    if not isinstance(answer, Reply):
        return {"server": server, "state": "unreachable", "problem": answer.text}
    facts = answer.facts
    said = {name: facts[name] for name in TOLD if name in facts}
    return {"server": server, "state": str(facts.get("state", "")).lower(), **said, "epochs": facts.get("epochs")}


async def show_pair(request: Request) -> Response:
    """GET /v1/pair: both servers, and this gateway."""
    query(request)
    gateway = request.app.state.gateway
    servers = [{k: v for k, v in each.items() if k != "epochs"} for each in await gateway.pair.look()]
    clone = gateway.clone
    own = {"state": str(clone.state), "number": str(clone.revision), "keys": len(gateway.keys), "write": gateway.write,
           "staleness_s": _finite(clone.staleness_s), "readers": gateway.readers, "active": clone.active}  # fmt: skip
    return JSONResponse({"servers": servers, "gateway": own}, headers={"Cache-Control": "no-store"})


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else round(seconds, 3)


async def show_history(request: Request) -> Response:
    """GET /v1/history: the epochs."""
    query(request)
    epochs = await request.app.state.gateway.pair.epochs()
    return JSONResponse({"epochs": epochs}, headers={"Cache-Control": "no-store"})


async def health(request: Request) -> Response:
    """GET /health: the loop answers."""
    query(request)
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: the copy is current."""
    query(request)
    clone = request.app.state.gateway.clone
    if clone.state is not State.SYNCED:
        raise Problem(503, "not-synced", clone.describe(), retry_s=RETRY_S)
    return JSONResponse({"status": "ready", "number": str(clone.revision)})


async def show_metrics(request: Request) -> Response:
    """GET /metrics: for Prometheus."""
    query(request)
    gateway = request.app.state.gateway
    return Response(gateway.metrics.text(gateway.gauges()), media_type="text/plain; version=0.0.4")
