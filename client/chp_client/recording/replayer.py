"""The replayer of a recording into a store: as fast as it was recorded, faster, or as fast as possible.

    with Clone(servers, subtree=None) as clone:
        replay("ticks/", clone, speed=10)                       # ten times as fast as it was recorded
        replay("ticks/", clone, speed=None, start="1.90017")    # as fast as possible, only records after 1.90017

- Records keep their order. A record's updates go out together, so that a reader sees them together, unless the record
  has more than 65,536. At full speed neighbouring records share a batch.
- A recorded ttl is given again, divided by the speed. A key that expired during the recording is a delete in it.
- After a gap the replay deletes the keys that the snapshot behind the gap lacks.
- It does no harm to send a row twice, so an interrupted replay may go on at any earlier number.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from chp.errors import BadInput
from chp.limits import DEFAULT
from chp.numbers import describe

from .. import checks
from ..agent.tickets import Ticket
from ..clone.base import internals
from ..clone.clone import Clone
from ..renamed import renamed
from ..starts import BEGIN, KeyStart, key_start
from .files import (
    DELETE,
    GAP,
    OPERATIONS,
    SNAPSHOT,
    RecordingFile,
    file_name,
    files,
    need_parquet,
    opened,
    readable,
)

np, pa, pq = need_parquet()
BATCH_ROWS = 8192
READ_ROWS = 65_536
# Records that are due within this much real time go out together.
STEP_S = 0.005
TTL_MS_MIN = 1
ELSEWHERE = "replay from behind it"
_COLUMNS = ["key", "value", "operation", "epoch", "sequence", "timestamp", "ttl"]
KeysUnder = Callable[[str], set[str]]


@dataclass(slots=True)
class ReplayRows:
    """The rows of a recording, as columns.

    `operations` is an array of codes of OPERATIONS; `ttls_ms` has 0 for no ttl. `goes_on` is True if the last record
    has more rows, which follow.
    """

    keys: list[str]
    values: list[bytes]
    operations: Any
    numbers: Any
    wall_ms: Any
    ttls_ms: Any
    goes_on: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, start: int, end: int, goes_on: bool = False) -> ReplayRows:
        """Return the rows from `start` up to `end`."""
        rows = ReplayRows(*(column[start:end] for column in self._columns()))
        rows.goes_on = goes_on
        return rows

    def joined(self, more: ReplayRows) -> ReplayRows:
        """Return these rows and `more` behind them."""
        pairs = zip(self._columns(), more._columns(), strict=True)
        return ReplayRows(*(a + b if isinstance(a, list) else np.concatenate([a, b]) for a, b in pairs))

    def ends_record(self, end: int) -> bool:
        """Return True if the row before `end` is the last one of its record."""
        return not self.goes_on if end == len(self) else bool(self.numbers[end] != self.numbers[end - 1])

    def _columns(self) -> list[Any]:
        return [self.keys, self.values, self.operations, self.numbers, self.wall_ms, self.ttls_ms]


@dataclass(slots=True)
class Replayed:
    """The progress of a replay. The updates up to `number` are acknowledged."""

    rows: int = 0
    bytes: int = 0
    deletes: int = 0
    number: int = 0
    seconds: float = 0.0
    waiting: deque[tuple[Ticket, int]] = field(default_factory=deque)

    def sent(self, ticket: Ticket, number: int) -> None:
        """Note a batch up to `number` that is on its way."""
        self.waiting.append((ticket, number))
        while self.waiting and self.waiting[0][0].done:
            self._settle()

    def settle_all(self, timeout_s: float) -> None:
        """Wait for the acknowledgements of all batches."""
        while self.waiting:
            self.waiting[0][0].wait(timeout_s)
            self._settle()

    def _settle(self) -> None:
        ticket, number = self.waiting.popleft()
        # A refused batch raises here.
        ticket.wait(0)
        self.number = number


@renamed(after="start")
def replay(
    directory: str | Path,
    clone: Clone,
    *,
    speed: float | None = None,
    start: KeyStart = "begin",
    stop: Event | None = None,
    progress: Callable[[Replayed], object] | None = None,
    keys_under: KeysUnder | None = None,
    timeout_s: float = 60.0,
) -> Replayed:
    """Play a recording into `clone`, which should hold nothing (`subtree=None`).

    start        "begin", or a revision: only records after this revision are played
    speed        relative to the recorded clock; None is as fast as possible
    keys_under   a function that returns the keys that the store has in a subtree; only a recording with a gap needs it

    Raises `BadInput` if files are missing or unreadable.
    """
    if speed is not None and not 0 < speed < 1e9:
        raise BadInput(f"a speed of {speed} can't be; give a number above 0, or 'max'")
    checks.wait_s(timeout_s, "timeout_s")
    if clone.subtrees:
        raise BadInput("replay into a Clone that only writes: Clone(servers, subtree=None)")
    after = _after(start)
    player = _Player(clone, speed, stop or Event(), keys_under, timeout_s)
    player.done.number = player.reached = after
    began = time.monotonic()
    for each in chain_of(Path(directory), after):
        for rows in rows_of(each.path, after):
            player.play(rows)
            player.done.seconds = time.monotonic() - began
            if progress is not None:
                progress(player.done)
            if player.stop.is_set():
                break
        if player.stop.is_set():
            break
    player.done.settle_all(timeout_s)
    player.done.seconds = time.monotonic() - began
    return player.done


def _after(start: KeyStart) -> int:
    """Return the number after which a replay begins."""
    begin = key_start(start)
    if begin != BEGIN and not isinstance(begin, int):
        raise BadInput(f"start={start!r} is no place of a recording; give 'begin', or a revision such as 1.42")
    return begin if isinstance(begin, int) else 0


def chain_of(directory: Path, after: int) -> list[RecordingFile]:
    """Return the files with rows after `after`, in order; raise `BadInput` if one between them is missing."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is not there; give a directory that `chp record` wrote")
    found = files(directory)
    if not found:
        raise BadInput(f"{directory} holds no recording (no file as {file_name(0, 1)})")
    for before, this in itertools.pairwise(found):
        if this.start != before.until and this.start > after and not _begins_anew(this.path):
            missing = f"between {describe(before.until)} and {describe(this.start)}"
            raise BadInput(f"{directory} lacks a file {missing}; put it back, or replay from {describe(this.start)}")
    return [file for file in found if file.until > after]


