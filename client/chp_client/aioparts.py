"""What an AsyncClone hands out: changes for `async for`, and leases whose sets are awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from .changes import Change, Changes, change_with, changes_from, changes_of
from .clone import Clone
from .errors import Full
from .events import Ack, Changed
from .lease import Lease
from .tickets import Ticket
from .watch import Watch

Items = Mapping[str, Any] | tuple[Sequence[str], Sequence[Any]]


class AsyncLease:
    """Made by `AsyncClone.lease`; use it with `async with`, or call `close`."""

    def __init__(
        self, clone: Clone, lease: Lease, acknowledged: Callable[[Callable[[], Ticket], float | None], Awaitable[Ack]]
    ) -> None:
        self.id, self.ttl_s = lease.id, lease.ttl_s
        self._clone, self._lease = clone, lease
        self._acknowledged = acknowledged

    async def set(self, key: str, value: Any, timeout: float | None = None) -> Ack:
        """Set a key that lives as long as the lease; returns when it is acknowledged."""
        return await self._acknowledged(partial(self._lease.set, key, value), timeout)

    async def set_many(self, items: Items, timeout: float | None = None) -> Ack:
        """Set many keys that live as long as the lease."""
        return await self._acknowledged(partial(self._lease.set_many, items), timeout)

    @property
    def lost(self) -> bool:
        """As of `Lease`."""
        return self._lease.lost

    def on_lost(self, listener: Callable[[Lease], object]) -> None:
        """As of `Lease`; the listener runs on the thread of the Clone's listeners, not on the loop's."""
        self._lease.on_lost(listener)

    async def close(self, timeout: float | None = None) -> Ack | None:
        """End the lease: its keys are deleted together."""
        return None if self._lease.closed else await self._acknowledged(self._lease.end, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._clone.closed:
            return
        if kind is None:
            await self.close()
            return
        with suppress(Full):  # then it is refreshed no more
            self._lease.close()  # not waited for: who was cancelled would stay until a server is there

    def __repr__(self) -> str:
        return repr(self._lease).replace("<Lease", "<AsyncLease", 1)


class AsyncWatch:
    """Changes for `async for`, one by one or by `batches()`; `close()` ends it, and so does leaving `async with`."""

    def __init__(self, watch: Watch, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = watch
        self._came = asyncio.Event()
        self._rest: deque[Change] = deque()
        watch.queue.on_offer = partial(call_soon, loop, self._came.set)

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._rest:
            changed = await self._come()
            if changed is None:
                raise StopAsyncIteration
            self._rest.extend(changes_of(changed, None))
        change, decode = self._rest.popleft(), self._watch.decode
        return change if decode is None else change_with(change, decode)

    async def batches(self) -> AsyncIterator[Changes]:
        """Changes as columns, as of `Watch`; `asyncio.timeout` bounds a wait."""
        rest, self._rest = self._rest, deque()
        if rest:
            yield changes_from(rest, self._watch.decode)
        while (changed := await self._come()) is not None:
            yield changes_of(changed, self._watch.decode)

    async def _come(self) -> Changed | None:
        """What has come, waited for; None at the end."""
        queue = self._watch.queue
        while True:
            self._came.clear()
            closed = queue.closed  # looked at first: what came before the end is given before the end is told
            changed = queue.poll()
            if changed is not None or closed:
                return changed
            await self._came.wait()

    def close(self) -> None:
        """No more changes."""
        self._watch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """On the loop's thread; nothing if the loop has ended."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass
