"""The pair view: the last answers of the servers of a pair, and the hand-over.

The servers are asked at most twice a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from chp.facts import names
from chp.numbers import describe

from ...errors import Refused
from ...port.admin import Admin, AdminError, AdminReply, Answer
from ..problems import Problem

# A server that takes longer to answer is shown as unreachable.
ASK_S = 0.8
# Answers are kept for this many seconds. The console asks less often, so each time it gets new answers.
KEEP_S = 0.5
# A hand-over may take this long; the servers are asked for their state after each pause of LOOK_S.
HAND_OVER_S, LOOK_S = 5.0, 0.05
TOLD, TURNS, ROOM = (names(of, gateway=True) for of in ("", "turns", "room"))
REPLICA, REPLICAS = (names(of, gateway=True) for of in ("replica", "replicas[]"))
# Facts that /v1/pair leaves out, as they have paths of their own.
APART = ("epochs", "groups")


class PairView:
    """The last answers of the servers of a pair. One thread at a time asks for them."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._admin = Admin(servers, timeout_s=ASK_S)
        self._lock = asyncio.Lock()
        self._told: list[dict[str, Any]] = []
        self._at = self._clients_at = float("-inf")
        self._clients: dict[str, Any] = {"clients": [], "count": 0}
        self._closed = False

    async def look(self) -> list[dict[str, Any]]:
        """Return a map for each server: its address, its state, and other facts."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._at > KEEP_S and not self._closed:
                answers = await asyncio.to_thread(self._admin.ask_all, "status")
                self._told = [_said(server, answer) for server, answer in answers.items()]
                self._at = now
        return self._told

    async def epochs(self) -> list[dict[str, Any]]:
        """Return the epochs that any server remembers, the newest first."""
        found: dict[int, dict[str, Any]] = {}
        for server in await self.look():
            for each in server.get("epochs") or []:
                found.setdefault(each["epoch"], each)
        return [found[epoch] for epoch in sorted(found, reverse=True)]

    async def groups(self) -> list[dict[str, Any]]:
        """Return the groups of topics that the active server tells of: at most 100."""
        return _active(await self.look()).get("groups") or []

    async def clients(self) -> dict[str, Any]:
        """Return the first page of the clients that the active server knows, and their count."""
        active = _active(await self.look()).get("server")
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if active is not None and now - self._clients_at > KEEP_S and not self._closed:
                answer = (await asyncio.to_thread(self._admin.ask_some, [active], "clients"))[active]
                self._clients_at = now
                if isinstance(answer, AdminReply):
                    self._clients = answer.facts
        return self._clients

    async def access(self) -> Mapping[str, Answer]:
        """Return the answer of each server to a question for the rules; an empty map after `close`."""
        async with self._lock:
            return {} if self._closed else await asyncio.to_thread(self._admin.ask_all, "access")

    async def hand_over(self, server: str) -> dict[str, Any]:
        """Have `server` hand over to its peer, and wait until the peer serves; raise `Problem` if it does not."""
        async with self._lock:
            self._at = float("-inf")
            return await asyncio.to_thread(self._hand_over, server)

    def _hand_over(self, server: str) -> dict[str, Any]:
        admin, began = self._admin, time.monotonic()
        patience, admin.timeout_s = admin.timeout_s, HAND_OVER_S
        try:
            # The command is sent only once, as a second hand-over would undo the first.
            number = describe(admin.ask(server, "switch").number)
        except Refused as error:
            raise _not_handed_over(error) from None
        except AdminError as error:
            raise Problem(503, "unanswered", f"{error}; see who serves before you ask again") from None
        finally:
            admin.timeout_s = patience
        while time.monotonic() < began + HAND_OVER_S:
            for other, answer in admin.ask_all("status").items():
                told = answer.facts if isinstance(answer, AdminReply) else {}
                if other != server and told.get("state") == "active" and told.get("role") != "replica":
                    seconds = round(time.monotonic() - began, 4)
                    return {"active": other, "was": server, "number": number, "seconds": seconds}
            threading.Event().wait(LOOK_S)
        text = f"no other server serves after {HAND_OVER_S:g} s; see who does before you ask again"
        raise Problem(503, "unanswered", text)

    def close(self) -> None:
        """Stop asking."""
        self._closed = True
        # A thread that still asks needs less than a second, and the process ends anyway.
        if not self._lock.locked():
            self._admin.close()


def _active(servers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the facts of the active server of the pair, or an empty map. A replica that serves does not count."""
    return next((each for each in servers if each["state"] == "active" and each.get("role") != "replica"), {})


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
    if facts.get("replica"):
        said["replica"] = {name: facts["replica"].get(name) for name in REPLICA}
    if facts.get("replicas"):
        said["replicas"] = [{name: each.get(name) for name in REPLICAS} for each in facts["replicas"]]
    apart = {name: facts.get(name) for name in APART}
    return {"server": server, **said, "state": str(facts.get("state", "")).lower(), **apart}