def _begins_anew(path: Path) -> bool:
    with readable(path, ELSEWHERE):
        first = next(opened(path).iter_batches(1, columns=["operation"]), None)
    return first is not None and first.num_rows > 0 and first["operation"][0].as_py() in ("gap", "snapshot")


def rows_of(path: Path, after: int) -> Iterator[ReplayRows]:
    """Yield the rows of a file after a number, some ten thousand at a time.

    Each portion ends with a record. A record with more rows than a batch may have is yielded in parts.
    """
    held: ReplayRows | None = None
    for found in _read(path, after):
        rows = found if held is None else held.joined(found)
        # The last record may go on in the next rows.
        last = int(np.searchsorted(rows.numbers, rows.numbers[-1]))
        if last:
            yield rows.part(0, last)
        while len(rows) - last > DEFAULT.batch_items_max:
            yield rows.part(last, last + DEFAULT.batch_items_max, goes_on=True)
            last += DEFAULT.batch_items_max
        held = rows.part(last, len(rows))
    if held is not None:
        yield held


def _read(path: Path, after: int) -> Iterator[ReplayRows]:
    """Yield the rows of a file after a number as they are read, at most `READ_ROWS` at a time.

    Each row group is read alone, because groups of large values have few rows.
    """
    with readable(path, ELSEWHERE):
        file = opened(path)
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=_COLUMNS):
                rows = _decode(batch, after)
                if len(rows):
                    yield rows


def _decode(batch: Any, after: int) -> ReplayRows:
    numbers = (batch["epoch"].to_numpy().astype(np.int64) << 48) | batch["sequence"].to_numpy()
    if len(numbers) and numbers[0] <= after:
        start = int(np.searchsorted(numbers, after, "right"))
        batch, numbers = batch.slice(start), numbers[start:]
    codes = pa.compute.index_in(batch["operation"], pa.array(OPERATIONS)).to_numpy(zero_copy_only=False)
    return ReplayRows(
        batch["key"].to_numpy(zero_copy_only=False).tolist(),
        batch["value"].fill_null(b"").to_numpy(zero_copy_only=False).tolist(),
        codes.astype(np.int8),
        numbers,
        batch["timestamp"].cast(pa.int64()).to_numpy(),
        np.nan_to_num(batch["ttl"].to_numpy(zero_copy_only=False) * 1000).astype(np.int64),
    )


