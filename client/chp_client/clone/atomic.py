"""Reading and writing in one step: `pop`, `popitem`, `setdefault` and `touch`, on conditions that the servers check.

    the held key    --its revision-->    a delete, or a set, on condition of the revision    --Conflict-->    once more

So if several programs pop a key, exactly one of them gets it. If several programs set a default, exactly one default is
set. Sometimes the copy alone would give the answer: the key is absent for `pop` or present for `setdefault`, or the map
is empty for `popitem`. The copy may be late, or STALE, so the call then waits for a `sync` and looks again. A call
syncs at most once, because after a `Conflict` too the copy is not older than the servers' answer. All waits go through
a `Waiter` (agent/waiting.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chp.errors import BadInput
from chp.numbers import UNKNOWN

from .. import checks
from ..agent.mailbox import Mailbox
from ..agent.waiting import Waiter
from ..agent.writer import Writer
from ..checks import Ttl
from ..core.events import Ack
from ..errors import Conflict
from .mapping import CopyReader
from .prefix_view import PrefixView

NOTHING: Any = object()
GONE: Any = object()
# How often `touch` tries again after a `Conflict`.
TOUCHED_AGAIN = 3
# The keys of one portion of `delete_prefix`, which a server deletes in some milliseconds.
DELETE_KEYS = 8192


class AtomicOperations:
    """One call's reading and writing."""

    def __init__(
        self, reading: CopyReader[Any], prefix: Callable[[str], PrefixView], writer: Writer, waits: Waiter
    ) -> None:
        self._reading, self._prefix, self._writer, self._waits = reading, prefix, writer, waits

    async def pop(self, key: str, default: Any) -> Any:
        """Delete a key, and return the value that this program, and no other, took; `default` if the key is absent."""
        checks.held_key(key, self._writer.subtrees, read=True)
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
        """Take the value of a key; return `GONE` if the key is absent.

        With `await_absence`, the call waits for a `sync` before it takes a key for absent.
        """
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

    async def touch(self, key: str, ttl: Ttl | None) -> Ack:
        """Give a key another time to live, on condition that its value stays as it is."""
        checks.held_key(key, self._writer.subtrees, read=True)
        checks.ttl_in_ms(ttl)
        answered, conflicts = False, 0
        while True:
            await self._waits.confirmed(key)
            if (held := self._reading.stored(key)) is None:
                if answered:
                    raise KeyError(key)
                await self._synced()
            elif held[1] != UNKNOWN:
                try:
                    return await self._waits.done(partial(self._writer.touch, key, ttl, *held))
                except Conflict:
                    conflicts += 1
                    if conflicts > TOUCHED_AGAIN:
                        raise
            answered = True

    async def _synced(self) -> None:
        """Wait until the copy has all sets of any client that were acknowledged before this call."""
        if not self._writer.subtrees:
            raise BadInput("this Clone only writes, and can't tell what is there; make one that holds the subtree")
        await self._waits.done(self._writer.sync)

    async def delete_prefix(self, prefix: str) -> int:
        """Delete the keys in portions, wait for each portion, and return the number of keys."""
        if prefix == "":
            raise BadInput("an empty prefix is everything; use clear() if that is meant")
        view, gone, after = self._prefix(prefix), 0, None
        while keys := view.page_of_keys(DELETE_KEYS, after):
            await self._waits.done(partial(self._writer.delete_many, keys))
            gone, after = gone + len(keys), keys[-1]
        return gone

    async def setdefault(self, key: str, default: Any) -> Any:
        """Return the value of a key; if it is absent, set it to `default` first."""
        if not self._writer.subtrees:
            raise BadInput("this Clone only writes, and can't tell what is there; use set(key, value, if_revision=0)")
        checks.held_key(key, self._writer.subtrees, read=True)
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
    """Wait until every set made so far is acknowledged; raise the first error of them."""
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
