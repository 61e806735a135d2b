"""The gateway: its mounts, each with a Clone, and all that requests share. Nothing in it outlives the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import zmq
import zmq.asyncio

from chp.errors import ChpError
from chp.fair import FairTable

from .. import checks
from ..clone.aio import AsyncClone
from ..core.events import State
from ..errors import Conflict
from ..mount_table import Mounts
from .access.audit import GatewayAudit
from .access.callers import AuthMethods, Callers, MountedCallers
from .answers import entry_json
from .metrics import GatewayMetrics, Gauge
from .problems import Problem, problem_of
from .request_fields import Bodies, RequestLimits, tag
from .shared.fanout import FanoutChannels
from .shared.mounts import GatewayMount, GatewayMounts, position_of
from .slices import Slices

if TYPE_CHECKING:
    from .channels.connection import WebSocketConnection

# The sorted keys are brought up to date this often, even if no client asks for a page.
FOLLOW_S = 1.0
# The gateway asks the servers for the rules this often. A revoked right ends with their next answer.
RULES_S = 1.0


class Gateway:
    """The mounts that are served, and the counters of requests and readers."""

    def __init__(
        self,
        servers: Sequence[str] | Mounts,
        subtrees: Sequence[str],
        *,
        write: bool = False,
        limits: RequestLimits | None = None,
        ways: AuthMethods | None = None,
        audit: GatewayAudit | None = None,
    ) -> None:
        self.limits = limits or RequestLimits()
        self.write = write
        self.ways, self.keyed = ways or AuthMethods(), bool(ways and ways.keyed)
        self.callers = Callers(self.ways)
        self.audit = audit or GatewayAudit()
        # `servers` may be a client file, which has the keys of the servers.
        self.servers, self.subtrees = servers, tuple(checks.subtrees_of(None, subtrees))
        self.bodies, self.slices = Bodies(self.limits), Slices()
        self.metrics = GatewayMetrics()
        self.under_way = self.readers = self.streams = 0
        # The open WebSockets.
        self.lines: FairTable[WebSocketConnection, None] = FairTable(self.limits.lines)
        self.closing = asyncio.Event()
        self.receivers = ThreadPoolExecutor(self.limits.receiving, "receiving")
        self._receiving = 0
        # The ZeroMQ context of all sockets that connect WebSockets to the pair.
        self.context: zmq.asyncio.Context
        self.mounts: GatewayMounts
        self.channels = FanoutChannels()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connect to all pairs for as long as the gateway serves."""
        self.mounts = GatewayMounts(self.servers, self.subtrees, self.limits.requests)
        if self.keyed and isinstance(self.servers, Mounts):
            self.callers = MountedCallers(self.ways, self.servers, [each.prefix for each in self.mounts])
        async with self.mounts.open():
            self.context = zmq.asyncio.Context()
            self.context.set(zmq.MAX_SOCKETS, 64 + 8 * self.limits.lines)
            following = [asyncio.create_task(self._follow(each)) for each in self.mounts]
            if self.keyed:
                following += [asyncio.create_task(self._follow_rules(each)) for each in self.mounts]
            try:
                yield
            finally:
                self.closing.set()
                for task in following:
                    task.cancel()
                self.context.destroy(linger=0)
                self.receivers.shutdown(wait=False)
                self.audit.close()

    async def _follow_rules(self, mount: GatewayMount) -> None:
        callers = self.callers.of_pair(mount.prefix)
        while True:
            try:
                callers.learn(await mount.pair.access())
            except ChpError as error:
                # The rules were made by a later version, so this gateway can't read them.
                callers.fail(f"the rules can't be read: {error}; upgrade this gateway")
            await asyncio.sleep(RULES_S)

    async def _follow(self, mount: GatewayMount) -> None:
        while True:
            await mount.keys.follow()
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

    def gauges(self) -> dict[str, Gauge]:
        """Return the gauges of /metrics: the help and the value of each, or its values by mount."""
        mounts = self.mounts
        found: dict[str, Gauge] = {
            "synced": ("1 while the copy is current", float(mounts.state is State.SYNCED)),
            "staleness_seconds": ("for how long the copy has not been known to be current", _bounded(mounts)),
            "lag_seconds": ("how old what comes was when it came", mounts.lag_s),
            "keys": ("keys of the copy", float(mounts.count)),
            "requests": ("requests that wait for the pair", float(self.under_way)),
            "readers": ("readers of changes", float(self.readers)),
            "streams": ("readers of messages as events", float(self.streams)),
            "lines": ("WebSockets to the pair", float(len(self.lines))),
            "receiving": ("members of groups that wait for messages", float(self._receiving)),
            "body_bytes": ("bytes of bodies under way", float(self.bodies.held)),
        }
        if mounts.several:
            synced = {each.prefix: float(each.clone.state is State.SYNCED) for each in mounts}
            found["mount_synced"] = ("1 while the copy of the mount is current", synced)
            old = {each.prefix: _bounded(each.clone) for each in mounts}
            found["mount_staleness_seconds"] = ("for how long that of the mount has not been", old)
        return found

    def freshness(self, *mounts: GatewayMount) -> dict[str, str]:
        """Return the headers that say how current the copies of some mounts are."""
        staleness = f"{max(each.clone.staleness_s for each in mounts):.3f}"
        return {"CHP-Number": position_of(mounts), "CHP-Staleness": staleness, "Cache-Control": "no-cache"}

    def held(self, key: str) -> None:
        """Raise `BadKey` if a key lies outside the subtrees that are served."""
        checks.held_key(key, self.subtrees)

    def write_problem(self, error: Exception, key: str | None) -> Problem:
        """Return the Problem of a write that failed. If the condition of the one `key` fails, show its entry."""
        problem = problem_of(error)
        if isinstance(error, Conflict) and problem.status == 412 and key is not None:
            entry = self.mounts.of_key(key).clone.entry(key)
            at = error.revisions.get(key)
            problem.more["now"] = {"key": key, "etag": tag(at)} if at else None
            if entry is not None and entry.revision == at:
                problem.more["now"] |= entry_json(entry)
        return problem


def _bounded(copy: GatewayMounts | AsyncClone) -> float:
    """Return the staleness of a copy in seconds, bounded: some readers of metrics do not take infinity."""
    return min(copy.staleness_s, 1e9)
