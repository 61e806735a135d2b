"""What nobody needs any more is let go a slice a turn: to free three million keys and values at once takes a turn of
its own, of which nobody knows why it was so long.

    add          the slices of an image, the records of a log      add_map      the columns of a map
    step         some of them are forgotten, so that Python frees them
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from typing import Any

from chp.hashmap import Hashmap

SLICES = 8  # of an image: some 100,000 keys, which are mostly held elsewhere too
ITEMS = 16_384  # of a map, with all that is theirs: 2 ms


class IncrementalFree:
    """Lists and dicts on their way out."""

    def __init__(self) -> None:
        self.lists: deque[MutableSequence[Any]] = deque()
        self.dicts: deque[dict[Any, Any]] = deque()

    def __bool__(self) -> bool:
        return bool(self.lists or self.dicts)

    def add(self, slices: MutableSequence[Any]) -> None:
        """A list of large things, or of many."""
        if len(slices) > SLICES:
            self.lists.append(slices)

    def add_map(self, hashmap: Hashmap) -> None:
        """A map that was replaced."""
        self.dicts += (hashmap.values, hashmap.revisions, hashmap.deadlines)

    def step(self) -> None:
        """A turn's share."""
        if self.lists:
            del self.lists[0][-SLICES:]
            if not self.lists[0]:
                self.lists.popleft()
        elif self.dicts:
            going = self.dicts[0]
            for _ in range(min(ITEMS, len(going))):
                going.popitem()
            if not going:
                self.dicts.popleft()
