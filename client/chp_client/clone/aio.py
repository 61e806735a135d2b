"""AsyncClone: the Clone for asyncio; the same words, with `await` on what waits and `async for` on changes.

    async with AsyncClone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
        value = clone["/rates/EUR/USD"]                    # reading is a dict's, and never waits
        ack = await clone.set("/rates/EUR/USD", b"1.08")   # returns when it is acknowledged
        async for change in clone.watch("/rates/EUR/"): ...

It is a Clone but for what waits; results come over by `loop.call_soon_threadsafe`. To have many sets under way, start
them together (`asyncio.gather`, or `submit`, which returns the ticket at once): they travel in the same batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..agent.aioparts import AsyncLease, AsyncListeners, AsyncWatch, Awaiting
from ..agent.changes import Change
from ..agent.tickets import Ticket
from ..agent.writer import Items
from ..checks import Ttl, wait_s
from ..codecs import OnBad, V
from ..core.events import Ack, State
from ..port.history import Version
from ..renamed import refusing_redis
from ..starts import KeyStart
from ..topics.aioconsumer import AsyncTransaction
from ..topics.aiotopic import AsyncTopic
from ..topics.reader import PATIENCE_S
from ..topics.topic import Topic, topics_of
from ..topics.transaction import Transaction
from .atomic import NOTHING, AtomicOperations, flush
from .base import CALLBACKS_S, BaseClone
from .health import Check


class AsyncClone(BaseClone[V]):
    """A replicated dictionary for one event loop; arguments as of `Clone`.

    Listeners (`on_state`, `on_lag`, a ticket's callbacks) are called on a thread of their own, not by the loop.
    """

    keeps_threads = False

    def _begin(self) -> None:
        self._listeners = AsyncListeners()

    # -- reading, which waits

    async def verify(self, timeout: float | None = 30.0, *, contents: bool = True) -> Check:
        """As of `Clone`."""
        return await asyncio.to_thread(self._verified, timeout, contents)

    # -- writing

    @refusing_redis
    async def set(
        self,
        key: str,
        value: Any,
        ttl: Ttl | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Set a key; returns when it is acknowledged.

        After `timeout` seconds it raises `TimeoutError`: the set is then still on its way, unless that says there was
        no room. Cancelled, it is on its way as well. It raises what `Clone.set` raises, and `Refused`, or `Conflict` if
        `if_revision` did not hold.
        """
        return await self.waits(timeout).done(partial(self._writer.set, key, value, ttl, if_revision))

    async def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ack:
        """Delete a key."""
        return await self.waits(timeout).done(partial(self._writer.delete, key, if_revision))

    async def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """As of `Clone`."""
        return await self._taking(timeout).pop(key, default)

    async def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """As of `Clone`."""
        return await self._taking(timeout).delete_prefix(prefix)

    async def touch(self, key: str, ttl: Ttl | None, timeout: float | None = None) -> Ack:
        """Give a key another time to live; returns once the servers have it. See `Clone.touch`."""
        return await self._taking(timeout).touch(key, ttl)

    async def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """As of `Clone`."""
        return await self._taking(timeout).popitem()

    async def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """As of `Clone`."""
        return await self._taking(timeout).setdefault(key, default)

    def waits(self, timeout: float | None) -> Awaiting:
        """By the loop."""
        return Awaiting(self._mailbox, self._blocks, timeout)

    def _taking(self, timeout: float | None) -> AtomicOperations:
        return AtomicOperations(self, self._writer, self.waits(timeout))

    async def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Ack:
        """Set many keys together."""
        return await self.waits(timeout).done(partial(self._writer.set_many, items, ttl))

    async def delete_many(self, keys: Sequence[str], timeout: float | None = None) -> Ack:
        """Delete many keys together."""
        return await self.waits(timeout).done(partial(self._writer.delete_many, keys))

    async def put_columns(
        self,
        keys: list[str],
        values: list[bytes],
        deletes: list[int],
        ttls_ms: tuple[list[int], list[int]],
        conditions: tuple[list[int], list[int]],
        *,
        extras: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Sets and deletes in one batch, all or none of them (for the parts of this package; as of `Writer`)."""
        put = self._writer.put_columns
        act = partial(put, keys, values, deletes, ttls_ms, conditions, extras=extras)
        return await self.waits(timeout).done(act)

    def submit(self, key: str, value: Any, ttl: Ttl | None = None) -> Ticket:
        """Set a key without waiting; `Full` if the window is. `await clone.settled(ticket)` waits for it."""
        return self._writer.set(key, value, ttl)

    async def settled(self, ticket: Ticket, timeout: float | None = None) -> Ack:
        """The acknowledgement of a ticket."""
        return await self.waits(timeout).settled(ticket)

    def lease(self, ttl: Ttl) -> AsyncLease:
        """As of `Clone`: `async with clone.lease(10) as lease: await lease.set(key, value)`."""
        return AsyncLease(self._mailbox, self.new_lease(ttl), self.waits)

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction, for `async with`; see `Clone.transaction`."""
        return AsyncTransaction(Transaction(self._writer, None))

    def topic(self, name: str) -> AsyncTopic:
        """As of `Clone`."""
        return AsyncTopic(Topic(self._writer, self._active_first, name), self.waits)

    async def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """As of `Clone`."""
        return await asyncio.to_thread(lambda: topics_of(self._active_first(), timeout))

    async def flush(self, timeout: float | None = None) -> None:
        """Until every set made so far is acknowledged."""
        await flush(self._mailbox, self.waits(timeout), wait_s(timeout))

    async def sync(self, timeout: float | None = None) -> Ack:
        """As of `Clone`."""
        return await self.waits(timeout).done(self._writer.sync)

    # -- waiting

    async def wait_until_synced(self, timeout: float | None = None) -> None:
        """Until the copy is complete and current."""
        core = self._mailbox.core
        await self.waits(timeout).until(lambda: core.state is State.SYNCED or bool(core.denied()), "not synced")
        self.check_admitted()

    def watch(
        self,
        prefix: str = "",
        start: KeyStart = "end",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> AsyncWatch[V]:
        """As of `Clone`, for `async for`."""
        watch = self.open_watch(prefix, start, conflate, queue_max, on_bad)
        return AsyncWatch(watch, asyncio.get_running_loop())

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(listener, prefix, opened, start)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """As of `Clone`."""
        return self._listeners.drop(listener)

    async def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """As of `Clone`."""
        return await asyncio.to_thread(self._history, key, limit, timeout)

    # -- the end

    async def close(self, timeout: float = 5.0) -> None:
        """As of `Clone`; callbacks of changes that wait for something are cancelled."""
        await asyncio.to_thread(self._end, timeout)
        await self._listeners.end(CALLBACKS_S)

    if not TYPE_CHECKING:  # a checker of types refuses these by itself

        def __setitem__(self, key: str, value: Any) -> None:
            raise TypeError("an AsyncClone has no clone[key] = value; use: await clone.set(key, value)")

        def __delitem__(self, key: str) -> None:
            raise TypeError("an AsyncClone has no del clone[key]; use: await clone.delete(key)")

        def __enter__(self) -> None:
            raise TypeError("an AsyncClone needs `async with`; use: async with AsyncClone(...) as clone")

        def __exit__(self, *exc: object) -> None:
            """Do nothing: Python looks for this before it calls `__enter__`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
