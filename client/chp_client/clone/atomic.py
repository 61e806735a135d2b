"""Reading and writing in one step: `pop`, `popitem` and `setdefault`, on conditions that the servers look at.

    the key as it is held    --its revision-->    a delete, or a set, on condition of it    --Conflict-->    once more

So of all programs that take a key exactly one gets it, and of all that put one exactly one does. Where the copy alone
would give the answer (the key is absent for `pop`, present for `setdefault`, the map empty for `popitem`), the call
waits for a `sync` and looks again: the copy may be late, or STALE. A call syncs at most once: after a `Conflict`, too,
the copy is not older than the servers' answer. What has to be waited for is awaited from a `Waiter`. An `AsyncClone`'s
waits by its loop; a `Clone`'s, `Blocking`, keeps the thread, so that a coroutine over it never stops half way, and
`at_once` runs it to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

from chp.errors import BadInput

from ..agent.mailbox import Mailbox
from ..agent.tickets import Ticket
from ..agent.watch import Watch
from ..checks import wait_s
from ..core.events import Ack
from ..errors import Closed, Conflict
from .mapping import CloneMapping
from .writer import Writer

Result = TypeVar("Result")
NOTHING: Any = object()
GONE: Any = object()
DELETE_KEYS = 8192  # a portion of `delete_prefix`: what a server does in some milliseconds


class Waiter(Protocol):
    """How one call waits, for at most a time that began with it; `TimeoutError` when that is over."""

    async def confirmed(self, key: str) -> None:
        """Until no own set of this key is on its way: before that, it has no revision to make a condition of."""

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """Until the set that this makes is acknowledged; raises what its ticket does.

        `act` takes a `timeout`, as `Clone.set` does, for one that waits for room itself.
        """

    async def settled(self, ticket: Ticket) -> object:
        """The same of a set that is made."""

    async def made(self, act: Callable[..., Result]) -> Result:
        """What `act` comes to, once there is room for it in the window."""

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """Whether a change came in that time; `Closed` if none can come any more."""


class Blocking:
    """Waits that keep the thread."""

    def __init__(self, mailbox: Mailbox, timeout: float | None) -> None:
        limit = wait_s(timeout)
        self._mailbox = mailbox
        self._until = None if limit is None else monotonic() + limit

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - monotonic())

    async def confirmed(self, key: str) -> None:
        """As `Waiter`."""
        self._mailbox.confirmed(key, self._left())

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """As `Waiter`."""
        return act(timeout=self._left()).wait(self._left())

    async def settled(self, ticket: Ticket) -> object:
        """As `Waiter`."""
        return ticket.wait(self._left())

    async def made(self, act: Callable[..., Result]) -> Result:
        """As `Waiter`."""
        return act(timeout=self._left())

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """As `Waiter`."""
        limit = at_most(at_most_s, self._left())
        try:
            watch.get(limit)
        except TimeoutError:
            return False
        except StopIteration:
            raise closed_meanwhile() from None
        return True


def at_most(seconds: float, left: float | None) -> float:
    """How long to wait once more, of what is left; raises TimeoutError if that is nothing."""
    if left == 0.0:
        raise TimeoutError
    return seconds if left is None else min(left, seconds)


def closed_meanwhile() -> Closed:
    """What whoever waits for a change is told when there is nobody left to tell it."""
    return Closed("this Clone was closed while something waited for a change; make another")


def at_once(course: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns that awaits nothing but `Blocking`."""
    try:
        course.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("Blocking never suspends")


class AtomicOperations:
    """One call's reading and writing."""

    def __init__(self, reading: CloneMapping, writer: Writer, waits: Waiter) -> None:
        self._reading, self._writer, self._waits = reading, writer, waits

    async def pop(self, key: str, default: Any) -> Any:
        """Delete a key, and return the value that this program, and no other, took; `default` if the key is absent."""
        if (found := await self._taken(key, await_absence=True)) is not GONE:
            return found
        if default is NOTHING:
            raise KeyError(key)
        return default

    async def popitem(self) -> tuple[str, Any]:
        """Take some key and its value."""
        synced = False
        while True:
            while (key := self._reading.some_key()) is not None:
                value = await self._taken(key, await_absence=False)
                if value is not GONE:
                    return key, value
            if synced:
                raise KeyError("popitem(): this Clone holds no keys")
            await self._synced()
            synced = True

    async def _taken(self, key: str, *, await_absence: bool) -> Any:
        """Take the value of a key; `GONE` if the key is absent, which `await_absence` asks the servers first."""
        answered = not await_absence
        while True:
            if (entry := self._reading.entry(key)) is None:
                if answered:
                    return GONE
                await self._synced()
            elif entry.pending:
                await self._waits.confirmed(key)
                continue
            else:
                try:
                    await self._waits.done(partial(self._writer.delete, key, entry.revision))
                    return entry.value
                except Conflict:
                    # Another program was faster: it took the key, or set it.
                    pass
            answered = True

    async def _synced(self) -> None:
        """Wait until the copy has all that was acknowledged to any program before."""
        if not self._writer.subtrees:
            raise BadInput("this Clone only writes, and can't tell what is there; make one that holds the subtree")
        await self._waits.done(self._writer.sync)

    async def delete_prefix(self, prefix: str) -> int:
        """How many keys were deleted, in portions that are waited for."""
        if prefix == "":
            raise BadInput("an empty prefix is everything; use clear() if that is meant")
        view, gone, after = self._reading.prefix(prefix), 0, None
        while keys := view.page_of_keys(DELETE_KEYS, after):
            await self._waits.done(partial(self._writer.delete_many, keys))
            gone, after = gone + len(keys), keys[-1]
        return gone

    async def setdefault(self, key: str, default: Any) -> Any:
        """Return the value of a key; if it is absent, set it to `default` first."""
        if not self._writer.subtrees:
            raise BadInput("this Clone only writes, and can't tell what is there; use set(key, value, if_revision=0)")
        answered = False
        while True:
            entry = self._reading.entry(key)
            if entry is None or entry.pending:
                await self._waits.confirmed(key)
            if entry is None:
                try:
                    await self._waits.done(partial(self._writer.set, key, default, None, 0))
                    return default
                except Conflict:
                    answered = True
            elif not entry.pending:
                if answered:
                    return entry.value
                await self._synced()
                answered = True


async def flush(mailbox: Mailbox, waits: Waiter, timeout: float | None) -> None:
    """Until every set made so far is acknowledged; raises the first error of them."""
    waiting, refused = mailbox.unsettled(), None
    for ticket in waiting:
        try:
            await waits.settled(ticket)
        except TimeoutError:
            raise mailbox.not_flushed(waiting, timeout) from refused
        except Exception as error:
            refused = refused or error
    if refused is not None:
        raise refused
