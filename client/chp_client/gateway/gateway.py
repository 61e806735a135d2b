"""What all requests share: the Clone and what is counted of it. Nothing in it outlives the process, or needs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from starlette.requests import Request

from .. import checks
from ..clone.aio import AsyncClone
from ..core.events import State
from ..errors import Conflict
from .asked import Bodies, Limits, tag
from .metrics import Metrics
from .once import MARKERS
from .pair import PairView
from .paths.entries import entry_json
from .paths.fanout import Channels
from .paths.pages import KeysInOrder
from .paths.writing import Writes
from .problems import Problem, problem_of

FOLLOW_S = 1.0  # so often the order of the keys is brought up to date if nobody asks


class Gateway:
    """One AsyncClone, the order of its keys, and how much is under way."""

    def __init__(
        self, servers: Sequence[str], subtrees: Sequence[str], *, write: bool = False, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.write = write
        self.servers, self.subtrees = servers, tuple(checks.subtrees_of(None, subtrees))  # a client file stays one
        self.bodies = Bodies(self.limits)
        self.metrics = Metrics()
        self.under_way = self.readers = 0
        self.closing = asyncio.Event()
        self.clone: AsyncClone
        self.keys: KeysInOrder
        self.writes: Writes
        self.channels: Channels
        self.pair: PairView

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """As long as it serves."""
        async with AsyncClone(self.servers, subtrees=[*self.subtrees, MARKERS], name="gateway") as self.clone:
            self.keys, self.pair, self.writes = KeysInOrder(self.clone), PairView(self.servers), Writes(self.clone)
            self.channels = Channels(self.clone)
            following = asyncio.create_task(self._follow())
            try:
                yield
            finally:
                self.closing.set()
                following.cancel()
                self.keys.close()
                self.pair.close()

    async def _follow(self) -> None:
        while True:
            self.keys.follow()
            await asyncio.sleep(FOLLOW_S)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """What /metrics shows of this moment."""
        clone = self.clone
        stale = clone.staleness_s
        return {
            "synced": ("1 while the copy is current", float(clone.state is State.SYNCED)),
            "staleness_seconds": ("for how long the copy has not been known to be current", min(stale, 1e9)),
            "lag_seconds": ("how old what comes was when it came", clone.lag_s),
            "keys": ("keys of the copy", float(len(self.keys))),
            "requests": ("requests that wait for the pair", float(self.under_way)),
            "readers": ("readers of changes", float(self.readers)),
            "body_bytes": ("bytes of bodies under way", float(self.bodies.held)),
        }

    def held(self, key: str) -> None:
        """That the key lies in what is served."""
        checks.held_key(key, self.subtrees)

    def told(self, error: Exception, key: str | None) -> Problem:
        """The Problem of a write; one of a single key says what is there now."""
        problem = problem_of(error)
        if isinstance(error, Conflict) and problem.status == 412 and key is not None:
            entry = self.clone.entry(key)
            at = error.revisions.get(key)
            problem.more["now"] = {"key": key, "etag": tag(at)} if at else None
            if entry is not None and entry.revision == at:
                problem.more["now"] |= entry_json(entry)
        return problem


def gateway_of(request: Request) -> Gateway:
    """The gateway that a request came to."""
    return cast(Gateway, request.app.state.gateway)
