"""AsyncClone: the Clone for asyncio; the same words, with `await` on what waits and `async for` on changes.

    async with AsyncClone(["tcp://a:5556", "tcp://b:5566"], subtree="/rates/") as clone:
        value = clone["/rates/EUR/USD"]                    # reading is a dict's, and never waits
        ack = await clone.set("/rates/EUR/USD", b"1.08")   # returns when it is acknowledged
        async for change in clone.watch("/rates/EUR/"): ...

It stands on a Clone and its agent; results come over by `loop.call_soon_threadsafe`. To have many sets under way, start
them together (`asyncio.gather`, or `submit`, which returns the ticket at once): they travel in the same batch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from chp.numbers import Revision

from .. import checks
from ..agent.changes import Change
from ..agent.dispatch import Listener
from ..agent.listening import decorator
from ..agent.measured import Metrics
from ..agent.tickets import Ticket
from ..checks import wait_s
from ..clientfile import ClientFile
from ..codecs import Codec, OnBad, V
from ..core.events import Ack, State
from ..feed.history import Version
from ..topics.aioconsumer import AsyncTogether
from ..topics.aiotopic import AsyncTopic
from ..topics.reader import PATIENCE_S
from ..typed import Typed
from .aioparts import AsyncLease, AsyncListeners, AsyncWatch, Awaiting
from .clone import CALLBACKS_S, Clone, Pin, Told
from .reading import Entry
from .taking import NOTHING, Taking, flush
from .under import Under
from .worth import Check
from .writer import Items


class AsyncClone(Mapping[str, V]):
    """A replicated dictionary for one event loop; arguments are those of `Clone`.

    Listeners (`on_state`, `on_lag`, a ticket's callbacks) are called on a thread of their own, not by the loop.
    """

    # those of `Clone` once more, in place of *args: so that editors and mypy know them
    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        subtree: str | None = "",
        *,
        subtrees: Sequence[str] | None = None,
        codec: str | Codec | type[V] = "raw",
        window_bytes: int | None = None,
        on_full: Literal["block", "raise"] = "block",
        silence_s: float | None = None,
        stale_s: float | None = None,
        max_lag_s: float | None = None,
        on_lag: Literal["resync", "raise"] | Callable[[float], object] = "resync",
        on_state: Listener | None = None,
        name: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._blocks = on_full == "block"
        self._listeners = AsyncListeners()
        self._clone: Clone[V] = Clone(
            servers,
            subtree,
            subtrees=subtrees,
            codec=codec,
            window_bytes=window_bytes,
            on_full="raise" if self._blocks else on_full,
            silence_s=silence_s,
            stale_s=stale_s,
            max_lag_s=max_lag_s,
            on_lag=on_lag,
            on_state=on_state,
            name=name,
            metrics=metrics,
        )

    if not TYPE_CHECKING:  # a checker takes AsyncClone[Rate] for what it is

        def __class_getitem__(cls, kind: Any) -> Any:
            return Typed(cls, kind)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *arguments: Any, **named: Any) -> Self:
        """As of `Clone`."""
        return cls(ClientFile.read(path), *arguments, **named)

    # -- reading, as of a dict

    @property
    def codec(self) -> Codec | None:
        """As of `Clone`."""
        return self._clone.codec

    def __getitem__(self, key: str) -> V:
        return self._clone[key]

    def __contains__(self, key: object) -> bool:
        return key in self._clone

    def __iter__(self) -> Iterator[str]:
        return iter(self._clone)

    def __len__(self) -> int:
        return len(self._clone)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default`."""
        return self._clone.get(key, default)

    def keys(self) -> KeysView[str]:
        """As of `Clone`."""
        return self._clone.keys()

    def values(self) -> ValuesView[Any]:
        """As of `Clone`."""
        return self._clone.values()

    def items(self, on_bad: OnBad = "raise") -> ItemsView[str, Any]:
        """As of `Clone`: what there is at the beginning, so there may be an `await` between two of them."""
        return self._clone.items(on_bad)

    def under(self, prefix: str, after: str | None = None, until: str | None = None) -> Under:
        """As of `Clone`. The first read by prefix sorts all keys: with millions, have `asyncio.to_thread` make it."""
        return self._clone.under(prefix, after, until)

    def entry(self, key: str) -> Entry | None:
        """As of `Clone`."""
        return self._clone.entry(key)

    def snapshot(self) -> dict[str, Any]:
        """As of `Clone`."""
        return self._clone.snapshot()

    def pin(self) -> Pin:
        """As of `Clone`."""
        return self._clone.pin()

    async def verify(self, timeout: float | None = 30.0, *, contents: bool = True) -> Check:
        """As of `Clone`."""
        return await asyncio.to_thread(self._clone.verify, timeout, contents=contents)

    @property
    def state(self) -> State:
        """As of `Clone`."""
        return self._clone.state

    @property
    def staleness_s(self) -> float:
        """As of `Clone`."""
        return self._clone.staleness_s

    @property
    def stats(self) -> dict[str, int]:
        """As of `Clone`."""
        return self._clone.stats

    @property
    def revision(self) -> Revision:
        """As of `Clone`."""
        return self._clone.revision

    @property
    def active(self) -> str | None:
        """As of `Clone`."""
        return self._clone.active

    @property
    def position(self) -> tuple[int, int]:
        """As of `Clone`."""
        return self._clone.position

    @property
    def lag_s(self) -> float:
        """As of `Clone`."""
        return self._clone.lag_s

    @property
    def window(self) -> tuple[int, int]:
        """As of `Clone`."""
        return self._clone.window

    @property
    def closed(self) -> bool:
        """As of `Clone`."""
        return self._clone.closed

    @property
    def refused(self) -> str:
        """What a server that is there refuses this Clone, and why; "" if nothing."""
        return self._clone.refused

    def describe(self) -> str:
        """As of `Clone`."""
        return self._clone.describe()

    def on_state(self, listener: Listener) -> None:
        """As of `Clone`."""
        self._clone.on_state(listener)

    # -- writing

    async def set(
        self,
        key: str,
        value: Any,
        ttl: float | None = None,
        if_revision: int | str | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Set a key; returns when it is acknowledged.

        After `timeout` seconds it raises `TimeoutError`: the set is then still on its way, unless that says there was
        no room. Cancelled, it is on its way as well. It raises what `Clone.set` raises, and `Refused`, or `Conflict` if
        `if_revision` did not hold.
        """
        return await self._waits(timeout).done(partial(self._clone.set, key, value, ttl, if_revision))

    async def delete(self, key: str, if_revision: int | str | None = None, timeout: float | None = None) -> Ack:
        """Delete a key."""
        return await self._waits(timeout).done(partial(self._clone.delete, key, if_revision))

    async def pop(self, key: str, default: Any = NOTHING, timeout: float | None = None) -> Any:
        """As of `Clone`."""
        return await self._taking(timeout).pop(key, default)

    async def delete_prefix(self, prefix: str, timeout: float | None = None) -> int:
        """As of `Clone`."""
        return await self._taking(timeout).delete_prefix(prefix)

    async def popitem(self, timeout: float | None = None) -> tuple[str, Any]:
        """As of `Clone`."""
        return await self._taking(timeout).popitem()

    async def setdefault(self, key: str, default: Any = None, timeout: float | None = None) -> Any:
        """As of `Clone`."""
        return await self._taking(timeout).setdefault(key, default)

    def _waits(self, timeout: float | None) -> Awaiting:
        return Awaiting(self._clone, self._blocks, timeout)

    def _taking(self, timeout: float | None) -> Taking:
        return Taking(self._clone, self._clone.writer, self._waits(timeout))

    async def set_many(self, items: Items, ttl: float | None = None, timeout: float | None = None) -> Ack:
        """Set many keys together."""
        return await self._waits(timeout).done(partial(self._clone.set_many, items, ttl))

    async def delete_many(self, keys: Sequence[str], timeout: float | None = None) -> Ack:
        """Delete many keys together."""
        return await self._waits(timeout).done(partial(self._clone.delete_many, keys))

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
        put = self._clone.writer.put_columns
        act = partial(put, keys, values, deletes, ttls_ms, conditions, extras=extras)
        return await self._waits(timeout).done(act)

    def submit(self, key: str, value: Any, ttl: float | None = None) -> Ticket:
        """Set a key without waiting; `Full` if the window is. `await clone.settled(ticket)` waits for it."""
        return self._clone.set(key, value, ttl)

    async def settled(self, ticket: Ticket, timeout: float | None = None) -> Ack:
        """The acknowledgement of a ticket."""
        return await self._waits(timeout).settled(ticket)

    def lease(self, ttl: float) -> AsyncLease:
        """As of `Clone`: `async with clone.lease(10) as lease: await lease.set(key, value)`."""
        return AsyncLease(self._clone, self._clone.lease(ttl), self._waits)

    async def lease_once_there_is_room(self, ttl: float, timeout: float | None = None) -> AsyncLease:
        """`lease`, which raises `Full` where the window is full, once there is room for it."""
        return await self._waits(timeout).made(partial(self.lease, ttl))

    def together(self) -> AsyncTogether:
        """As of `Clone`, for `async with`."""
        return AsyncTogether(self._clone.together())

    def topic(self, name: str) -> AsyncTopic:
        """As of `Clone`."""
        return AsyncTopic(self._clone.topic(name), self._waits)

    async def topics(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """As of `Clone`."""
        return await asyncio.to_thread(self._clone.topics, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Until every set made so far is acknowledged."""
        await flush(self._clone.mailbox, self._waits(timeout), wait_s(timeout))

    async def sync(self, timeout: float | None = None) -> Ack:
        """As of `Clone`."""
        return await self._waits(timeout).done(self._clone.writer.sync)

    # -- waiting

    async def wait_until_synced(self, timeout: float | None = None) -> None:
        """Until the copy is complete and current."""
        core = self._clone.mailbox.core
        await self._waits(timeout).until(lambda: core.state is State.SYNCED or bool(core.denied()), "not synced")
        self._clone.check_admitted()

    def watch(
        self,
        prefix: str = "",
        start: int | str = "now",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> AsyncWatch:
        """As of `Clone`, for `async for`."""
        watch = self._clone.watch(prefix, start, conflate=conflate, queue_max=queue_max, on_bad=on_bad)
        return AsyncWatch(watch, asyncio.get_running_loop())

    def on(
        self,
        prefix: str = "",
        start: int | str = "now",
        *,
        conflate: bool = False,
        queue_max: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Callable[[Told], Told]:
        """As of `Clone`, for `def` and `async def`: called by a task of this loop, awaited before the next change."""
        opened = partial(self.watch, prefix, conflate=conflate, queue_max=queue_max, on_bad=on_bad)

        def begin(listener: Told) -> None:
            checks.callback("listener", listener)
            self._listeners.add(listener, prefix, opened, start)

        return decorator(begin)

    def off(self, listener: Callable[[Change], object]) -> bool:
        """As of `Clone`."""
        return self._listeners.drop(listener)

    async def history(self, key: str, limit: int = 1000, timeout: float | None = 30.0) -> list[Version]:
        """As of `Clone`."""
        return await asyncio.to_thread(self._clone.history, key, limit, timeout)

    # -- the end

    async def close(self, timeout: float = 5.0) -> None:
        """As of `Clone`; callbacks of changes that wait for something are cancelled."""
        await asyncio.to_thread(self._clone.close, timeout)
        await self._listeners.end(CALLBACKS_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]

    def __repr__(self) -> str:
        return repr(self._clone).replace("<Clone", "<AsyncClone", 1)
