"""Freeing of large data, a part each turn.

To free three million keys and values at once would take a whole turn, and no log would say why it was so long.

    add         takes the slices of an image, or the records of a log
    add_map     takes the columns of a map
    add_dicts   takes what an image kept of the map before it changed
    step        forgets some of them, so that Python frees them
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from typing import Any

from chp.hashmap import Hashmap

# A step frees this many slices of an image: some 100,000 keys, most of which other objects hold too.
SLICES = 8
# A step frees this many items of a map, with their values, in 2 ms.
ITEMS = 16_384


class IncrementalFree:
    """Lists and dicts that are being freed."""

    def __init__(self) -> None:
        self.lists: deque[MutableSequence[Any]] = deque()
        self.dicts: deque[dict[Any, Any]] = deque()

    def __bool__(self) -> bool:
        return bool(self.lists or self.dicts)

    def add(self, slices: MutableSequence[Any]) -> None:
        """Take a list of large objects, to be freed slice by slice; Python frees a short list at once."""
        if len(slices) > SLICES:
            self.lists.append(slices)

    def add_map(self, hashmap: Hashmap) -> None:
        """Take the columns of a map that was replaced."""
        self.dicts += (hashmap.values, hashmap.revisions, hashmap.deadlines)

    def add_dicts(self, *dicts: dict[Any, Any]) -> None:
        """Take dicts that are no longer needed; Python frees a small dict at once."""
        self.dicts += (each for each in dicts if len(each) > ITEMS)

    def step(self) -> None:
        """Free a turn's share."""
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
