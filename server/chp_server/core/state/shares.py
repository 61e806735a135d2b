"""The subtrees that a segment concerns, and the part of it for each: found by the directories of its keys.

A server may have thousands of channels, but an update concerns only the few whose subtrees hold its key. A test for
each channel would take one pass over the keys per channel. Grouping the keys by directory takes one pass in all. After
that, each directory and each directory above it takes one look-up, however many subtrees there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from chp.batch import Segment, select


class Subtrees:
    """The subtrees that are wanted, as a set and in order."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._ordered: list[str] = []

    def add(self, subtree: str) -> None:
        """Add a subtree."""
        if subtree not in self._wanted:
            self._wanted.add(subtree)
            insort(self._ordered, subtree)

    def remove(self, subtree: str) -> None:
        """Remove a subtree."""
        self._wanted.remove(subtree)
        del self._ordered[bisect_left(self._ordered, subtree)]

    def shares(self, segment: Segment) -> Iterator[tuple[str, Segment]]:
        """Yield each wanted subtree that a segment has keys of, with this part of the segment.

        The part is the segment itself if all its keys are in the subtree.
        """
        keys, wanted = segment.keys, self._wanted
        whole = self.holding(*segment.bounds)
        if whole is not None:
            yield from ((subtree, segment) for subtree in whole)
            return
        found: dict[str, list[int]] = {}
        for directory, where in by_directory(keys).items():
            for subtree in above(directory):
                if subtree in wanted:
                    found.setdefault(subtree, []).extend(where)
        for subtree, where in found.items():
            yield subtree, segment if len(where) == len(keys) else _take(segment, sorted(where))

    def holding(self, low: str, high: str) -> list[str] | None:
        """Return the wanted subtrees that hold all keys from `low` to `high`.

        Return None if another wanted subtree may hold only some of these keys.
        """
        common = _common_directory(low, high)
        return None if self._any_below(common) else [subtree for subtree in above(common) if subtree in self._wanted]

    def _any_below(self, directory: str) -> bool:
        """Return whether a wanted subtree lies within a directory, so that it may have only some of the keys there."""
        at = bisect_right(self._ordered, directory)
        return at < len(self._ordered) and self._ordered[at].startswith(directory)


def _common_directory(low: str, high: str) -> str:
    """Return the directory that holds all keys from `low` to `high`. Each key between them has their common prefix."""
    if low == high:
        return low[: low.rfind("/") + 1]
    n = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[: low.rfind("/", 0, n) + 1]


def by_directory(keys: Sequence[str]) -> dict[str, list[int]]:
    """Return, for each directory, the indexes of its keys. The directory of a key is the key up to its last slash."""
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        directory = key[: key.rfind("/") + 1]
        if directory in places:
            places[directory].append(i)
        else:
            places[directory] = [i]
    return places


def above(directory: str) -> Iterator[str]:
    """Yield the subtrees that hold a directory: everything, the directories above it, and the directory itself."""
    yield ""
    # A subtree begins with a slash.
    if directory[:1] == "/":
        at = 0
        while at >= 0:
            yield directory[: at + 1]
            at = directory.find("/", at + 1)


def _take(segment: Segment, where: list[int]) -> Segment:
    if segment.extras is None:
        keys, values = segment.keys, segment.values
        return Segment([keys[i] for i in where], [values[i] for i in where], None)
    mask = [False] * len(segment.keys)
    for i in where:
        mask[i] = True
    part = select(segment, mask)
    assert part is not None, "a directory has a key"
    return part
