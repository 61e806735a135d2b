"""The latest records, kept in memory: what a client or a passive server that was away is given instead of a snapshot.

Bounded by bytes and by number; the oldest go first. A record is found by the number it follows on (`after`), and only
exact record boundaries are answered: a position in the middle of a record belongs to nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from chp.limits import Limits
from chp.unpacking import CARRIED, Load

ORIGINS_MAX = 1500  # of one record, as are its batches; they take up to 28 and 13 bytes
HEADER_WEIGHT_MAX = 40 * ORIGINS_MAX + 100  # of a record: an array for each of both, of two and three entries
SEGMENTS_WEIGHT_MAX = CARRIED - HEADER_WEIGHT_MAX  # of one record, or of one part of it
NEVER_FULL = 1 << 62  # bytes
NEAR = 32  # records that are looked at one by one before they are searched


class LoggedRow(NamedTuple):
    """A record as a journal keeps it: it covers the numbers `first..last`; `body` is opaque."""

    first: int
    last: int
    body: bytes


class LoggedMessages(NamedTuple):
    """Messages of a topic that one record has placed, as a journal keeps them; `body` is an array of batches."""

    topic: int
    first: int
    n: int  # how many
    number: int  # the last of the record
    wall_ms: int
    body: bytes

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.first + self.n


@dataclass(slots=True)
class Record:
    """One turn's commit as it is journaled, sent to the passive, and published: a BATCH or EPOCH body."""

    prev: int
    first: int
    last: int
    body: bytes
    digest: int = 0  # of the history with this record (history.py)
    messages: Sequence[LoggedMessages] | None = ()  # that it has placed; None: not in memory any more
    more: bool = False  # it is a part, and not the last

    @property
    def weight(self) -> int:
        """Its bytes, with its messages."""
        return len(self.body) + sum(len(each.body) for each in self.messages or ())


class RecordLog:
    """A bounded queue of records, in the order of their numbers, without a gap."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: deque[Record] = deque()
        self.bytes = 0
        self._with_messages: deque[tuple[Record, int]] = deque()
        self._message_bytes = 0
        self._cut = False  # whether the oldest is a part, of a record whose first is gone
        self.pin: int | None = None  # what follows it a passive still needs: kept up to replica_bytes_max

    def __len__(self) -> int:
        return len(self._records)

    @property
    def start(self) -> int | None:
        """The number that the oldest record follows on; None while the log is empty."""
        return self._records[0].prev if self._records else None

    @property
    def oldest(self) -> int | None:
        """As `start`, of the oldest record that is whole here: where somebody may begin; None if there is none."""
        if not self._cut:
            return self.start
        return next((record.last for record in self._records if not record.more), None)

    def append(self, record: Record) -> None:
        """Add the newest record, and let the oldest go beyond the limits."""
        if self._records and self._records[-1].last != record.prev:
            self.clear()
        self._records.append(record)
        self.bytes += len(record.body)
        if record.messages:
            self._keep_messages(record)
        if self.bytes > self._limits.log_bytes_max or len(self._records) > self._limits.log_records_max:
            self._let_go()

    def _keep_messages(self, record: Record) -> None:
        """The latest are kept for the passive, all of them as long as it was not sent them."""
        self._with_messages.append((record, record.weight))
        self._message_bytes += record.weight
        while len(self._with_messages) > 1:
            oldest, size = self._with_messages[0]
            unsent = self.pin is not None and oldest.last > self.pin
            if self._message_bytes <= (self._limits.replica_bytes_max if unsent else self._limits.messages_kept_bytes):
                return
            self._with_messages.popleft()
            self._message_bytes -= size
            oldest.messages = None

    def _let_go(self) -> None:
        while len(self._records) > 1 and self._over():
            record = self._records.popleft()
            self.bytes -= len(record.body)
            self._cut = record.more

    def _over(self) -> bool:
        bound = self._limits.log_bytes_max
        if self.pin is not None and self._records[0].last > self.pin:
            bound = max(bound, self._limits.replica_bytes_max)
        return self.bytes > bound or len(self._records) > self._limits.log_records_max

    def clear(self) -> None:
        """Forget everything, as after a snapshot that replaced the state."""
        self._records.clear()
        self._with_messages.clear()
        self.bytes = self._message_bytes = 0
        self._cut = False

    def _index_after(self, number: int) -> int | None:
        if not self._records:
            return None
        if number == self._records[-1].last:
            return len(self._records)
        i = bisect_right(self._records, number, key=lambda r: r.prev) - 1
        if i >= 0 and self._records[i].prev == number:
            return i
        return None

    def digest_at(self, number: int) -> int | None:
        """The digest of the history that ends with `number`; None if no record here does."""
        for record in islice(reversed(self._records), NEAR):  # it is nearly always asked for one of the last
            if record.last <= number:
                return record.digest if record.last == number else None
        i = bisect_right(self._records, number, key=lambda r: r.last) - 1
        found = self._records[i] if i >= 0 else None
        return found.digest if found is not None and found.last == number else None

    def reaches(self, number: int) -> bool:
        """Whether everything after `number` is here."""
        return self._index_after(number) is not None

    def after(self, number: int, bytes_max: int) -> list[Record]:
        """The records that follow on `number`, at least one if there is one, about `bytes_max` at most."""
        if not self.reaches(number):
            return []
        newer = list(takewhile(lambda record: record.last > number, reversed(self._records)))  # seldom many
        out: list[Record] = []
        size = 0
        for record in reversed(newer):
            if out and size + len(record.body) > bytes_max:
                break
            out.append(record)
            size += len(record.body)
        return out

    def drop_after(self, number: int) -> list[Record]:
        """Take out and return the suffix after `number`: what turned out not to be history."""
        dropped: list[Record] = []
        while self._records and self._records[-1].last > number:
            record = self._records.pop()
            self.bytes -= len(record.body)
            dropped.append(record)
        self._cut = self._cut and bool(self._records)
        return dropped[::-1]


def grouped(
    bodies: list[bytes], weights: Sequence[int], bytes_max: int, sizes: Sequence[int] | None = None
) -> list[list[bytes]]:
    """Return bodies of segments in groups of about `bytes_max`, in order, each light enough for one BATCH.

    A group has at least one. `sizes` count in the place of the bodies' lengths, if more goes with them.
    """
    groups: list[list[bytes]] = []
    load, held = Load(NEVER_FULL, SEGMENTS_WEIGHT_MAX), bytes_max
    sizes = list(map(len, bodies)) if sizes is None else sizes
    for body, weight, size in zip(bodies, weights, sizes, strict=True):
        if held >= bytes_max or not load.takes(size, weight):
            groups.append([])
            load.begin(size, weight)
            held = 0
        groups[-1].append(body)
        held += size
    return groups


def numbered(
    groups: list[list[bytes]], prev: int, first: int, last: int
) -> Iterator[tuple[tuple[int, int, int], bool, list[bytes]]]:
    """(previous, first, last) of each part of a record, whether more follow, and the part: a chain over first..last."""
    for i, group in enumerate(groups):
        more = i + 1 < len(groups)
        end = first + i if more else last
        yield (prev, first + i, end), more, group
        prev = end
