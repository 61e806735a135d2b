"""The latest records, kept in memory: a client or a passive that was away gets them instead of a snapshot.

The log is bounded by bytes and by the number of records; the oldest records go first. `after` finds a record by the
number that it follows on. Such a number is the exact end of a record: no replica can stand in the middle of a record.
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

from .staging import StagedBatch

# The most origins of a record, which is also the most batches. An origin takes up to 28 bytes, a batch up to 13.
ORIGINS_MAX = 1500
# The most weight of a record's header: for each origin an array of two entries, for each batch an array of three.
HEADER_WEIGHT_MAX = 40 * ORIGINS_MAX + 100
# The most weight of the segments of one record, or of one part of a record.
SEGMENTS_WEIGHT_MAX = CARRIED - HEADER_WEIGHT_MAX
NEVER_FULL = 1 << 62  # bytes
# The newest NEAR records are looked at one by one before a binary search begins.
NEAR = 32


class LoggedRow(NamedTuple):
    """A record as a journal keeps it: it covers the numbers `first..last`; the journal does not look into `body`."""

    first: int
    last: int
    body: bytes


class LoggedMessages(NamedTuple):
    """Messages of a topic that one record has placed, as a journal keeps them; `body` is an array of batches."""

    topic: int
    first: int
    n: int  # number of messages
    # The last number of the record.
    number: int
    wall_ms: int
    body: bytes

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.first + self.n


@dataclass(slots=True)
class Record:
    """One turn's commit as it is journaled, sent to the passive and published: a BATCH or EPOCH body."""

    prev: int
    first: int
    last: int
    body: bytes
    # The digest of the history up to this record (history.py).
    digest: int = 0
    # The messages that the record has placed; None once they are no longer in memory.
    messages: Sequence[LoggedMessages] | None = ()
    # True if this is a part of a record, but not the last part.
    more: bool = False
    # The staged batches that the record names, if it is a COMMIT that this server has made or followed.
    staged: Sequence[StagedBatch] = ()
    # The bytes that the record takes in memory, without its messages.
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.body) + (sum(len(batch.body) for batch in self.staged) if self.staged else 0)

    @property
    def weight(self) -> int:
        """The bytes of the record and of its messages."""
        return len(self.body) + sum(len(each.body) for each in self.messages or ())


class RecordLog:
    """A bounded queue of records, in the order of their numbers, without a gap."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._records: deque[Record] = deque()
        self.bytes = 0
        self._with_messages: deque[tuple[Record, int]] = deque()
        self._message_bytes = 0
        # True if the oldest entry is a part of a record whose first part is gone.
        self._cut = False
        # The number that the passive has: later records are kept up to `replica_bytes_max`.
        self.pin: int | None = None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def start(self) -> int | None:
        """The number that the oldest record follows on; None while the log is empty."""
        return self._records[0].prev if self._records else None

    @property
    def oldest(self) -> int | None:
        """The number that the oldest complete record follows on, where a reader may begin; None if there is none."""
        if not self._cut:
            return self.start
        return next((record.last for record in self._records if not record.more), None)

    def append(self, record: Record) -> None:
        """Add the newest record, and drop the oldest ones beyond the limits."""
        if self._records and self._records[-1].last != record.prev:
            self.clear()
        self._records.append(record)
        self.bytes += record.size
        if record.messages:
            self._keep_messages(record)
        if self.bytes > self._limits.log_bytes_max or len(self._records) > self._limits.log_records_max:
            self._let_go()

    def _keep_messages(self, record: Record) -> None:
        """Keep the messages of the latest records for the passive. Messages that it was not sent are kept longer."""
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
            self.bytes -= record.size
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
        """Return the digest of the history that ends with `number`; None if no record in the log ends there."""
        # The wanted record is nearly always one of the newest.
        for record in islice(reversed(self._records), NEAR):
            if record.last <= number:
                return record.digest if record.last == number else None
        i = bisect_right(self._records, number, key=lambda r: r.last) - 1
        found = self._records[i] if i >= 0 else None
        return found.digest if found is not None and found.last == number else None

    def has_commit_after(self, number: int) -> bool:
        """Return whether a record after `number` names staged batches; a peer of an older version can't read it."""
        return any(record.staged for record in takewhile(lambda each: each.last > number, reversed(self._records)))

    def reaches(self, number: int) -> bool:
        """Return whether the log has everything after `number`."""
        return self._index_after(number) is not None

    def after(self, number: int, bytes_max: int) -> list[Record]:
        """Return records that follow on `number`, about `bytes_max` at most, but at least one if there is one."""
        if self._records and self._records[-1].prev == number:
            # A passive in sync lacks the newest record only.
            return [self._records[-1]]
        if not self.reaches(number):
            return []
        # There are seldom many records after `number`, so a walk from the newest is quick.
        newer = list(takewhile(lambda record: record.last > number, reversed(self._records)))
        out: list[Record] = []
        size = 0
        for record in reversed(newer):
            if out and size + len(record.body) > bytes_max:
                break
            out.append(record)
            size += len(record.body)
        return out

    def drop_after(self, number: int) -> list[Record]:
        """Take out and return the records after `number`, which turned out not to be history."""
        dropped: list[Record] = []
        while self._records and self._records[-1].last > number:
            record = self._records.pop()
            self.bytes -= record.size
            dropped.append(record)
        self._cut = self._cut and bool(self._records)
        return dropped[::-1]


def grouped(
    bodies: list[bytes], weights: Sequence[int], bytes_max: int, sizes: Sequence[int] | None = None
) -> list[list[bytes]]:
    """Return bodies of segments in groups, in order. A group has about `bytes_max`, and is light enough for one BATCH.

    A group has at least one body. If a body counts more than its bytes, such as its messages, `sizes` says it.
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
    """Yield each part of a record: its (previous, first, last) number, whether more parts follow, and its group.

    Each part follows on the part before it, and together they cover the numbers first..last.
    """
    for i, group in enumerate(groups):
        more = i + 1 < len(groups)
        end = first + i if more else last
        yield (prev, first + i, end), more, group
        prev = end
