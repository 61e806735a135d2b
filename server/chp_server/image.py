"""Images: subtrees as they were at one number, gathered a slice a turn while the map goes on.

    at `number`    the keys, in one go: a list of references, some 12 ns each
    then           slice after slice of their values and revisions (`gather`), shared out to all who want a subtree
    meanwhile      `before` is told of each segment, before the map has it: what a key was at `number` is kept aside

So an image is consistent, no turn is long however large the map is, and a pass over the map serves all who wait for
one. While no key comes or goes the columns are walked in the map's own order, which is several times faster than
looking up each key; a dict's walk may not go on after that. Images of a map that fits one slice are whole at once.
Their deadlines are those of the moment in which a chunk is made: what changes them later follows, as an update.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import accumulate, compress, islice

from chp import columns
from chp.batch import Segment, runs_of
from chp.hashmap import Hashmap, ms_until, sync_segment
from chp.limits import Limits
from chp.numbers import U64_MASK

from .shares import above, by_directory

GATHER_ITEMS = 1 << 16  # keys looked at in one turn: 5 ms in the map's order, 20 ms where each is looked up
FEW = 4  # prefixes: up to here a pass over the slice for each is as cheap as sorting it by directory
NOT_YET = b""  # in the place of a chunk, until the image is whole


class Image:
    """Parallel lists of keys, values and revisions; whole when it is `ready`."""

    def __init__(self, number: int, prefix: str, deadlines: dict[str, float]) -> None:
        self.number, self.prefix, self.deadlines = number, prefix, deadlines
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.revisions: list[int] = []
        self.ready = False
        self._sum = 0

    def take(self, keys: Iterable[str], values: Iterable[bytes], revisions: list[int]) -> None:
        """More of it."""
        self.keys += keys
        self.values += values
        self.revisions += revisions
        self._sum += sum(revisions)

    def waiting(self) -> Iterator[bytes]:
        """`NOT_YET`, as often as somebody asks before it is whole."""
        while not self.ready:
            yield NOT_YET

    # -- once it is ready

    def part(self, i: int, n: int) -> Image:
        """Slice `i` of `n`: together they are the image, and none of them overlap."""
        size = len(self.keys)
        where = slice(i * size // n, (i + 1) * size // n)
        sliced = copy(self)
        sliced.keys, sliced.values, sliced.revisions = self.keys[where], self.values[where], self.revisions[where]
        sliced._sum = sum(sliced.revisions)
        return sliced

    def fingerprint(self) -> tuple[int, int]:
        """As `Hashmap.fingerprint`."""
        return len(self.keys), self._sum & U64_MASK

    def chunks(self, limits: Limits, now: Callable[[], float]) -> Iterator[Segment]:
        """The image as segments of at most `sync_chunk_items` and `sync_chunk_bytes`, or one key."""
        start = 0
        while start < len(self.keys):
            stop = self._chunk_end(start, limits)
            keys = self.keys[start:stop]
            column = self.revisions[start:stop]
            same = column.count(column[0]) == len(column)  # written together: seen at once
            runs = [[column[0], len(column)]] if same else runs_of(column)
            yield sync_segment(keys, self.values[start:stop], runs, self._ttls(keys, now()))
            start = stop

    def _chunk_end(self, start: int, limits: Limits) -> int:
        stop = min(start + limits.sync_chunk_items, len(self.keys))
        keys, values, room = self.keys[start:stop], self.values[start:stop], limits.sync_chunk_bytes
        if len("".join(keys).encode()) + sum(map(len, values)) <= room:
            return stop
        sizes = accumulate(len(key.encode()) + len(value) for key, value in zip(keys, values, strict=True))
        return start + max(1, bisect_right(list(sizes), room))

    def _ttls(self, keys: list[str], now: float) -> tuple[list[int], list[int]] | None:
        deadlines = self.deadlines
        if not deadlines or deadlines.keys().isdisjoint(keys):
            return None
        places = [i for i, key in enumerate(keys) if key in deadlines]
        return places, [ms_until(deadlines[keys[i]], now) for i in places]


class Gathering:
    """One pass over a map, a slice at a time, for images of several prefixes."""

    def __init__(self, hashmap: Hashmap, number: int, prefixes: Iterable[str]) -> None:
        self.images = {prefix: Image(number, prefix, hashmap.deadlines) for prefix in prefixes}
        self._parts = {prefix: image for prefix, image in self.images.items() if prefix}
        self._by_directory = len(self._parts) > FEW and all(prefix.endswith("/") for prefix in self._parts)
        self._map = hashmap
        self._keys, self._at = list(hashmap.values), 0
        self._walk: Walk | None = Walk(hashmap)
        self._values_were: dict[str, bytes] = {}
        self._revisions_were: dict[str, int] = {}
        self.gather()

    @property
    def done(self) -> bool:
        """Whether all keys were looked at."""
        return self._at >= len(self._keys)

    def gather(self) -> None:
        """Look at the next slice of keys."""
        keys = self._keys[self._at : self._at + GATHER_ITEMS]
        values, revisions = self._as_they_were(keys, *self._columns(keys))
        self._at += len(keys)
        if "" in self.images:
            self.images[""].take((), values, revisions)  # its keys are all of them
        if self._by_directory:
            self._share_by_directory(keys, values, revisions)
        else:
            for prefix, image in self._parts.items():
                inside = [key.startswith(prefix) for key in keys]
                image.take(compress(keys, inside), compress(values, inside), list(compress(revisions, inside)))
        if self.done:
            self._finish()

    def gather_all(self) -> None:
        """The rest, in one go."""
        while not self.done:
            self.gather()

    def before(self, segment: Segment) -> None:
        """A segment is about to be applied: keep what its keys are."""
        values, revisions = self._map.values, self._map.revisions
        for key in dict.fromkeys(segment.keys).keys() - self._values_were.keys():
            self._values_were[key] = values.get(key, b"")  # of no use for one that was not there
            self._revisions_were[key] = revisions.get(key, 0)
        if (segment.extras and columns.DELETES in segment.extras) or not revisions.keys() >= set(segment.keys):
            self._walk = None  # a key comes or goes

    def _columns(self, keys: list[str]) -> tuple[list[bytes], list[int]]:
        found = self._walk.next(keys) if self._walk is not None else None
        if found is not None:
            return found
        self._walk = None
        values, revisions = self._map.values, self._map.revisions
        return [values.get(key, b"") for key in keys], [revisions.get(key, 0) for key in keys]

    def _as_they_were(
        self, keys: list[str], values: list[bytes], revisions: list[int]
    ) -> tuple[list[bytes], list[int]]:
        if self._values_were and not self._values_were.keys().isdisjoint(keys):
            values = list(map(self._values_were.get, keys, values))
            revisions = list(map(self._revisions_were.get, keys, revisions))
        return values, revisions

    def _share_by_directory(self, keys: list[str], values: list[bytes], revisions: list[int]) -> None:
        for directory, where in by_directory(keys).items():
            wanted = [self._parts[prefix] for prefix in above(directory) if prefix in self._parts]
            if wanted:
                found = [keys[i] for i in where], [values[i] for i in where], [revisions[i] for i in where]
                for image in wanted:
                    image.take(*found)

    def _finish(self) -> None:
        if "" in self.images:
            self.images[""].keys = self._keys
        for image in self.images.values():
            image.ready = True
        self._keys, self._at, self._walk = [], 0, None
        self._values_were.clear()
        self._revisions_were.clear()


class Walk:
    """The columns of a map in its own order, as long as no key comes or goes."""

    def __init__(self, hashmap: Hashmap) -> None:
        self._values = iter(hashmap.values.values())
        self._keys = iter(hashmap.revisions)
        self._revisions = iter(hashmap.revisions.values())

    def next(self, keys: list[str]) -> tuple[list[bytes], list[int]] | None:
        """The values and revisions of the next keys; None if the two columns have not met them in one order."""
        n = len(keys)
        if list(islice(self._keys, n)) != keys:
            return None
        return list(islice(self._values, n)), list(islice(self._revisions, n))
