"""The batches of own sets that are not acknowledged yet, in order, ready to be sent again (SPEC.md, section 14).

A session numbers its batches 1, 2, 3, ...; a server applies each once, in that order. So a batch may be sent to
both servers, and again to whoever becomes active, as often as it takes. A server that lacks batches which another one
answered is told that they are held no more. A server that does not take this wants the session opened anew: `reopen`
gives what is left new numbers under a new name.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from chp import batch as b
from chp import columns
from chp.batch import Segment
from chp.errors import BadValue
from chp.keys import OLDEST_HELD, RESERVED_KEY, next_session, public_session
from chp.limits import DEFAULT, Limits
from chp.numbers import pack


class Packed(Segment):
    """A segment that is encoded already; nothing here looks into it."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        super().__init__([], [])
        self.body = body

    def encode(self) -> bytes:
        """As it came."""
        return self.body


class SentBatch:
    """One KVSET of CHP/2 on its way."""

    __slots__ = ("body", "extras", "handle", "keys", "no", "segment", "shown", "size", "uuids_from")

    def __init__(self, no: int, segment: Segment, handle: Any, shown: bool, size: int) -> None:
        self.no = no
        self.segment: Segment | None = segment  # kept only while a CHP/1 server may have to be told
        self.keys, self.extras = segment.keys, segment.extras
        self.body = b""
        self.handle = handle
        self.shown = shown  # visible in the map already, so its echo changes nothing
        self.size = size
        self.uuids_from = 0  # of the KVSETs, if it travels as CHP/1

    def encode(self) -> bytes:
        """The body, made once, when it is first sent; the columns are let go."""
        if self.segment is not None:
            self.body = self.segment.encode()
            self.segment = None
        return self.body

    def columns(self) -> Segment:
        """The columns, whether they have been encoded or not."""
        segment = self.segment
        return b.decode_segment(self.encode()) if segment is None or type(segment) is Packed else segment


class Outbox:
    """Unacknowledged batches by number."""

    def __init__(self, session: bytes) -> None:
        self._name(session)
        self.batches: dict[int, SentBatch] = {}
        self.last = 0
        self.size = 0
        self.reopened = 0

    def _name(self, session: bytes) -> None:
        self.session = session  # known to the servers and to us
        self.public = public_session(session)  # and what everybody knows

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def first(self) -> int:
        """The lowest number not acknowledged; one more than the last if there is none."""
        return next(iter(self.batches), self.last + 1)

    def add(self, segment: Segment, handle: Any, shown: bool, size: int = 0) -> SentBatch:
        """Number a segment and keep it; `size` is what it counts, if that is known."""
        batch = SentBatch(self.last + 1, segment, handle, shown, size or size_of(segment))
        self.last = batch.no  # from here on nothing is called that an interrupt could come from
        self.batches[batch.no] = batch
        self.size += batch.size
        return batch

    def take(self, no: int) -> SentBatch | None:
        """The batch of that number, which is settled now and forgotten here."""
        batch = self.batches.pop(no, None)
        if batch is not None:
            self.size -= batch.size
        return batch

    def take_run(self, first: int, last: int) -> list[SentBatch]:
        """All of a run of numbers that are still here."""
        last = min(last, self.last)
        if last - first > len(self.batches):
            numbers = [no for no in self.batches if first <= no <= last]
        else:
            numbers = list(range(first, last + 1))
        return [batch for no in numbers if (batch := self.take(no)) is not None]

    def frames(self, batch: SentBatch, *, oldest: bool = False) -> list[bytes]:
        """Return the KVSET; `oldest` tells the server that no earlier batch is held."""
        return [RESERVED_KEY, pack(batch.no), self.session, OLDEST_HELD if oldest else b"", batch.encode()]

    def reopen(self) -> None:
        """A new session: what is left gets the numbers 1, 2, 3, ... in the same order."""
        self.reopened += 1
        self._name(next_session(self.session))
        left = list(self.batches.values())
        self.batches = {}
        for no, batch in enumerate(left, 1):
            batch.no = no
            self.batches[no] = batch
        self.last = len(left)


COLUMNS_BYTES = 24  # of one item in the sparse columns that a client writes: a delete or a ttl, and a condition


def size_of(segment: Segment) -> int:
    """What a segment counts in the window: its characters, its bytes, and a little for each item."""
    return len("".join(segment.keys)) + sum(map(len, segment.values)) + 8 * len(segment.keys) + 64


def cut(segment: Segment, size: int, limits: Limits = DEFAULT) -> list[Segment]:
    """The segment itself, or parts of it that each fit one batch; `BadValue` for a conditional one that does not."""
    n, bound = len(segment.keys), limits.batch_bytes_max - 65_536
    beside = 0 if segment.extras is None else COLUMNS_BYTES
    size += n * beside
    fits = 4 * size <= bound or (size <= bound and all(map(str.isascii, segment.keys)))  # UTF-8: 4 bytes at most
    if n == 0 or (fits and n <= limits.batch_items_max):
        return [segment]
    ranges = _ranges(segment, limits.batch_items_max, bound, beside)
    return [segment] if len(ranges) == 1 else [_part(segment, start, stop) for start, stop in ranges]


def _ranges(segment: Segment, items_max: int, bound: int, beside: int) -> list[tuple[int, int]]:
    ranges, start, size = [], 0, 0
    for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
        item = len(key.encode()) + len(value) + 16 + beside
        if i > start and (size + item > bound or i - start >= items_max):
            ranges.append((start, i))
            start, size = i, 0
        size += item
    ranges.append((start, len(segment.keys)))
    return ranges


def _part(segment: Segment, start: int, stop: int) -> Segment:
    extras = None
    if segment.extras is not None:
        if columns.CONDITIONS in segment.extras:
            raise BadValue("a conditional set is all or nothing and must fit one batch; set fewer keys in it")
        extras = dict(segment.extras)
        if columns.DELETES in extras:
            extras[columns.DELETES] = [i - start for i in extras[columns.DELETES] if start <= i < stop]
        if type(extras.get(columns.TTLS)) is list:
            kept = [(i - start, ms) for i, ms in zip(*extras[columns.TTLS], strict=True) if start <= i < stop]
            extras[columns.TTLS] = [[i for i, _ in kept], [ms for _, ms in kept]]
        extras = {name: column for name, column in extras.items() if column not in ([], [[], []])} or None
    return Segment(segment.keys[start:stop], segment.values[start:stop], extras)


def echoed(batches: list[SentBatch], body: bytes, start: int) -> bool:
    """Whether `body` from `start` on is the segments of these batches, byte for byte, as servers pass them on."""
    for batch in batches:
        if not batch.body or not body.startswith(batch.body, start):
            return False
        start += len(batch.body)
    return start == len(body)


def keys_of(batches: list[SentBatch]) -> set[str]:
    """All keys of some batches."""
    return set(chain.from_iterable(batch.keys for batch in batches))
