"""The unacknowledged batches of a session, in order and ready to be sent again (SPEC.md, section 14).

A session numbers its batches 1, 2, 3, ... and a server applies each of them once, in that order. So a batch may go to
both servers, and again to a server that becomes active, as often as needed. A server may lack batches that another one
answered. The client tells such a server that it no longer holds them. If the server refuses this, `reopen` opens the
session again under a new name, with new numbers for the batches that are left.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """A segment that is encoded already. The client does not look into it."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        super().__init__([], [])
        self.body = body

    def encode(self) -> bytes:
        """Return the body as it was given."""
        return self.body


class SentBatch:
    """A batch that is on its way, as one KVSET of CHP/2."""

    __slots__ = ("body", "extras", "handle", "keys", "no", "segment", "shown", "size", "uuids_from")

    def __init__(self, no: int, segment: Segment, handle: Any, shown: bool, size: int) -> None:
        self.no = no
        # The columns are kept until the batch is encoded.
        self.segment: Segment | None = segment
        self.keys, self.extras = segment.keys, segment.extras
        self.body = b""
        self.handle = handle
        # True if the map shows the batch already. Its echo then changes nothing.
        self.shown = shown
        self.size = size
        # The counter from which the uuids of its KVSETs are made, if it is sent as CHP/1.
        self.uuids_from = 0

    def encode(self) -> bytes:
        """Return the body. It is made once, at the first sending, and the columns are then dropped."""
        if self.segment is not None:
            self.body = self.segment.encode()
            self.segment = None
        return self.body

    def columns(self) -> Segment:
        """Return the columns, and decode them if necessary."""
        segment = self.segment
        return b.decode_segment(self.encode()) if segment is None or type(segment) is Packed else segment


class Outbox:
    """The unacknowledged batches, by number."""

    def __init__(self, session: bytes) -> None:
        self._name(session)
        self.batches: dict[int, SentBatch] = {}
        self.last = 0
        self.size = 0
        self.reopened = 0

    def _name(self, session: bytes) -> None:
        # The name of the session, which only the servers and this client know.
        self.session = session
        # The public name of the session, which all clients may see.
        self.public = public_session(session)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def first(self) -> int:
        """The lowest unacknowledged number, or one more than the last number if there is none."""
        return next(iter(self.batches), self.last + 1)

    def add(self, segment: Segment, handle: Any, shown: bool, size: int = 0) -> SentBatch:
        """Number a segment and keep it. `size` is its size in the window, or 0 if that is not known."""
        batch = SentBatch(self.last + 1, segment, handle, shown, size or size_of(segment))
        # No function is called from here on, so Ctrl-C can't interrupt these three steps.
        self.last = batch.no
        self.batches[batch.no] = batch
        self.size += batch.size
        return batch

    def take(self, no: int) -> SentBatch | None:
        """Remove the batch of that number and return it, or return None."""
        batch = self.batches.pop(no, None)
        if batch is not None:
            self.size -= batch.size
        return batch

    def take_run(self, first: int, last: int) -> list[SentBatch]:
        """Remove the batches of a run of numbers, and return those that were here."""
        batches, last = self.batches, min(last, self.last)
        numbers: Iterable[int] = range(first, last + 1)
        if last - first > len(batches):
            numbers = [no for no in batches if first <= no <= last]
        found = []
        for no in numbers:
            batch = batches.pop(no, None)
            if batch is not None:
                self.size -= batch.size
                found.append(batch)
        return found

    def frames(self, batch: SentBatch, *, oldest: bool = False) -> list[bytes]:
        """Return the frames of the KVSET. `oldest` tells the server that no earlier batch is held."""
        return [RESERVED_KEY, pack(batch.no), self.session, OLDEST_HELD if oldest else b"", batch.encode()]

    def reopen(self) -> None:
        """Begin a new session. The batches that are left get the numbers 1, 2, 3, ... in their order."""
        self.reopened += 1
        self._name(next_session(self.session))
        left = list(self.batches.values())
        self.batches = {}
        for no, batch in enumerate(left, 1):
            batch.no = no
            self.batches[no] = batch
        self.last = len(left)


# The most bytes that one item takes in the sparse columns: a delete or a ttl, and a condition.
COLUMNS_BYTES = 24


def size_of(segment: Segment) -> int:
    """Return the size of a segment in the window: its characters, its bytes, and a little for each item."""
    return len("".join(segment.keys)) + sum(map(len, segment.values)) + 8 * len(segment.keys) + 64


def cut(segment: Segment, size: int, limits: Limits = DEFAULT) -> list[Segment]:
    """Return the segment, or parts of it that each fit one batch.

    Raises `BadValue` for a conditional segment that does not fit one batch.
    """
    n, bound = len(segment.keys), limits.batch_bytes_max - 65_536
    beside = 0 if segment.extras is None else COLUMNS_BYTES
    size += n * beside
    # A character has at most 4 bytes in UTF-8.
    fits = 4 * size <= bound or (size <= bound and all(map(str.isascii, segment.keys)))
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
    """Return True if `body` from `start` on is exactly the segments of these batches.

    Servers pass the bytes of a segment on unchanged.
    """
    for batch in batches:
        if not batch.body or not body.startswith(batch.body, start):
            return False
        start += len(batch.body)
    return start == len(body)


def keys_of(batches: list[SentBatch]) -> set[str]:
    """Return the keys of all these batches."""
    return set(chain.from_iterable(batch.keys for batch in batches))
