"""AsyncClone: the Clone for asyncio. Calls that wait are awaited, and changes come by `async for`.

    async with AsyncClone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
        value = clone["/rates/EUR/USD"]                    # reading is a dict's, and never waits
        ack = await clone.set("/rates/EUR/USD", b"1.08")   # returns when it is acknowledged
        async for change in clone.watch("/rates/EUR/"): ...

Results reach the loop by `loop.call_soon_threadsafe`. Sets that are started together travel in one batch: start them by
`asyncio.gather`, or by `submit`, which returns the ticket at once.
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
    """A replicated dictionary for one event loop. The arguments are those of `Clone`.

    Listeners (`on_state`, `on_lag` and the callbacks of a ticket) run on a thread of their own, and not on the loop.
    """

    _keeps_threads = False

    def _begin(self) -> None:
        self._listeners = AsyncListeners()

    # -- reading, which waits

    async def verify(self, timeout: float | None = 30.0, *, contents: bool = True) -> Check:
        """Check the copy; see `Clone.verify`."""
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
        """Set a key, and return when the set is acknowledged.

        Raises `TimeoutError` after `timeout` seconds. The set is then still on its way, unless the error says that
        there was no room. A cancelled set is on its way as well. Raises the errors of `Clone.set`, `Refused`, and
        `Conflict` if the key had another revision.
        """
        return await self._waits(timeout).done(partial(self._writer.set, key, value, ttl, if_revision))

    async def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ack:
        """Delete a key."""
        return await self._waits(timeout).done(partial(self._writer.delete, key, if_revision))

    async def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """Delete a key and return the value it had; see `Clone.pop`."""
        return await self._atomic(timeout).pop(key, default)

    async def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """Delete every key that begins with `prefix`; see `Clone.delete_prefix`."""
        return await self._atomic(timeout).delete_prefix(prefix)

    async def touch(self, key: str, ttl: Ttl | None, timeout: float | None = None) -> Ack:
        """Give a key another time to live; returns once the servers have it. See `Clone.touch`."""
        return await self._atomic(timeout).touch(key, ttl)

    async def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """Delete some key and return it with its value; see `Clone.popitem`."""
        return await self._atomic(timeout).popitem()

    async def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """Return the value of a key, and set it to `default` first if there is none; see `Clone.setdefault`."""
        return await self._atomic(timeout).setdefault(key, default)

    def _waits(self, timeout: float | None) -> Awaiting:
        """Return the waiter of one call, which waits on the event loop."""
        return Awaiting(self._mailbox, self._blocks, timeout)

    def _atomic(self, timeout: float | None) -> AtomicOperations:
        return AtomicOperations(self._reader, self.prefix, self._writer, self._waits(timeout))

    async def set_many(self, items: Items, ttl: Ttl | None = None, timeout: float | None = None) -> Ack:
        """Set many keys together."""
        return await self._waits(timeout).done(partial(self._writer.set_many, items, ttl))

    async def delete_many(self, keys: Sequence[str], timeout: float | None = None) -> Ack:
        """Delete many keys together."""
        return await self._waits(timeout).done(partial(self._writer.delete_many, keys))

    def submit(self, key: str, value: Any, ttl: Ttl | None = None) -> Ticket:
        """Set a key without waiting; `Full` if the window is full. `clone.settled(ticket)` awaits the answer."""
        return self._writer.set(key, value, ttl)

    async def settled(self, ticket: Ticket, timeout: float | None = None) -> Ack:
        """Return the acknowledgement of a ticket, once there is one."""
        return await self._waits(timeout).settled(ticket)

    def lease(self, ttl: Ttl) -> AsyncLease:
        """Make a lease: `async with clone.lease(10) as lease: await lease.set(key, value)`; see `Clone.lease`."""
        return AsyncLease(self._mailbox, self._new_lease(ttl), self._waits)

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction, for `async with`; see `Clone.transaction`."""
        return AsyncTransaction(Transaction(self._writer, None))

    def topic(self, name: str) -> AsyncTopic:
        """Return a log of messages, by its name. Nothing is asked yet; see `Clone.topic`."""
        return AsyncTopic(Topic(self._writer, self._active_first, name), self._waits)

    async def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each topic, by name; see `Clone.topics`."""
        return await asyncio.to_thread(lambda: topics_of(self._active_first(), timeout))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every set made so far is acknowledged; see `Clone.flush`."""
        await flush(self._mailbox, self._waits(timeout), wait_s(timeout))

    async def sync(self, timeout: float | None = None) -> Ack:
        """Wait until reads see all that was acknowledged before this call; see `Clone.sync`."""
        return await self._waits(timeout).done(self._writer.sync)

    # -- waiting

    async def wait_until_synced(self, timeout: float | None = None) -> None:
        """Wait until the copy is complete and current; see `Clone.wait_until_synced`."""
        core = self._mailbox.core
        await self._waits(timeout).until(lambda: core.state is State.SYNCED or bool(core.denied()), "not synced")
        self._check_admitted()

    def watch(
        self,
        prefix: str = "",
        start: KeyStart = "end",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> AsyncWatch[V]:
        """Begin to watch a prefix, for `async for`; see `Clone.watch`."""
        watch = self._open_watch(prefix, start, conflate, queue_max, on_bad)
        return AsyncWatch(watch, asyncio.get_running_loop())

    def _listen(self, listener: Callable[[Change], object], prefix: str, opened: Any, start: KeyStart) -> None:
        self._listeners.add(listener, prefix, opened, start)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """Stop calling a function of `on`, under any prefix, and return True if it was called."""
        return self._listeners.drop(listener)

    async def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """Return the last versions of a key; see `Clone.history`."""
        return await asyncio.to_thread(self._history, key, limit, timeout)

    # -- the end

    async def close(self, timeout: float = 5.0) -> None:
        """Close the Clone, and cancel callbacks of changes that wait for something; see `Clone.close`."""
        await asyncio.to_thread(self._end, timeout)
        await self._listeners.end(CALLBACKS_S)

    # A type checker refuses these calls without help, so it need not see these methods.
    if not TYPE_CHECKING:

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
