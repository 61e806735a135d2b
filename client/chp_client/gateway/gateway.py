"""The gateway: the Clone and all that requests share. Nothing in it outlives the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from chp import addresses
from chp.errors import ChpError
from chp.fair import FairTable
from chp.numbers import describe

from .. import checks
from ..agent.names import only_ipv6
from ..clone.aio import AsyncClone
from ..clone.base import internals
from ..core.events import State
from ..errors import Conflict
from .access.audit import GatewayAudit
from .access.callers import AuthMethods, Callers
from .answers import entry_json
from .metrics import GatewayMetrics
from .problems import Problem, problem_of
from .request_fields import Bodies, RequestLimits, tag
from .shared.fanout import FanoutChannels
from .shared.key_order import KeysInOrder
from .shared.pair_view import PairView
from .shared.writes import MARKERS, Writes
from .slices import Slices

if TYPE_CHECKING:
    from .channels.connection import WebSocketConnection

# Pages of topics that are read at once. Each has a thread and a socket.
READING_MAX = 16
# The order of the keys is brought up to date this often while no page is asked for.
FOLLOW_S = 1.0
# The rules are asked for this often. A revoked right ends with the next answer.
RULES_S = 1.0


class Gateway:
    """One AsyncClone, the order of its keys, and the counters of what is under way."""

    def __init__(
        self,
        servers: Sequence[str],
        subtrees: Sequence[str],
        *,
        write: bool = False,
        limits: RequestLimits | None = None,
        ways: AuthMethods | None = None,
        audit: GatewayAudit | None = None,
    ) -> None:
        self.limits = limits or RequestLimits()
        self.write = write
        self.callers, self.keyed = Callers(ways or AuthMethods()), bool(ways and ways.keyed)
        self.audit = audit or GatewayAudit()
        # `servers` may be a client file, which has the keys of the servers.
        self.servers, self.subtrees = servers, tuple(checks.subtrees_of(None, subtrees))
        self.bodies, self.slices = Bodies(self.limits), Slices()
        self.metrics = GatewayMetrics()
        self.under_way = self.readers = self.streams = 0
        # The open WebSockets.
        self.lines: FairTable[WebSocketConnection, None] = FairTable(self.limits.lines)
        self.closing = asyncio.Event()
        self.reading = asyncio.Semaphore(READING_MAX)
        # For each server, True if it is reached by IPv6.
        self.ipv6: list[bool]
        self.receivers = ThreadPoolExecutor(self.limits.receiving, "receiving")
        self._receiving = 0
        # The context of the sockets that WebSockets have to the pair.
        self.context: zmq.asyncio.Context
        self.clone: AsyncClone
        self.keys: KeysInOrder
        self.writes: Writes
        self.channels: FanoutChannels
        self.pair: PairView

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connect to the pair for as long as the gateway serves."""
        async with AsyncClone(self.servers, subtrees=[*self.subtrees, MARKERS], name="gateway") as self.clone:
            self.keys, self.pair = KeysInOrder(self.clone), PairView(self.servers)
            self.writes = Writes(self.clone, internals(self.clone), self.keys.written)
            self.channels = FanoutChannels(self.clone)
            self.context = zmq.asyncio.Context()
            full = [addresses.full(server) for server in self.servers]
            self.ipv6 = [addresses.is_ipv6(each) or await asyncio.to_thread(only_ipv6, each) for each in full]
            self.context.set(zmq.MAX_SOCKETS, 64 + 8 * self.limits.lines)
            following = [asyncio.create_task(self._follow())]
            if self.keyed:
                following.append(asyncio.create_task(self._follow_rules()))
            try:
                yield
            finally:
                self.closing.set()
                for task in following:
                    task.cancel()
                self.context.destroy(linger=0)
                self.receivers.shutdown(wait=False)
                self.keys.close()
                self.pair.close()
                self.audit.close()

    async def _follow_rules(self) -> None:
        while True:
            try:
                self.callers.learn(await self.pair.access())
            except ChpError as error:
                # The rules are those of a later version.
                self.callers.why = f"the rules can't be read: {error}; upgrade this gateway"
            await asyncio.sleep(RULES_S)

    async def _follow(self) -> None:
        while True:
            await self.keys.follow()
            await asyncio.sleep(FOLLOW_S)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count one more member that waits for messages; raise `Problem` if there are too many."""
        if self._receiving >= self.limits.receiving:
            text = f"{self._receiving} members wait for messages here; ask another gateway, or again"
            raise Problem(429, "busy", text, retry_s=1)
        self._receiving += 1
        try:
            yield
        finally:
            self._receiving -= 1

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return the gauges of /metrics: the help and the value of each."""
        clone = self.clone
        stale = clone.staleness_s
        return {
            "synced": ("1 while the copy is current", float(clone.state is State.SYNCED)),
            "staleness_seconds": ("for how long the copy has not been known to be current", min(stale, 1e9)),
            "lag_seconds": ("how old what comes was when it came", clone.lag_s),
            "keys": ("keys of the copy", float(len(self.keys))),
            "requests": ("requests that wait for the pair", float(self.under_way)),
            "readers": ("readers of changes", float(self.readers)),
            "streams": ("readers of messages as events", float(self.streams)),
            "lines": ("WebSockets to the pair", float(len(self.lines))),
            "receiving": ("members of groups that wait for messages", float(self._receiving)),
            "body_bytes": ("bytes of bodies under way", float(self.bodies.held)),
        }

    def freshness(self) -> dict[str, str]:
        """Return the headers that say how current the copy is."""
        clone = self.clone
        staleness = f"{clone.staleness_s:.3f}"
        return {"CHP-Number": describe(clone.revision), "CHP-Staleness": staleness, "Cache-Control": "no-cache"}

    def held(self, key: str) -> None:
        """Raise `BadKey` if a key lies outside the subtrees that are served."""
        checks.held_key(key, self.subtrees)

    def write_problem(self, error: Exception, key: str | None) -> Problem:
        """Return the Problem of a write; that of a single key shows the present entry."""
        problem = problem_of(error)
        if isinstance(error, Conflict) and problem.status == 412 and key is not None:
            entry = self.clone.entry(key)
            at = error.revisions.get(key)
            problem.more["now"] = {"key": key, "etag": tag(at)} if at else None
            if entry is not None and entry.revision == at:
                problem.more["now"] |= entry_json(entry)
        return problem
