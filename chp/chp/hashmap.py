"""The hashmap that every replica holds: values, revisions, deadlines, and a fingerprint (SPEC.md, section 16).

    values      key -> bytes          revisions   key -> first number of the record that wrote it
    deadlines   key -> local time at which it expires, only for keys with a ttl

A segment is applied by passes in C over its columns. Only sparse columns (deletes, ttls) cost a step of Python for each
item. Keys written by one record share one revision object, so a key with a 100-byte value takes about 290 bytes.

The fingerprint is the number of keys and the sum of their revisions modulo 2^64. Two replicas of the same channel at
the same number have the same fingerprint. Each segment updates it. When more updates have come since the last read of
the fingerprint than there are keys, this updating stops. Then it is cheaper to add up all revisions at the next read.

Keys do not expire by themselves here: `expired` tells which are due, and the active server publishes their deletion.
Deadlines are times of the local monotonic clock, made from the remaining time in a message; no two clocks need agree.

The copy of a client never asks which keys are due, as servers delete them. So it keeps no order of deadlines
(`ordered=False`), which would only collect stale references.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from . import columns
from .batch import Segment
from .due import Due
from .numbers import U64_MASK

# The revisions of at most this many keys are added up at once, in about 3 ms. More would hold up a turn.
SUM_KEYS_MAX = 1 << 18


class Hashmap:
    """A map of keys to values, revisions and deadlines; if `ordered`, with the order in which deadlines fall due."""

    __slots__ = ("_due", "_noted", "_ordered", "_sum", "_sum_known", "deadlines", "revisions", "values")

    def __init__(self, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self.clear()

    def clear(self) -> None:
        """Forget everything, as before a full resync."""
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.deadlines: dict[str, float] = {}
        self._sum = 0
        self._sum_known = True
        # The number of updates since the last read of the sum.
        self._noted = 0
        self._due = Due(self.deadlines.get) if self._ordered else None

    def __len__(self) -> int:
        return len(self.revisions)

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of keys, and the sum of their revisions modulo 2^64."""
        return len(self.revisions), self.revision_sum & U64_MASK

    @property
    def revision_sum(self) -> int:
        """The sum of all revisions."""
        if not self._sum_known:
            self._sum, self._sum_known = sum(self.revisions.values()), True
        self._noted = 0
        return self._sum

    # -- applying

    def apply(self, segment: Segment, revision: int, now: float) -> None:
        """Apply a segment whose updates all get `revision`; its ttls count from `now`."""
        if segment.extras is None and not self.deadlines:
            self._record_revisions(segment.keys, revision)
        else:
            self.note(segment, revision, now)
        if segment.extras is None:
            self.values.update(zip(segment.keys, segment.values, strict=True))
            return
        if not deletes_all(segment):
            self.values.update(zip(segment.keys, segment.values, strict=True))
        deque(map(self.values.pop, self.deleted_by(segment), repeat(None)), 0)

    def note(self, segment: Segment, revision: int, now: float) -> None:
        """Apply all of a segment but the values: revisions, fingerprint and deadlines."""
        if self.deadlines:
            for key in self.deadlines.keys() & set(segment.keys):
                del self.deadlines[key]
        if segment.extras is None:
            self._record_revisions(segment.keys, revision)
            return
        if deletes_all(segment):
            self._noted += len(segment.keys)
            self._sum -= sum(map(self.revisions.pop, segment.keys, repeat(0)))
            return
        self._record_revisions(segment.keys, revision)
        self._record_extras(segment, now)

    def _record_revisions(self, keys: list[str], revision: int) -> None:
        revisions = self.revisions
        self._noted += len(keys)
        if self._noted > len(revisions) and len(revisions) <= SUM_KEYS_MAX:
            self._sum_known = False
        elif not self._sum_known and len(revisions) > SUM_KEYS_MAX:
            # Above SUM_KEYS_MAX keys each update keeps the sum current, so all revisions are added up once more now.
            _ = self.revision_sum
        if self._sum_known:
            written = dict.fromkeys(keys, revision)
            self._sum += revision * len(written) - sum(map(revisions.get, written, repeat(0)))
            revisions.update(written)
        else:
            revisions.update(zip(keys, repeat(revision)))

    def _record_extras(self, segment: Segment, now: float) -> None:
        for key in self.deleted_by(segment):
            self._sum -= self.revisions.pop(key, 0)
        ttl = (segment.extras or {}).get(columns.TTLS)
        if type(ttl) is int:
            gone = set(self.deleted_by(segment))
            self.set_deadlines([k for k in segment.keys if k not in gone], now + ttl / 1000, now)
        elif ttl:
            places, times = ttl
            self._record_each(segment.keys, places, times, now)

    def _record_each(self, keys: list[str], places: list[int], ttls: list[int], now: float) -> None:
        """Set a deadline for each item with a ttl; keys with the same ttl share one deadline object."""
        last = dict(zip(keys, range(len(keys)), strict=True))
        alike: dict[int, list[str]] = {}
        for i, ms in zip(places, ttls, strict=True):
            key = keys[i]
            if last[key] == i and key in self.revisions:
                alike.setdefault(ms, []).append(key)
        for ms, some in alike.items():
            self.set_deadlines(some, now + ms / 1000, now)

    def deleted_by(self, segment: Segment) -> Iterable[str]:
        """Return the keys whose last item in a segment is a delete. A segment may have several items of one key."""
        deletes = (segment.extras or {}).get(columns.DELETES)
        if not deletes:
            return ()
        if deletes_all(segment):
            return segment.keys
        places = set(deletes)
        last = dict(zip(segment.keys, range(len(segment.keys)), strict=True))
        return [key for key, i in last.items() if i in places]

    def load(self, segment: Segment, now: float) -> None:
        """Apply a snapshot chunk: its column REVISIONS has the revision of each key, as runs."""
        keys, start = segment.keys, 0
        for revision, n in (segment.extras or {}).get(columns.REVISIONS, ()):
            part = keys[start : start + n] if n < len(keys) else keys
            self.revisions.update(dict.fromkeys(part, revision))
            self._sum += revision * n
            start += n
        self.values.update(zip(keys, segment.values, strict=True))
        if segment.extras and columns.TTLS in segment.extras:
            self._record_extras(Segment(keys, segment.values, {columns.TTLS: segment.extras[columns.TTLS]}), now)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove what `note` recorded for keys that the map is not to have; the caller removes their values."""
        for key in keys:
            self._sum -= self.revisions.pop(key, 0)
            self.deadlines.pop(key, None)

    # -- deadlines

    def set_deadlines(self, keys: list[str], deadline: float, now: float = 0.0) -> None:
        """Let all of `keys` fall due at `deadline`."""
        if keys:
            self.deadlines.update(dict.fromkeys(keys, deadline))
            if self._due is not None:
                self._due.add(keys, deadline, now, len(self.deadlines))

    def next_deadline(self) -> float | None:
        """Return the time of the next call of `expired`, or None. The time may be too early, but is never too late."""
        return None if self._due is None else self._due.next()

    def expired(self, now: float, most: int) -> tuple[list[str], int]:
        """Look at `most` keys at most; return those whose deadline has passed, and how many were looked at.

        The keys stay until a segment deletes them.
        """
        return ([], 0) if self._due is None else self._due.take(now, most)

    def remaining_ms(self, key: str, now: float) -> int | None:
        """Return the rest of a key's ttl in milliseconds, at least 1, or None if it has no ttl."""
        deadline = self.deadlines.get(key)
        return None if deadline is None else ms_until(deadline, now)

    # -- for tests

    def check(self) -> None:
        """Assert every invariant; raises AssertionError naming the one that does not hold."""
        assert self.values.keys() == self.revisions.keys(), "each key has a value and a revision"
        assert self.revision_sum == sum(self.revisions.values()), "the fingerprint is the map's"
        assert self.deadlines.keys() <= self.values.keys(), "a deadline belongs to a key that is there"
        if self._due is not None:
            self._due.check(self.deadlines)


def deletes_all(segment: Segment) -> bool:
    """Return True if each item of a segment is a delete."""
    deletes = (segment.extras or {}).get(columns.DELETES)
    return deletes is not None and 0 < len(deletes) == len(segment.keys)


def ms_until(deadline: float, now: float) -> int:
    """Return the milliseconds until a deadline, rounded up and at least 1, so that no key expires too early."""
    return max(1, math.ceil((deadline - now) * 1000))


def sync_segment(
    keys: list[str], values: list[bytes], runs: list[list[int]], ttls: tuple[list[int], list[int]] | None
) -> Segment:
    """Return a snapshot chunk: columns, revisions as runs, and the remaining ttls in milliseconds by index."""
    extras: dict[str, Any] = {columns.REVISIONS: runs}
    if ttls is not None and ttls[0]:
        extras[columns.TTLS] = [ttls[0], ttls[1]]
    return Segment(keys, values, extras)
