"""Images: subtrees as they were at one number, gathered slice by slice, turn by turn, while the map goes on changing.

    at `number`    the image begins; nothing is copied yet
    then           the names of all keys are listed, some slices a turn (`listing`)
    then           the values and revisions are gathered (`gather`), a slice a turn, and shared out to all images
    meanwhile      `before` is called with each segment before the map gets it, and keeps what its keys were at `number`

So an image is consistent, no turn is long however large the map is, and one pass over the map serves all readers that
wait. While no key comes or goes, the columns are walked in the map's own order, which is several times faster than
looking up each key. Once a key has come or gone, Python can't go on with this walk, so each key is looked up.

If a key comes or goes while the names are listed, the rest of the names is taken at once. To avoid that, the active
lets sets wait for the few turns of the listing. Images of a map that fits one slice are complete at once. A chunk has
the deadlines of the moment when it is made; a later change of a deadline follows as an update.

An image of an earlier number is the image of now, with what changed since then undone (undo_log.py). It is cut into
parts by the hash of each key (`PartedImage`), so both servers cut it alike, whatever the order of their maps is.

Images are made of tuples: Python's garbage collector walks a long list at each collection, but a tuple of text only
once. Slices that are no longer needed are freed a few at a time (incremental_free.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, islice, repeat
from zlib import crc32

from chp import columns
from chp.batch import Segment, runs_of
from chp.hashmap import Hashmap, ms_until, sync_segment
from chp.limits import Limits
from chp.numbers import U64_MASK

from .incremental_free import IncrementalFree
from .shares import above, by_directory
from .undo_log import Columns

# A turn lists this many slices of names. To list a name takes some 20 ns; to look up its value and revision takes 500
# ns.
LISTED = 64
# For up to this many prefixes, a slice is searched once for each prefix. For more, its keys are grouped by directory.
FEW = 4
# The bytes that a key of an image takes beside its value: a place in each column, and the revision.
KEY_BYTES = 56
# An iterator of chunks yields this value while the next chunk is not ready.
NOT_YET = b""


@dataclass(slots=True, frozen=True)
class ImageSlice:
    """A slice of an image: parallel columns, and the sum of the revisions."""

    keys: tuple[str, ...]
    values: tuple[bytes, ...]
    revisions: tuple[int, ...]
    sum: int


class Image:
    """An image: keys, values and revisions, in slices. It is complete when it is `ready`."""

    def __init__(
        self, number: int, prefix: str, deadlines: dict[str, float], leaving: IncrementalFree, most: int
    ) -> None:
        self.number, self.prefix, self.deadlines = number, prefix, deadlines
        self.size = 0  # keys
        self.nbytes = 0
        self.ready = False
        self._slices: list[ImageSlice] = []
        self._open: tuple[list[str], list[bytes], list[int]] = [], [], []
        self._leaving, self._most = leaving, most

    def __del__(self) -> None:
        self._leaving.add(self._slices)

    def take(self, keys: Iterable[str], values: Iterable[bytes], revisions: Iterable[int]) -> None:
        """Add more keys."""
        self._open[0].extend(keys)
        self._open[1].extend(values)
        self._open[2].extend(revisions)
        if len(self._open[0]) >= self._most:
            self._close_slice()

    def _close_slice(self) -> None:
        keys, values, revisions = self._open
        if keys:
            self._slices.append(ImageSlice(tuple(keys), tuple(values), tuple(revisions), sum(revisions)))
            self.size += len(keys)
            self.nbytes += KEY_BYTES * len(keys) + sum(map(len, values))
        self._open = [], [], []

    def complete(self) -> None:
        """Close the last slice: the image is complete."""
        self._close_slice()
        self.ready = True

    def waiting(self) -> Iterator[bytes]:
        """Yield `NOT_YET` as long as the image is not complete."""
        while not self.ready:
            yield NOT_YET

    # -- of a complete image

    def items(self) -> Iterator[tuple[str, bytes, int]]:
        """Yield key, value and revision of each key."""
        for piece in self._slices:
            yield from zip(piece.keys, piece.values, piece.revisions, strict=True)

    def fingerprint(self) -> tuple[int, int]:
        """Return the count of keys and the sum of revisions, as `Hashmap.fingerprint` does."""
        return self.size, sum(piece.sum for piece in self._slices) & U64_MASK

    def chunks(self, limits: Limits, now: Callable[[], float]) -> Iterator[Segment]:
        """Yield the image as segments, each of at most `sync_chunk_items` and `sync_chunk_bytes`, or of one key."""
        for piece in self._slices:
            yield from self._chunks_of(piece, limits, now)

    def arriving(self, limits: Limits, now: Callable[[], float]) -> Iterator[Segment | None]:
        """Yield the image as `chunks` does, while it is gathered; None where the next slice is not there yet."""
        at = 0
        while True:
            while at < len(self._slices):
                yield from self._chunks_of(self._slices[at], limits, now)
                at += 1
            if self.ready:
                return
            yield None

    def _chunks_of(self, piece: ImageSlice, limits: Limits, now: Callable[[], float]) -> Iterator[Segment]:
        start = 0
        while start < len(piece.keys):
            stop = _chunk_end(piece, start, limits)
            keys, column = list(piece.keys[start:stop]), piece.revisions[start:stop]
            # Keys that were written together have the same revision, so most chunks need no search for runs.
            same = column.count(column[0]) == len(column)
            runs = [[column[0], len(column)]] if same else runs_of(column)
            yield sync_segment(keys, list(piece.values[start:stop]), runs, self._ttls(keys, now()))
            start = stop

    def _ttls(self, keys: list[str], now: float) -> tuple[list[int], list[int]] | None:
        deadlines = self.deadlines
        if not deadlines or deadlines.keys().isdisjoint(keys):
            return None
        places = [i for i, key in enumerate(keys) if key in deadlines]
        return places, [ms_until(deadlines[keys[i]], now) for i in places]


def _chunk_end(piece: ImageSlice, start: int, limits: Limits) -> int:
    stop = min(start + limits.sync_chunk_items, len(piece.keys))
    keys, values, room = piece.keys[start:stop], piece.values[start:stop], limits.sync_chunk_bytes
    if len("".join(keys).encode()) + sum(map(len, values)) <= room:
        return stop
    sizes = accumulate(len(key.encode()) + len(value) for key, value in zip(keys, values, strict=True))
    return start + max(1, bisect_right(list(sizes), room))


class PartedImage:
    """An image in parts. The hash of a key, modulo the number of parts, says its part, so both servers cut it alike."""

    def __init__(
        self,
        number: int,
        prefix: str,
        parts: int,
        *,
        deadlines: dict[str, float],
        leaving: IncrementalFree,
        most: int,
    ) -> None:
        self.number, self.prefix = number, prefix
        self.parts = [Image(number, prefix, deadlines, leaving, most) for _ in range(parts)]

    @property
    def size(self) -> int:
        """The number of keys that it has so far."""
        return sum(part.size for part in self.parts)

    @property
    def nbytes(self) -> int:
        """The bytes that it has so far."""
        return sum(part.nbytes for part in self.parts)

    def take(self, keys: Iterable[str], values: Iterable[bytes], revisions: Iterable[int]) -> None:
        """Add more keys, each to its part."""
        if len(self.parts) == 1:
            self.parts[0].take(keys, values, revisions)
            return
        names, n = tuple(keys), len(self.parts)
        cut: list[tuple[list[str], list[bytes], list[int]]] = [([], [], []) for _ in self.parts]
        appends = [(k.append, v.append, r.append) for k, v, r in cut]
        hashes = map(crc32, map(str.encode, names))
        for key, value, revision, hashed in zip(names, values, revisions, hashes, strict=True):
            add_key, add_value, add_revision = appends[hashed % n]
            add_key(key)
            add_value(value)
            add_revision(revision)
        for part, of in zip(self.parts, cut, strict=True):
            part.take(*of)

    def complete(self) -> None:
        """Complete all parts."""
        for part in self.parts:
            part.complete()


class Gathering:
    """One pass over a map, a slice at a time, for images of several prefixes.

    Without images, the pass only lists the names of all keys. With `undone`, the images are of an earlier number: these
    columns of the undo log tell what changed keys were then, the latest changes first.
    """

    def __init__(
        self,
        hashmap: Hashmap,
        images: Mapping[str, Image | PartedImage],
        leaving: IncrementalFree,
        limits: Limits,
        undone: Sequence[Columns] = (),
    ) -> None:
        self._most = limits.gather_items_max
        self.images = dict(images)
        # The columns that were not read yet.
        self._undone = deque(undone)
        # What the columns that were read say of each key: its value and its revision at the earlier number.
        self._undo: dict[str, tuple[bytes, int]] = {}
        self._parts = {prefix: image for prefix, image in self.images.items() if prefix}
        self._by_directory = len(self._parts) > FEW and all(prefix.endswith("/") for prefix in self._parts)
        self._map, self._leaving = hashmap, leaving
        self.listing = True
        # True once all keys were gathered.
        self.done = False
        self.names: list[tuple[str, ...]] = []  # names of all keys, once it is done without images
        self._keys: list[tuple[str, ...]] = []  # the names, in slices
        self._names, self._size = iter(hashmap.values), len(hashmap.values)
        # The number of slices whose values were gathered.
        self._at = 0
        self._walk: Walk | None = Walk(hashmap)
        self._values_were: dict[str, bytes] = {}
        self._revisions_were: dict[str, int] = {}
        self.gather()

    def gather(self) -> None:
        """Gather the next slice of keys; before that, list the next slices of names, and look through the undo log."""
        if self.listing:
            self._list(LISTED)
        if self.listing:
            return
        looked_at = 0
        while self._undone:
            # These columns may also have changes that were made after the pass began. Such a change notes the key as it
            # was at that begin, which is right too.
            names, values, revisions = self._undone.popleft()
            self._undo.update(zip(names, zip(values, revisions, strict=True), strict=True))
            looked_at += len(names)
            if looked_at >= self._most:
                return
        if not self.images:
            self._at = len(self._keys)
        elif self._at < len(self._keys):
            keys, self._keys[self._at] = self._keys[self._at], ()
            columns_now = self._as_they_were(keys, *self._columns(keys))
            self._share(*(self._without_changes(keys, *columns_now) if self._undo else (keys, *columns_now)))
            self._at += 1
        if self._at >= len(self._keys):
            self._finish()

    def gather_all(self) -> None:
        """Gather the rest at once."""
        while not self.done:
            self.gather()

    def before(self, segment: Segment) -> None:
        """Keep the values and revisions of the keys of a segment, before the segment is applied.

        The keys are visited in the order of the segment, which is mostly the order in which they lie in memory. Visits
        in the order of the keys' hashes take seven times as long.
        """
        values, revisions, keys = self._map.values, self._map.revisions, segment.keys
        if not self._values_were.keys().isdisjoint(keys):
            keys = [key for key in keys if key not in self._values_were]
        found = list(map(revisions.get, keys))
        comes = None in found
        # A key that is not in the map gets b"" as its value, which is never used.
        self._values_were.update(zip(keys, map(values.get, keys, repeat(b"")), strict=True))
        self._revisions_were.update(zip(keys, [revision or 0 for revision in found], strict=True))
        if comes or (segment.extras and columns.DELETES in segment.extras):
            # A key comes or goes, so no dict can be walked further: list the remaining names now.
            self._walk = None
            while self.listing:
                self._list(LISTED)

    def _list(self, slices: int) -> None:
        for _ in range(slices):
            names = tuple(islice(self._names, self._most))
            if names:
                self._keys.append(names)
            if len(names) < self._most:
                self._names, self.listing = iter({}), False
                break
        # If the count is wrong, Python has compacted the dict during the walk. Then the names are listed anew, at once.
        if not self.listing and sum(map(len, self._keys)) != self._size:
            every = iter(list(self._map.values))
            self._keys = list(iter(lambda: tuple(islice(every, self._most)), ()))

    def _columns(self, keys: tuple[str, ...]) -> tuple[Sequence[bytes], Sequence[int]]:
        found = self._walk.next(keys) if self._walk is not None else None
        if found is not None:
            return found
        self._walk = None
        values, revisions = self._map.values, self._map.revisions
        return [values.get(key, b"") for key in keys], [revisions.get(key, 0) for key in keys]

    def _as_they_were(
        self, keys: tuple[str, ...], values: Sequence[bytes], revisions: Sequence[int]
    ) -> tuple[Sequence[bytes], Sequence[int]]:
        if self._values_were and not self._values_were.keys().isdisjoint(keys):
            values = list(map(self._values_were.get, keys, values))
            revisions = list(map(self._revisions_were.get, keys, revisions))
        return values, revisions

    def _without_changes(
        self, keys: tuple[str, ...], values: Sequence[bytes], revisions: Sequence[int]
    ) -> tuple[tuple[str, ...], Sequence[bytes], Sequence[int]]:
        """Undo the changes of these keys that the undo log has, and remove these changes from `_undo`."""
        undo = self._undo
        if undo.keys().isdisjoint(keys):
            return keys, values, revisions
        was = [undo.pop(key, (value, now)) for key, value, now in zip(keys, values, revisions, strict=True)]
        there = [revision != 0 for _, revision in was]
        kept = list(compress(was, there))
        return tuple(compress(keys, there)), [value for value, _ in kept], [revision for _, revision in kept]

    def _share(self, keys: tuple[str, ...], values: Sequence[bytes], revisions: Sequence[int]) -> None:
        if "" in self.images:
            self.images[""].take(keys, values, revisions)
        if self._by_directory:
            self._share_by_directory(keys, values, revisions)
        else:
            for prefix, image in self._parts.items():
                inside = [key.startswith(prefix) for key in keys]
                image.take(compress(keys, inside), compress(values, inside), compress(revisions, inside))

    def _share_by_directory(self, keys: Sequence[str], values: Sequence[bytes], revisions: Sequence[int]) -> None:
        for directory, where in by_directory(keys).items():
            wanted = [self._parts[prefix] for prefix in above(directory) if prefix in self._parts]
            if wanted:
                found = [keys[i] for i in where], [values[i] for i in where], [revisions[i] for i in where]
                for image in wanted:
                    image.take(*found)

    def _finish(self) -> None:
        # The keys that are left in `_undo` were not listed: the map no longer had them when the pass began.
        gone = [(key, *was) for key, was in self._undo.items() if was[1]]
        for start in range(0, len(gone), self._most):
            keys, values, revisions = zip(*gone[start : start + self._most], strict=True)
            self._share(keys, values, revisions)
        self._undo = {}
        for image in self.images.values():
            image.complete()
        self.names = self._keys
        self._keys, self._at, self._walk = [], 0, None
        self._leaving.add_dicts(self._values_were, self._revisions_were)
        self._values_were, self._revisions_were = {}, {}
        self.done = True


class Walk:
    """A walk along the columns of a map in its own order; it ends when a key comes or goes."""

    def __init__(self, hashmap: Hashmap) -> None:
        self._values = iter(hashmap.values.values())
        self._keys = iter(hashmap.revisions)
        self._revisions = iter(hashmap.revisions.values())

    def next(self, keys: tuple[str, ...]) -> tuple[Sequence[bytes], Sequence[int]] | None:
        """Return the values and revisions of the next keys; None if the columns are not in the order of these keys."""
        n = len(keys)
        if tuple(islice(self._keys, n)) != keys:
            return None
        return tuple(islice(self._values, n)), tuple(islice(self._revisions, n))
