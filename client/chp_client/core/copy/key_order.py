"""The keys of a map in their order. A read makes the order, and later reads update it.

    batch --columns of keys-->  noted  --at the next read-->  chunks of sorted keys

The order costs nothing until a reader makes it (`live`). While it is live, a batch that may have added keys leaves its
column of keys here. A batch that only sets existing keys leaves nothing. Deleted keys stay until a read meets many of
them, so a reader checks in the map which keys exist. While the order is live, it knows each key that is shown or has
a revision.

The columns are noted with the lock of the map held. Only readers touch the chunks. The order is dropped, and made
again at the next read, if too many keys were noted or if it has far more keys than the map.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterable, Iterator

# The number of keys in a new chunk. Adding a key moves at most twice as many.
CHUNK = 1024
# The most keys that may wait to be sorted: this many, or an eighth of all keys if that is more.
NOTED_MIN, NOTED_SHARE = 8192, 8
# The order is dropped if it has more keys than twice those of the map plus this many.
GONE_MIN = 8192


class KeyOrder:
    """The sorted keys of a map, and the columns that came since they were sorted."""

    __slots__ = ("_chunks", "_firsts", "_noted", "_noted_max", "_size", "_waiting", "live")

    def __init__(self) -> None:
        self.live = False
        self._noted: list[Iterable[str]] = []
        self._waiting = self._size = 0
        self._noted_max = NOTED_MIN
        # The first key of each chunk. The first chunk begins before all keys.
        self._firsts: list[str] = [""]
        self._chunks: list[list[str]] = [[]]

    # -- with the lock of the map held

    def begin(self, keys: int) -> None:
        """Note all columns from here on. The caller must give all present keys to `make`."""
        self._forget()
        self.live, self._noted_max = True, max(NOTED_MIN, keys // NOTED_SHARE)

    def note(self, keys: Collection[str]) -> None:
        """Note keys that may be new."""
        self._noted.append(keys)
        self._waiting += len(keys)
        if self._waiting > self._noted_max:
            self.drop()

    def drop(self) -> None:
        """Forget the order. The next reader makes it again."""
        self.live = False
        self._forget()

    def _forget(self) -> None:
        self._noted, self._waiting = [], 0

    def take(self, held: int) -> list[Iterable[str]]:
        """Return the columns noted since the last call, for `add`. `held` is the number of keys in the map."""
        noted = self._noted
        self._forget()
        if self._size > 2 * held + GONE_MIN:
            self.live = False
        return noted

    # -- for readers only

    def make(self, keys: list[str]) -> None:
        """Sort all keys, chunk by chunk.

        One sort of a million keys would block every other thread for a second.
        """
        step = max(1, len(keys) // (4 * (len(keys) // CHUNK + 1)))
        firsts = ["", *sorted(set(keys[::step]))[4::4]]
        chunks: list[list[str]] = [[] for _ in firsts]
        for key in keys:
            chunks[bisect_right(firsts, key) - 1].append(key)
        for chunk in chunks:
            chunk.sort()
        self._firsts, self._chunks, self._size = firsts, chunks, len(keys)

    def add(self, keys: Iterable[str]) -> None:
        """Put keys in their places. Keys that are known stay as they are."""
        for key in keys:
            at = bisect_right(self._firsts, key) - 1
            chunk = self._chunks[at]
            place = bisect_left(chunk, key)
            if place == len(chunk) or chunk[place] != key:
                chunk.insert(place, key)
                self._size += 1
                if len(chunk) > 2 * CHUNK:
                    self._split(at)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        self._chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
        self._firsts.insert(at + 1, chunk[CHUNK])

    def spans(self, low: str, high: str | None) -> Iterator[tuple[list[str], int]]:
        """Yield the keys from `low` on and below `high`, chunk by chunk, with the index of each chunk."""
        at = bisect_right(self._firsts, low) - 1
        while at < len(self._chunks) and (high is None or self._firsts[at] < high):
            chunk = self._chunks[at]
            start, end = bisect_left(chunk, low), len(chunk) if high is None else bisect_left(chunk, high)
            yield chunk[start:end], at
            at += 1

    def clean(self, at: int, known: list[Container[str]]) -> None:
        """Remove the keys of a chunk that no container in `known` has. The caller holds the lock of the map."""
        chunk = self._chunks[at]
        kept = [key for key in chunk if any(key in each for each in known)]
        self._size += len(kept) - len(chunk)
        self._chunks[at] = kept

    def check(self) -> None:
        """Assert that each chunk is sorted, has no key twice, and lies between its own and the next first key."""
        flat = [key for chunk in self._chunks for key in chunk]
        assert flat == sorted(set(flat)) and len(flat) == self._size, "sorted, each once, and counted"
        assert self._firsts == sorted(self._firsts), "the chunks are in order"
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            assert not chunk or first <= chunk[0], "a chunk begins where it says"


def bounds(prefix: str, after: str | None, until: str | None) -> tuple[str, str | None]:
    """Return the lowest key, and the key above the highest, of a range.

    The range has the keys that begin with `prefix` and lie after `after` and before `until`.
    """
    # The smallest text above `after` is `after` with a zero character appended.
    low = prefix if after is None or after < prefix else after + "\0"
    above = prefix.rstrip("\U0010ffff")
    high = above[:-1] + chr(ord(above[-1]) + 1) if above else None
    if until is not None and (high is None or until < high):
        high = until
    return low, high
