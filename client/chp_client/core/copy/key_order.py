"""The keys of a map in their order, made when somebody first asks for it and kept up lazily.

    batch --columns of keys-->  noted  --at the next read-->  chunks of sorted keys

Until it is made (`live`) it costs nothing; while it lives, a batch that may have added keys leaves its column here, and
one that only sets keys that were there leaves nothing. Deleted keys stay until a read comes upon many of them: who
reads asks the map which are there. Each key that is shown, or has a revision, is known to the order, or that is not
live.

What is noted is noted with the lock of the map held; the chunks are their readers' alone. More that was noted than a
share of the map, or far more keys than the map has, and it is made anew at the next read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterable, Iterator

CHUNK = 1024  # keys; adding one moves at most twice as many
NOTED_MIN, NOTED_SHARE = 8192, 8  # keys that may wait: so many, or an eighth of all
GONE_MIN = 8192  # keys that may be known beyond twice the map's


class KeyOrder:
    """Sorted keys, and what came since."""

    __slots__ = ("_chunks", "_firsts", "_noted", "_noted_max", "_size", "_waiting", "live")

    def __init__(self) -> None:
        self.live = False
        self._noted: list[Iterable[str]] = []
        self._waiting = self._size = 0
        self._noted_max = NOTED_MIN
        self._firsts: list[str] = [""]  # where each chunk begins; the first one begins before all keys
        self._chunks: list[list[str]] = [[]]

    # -- with the lock of the map held

    def begin(self, keys: int) -> None:
        """From here on what comes is noted; who calls this gives what there is to `make`."""
        self._forget()
        self.live, self._noted_max = True, max(NOTED_MIN, keys // NOTED_SHARE)

    def note(self, keys: Collection[str]) -> None:
        """These may be new."""
        self._noted.append(keys)
        self._waiting += len(keys)
        if self._waiting > self._noted_max:
            self.drop()

    def drop(self) -> None:
        """It is made anew when somebody asks again."""
        self.live = False
        self._forget()

    def _forget(self) -> None:
        self._noted, self._waiting = [], 0

    def take(self, held: int) -> list[Iterable[str]]:
        """What was noted since, for `add`; of a map of so many keys."""
        noted = self._noted
        self._forget()
        if self._size > 2 * held + GONE_MIN:
            self.live = False
        return noted

    # -- its readers' alone

    def make(self, keys: list[str]) -> None:
        """Sort all keys. Not in one step: a sort of a million would keep every other thread waiting for a second."""
        step = max(1, len(keys) // (4 * (len(keys) // CHUNK + 1)))
        firsts = ["", *sorted(set(keys[::step]))[4::4]]
        chunks: list[list[str]] = [[] for _ in firsts]
        for key in keys:
            chunks[bisect_right(firsts, key) - 1].append(key)
        for chunk in chunks:
            chunk.sort()
        self._firsts, self._chunks, self._size = firsts, chunks, len(keys)

    def add(self, keys: Iterable[str]) -> None:
        """Put keys in their places; those that are known are left."""
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
        """The keys from `low` on and below `high`, a chunk after the other, and the place of the chunk."""
        at = bisect_right(self._firsts, low) - 1
        while at < len(self._chunks) and (high is None or self._firsts[at] < high):
            chunk = self._chunks[at]
            start, end = bisect_left(chunk, low), len(chunk) if high is None else bisect_left(chunk, high)
            yield chunk[start:end], at
            at += 1

    def clean(self, at: int, known: list[Container[str]]) -> None:
        """Leave out of a chunk what none of these has; with the lock of the map held too."""
        chunk = self._chunks[at]
        kept = [key for key in chunk if any(key in each for each in known)]
        self._size += len(kept) - len(chunk)
        self._chunks[at] = kept

    def check(self) -> None:
        """Assert that each chunk is sorted, has no key twice, and lies between its first and the next one's."""
        flat = [key for chunk in self._chunks for key in chunk]
        assert flat == sorted(set(flat)) and len(flat) == self._size, "sorted, each once, and counted"
        assert self._firsts == sorted(self._firsts), "the chunks are in order"
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            assert not chunk or first <= chunk[0], "a chunk begins where it says"


def bounds(prefix: str, after: str | None, until: str | None) -> tuple[str, str | None]:
    """From which key on, and below which, what begins with `prefix` lies behind `after` and before `until`."""
    low = prefix if after is None or after < prefix else after + "\0"  # the next text after it
    above = prefix.rstrip("\U0010ffff")
    high = above[:-1] + chr(ord(above[-1]) + 1) if above else None
    if until is not None and (high is None or until < high):
        high = until
    return low, high
