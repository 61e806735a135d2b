"""`MountedAsyncClone`: an AsyncClone of several pairs. `AsyncClone(...)` makes one if its servers are mounts.

Calls that wait are awaited, and each inner Clone is an AsyncClone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chp.errors import BadInput

from .. import checks
from ..agent.aioparts import AsyncLease, Awaiting
from ..agent.tickets import Ticket
from ..agent.writer import Items
from ..checks import Ttl
from ..clone.aio import AsyncClone
from ..clone.atomic import DELETE_KEYS
from ..clone.base import OF_MOUNTS, internals
from ..codecs import V
from ..core.events import Ack, weakest
from ..topics.aioconsumer import AsyncTransaction
from ..topics.reader import PATIENCE_S
from .base import NOT_THERE, MountedBase, left_of
from .transaction import MountedLease, MountedTransaction

Waits = Callable[[float | None], Awaiting]


class MountedAsyncClone(MountedBase[V], AsyncClone[V]):
    """The view over several pairs for an event loop; see `AsyncClone` for its methods."""

    _kind = AsyncClone

    async def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key held here that begins with `prefix`, in all mounts; see `Clone.delete_prefix`."""
        if prefix == "":
            raise BadInput("an empty prefix is everything")
        left, view, gone, after = left_of(timeout), self.prefix(prefix), 0, None
        while keys := view.page_of_keys(DELETE_KEYS, after):
            await asyncio.gather(*(self.delete_many(some, left()) for some in self._by_mount(keys)))
            gone, after = gone + len(keys), keys[-1]
        return gone

    async def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key of any mount and return it with its value; see `Clone.popitem`."""
        left, synced = left_of(timeout), False
        while True:
            while (key := self._reader.some_key()) is not None:
                value = await self.pop(key, NOT_THERE, left())
                if value is not NOT_THERE:
                    return key, value
            if synced:
                raise KeyError("popitem(): this Clone holds no keys")
            await self.sync(left())
            synced = True

    def submit(self, key: str, value: Any, ttl: Ttl | None = None) -> Ticket:
        """Set a key without waiting; see `AsyncClone.submit`."""
        ticket: Ticket = self._of(key).submit(key, value, ttl)
        return ticket

    async def settled(self, ticket: Ticket, timeout: float | None = None) -> Ack:
        """Return the acknowledgement of a ticket, once there is one."""
        # Any inner Clone can wait for any ticket, because a ticket knows what it waits for.
        ack: Ack = await next(iter(self._inner.values())).settled(ticket, timeout)
        return ack

    def lease(self, ttl: Ttl) -> AsyncLease:
        """Make a lease. All its keys must be of one mount, which its first key chooses. See `Clone.lease`."""
        return _MountedAsyncLease(self._mounted_lease(ttl), self._waits_of, lambda: self.closed)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged, in all mounts; see `Clone.flush`."""
        left, refused = left_of(timeout), None
        for each in self._all():
            try:
                await each.flush(left())
            except TimeoutError:
                raise
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def sync(self, timeout: float | None = None) -> Ack:
        """Wait until reads see all that was acknowledged before this call, in any mount; see `MountedClone.sync`."""
        acks: list[Ack] = await asyncio.gather(*(each.sync(timeout) for each in self._inner.values()))
        return acks[0] if len(acks) == 1 else weakest(acks)

    async def wait_until_synced(self, timeout: float | None = None) -> None:
        """Wait until the copies of all mounts are complete and current; see `Clone.wait_until_synced`."""
        left = left_of(timeout)
        for mount, each in self._inner.items():
            try:
                await each.wait_until_synced(left())
            except TimeoutError as error:
                raise TimeoutError(f"mount {mount}: {error}") from None

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction within one mount; see `Clone.transaction`. A second mount raises `BadInput`."""
        return AsyncTransaction(MountedTransaction(self._table, self._writer_of, None))

    async def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic of all mounts, by name; see `Clone.topics`."""
        return await asyncio.to_thread(self._topics, timeout)

    def _waits_of(self, keys: list[str]) -> Waits:
        # The inner Clones are AsyncClones, so their `waits` are awaited.
        waits: Any = internals(self._of_keys("the lease", keys)).waits
        return waits  # type: ignore[no-any-return]


class _MountedAsyncLease(AsyncLease):
    """A lease within one mount, for an event loop."""

    def __init__(self, lease: MountedLease, waits_of: Callable[[list[str]], Waits], closed: Callable[[], bool]) -> None:
        self.id, self.ttl_s = lease.id, lease.ttl_s
        self._lease = self._mounted = lease
        self._waits_of, self._clone_closed = waits_of, closed

    async def set(self, key: str, value: Any, timeout: float | None = None) -> Ack:
        """Set a key that lives as long as the lease. Return when the set is acknowledged."""
        return await self.set_many(([key], [value]), timeout)

    async def set_many(self, items: Items, timeout: float | None = None) -> Ack:
        """Set many keys that live as long as the lease. Raise `BadInput` for keys of another mount."""
        keys, values = checks.items_of(items)
        if not self._mounted.begun:
            self._waits = self._waits_of(keys)
        return await super().set_many((keys, values), timeout)

    async def close(self, timeout: float | None = None) -> Ack | None:
        """End the lease. Its keys are deleted together."""
        if not self._mounted.begun:
            self._mounted.close()
            return None
        return await super().close(timeout)

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._clone_closed():
            return
        if kind is None:
            await self.close()
        else:
            self._lease.abandon()


OF_MOUNTS[AsyncClone] = MountedAsyncClone
