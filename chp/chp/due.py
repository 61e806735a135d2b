"""When keys fall due: groups of keys by time, so that a ttl costs no more than a reference to its key.

    near      a group for each deadline                     far     a group for each slot of time, the wider the further
    at its time, a group's keys are due, or are filed again: in narrower slots, or each at its deadline

A map's `deadlines` say what holds; a group may have keys that were set or deleted since, and a key may be in several.
When there are more of such than of others, everything is filed anew (`again`), some keys with each call, as a million
at once would hold up a turn: a key may be said to be due some moments late then, and never early.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from math import floor

WIDER = 64  # times: a slot's width, and how many of its width lie between now and the slot
MORE = 10_000  # stale references that are not worth a look
PARTS = 256
AGAIN = 4  # keys filed again for each that comes
Slot = tuple[float, float]  # when it begins, and its width; 0 if it is one deadline


class Due:
    """The order in which keys fall due, beside what says when each does."""

    __slots__ = ("_again", "_deadline_of", "_groups", "_heap", "_kept", "_now", "_size")

    def __init__(self, deadline_of: Callable[[str], float | None]) -> None:
        self._deadline_of = deadline_of
        self._groups: dict[Slot, list[str]] = {}
        self._heap: list[Slot] = []
        self._size = 0  # keys in the groups
        self._again: list[list[str]] = []  # groups that are filed anew
        self._kept: list[set[str]] = []  # what of those was: in parts, as a large set grows in a turn of its own
        self._now = 0.0

    def __len__(self) -> int:
        return self._size

    def add(self, keys: Iterable[str], deadline: float, now: float, keys_max: int) -> None:
        """Keys that fall due at `deadline`, of a map that has `keys_max` such keys."""
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
        """Some of what is filed anew: once each key that has a deadline."""
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
        """When to ask `take` next; may be early."""
        if self._again:
            return self._now
        return self._heap[0][0] if self._heap else None

    def take(self, now: float, most: int) -> tuple[list[str], int]:
        """Keys that are due, of `most` that are looked at, and how many were."""
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
            del group[looked - most :]  # from its end: what is left need not be copied
            looked += len(some)
            self._size -= len(some)
            if not group:
                heapq.heappop(self._heap)
                del self._groups[at]
            self._sort_out(some, at, now, out)
        return list(out), looked

    def _sort_out(self, keys: list[str], at: Slot, now: float, out: dict[str, None]) -> None:
        """Of a group whose time has come: what is due, and what is filed more exactly; what holds no more goes."""
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
        """Assert that each key will be asked for."""
        found: set[str] = set().union(*self._again)
        for (start, width), keys in self._groups.items():
            found |= {k for k in keys if start <= deadlines.get(k, -1.0) < start + width or start == deadlines.get(k)}
        assert found >= deadlines.keys(), "each deadline will be asked for"
        assert self._size == sum(map(len, self._groups.values())), "the references are counted"
        assert sorted(self._heap) == sorted(self._groups), "each group has its time"
