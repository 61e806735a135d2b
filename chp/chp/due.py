"""The order in which keys fall due: groups of keys by time, so that a ttl costs no more than a reference to its key.

    near      a group for each deadline                     far     a group for each slot of time; later slots are wider
    when the time of a group comes, its keys are due, or are filed again: in narrower slots, or each at its deadline

The `deadlines` of the map decide when a key is due. A group may have stale references, to keys that were set or deleted
since, and a key may be in several groups. When more references are stale than not, everything is filed anew (`again`),
some keys with each call, as a million at once would hold up a turn. Meanwhile a key may be reported some moments late,
but never early.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from math import floor

# A slot is this many times as wide as the next narrower one. It begins at most this many of its own widths ahead.
WIDER = 64
# Below this many stale references it does not pay to file everything anew.
MORE = 10_000
PARTS = 256
# This many keys are filed again for each key that is added.
AGAIN = 4
# (begin, width) of a slot; the width is 0 for a group with one deadline.
Slot = tuple[float, float]


class Due:
    """The order in which the keys of a map fall due; `deadline_of` returns the deadline of a key, or None."""

    __slots__ = ("_again", "_deadline_of", "_groups", "_heap", "_kept", "_now", "_size")

    def __init__(self, deadline_of: Callable[[str], float | None]) -> None:
        self._deadline_of = deadline_of
        self._groups: dict[Slot, list[str]] = {}
        self._heap: list[Slot] = []
        # The number of references in all groups.
        self._size = 0
        # Groups whose keys are to be filed anew.
        self._again: list[list[str]] = []
        # The keys that were filed anew so far. There are PARTS sets, because one large set would hold up a turn
        # whenever it grows.
        self._kept: list[set[str]] = []
        self._now = 0.0

    def __len__(self) -> int:
        return self._size

    def add(self, keys: Iterable[str], deadline: float, now: float, keys_max: int) -> None:
        """Add keys that fall due at `deadline`, for a map that has `keys_max` keys with deadlines."""
        self._now = max(self._now, now)
        before = self._size
        self._file(keys, deadline)
        if self._again:
            self._file_again(AGAIN * (self._size - before))
        elif self._kept:
            self._kept.pop()
        elif self._size > 2 * keys_max + MORE:
            self._again, self._groups, self._heap, self._size = list(self._groups.values()), {}, [], 0
            self._kept = [set() for _ in range(PARTS)]

    def _file(self, keys: Iterable[str], deadline: float) -> None:
        at = self._slot(deadline)
        group = self._groups.get(at)
        if group is None:
            group = self._groups[at] = []
            heapq.heappush(self._heap, at)
        before = len(group)
        group += keys
        self._size += len(group) - before

    def _slot(self, deadline: float) -> Slot:
        ahead, width = deadline - self._now, 1.0
        while ahead >= WIDER * width:
            width *= WIDER
        start = floor(deadline / width) * width
        return (start, width) if start > self._now else (deadline, 0.0)

    def _file_again(self, most: int) -> None:
        """File at most `most` references anew: each key that still has a deadline, once."""
        while self._again and most > 0:
            group = self._again[-1]
            some = group[-most:]
            del group[-most:]
            most -= len(some)
            if not group:
                self._again.pop()
            for key in some:
                deadline = self._deadline_of(key)
                kept = self._kept[hash(key) % PARTS]
                if deadline is not None and key not in kept:
                    kept.add(key)
                    self._file((key,), deadline)

    def next(self) -> float | None:
        """Return the time of the next call of `take`, or None if no key waits. The time may be too early."""
        if self._again:
            return self._now
        return self._heap[0][0] if self._heap else None

    def take(self, now: float, most: int) -> tuple[list[str], int]:
        """Look at `most` references at most; return the keys that are due, and the number of references looked at."""
        self._now = max(self._now, now)
        if self._again:
            self._file_again(most)
        elif self._kept:
            self._kept.pop()
        out: dict[str, None] = {}
        looked = 0
        while self._heap and self._heap[0][0] <= now and looked < most:
            at = self._heap[0]
            group = self._groups[at]
            some = group[looked - most :]
            # Keys go from the end of the group, so that the rest need not be copied.
            del group[looked - most :]
            looked += len(some)
            self._size -= len(some)
            if not group:
                heapq.heappop(self._heap)
                del self._groups[at]
            self._sort_out(some, at, now, out)
        return list(out), looked

    def _sort_out(self, keys: list[str], at: Slot, now: float, out: dict[str, None]) -> None:
        """Sort the keys of a group whose time has come: they are due, or filed again more exactly, or stale."""
        start, width = at
        for key in keys:
            deadline = self._deadline_of(key)
            if deadline is None or not (start <= deadline < start + width or deadline == start):
                continue
            if deadline <= now:
                out[key] = None
            else:
                self._file((key,), deadline)

    def check(self, deadlines: dict[str, float]) -> None:
        """Assert that `take` will find each key."""
        found: set[str] = set().union(*self._again)
        for (start, width), keys in self._groups.items():
            found |= {k for k in keys if start <= deadlines.get(k, -1.0) < start + width or start == deadlines.get(k)}
        assert found >= deadlines.keys(), "each deadline will be asked for"
        assert self._size == sum(map(len, self._groups.values())), "the references are counted"
        assert sorted(self._heap) == sorted(self._groups), "each group has its time"