class _Player:
    """A sender of rows, each at its time."""

    def __init__(
        self, clone: Clone, speed: float | None, stop: Event, keys_under: KeysUnder | None, timeout_s: float
    ) -> None:
        self.clone, self.speed, self.stop, self.done = clone, speed, stop, Replayed()
        self._keys_under, self._timeout_s = keys_under, timeout_s
        # This process's clock and the recorded one, at the first row.
        self._began: tuple[float, int] | None = None
        # The last number that is sent with all its updates and deletes.
        self.reached = 0
        # The keys that the snapshot after a gap has not named yet; None outside of such a snapshot.
        self._stale: set[str] | None = None

    def play(self, rows: ReplayRows) -> None:
        """Send rows in batches, each at its time. A batch ends with a record, or is a part of a larger one."""
        start = 0
        for end in self._ends(rows):
            if self.speed is not None:
                self._wait_until_due(int(rows.wall_ms[start]))
            if self.stop.is_set():
                return
            self._gaps(rows, start, end)
            ends = rows.ends_record(end)
            if ends and not self._stale:
                self.reached = int(rows.numbers[end - 1])
            self._send(rows, start, end)
            if ends:
                self._end_snapshot(int(rows.numbers[end - 1]))
            start = end

    def _ends(self, rows: ReplayRows) -> list[int]:
        """Return the ends of batches. A batch ends with a record, after at most `BATCH_ROWS` rows if records allow it.

        A batch also ends before a gap, at both ends of a snapshot, and at a speed with each step of `STEP_S`.
        """
        new = np.empty(len(rows), bool)
        new[-1] = True
        new[:-1] = rows.numbers[1:] != rows.numbers[:-1]
        forced = np.zeros(len(rows), bool)
        special = (rows.operations == GAP) | (rows.operations == SNAPSHOT)
        forced[:-1] = (special[1:] != special[:-1]) | (rows.operations[1:] == GAP)
        if self.speed is not None:
            steps = (rows.wall_ms / (1000 * STEP_S * self.speed)).astype(np.int64)
            forced[:-1] |= steps[1:] != steps[:-1]
        forced[-1] = True
        return list(_cut(np.flatnonzero(new) + 1, np.flatnonzero(forced & new) + 1))

    def _wait_until_due(self, wall_ms: int) -> None:
        assert self.speed is not None
        if self._began is None:
            self._began = time.monotonic(), wall_ms
        began, first_ms = self._began
        left = began + (wall_ms - first_ms) / 1000 / self.speed - time.monotonic()
        if left > 0:
            self.stop.wait(left)

    def _send(self, rows: ReplayRows, start: int, end: int) -> None:
        keys, values = rows.keys[start:end], rows.values[start:end]
        operations = rows.operations[start:end]
        if operations[0] == GAP:
            keys, values, operations = keys[1:], values[1:], operations[1:]
            start += 1
        if not keys:
            # All that came before a gap is acknowledged.
            self.done.number = self.reached
            return
        deletes = np.flatnonzero(operations == DELETE).tolist()
        lasting = np.flatnonzero(rows.ttls_ms[start:end])
        ttls = np.maximum(rows.ttls_ms[start:end][lasting] / (self.speed or 1.0), TTL_MS_MIN).astype(np.int64)
        ticket = internals(self.clone).writer.put_columns(keys, values, deletes, (lasting.tolist(), ttls.tolist()))
        done = self.done
        done.rows += len(keys)
        done.bytes += sum(map(len, values))
        done.deletes += len(deletes)
        done.sent(ticket, self.reached)

    # -- a gap

    def _gaps(self, rows: ReplayRows, start: int, end: int) -> None:
        """Begin, or go on with, the snapshot after a gap, before a batch is sent."""
        if rows.operations[start] == GAP:
            if self._keys_under is None:
                raise BadInput("the recording has a gap; give keys_under, so that what is gone can be deleted")
            self.done.settle_all(self._timeout_s)
            self._stale = self._keys_under(rows.keys[start])
        if self._stale is not None:
            self._stale.difference_update(rows.keys[start:end])

    def _end_snapshot(self, number: int) -> None:
        """Delete the keys that the snapshot after a gap did not name; `number` is the snapshot's."""
        gone, self._stale = self._stale, None
        if gone:
            self.reached = number
            self.done.deletes += len(gone)
            self.done.sent(self.clone.delete_many(sorted(gone)), number)


def _cut(ends: Any, forced: Any) -> Iterator[int]:
    """Yield the ends of batches: record ends, no further apart than `BATCH_ROWS` unless one record is larger."""
    start = 0
    for stop in forced.tolist():
        while stop - start > BATCH_ROWS:
            i = int(np.searchsorted(ends, start + BATCH_ROWS, "right")) - 1
            at = int(ends[i]) if i >= 0 else 0
            # A record with more rows than `BATCH_ROWS` goes as a whole, up to the most items of a batch.
            if at <= start:
                at = int(ends[i + 1])
            while at - start > DEFAULT.batch_items_max:
                start += DEFAULT.batch_items_max
                yield start
            if at >= stop:
                break
            start = at
            yield start
        start = stop
        yield stop
