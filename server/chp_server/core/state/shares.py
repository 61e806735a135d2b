"""Which subtrees a segment concerns, and what each has of it: by the directories of its keys, one look a key.

A server may have thousands of channels, and an update concerns those few that lie above its key. Asking each channel
whether it wants something of a column costs a pass a channel; grouping the column by directory costs one pass, and then
a look for each directory and each of the directories above it, however many subtrees there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from chp.batch import Segment, select


class Subtrees:
    """The subtrees that are wanted: by name, and in order."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._ordered: list[str] = []

    def add(self, subtree: str) -> None:
        """One more."""
        if subtree not in self._wanted:
            self._wanted.add(subtree)
            insort(self._ordered, subtree)

    def remove(self, subtree: str) -> None:
        """One less."""
        self._wanted.remove(subtree)
        del self._ordered[bisect_left(self._ordered, subtree)]

    def shares(self, segment: Segment) -> Iterator[tuple[str, Segment]]:
        """Each wanted subtree that a segment has keys of, with the part of it: the segment itself if it is all."""
        keys, wanted = segment.keys, self._wanted
        common = _common_directory(min(keys), max(keys))
        if not self._any_below(common):
            yield from ((subtree, segment) for subtree in above(common) if subtree in wanted)
            return
        found: dict[str, list[int]] = {}
        for directory, where in by_directory(keys).items():
            for subtree in above(directory):
                if subtree in wanted:
                    found.setdefault(subtree, []).extend(where)
        for subtree, where in found.items():
            yield subtree, segment if len(where) == len(keys) else _take(segment, sorted(where))

    def _any_below(self, directory: str) -> bool:
        """Whether a subtree lies within a directory, so that it may have a part of what is in there."""
        at = bisect_right(self._ordered, directory)
        return at < len(self._ordered) and self._ordered[at].startswith(directory)


def _common_directory(low: str, high: str) -> str:
    """The directory in which all keys from `low` to `high` lie: they share what these two share."""
    if low == high:
        return low[: low.rfind("/") + 1]
    n = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[: low.rfind("/", 0, n) + 1]


def by_directory(keys: Sequence[str]) -> dict[str, list[int]]:
    """The places of the keys of each directory, which is all of a key up to its last slash."""
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        directory = key[: key.rfind("/") + 1]
        if directory in places:
            places[directory].append(i)
        else:
            places[directory] = [i]
    return places


def above(directory: str) -> Iterator[str]:
    """The subtrees that hold a directory: everything, those on the way, and itself."""
    yield ""
    if directory[:1] == "/":  # a subtree begins with a slash
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
