"""A large commit that is already committed, while the map still gets its items, a slice a turn (committed.py).

    add        takes a segment of the commit
    note       is told the keys that later updates write: the map has their values at once
    take       returns the next slice for the map, without the items whose keys were written later
    revision   returns what the commit made of a key, whether or not the map has it yet

So the server does sets between the slices, and conditions see the commit from its number on. Code that needs the whole
map takes all slices first (`ReplicatedState.map`).

A staged batch is decoded when its slice is taken. So each slice can use the memory that the values replaced by earlier
slices have freed. If all batches were decoded at once, their objects would lie scattered in memory for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from chp import columns
from chp.batch import Segment, select
from chp.hashmap import Hashmap

from .staging import StagedBatch

# The first LOOKS_MAX questions for a key search the bytes of the commit, which takes about 10 ms each. For later
# questions an index of all keys is made.
LOOKS_MAX = 16


class DeferredCommit:
    """The segments of one commit that the map does not have yet."""

    __slots__ = ("_later", "_looks", "_made", "_map", "_segments", "_start", "items", "now", "number")

    def __init__(self, hashmap: Hashmap, number: int, now: float) -> None:
        # The revision of the keys that the commit wrote, and the time from which its ttls count.
        self.number, self.now = number, now
        self._map = hashmap
        # The count of items that the map does not have.
        self.items = 0
        self._segments: deque[Segment | StagedBatch] = deque()
        # The count of items of the first segment that the map has.
        self._start = 0
        # The keys that were written after this commit.
        self._later: dict[str, None] = {}
        # key -> True if the commit sets it, False if the commit deletes it. Made after `LOOKS_MAX` questions.
        self._made: dict[str, bool] | None = None
        self._looks = 0

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, segment: Segment | StagedBatch) -> None:
        """Add the next segment of the commit."""
        self._segments.append(segment)
        self.items += segment.items
        self._made = None

    def note(self, keys: Iterable[str]) -> None:
        """Note that a later update writes keys. The map gets that update at once, before the rest of the commit."""
        self._later.update(dict.fromkeys(keys))

    def take(self, most: int) -> tuple[Segment | None, int]:
        """Take out at most `most` of the next items. Return the segment for the map, if any, and the count of items."""
        first, start = self._segments[0], self._start
        segment = first.segment() if isinstance(first, StagedBatch) else first
        n = min(most, segment.items - start)
        if start + n < segment.items:
            self._segments[0], self._start = segment, start + n
        else:
            self._segments.popleft()
            self._start = 0
        if n < segment.items:
            segment = _piece(segment, start, start + n)
        self.items -= n
        if self._later and not self._later.keys().isdisjoint(segment.keys):
            return select(segment, [key not in self._later for key in segment.keys]), n
        return segment, n

    def revision(self, key: str) -> int | None:
        """Return the revision that the commit gave to a key, and 0 if it deleted the key.

        Return None if the caller must look into the map: the commit does not have the key, or it was written later.
        """
        if key in self._later:
            return None
        self._looks += 1
        if self._made is None and self._looks > LOOKS_MAX:
            self._made = self._index(self._segments)
        made = self._made if self._made is not None else self._index(self._with(key))
        return None if key not in made else self.number * made[key]

    def _with(self, key: str) -> Iterator[Segment | StagedBatch]:
        """Yield the segments that may have a key. A search in the bytes of a batch is quicker than to decode it."""
        packed = key.encode()
        for each in self._segments:
            if not isinstance(each, StagedBatch) or (each.low <= key <= each.high and packed in each.body):
                yield each

    def _index(self, segments: Iterable[Segment | StagedBatch]) -> dict[str, bool]:
        made: dict[str, bool] = {}
        for each in segments:
            segment = each.segment() if isinstance(each, StagedBatch) else each
            made.update(dict.fromkeys(segment.keys, True))
            made.update(dict.fromkeys(self._map.deleted_by(segment), False))
        return made


def _piece(segment: Segment, start: int, stop: int) -> Segment:
    """Return the items from `start` to `stop` of a segment."""
    extras = segment.extras or {}
    if not extras or (extras.keys() == {columns.TTLS} and type(extras[columns.TTLS]) is int):
        return Segment(segment.keys[start:stop], segment.values[start:stop], segment.extras)
    inside = range(start, stop)
    return select(segment, [i in inside for i in range(len(segment.keys))]) or Segment([], [])
