"""A journal over a SQL database: it writes rows, with one commit a turn, reads them again, and keeps snapshots.

A turn gathers rows in memory, and one transaction writes them. `_book` is the journal's state with these rows, and
`_kept` is the committed state. An error restores `_kept`, so this object always agrees with the database. sql_tables.py
has the tables, sql_recovery.py reads them back. Clean-up never stops the service: committing a snapshot deletes no
rows, and each later sync deletes a piece of those that are superfluous (`Cleaner`).

Rows that the snapshot covers are retained for log reads only. A start does not read them; `read_after` verifies each.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Generic, TypeVar

from chp.numbers import describe

from ...core.state.journal import (
    META_BYTES_MAX,
    MIB,
    Journal,
    JournalDamaged,
    JournalError,
    LoadedJournal,
    Options,
    RetainedDamaged,
)
from ...core.state.missing_messages import Spans
from ...core.state.record_log import LoggedMessages, LoggedRow
from ..journal_rows import JournalMeta, StoredRow, chunk_crc, is_sound, numbers_in, stored
from .database import Database, Tables, Transaction, errors
from .journal_mark import JournalMark
from .sql_recovery import COUNTS, RecoverySource, everything, examine, identify, new_store, recover
from .sql_tables import (
    TOP,
    chunks,
    count,
    delete,
    highest_serial,
    last_key,
    pages,
    row_at,
    write_meta,
)

# One sync deletes about this much: more than a busy turn writes, so that the clean-up catches up.
TRIM_BYTES = 8 * MIB
TRIM_ROWS = 1024
# Clean-up for `retain_bytes` goes on until the rows are below that size by 1/TRIM_SHARE of it, or by TRIM_BYTES. So it
# deletes many rows at a time, and not one each turn.
TRIM_SHARE = 16
# Below this size the journal need not be in proportion to the live state.
SMALL = 16 * MIB

_OLDEST = "SELECT first, last, length(body), wrote FROM rows ORDER BY first LIMIT ?"
_BEGIN = "SELECT prev FROM rows WHERE first > ? ORDER BY first LIMIT 1"
_DEAD_CHUNKS = "SELECT id, length(body) FROM chunks WHERE id < ? OR (id >= ? AND id < ?) ORDER BY id LIMIT 64"

# First, last, bytes of a row, and when it was written.
Oldest = tuple[int, int, int, int]
# The state that a failed transaction restores: the small values, the oldest row, and whether chunks are stale.
Before = tuple[dict[str, bytes], Oldest | None, bool]


class Cleaner:
    """The clean-up of a journal; a failed transaction restores `oldest` and `stale_chunks`."""

    def __init__(self, database: Database, options: Options) -> None:
        self._database, self._options = database, options
        # True if the database may have room to give back: only deletes make some.
        self._may_shrink, self._shrinking = True, False
        self.oldest: Oldest | None = None
        self.stale_chunks = True
        # Rows up to this number can't be read, as one of them is damaged. The snapshot covers them.
        self.lost = 0
        # The bytes that the disk lacks, and how many of them the deletion of rows has still to make free.
        self.lacks = self._short = 0
        # True while retained rows are deleted because they have too many bytes.
        self._over = False

    def press(self, lacks: int) -> None:
        """Note how many bytes the disk lacks; 0 if it has enough."""
        self.lacks, self._short = lacks, 0
        if lacks:
            spare = self._database.spare()
            self._short = max(0, lacks - spare)
            if spare > SMALL:
                self._may_shrink = self._shrinking = True

    def due(self, book: JournalMeta, now: int) -> bool:
        """Return True if there is anything to do."""
        return self.stale_chunks or self._shrinking or self._goes(self.oldest, book, now)

    def clean(self, book: JournalMeta, building: int, now: int) -> bool:
        """Delete a piece in the open transaction, and return True if rows were deleted.

        Chunks from serial `building` on belong to a snapshot under way.
        """
        if self.stale_chunks:
            self._may_shrink = True
            self._delete_chunks(book.serial, building)
        elif self._goes(self.oldest, book, now):
            self._may_shrink = True
            self._delete_rows(book, now)
            return True
        return False

    def deletes(self) -> None:
        """Note that something is deleted, so that the next sync looks for room to give back."""
        self._may_shrink = True

    def shrink(self) -> None:
        """Give room back after a sync, if something was deleted since the last look."""
        if self._may_shrink:
            with errors(self._database):
                self._may_shrink = self._shrinking = self._database.shrink(pressed=self.lacks > 0)

    def wrote(self, rows: list[StoredRow]) -> None:
        """Note that rows were written; in an empty journal, the first of them is the oldest."""
        if rows and self.oldest is None:
            first = rows[0]
            self.oldest = (first.first, first.last, len(first.body), first.wrote)

    def look_at_oldest(self) -> None:
        """Read the oldest row again, after rows were deleted."""
        with errors(self._database):
            oldest = [numbers_in(row) for row in self._database.run(_OLDEST, (1,))]
        self.oldest = oldest[0] if oldest else None

    def retained_s(self, now: int) -> int:
        """Return the age of the oldest row in seconds, 0 if there is none."""
        return 0 if self.oldest is None else max(0, now - self.oldest[3])

    def _goes(self, row: Oldest | None, book: JournalMeta, now: int) -> bool:
        """Return True if a row need not be kept when it is the oldest."""
        if row is None or row[1] > book.snapshot_number:
            return False
        if row[0] <= book.floor or row[0] <= self.lost or self._short > 0 or now - row[3] > self._options.retain_s:
            return True
        bound = self._options.retain_bytes
        self._over = book.row_bytes > (bound - min(TRIM_BYTES, bound // TRIM_SHARE) if self._over else bound)
        return self._over

    def _delete_chunks(self, live: int, building: int) -> None:
        size, dead = 0, []
        for key, length in self._database.run(_DEAD_CHUNKS, (live << 32, (live + 1) << 32, building << 32)):
            if size > TRIM_BYTES:
                break
            dead.append((key,))
            # Dead chunks are not verified: they may be damaged.
            size += length or 0
        for params in dead:
            list(self._database.run("DELETE FROM chunks WHERE id = ?", params))
        self.stale_chunks = bool(dead)

    def _delete_rows(self, book: JournalMeta, now: int) -> None:
        size, upto = 0, 0
        for row in map(numbers_in, self._database.run(_OLDEST, (TRIM_ROWS,))):
            if size > TRIM_BYTES or not self._goes(row, book, now):
                break
            upto, size = row[0], size + row[2]
            book.row_bytes -= row[2]
            book.rows -= 1
            self._short = max(0, self._short - row[2])
        delete(self._database, "first <=", upto)
        self.look_at_oldest()


# The chunks of a snapshot are written when this many bytes have gathered, even before the sync of the turn.
PENDING_BYTES = 1 * MIB

D = TypeVar("D", bound=Database)


@dataclass(slots=True)
class Gathered:
    """The rows, chunks and values that the next transaction writes."""

    rows: list[StoredRow] = field(default_factory=list)
    chunks: list[tuple[int, int, bytes]] = field(default_factory=list)
    chunk_bytes: int = 0
    meta: dict[str, bytes] = field(default_factory=dict)


class SqlJournal(Journal, Generic[D]):
    """A journal over a SQL database, which it owns: `close`, or a failure at the start, closes the database."""

    def __init__(self, database: D, options: Options, mark: JournalMark | None = None) -> None:
        self.database = database
        self.durability = int(options.sync == "always")
        self._options = options
        self._mark = mark or JournalMark(database.place, None, options, owned=False)
        self._gathered = Gathered()
        self._building: JournalMeta | None = None
        self._loaded = False
        self._cleaner = Cleaner(database, options)
        self._unsynced = False
        self._last_durable = perf_counter()
        self._sync_s: deque[float] = deque(maxlen=1024)
        self._syncs = 0
        try:
            with errors(database):
                new_store(database)
                self._found = RecoverySource(database, identify(database, options.store_id), self._mark, options)
                highest = highest_serial(database)
            self._book = self._found.book()
            self._kept = self._book.copied()
            # The highest serial of a snapshot that this journal has used.
            self._serial = max(self._book.serial, highest)
            self._messages = self._found.messages
        except BaseException:
            self.close()
            raise

    @property
    def store_id(self) -> bytes:
        """The id of this journal, which its backups keep."""
        return self._found.store

    # -- reading it back

    def load(self) -> LoadedJournal:
        """Load the journal; from now on the mark follows it."""
        self._forget_gathered()
        found = recover(self._found, self.save)
        book, database = found.book, self.database
        self._book, self._kept, self._loaded = book.copied(), book.copied(), True
        self._cleaner.look_at_oldest()
        if self._messages.open(book.last):
            self._cleaner.deletes()
            with self._transaction(True):
                self._messages.drop_after(book.last)
        self._mark.follow(self.store_id, book.last, found.marked)
        at = book.snapshot_number
        bodies = (body for _, _, body in chunks(database, book))
        with errors(database):
            begin = last_key(database, at, book.floor)
        later = pages(database, begin)
        rows = (LoggedRow(row.first, row.last, bytes(row.body)) for row in later if row.last > at)
        return LoadedJournal(book.last, at, bodies, rows, found.report, found.aside, found.marked, found.seen)

    def examine(self) -> tuple[JournalMeta, list[str]]:
        """Verify what `load` verifies, without repair; return the state and what is wrong with it."""
        return examine(self._found)

    def everything(self) -> Tables:
        """Return all of the journal, table by table, for a copy."""
        return everything(self._found, self._found.book())

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        """Return rows after a number; only synced rows are read."""
        if number >= self._kept.last:
            return [] if number == self._kept.last else None
        begin = self._begin
        with errors(self.database):
            at = row_at(self.database, number, begin)
        if at is not None and type(at.last) is not int:
            raise self._damaged(at, "its columns are not numbers and bytes")
        # True if `number` lies inside of the row `at`.
        within = at is not None and at.last > number
        found: list[LoggedRow] = []
        size = 0
        for row in pages(self.database, at.first - 1 if at and within else max(number, begin)):
            sound = is_sound(row, self._found.seed)
            if found:
                # A damaged row ends this read; the next read reports it.
                if not sound or row.prev != found[-1].last or size + len(row.body) > bytes_max:
                    break
            elif not within and row.prev != number:
                if at is None or at.last != number:
                    return None
                raise self._damaged(at, "rows are missing after it")
            elif not sound:
                raise self._damaged(row, "its checksum does not match")
            found.append(LoggedRow(row.first, row.last, row.body))
            size += len(row.body)
        return found or None

    def oldest(self) -> tuple[int, bool]:
        """Return where the retained rows begin; only synced rows count."""
        book = self._kept
        with errors(self.database):
            found = list(self.database.run(_BEGIN, (self._begin,)))
        prev = found[0][0] if found else None
        if type(prev) is int and 0 <= prev <= book.last:
            return prev, prev <= book.floor
        return book.last, True

    @property
    def _begin(self) -> int:
        """The key after which rows can be read."""
        return max(self._kept.floor, self._cleaner.lost)

    def _damaged(self, row: StoredRow, what: str) -> JournalDamaged:
        """Return the error about a damaged row; if the snapshot covers the row, it is read no more."""
        at = f"row id {row.first}"
        place = f"{self.database.place}: {at}: {what}"
        if row.first > self._kept.snapshot_number:
            return JournalDamaged(f"{place}; restore a backup", at)
        self._cleaner.lost = row.first
        return RetainedDamaged(f"{place}; no data are lost, as a snapshot covers it; look at the disk", at)

    # -- writing

    def append(self, rows: Sequence[LoggedRow]) -> None:
        self._usable()
        ready = stored(self._found.seed, self._book.last, int(time()), rows)
        if not ready:
            return
        book, size = self._book, sum([len(row.body) for row in ready])
        self._gathered.rows += ready
        book.last = ready[-1].last
        book.rows += len(ready)
        book.row_bytes += size
        book.since_bytes += size
        if self._building is not None:
            self._building.since_bytes += size

    def sync(self) -> None:
        self._usable()
        now, durable, gathered = int(time()), self._must_be_durable(), self._gathered
        to_write = (
            self._messages.gathered or gathered.rows or gathered.chunks or gathered.meta or (durable and self._unsynced)
        )
        if not (to_write or self._messages.due or self._cleaner.due(self._book, now)):
            return
        began, before = perf_counter(), self._before()
        # These lines do what `_transaction` does, in less time, as each turn comes here.
        try:
            with Transaction(self.database, durable):
                self._write(durable, now)
                self._mark.move(self._book.last, committed=False)
        except BaseException:
            self._undo(before)
            raise
        self._committed(durable)
        self._cleaner.shrink()
        self._sync_s.append(perf_counter() - began)
        self._syncs += 1

    def _write(self, durable: bool, now: int) -> None:
        """In the open transaction, write all that is gathered, and delete a piece of what is superfluous."""
        self._write_gathered()
        # Without a value to write, the database would flush nothing.
        if durable and self._unsynced:
            self._gathered.meta["chp.synced"] = str(time()).encode()
        self._write_meta(self._gathered.meta)
        building = self._building.serial if self._building else self._serial + 1
        if self._cleaner.clean(self._book, building, now):
            self._write_meta({COUNTS: self._book.pack_counts()})
        if self._messages.due:
            self._cleaner.deletes()
            self._messages.clean()

    def _must_be_durable(self) -> bool:
        if self._options.sync == "interval":
            return perf_counter() - self._last_durable >= self._options.interval_s
        return self._options.sync == "always"

    def _write_gathered(self) -> None:
        if self._gathered.rows:
            self.database.insert("rows", self._gathered.rows)
            self._cleaner.wrote(self._gathered.rows)
        self._messages.write()
        if self._gathered.chunks:
            self.database.insert("chunks", self._gathered.chunks)

    def drop_after(self, number: int) -> int:
        """Drop rows after a number; rows that are not synced yet are synced first."""
        self.sync()
        database, book = self.database, self._book
        if number < book.snapshot_number:
            raise JournalError(
                f"{database.place}: can't drop to {describe(number)}: the snapshot is at"
                f" {describe(book.snapshot_number)}; take a whole snapshot of the other server"
            )
        at = row_at(database, number, book.floor)
        after = at.first - 1 if at and at.last > number else number
        if self._building is not None and self._building.snapshot_number > number:
            self.abort_snapshot()
        self._cleaner.deletes()
        with self._transaction(True):
            dropped, size = count(database, "first >", after)
            delete(database, "first >", after)
            self._messages.drop_after(number)
            before = row_at(database, TOP, book.floor)
            book.last = max(before.last if before else 0, book.snapshot_number)
            book.rows -= dropped
            book.row_bytes -= size
            book.since_bytes -= size
            self._write_meta({COUNTS: book.pack_counts()})
        if self._building is not None:
            self._building.since_bytes -= size
        self._cleaner.look_at_oldest()
        return dropped

    def replace_all(self, tables: Tables) -> None:
        """Make this empty journal a copy of another one, all or nothing. `load` comes next."""
        with self._transaction(True):
            list(self.database.run("DELETE FROM meta"))
            list(self.database.run("DELETE FROM messages"))
            for table, rows in tables:
                self.database.insert(table, rows)
        self._loaded = False

    # -- snapshots

    def begin_snapshot(self, number: int) -> None:
        self._usable()
        self.abort_snapshot()
        self._serial += 1
        self._building = JournalMeta(serial=self._serial, snapshot_number=number)

    def put_snapshot(self, body: bytes) -> None:
        """Add a chunk; this syncs when more than PENDING_BYTES have gathered."""
        book, gathered = self._under_way(), self._gathered
        crc = chunk_crc(self._found.seed, book.serial, book.parts, body)
        gathered.chunks.append((book.serial << 32 | book.parts, crc, body))
        book.parts += 1
        book.snapshot_bytes += len(body)
        gathered.chunk_bytes += len(body)
        if gathered.chunk_bytes > PENDING_BYTES:
            self.sync()

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        """Commit the snapshot. If it is beyond the last row (a state from elsewhere), no row before it is history."""
        new, book = self._under_way(), self._book
        book.serial, book.snapshot_number = new.serial, new.snapshot_number
        book.parts, book.snapshot_bytes, book.since_bytes = new.parts, new.snapshot_bytes, new.since_bytes
        if alone or new.snapshot_number > book.last:
            book.last = book.floor = new.snapshot_number
        book.floor = max(book.floor, min(keep_after, new.snapshot_number))
        with self._transaction(True):
            self._write_gathered()
            if alone:
                self._cleaner.lost = 0
                self._drop_beyond(new.snapshot_number)
                self._messages.drop_after(shared)
            book.floor = self._boundary(book.floor)
            self._write_meta({**self._gathered.meta, "chp.book": book.pack(), COUNTS: book.pack_counts()})
        self._building, self._cleaner.stale_chunks = None, True
        self._mark.sync()

    def abort_snapshot(self) -> None:
        """Abandon the snapshot; the next syncs delete its chunks."""
        if self._building is not None:
            self._building, self._cleaner.stale_chunks = None, True
            self._gathered.chunks, self._gathered.chunk_bytes = [], 0

    def press(self, short: int) -> None:
        self._cleaner.press(short)

    def snapshot_due(self) -> bool:
        """Return True when the rows since the snapshot exceed its size, to keep the file under four times the state."""
        return self._building is None and self._book.since_bytes > max(SMALL, self._book.snapshot_bytes)

    def _drop_beyond(self, number: int) -> None:
        """Drop rows that end after a snapshot of another history; rows before its number are below the floor."""
        self._cleaner.deletes()
        after = last_key(self.database, number)
        dropped, size = count(self.database, "first >", after)
        delete(self.database, "first >", after)
        self._book.rows -= dropped
        self._book.row_bytes -= size
        self._cleaner.look_at_oldest()

    def _boundary(self, floor: int) -> int:
        """Return the floor, or if a row lies across it, the number that the row follows."""
        across = row_at(self.database, floor)
        return across.prev if across and across.last > floor else floor

    def _under_way(self) -> JournalMeta:
        self._usable()
        if self._building is None:
            raise JournalError(f"{self.database.place}: no snapshot is under way (an error abandons it); begin one")
        return self._building

    # -- messages

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        self._usable()
        self._messages.keep(messages)

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        return self._messages.read(topic, offset, number, bytes_max)

    def message_spans(self, number: int) -> Spans:
        return self._messages.spans(number)

    def trim_messages(self, floors: dict[int, int]) -> None:
        self._messages.trim(floors)

    # -- small values, numbers, the end

    def get_meta(self, key: str) -> bytes | None:
        return self._gathered.meta.get(key, self._found.meta.get(key))

    def set_meta(self, key: str, value: bytes) -> None:
        self._usable()
        if len(value) > META_BYTES_MAX:
            raise JournalError(f"meta value {key!r} has {len(value):,} bytes; the limit is {META_BYTES_MAX:,}")
        self._gathered.meta[key] = value

    def save(self, values: dict[str, bytes]) -> None:
        """Set small values durably, in a transaction of their own; no rows may be gathered."""
        with self._transaction(True):
            self._write_meta(values)

    def check_writable(self) -> None:
        """Write a value, to fail at the start rather than at the first record."""
        try:
            self.save({"chp.opened": str(os.getpid()).encode()})
        except BaseException:
            self.close()
            raise

    def stats(self) -> dict[str, int | float | str]:
        times = sorted(self._sync_s) or [0.0]
        book = self._book
        return {
            "store": self.database.place,
            "store_id": self.store_id.hex(),
            "sync": self._options.sync,
            "number": book.last,
            "snapshot_number": book.snapshot_number,
            "snapshot_bytes": book.snapshot_bytes,
            "rows": book.rows,
            "row_bytes": book.row_bytes,
            "since_snapshot_bytes": book.since_bytes,
            "retained_s": self._cleaner.retained_s(int(time())),
            "short_bytes": self._cleaner.lacks,
            "bytes": self.database.size(),
            "syncs": self._syncs,
            "sync_last_s": self._sync_s[-1] if self._sync_s else 0.0,
            "sync_p50_s": times[len(times) // 2],
            "sync_p99_s": times[len(times) * 99 // 100],
            "broken": self.database.broken,
        }

    def close(self) -> None:
        self._mark.close()
        self.database.close()

    # -- transactions

    @contextmanager
    def _transaction(self, durable: bool) -> Iterator[None]:
        """Run a transaction: all or nothing is kept, in the database and in this object."""
        before = self._before()
        try:
            with Transaction(self.database, durable):
                yield
                self._mark.move(self._book.last, committed=False)
        except BaseException:
            self._undo(before)
            raise
        self._committed(durable)

    def _before(self) -> Before:
        """Return what `_undo` restores after a failed transaction."""
        return self._found.meta, self._cleaner.oldest, self._cleaner.stale_chunks

    def _undo(self, before: Before) -> None:
        self._found.meta, self._cleaner.oldest, self._cleaner.stale_chunks = before
        self._forget_gathered()

    def _committed(self, durable: bool) -> None:
        """Note that the database has all that was gathered, and move the mark."""
        gathered = self._gathered
        if gathered.chunks or gathered.meta:
            self._gathered = Gathered()
        else:
            # This is quicker, and most turns have rows only.
            gathered.rows = []
        self._messages.gathered = []
        self._kept = self._book.copied()
        self._unsynced = not durable
        if durable:
            self._last_durable = perf_counter()
        self._mark.move(self._book.last, committed=True)

    def _write_meta(self, values: dict[str, bytes]) -> None:
        if values:
            write_meta(self.database, self._found.seed, values)
            # This makes a new dict, so that a failed transaction can restore the former one.
            self._found.meta = self._found.meta | values

    def _forget_gathered(self) -> None:
        self._gathered = Gathered()
        self._messages.gathered = []
        self._book = self._kept.copied()
        self.abort_snapshot()

    def _usable(self) -> None:
        if self.database.broken:
            raise JournalError(
                f"{self.database.place} can't be trusted any more ({self.database.broken}); restart the server"
            )
        if not self._loaded:
            raise JournalError(f"{self.database.place} was not loaded yet; call load before writing to it")
