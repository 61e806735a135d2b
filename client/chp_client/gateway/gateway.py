"""What all requests share: the Clone and what is counted of it. Nothing in it outlives the process, or needs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, cast

import zmq
import zmq.asyncio
from starlette.requests import Request

from chp import addresses
from chp.errors import ChpError
from chp.fair import FairTable

from .. import checks
from ..agent.names import only_ipv6
from ..clone.aio import AsyncClone
from ..core.events import State
from ..errors import Conflict
from .access.audit import GatewayAudit
from .access.callers import AuthMethods, Callers
from .metrics import GatewayMetrics
from .once import MARKERS
from .pair import PairView
from .paths.entries import entry_json
from .paths.fanout import FanoutChannels
from .paths.pages import KeysInOrder
from .paths.writes import Writes
from .problems import Problem, problem_of
from .request_fields import Bodies, RequestLimits, tag
from .slices import Slices

if TYPE_CHECKING:
    from .channels.connection import WebSocketConnection

READING_MAX = 16  # pages of topics that are read at once: each has a thread and a socket
FOLLOW_S = 1.0  # so often the order of the keys is brought up to date if nobody asks
RULES_S = 1.0  # so often the rules are asked for: what was revoked is not let any more then


class Gateway:
    """One AsyncClone, the order of its keys, and how much is under way."""

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
        self.servers, self.subtrees = servers, tuple(checks.subtrees_of(None, subtrees))  # a client file stays one
        self.bodies, self.slices = Bodies(self.limits), Slices()
        self.metrics = GatewayMetrics()
        self.under_way = self.readers = self.streams = 0
        self.lines: FairTable[WebSocketConnection, None] = FairTable(self.limits.lines)  # the open WebSockets
        self.closing = asyncio.Event()
        self.reading = asyncio.Semaphore(READING_MAX)
        self.ipv6: list[bool]  # of each server, whether it is reached so
        self.receivers = ThreadPoolExecutor(self.limits.receiving, "receiving")
        self._receiving = 0
        self.context: zmq.asyncio.Context  # of the sockets that WebSockets have to the pair
        self.clone: AsyncClone
        self.keys: KeysInOrder
        self.writes: Writes
        self.channels: FanoutChannels
        self.pair: PairView

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """As long as it serves."""
        async with AsyncClone(self.servers, subtrees=[*self.subtrees, MARKERS], name="gateway") as self.clone:
            self.keys, self.pair, self.writes = KeysInOrder(self.clone), PairView(self.servers), Writes(self.clone)
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
            except ChpError as error:  # rules of a later version
                self.callers.why = f"the rules can't be read: {error}; upgrade this gateway"
            await asyncio.sleep(RULES_S)

    async def _follow(self) -> None:
        while True:
            await self.keys.follow()
            await asyncio.sleep(FOLLOW_S)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """One more waits for messages, or is told that too many do."""
        if self._receiving >= self.limits.receiving:
            text = f"{self._receiving} members wait for messages here; ask another gateway, or again"
            raise Problem(429, "busy", text, retry_s=1)
        self._receiving += 1
        try:
            yield
        finally:
            self._receiving -= 1

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
            "streams": ("readers of messages as events", float(self.streams)),
            "lines": ("WebSockets to the pair", float(len(self.lines))),
            "receiving": ("members of groups that wait for messages", float(self._receiving)),
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
