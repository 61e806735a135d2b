"""The sorted keys of a Clone, kept between pages. A page costs its own rows and the changes since the page before.

    watch (conflated) --> added, gone --> the next page inserts a few keys one by one, or sorts in many

A sort takes linear time if all but the end of the list is in order, and it moves only pointers.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort

from ...agent.watch import WatchQueue
from ...clone.aio import AsyncClone
from ...core.events import Changed

# At most this many keys are added or removed one by one, which is then cheaper than a pass over all keys.
FEW = 64
# At most this many changes are taken in within one turn of the loop, which takes 1 ms.
SLICE = 4096
# A page waits at most this long for the writes of its own gateway.
CAUGHT_UP_S = 1.0


class KeysInOrder:
    """The sorted keys of one Clone; only the event loop of the Clone may call `page`."""

    def __init__(self, clone: AsyncClone) -> None:
        self._watch = clone.watch("", "snapshot", conflate=True)
        self._queue: WatchQueue = self._watch.queue
        # `follow` polls the queue when it needs the changes, so no change has to wake the loop.
        self._queue.on_offer = None
        self._keys: list[str] = []
        self._there: set[str] = set()
        self._seen = self._wanted = 0
        self._following = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._there)

    def written(self, revision: int) -> None:
        """Note the revision of a set of this gateway, which the next page has to show."""
        self._wanted = max(self._wanted, revision)

    async def page(self, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Return at most `limit` keys behind `after` that begin with `prefix`, and True if there are more."""
        await self._catch_up()
        keys = self._keys
        start = max(bisect_left(keys, prefix), bisect_right(keys, after))
        found = keys[start : start + limit + 1]
        if found and not found[-1].startswith(prefix):
            found = found[: bisect_left(found, True, key=lambda key: not key.startswith(prefix))]
        return found[:limit], len(found) > limit

    async def between(self, prefix: str, low: str, high: str | None, most: int, *, behind: bool) -> list[str]:
        """Return at most `most` keys from `low` on and below `high` that begin with `prefix`.

        With `behind`, the key `low` itself is left out.
        """
        await self._catch_up()
        keys = self._keys
        start = (bisect_right if behind else bisect_left)(keys, low)
        end = len(keys) if high is None else bisect_left(keys, high, start)
        found = keys[start : min(end, start + most)]
        if found and not found[-1].startswith(prefix):
            found = found[: bisect_left(found, True, key=lambda key: not key.startswith(prefix))]
        return found

    def count(self, low: str, high: str | None) -> int:
        """Return the number of keys from `low` on and below `high`."""
        end = len(self._keys) if high is None else bisect_left(self._keys, high)
        return end - bisect_left(self._keys, low)

    async def _catch_up(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + CAUGHT_UP_S
        await self.follow()
        while self._seen < self._wanted and loop.time() < until:
            await asyncio.sleep(0.001)
            await self.follow()

    async def follow(self) -> None:
        """Take in the changes, a slice in each turn of the loop."""
        async with self._following:
            added, gone, seen = set[str](), set[str](), self._seen
            while (changed := self._queue.poll()) is not None:
                revisions = changed.revisions
                seen = max(seen, *revisions) if isinstance(revisions, list) else max(seen, revisions)
                for start in range(0, len(changed.keys), SLICE):
                    if len(changed.keys) > SLICE:
                        await asyncio.sleep(0)
                    _note(changed, slice(start, start + SLICE), added, gone)
            if len(added) > SLICE:
                await asyncio.sleep(0)
            self._put(added - self._there)
            self._take(gone & self._there)
            self._seen = seen

    def _put(self, added: set[str]) -> None:
        self._there |= added
        if len(added) > FEW:
            self._keys += added
            self._keys.sort()
            return
        for key in added:
            insort(self._keys, key)

    def _take(self, gone: set[str]) -> None:
        self._there -= gone
        if len(gone) > FEW:
            self._keys = [key for key in self._keys if key not in gone]
            return
        for key in gone:
            del self._keys[bisect_left(self._keys, key)]

    def close(self) -> None:
        """Stop following."""
        self._watch.close()


def _note(changed: Changed, some: slice, added: set[str], gone: set[str]) -> None:
    """Add some of the changes to the added and the gone keys."""
    for key, value in zip(changed.keys[some], changed.values[some], strict=True):
        if value is None:
            gone.add(key)
            added.discard(key)
        else:
            added.add(key)
            gone.discard(key)
