"""A journal in SQL, as the reactor uses it: rows in, one commit a turn, rows out again, snapshots, and cleaning up.

Cleaning up never stops the service. Committing a snapshot deletes nothing; each later sync deletes a bounded piece
of what has become superfluous: the chunks of older snapshots, the rows up to the floor, and of the other rows that
the snapshot covers, the oldest, as long as they are too many bytes or too old.
"""

from collections.abc import Sequence
from copy import copy
from time import perf_counter, time

from chp.numbers import describe

from .journal import META_BYTES_MAX, MIB, Journal, JournalDamaged, JournalError, Loaded
from .journal_rows import Book, StoredRow, chunk_crc, is_sound, numbers_in, stored
from .recordlog import Row
from .sql_base import TOP
from .sql_recovery import SqlRecovery

SMALL = 16 * MIB  # below this the journal need not be in proportion to the live state
PENDING_BYTES = 8 * MIB  # a snapshot's chunks are written when so much has gathered, sync or not
TRIM_BYTES = 8 * MIB  # deleted in one sync, about: more than a busy turn writes, so that it catches up
TRIM_ROWS = 1024

_OLDEST = "SELECT first, last, length(body), wrote FROM rows ORDER BY first LIMIT ?"
_AT = "SELECT first, last, prev, wrote, crc, body FROM rows WHERE first <= ? AND first > ? ORDER BY first DESC LIMIT 1"
_DEAD_CHUNKS = "SELECT id, length(body) FROM chunks WHERE id < ? OR (id >= ? AND id < ?) ORDER BY id LIMIT 64"


class SqlStore(SqlRecovery, Journal):
    """See the module."""

    def load(self) -> Loaded:
        """As the interface says."""
        loaded = super().load()
        with self.errors():
            dead = list(self._run("SELECT count(*), sum(length(body)) FROM rows WHERE first <= ?", (self._book.floor,)))
        self._book.rows += dead[0][0]  # deleted, but still to be cleaned up
        self._book.row_bytes += int(dead[0][1] or 0)
        self._kept = copy(self._book)
        self._look_at_oldest()
        return loaded

    # -- writing

    def append(self, rows: Sequence[Row]) -> None:
        """As the interface says."""
        self._usable()
        ready = stored(self._seed, self._book.last, int(time()), rows)
        if not ready:
            return
        size = sum(len(row.body) for row in ready)
        self._rows += ready
        self._book.last = ready[-1].last
        self._book.rows += len(ready)
        self._book.row_bytes += size
        self._book.since_bytes += size
        if self._building is not None:
            self._building.since_bytes += size

    def sync(self) -> None:
        """As the interface says."""
        self._usable()
        durable = self._must_be_durable()
        if not (self._rows or self._chunks or self._meta_set or self._to_trim() or (durable and self._unsynced)):
            return
        began = perf_counter()
        with self._transaction(durable):
            self._write_rows()
            if durable and self._unsynced:  # without something to write, nothing would be flushed
                self._meta_set["chp.synced"] = str(time()).encode()
            self._write_meta(self._meta_set)
            self._trim()
        with self.errors():
            self._shrinking = self._shrink()
        self._sync_s.append(perf_counter() - began)
        self._syncs += 1

    def _must_be_durable(self) -> bool:
        if self.options.sync == "interval":
            return perf_counter() - self._last_durable >= self.options.interval_s
        return self.options.sync == "always"

    def _write_rows(self) -> None:
        if self._rows:
            self._many("rows", "first, last, prev, wrote, crc, body", self._rows)
            first = self._rows[0]
            self._oldest = self._oldest or (first.first, first.last, len(first.body), first.wrote)
        if self._chunks:
            self._many("chunks", "id, crc, body", self._chunks)

    # -- reading

    def read_after(self, number: int, bytes_max: int) -> list[Row] | None:
        """As the interface says; only what was synced."""
        if number >= self._kept.last:
            return [] if number == self._kept.last else None
        with self.errors():
            at = list(self._run(_AT, (number, self._kept.floor)))
        within = bool(at) and at[0][1] > number  # `number` lies inside this row
        found: list[Row] = []
        size = 0
        for row in self._pages(at[0][0] - 1 if within else max(number, self._kept.floor)):
            if not found and not within and row.prev != number:
                return None
            checked = self._checked(row)
            if found and size + len(row.body) > bytes_max:
                break
            found.append(checked)
            size += len(row.body)
        return found or None

    def _checked(self, record: StoredRow) -> Row:
        row = Row(record.first, record.last, record.body)
        if not is_sound(record, self._seed):
            place = f"row id {record.first}"
            raise JournalDamaged(f"{self.place}: {place}: its checksum does not match; restore a backup", place)
        return row

    def drop_after(self, number: int) -> int:
        """As the interface says. What is appended and not synced yet is synced first."""
        self.sync()
        if number < self._book.snapshot_number:
            raise JournalError(
                f"{self.place}: can't drop to {describe(number)}: the snapshot is at"
                f" {describe(self._book.snapshot_number)}; take a whole snapshot of the other server"
            )
        at = list(self._run(_AT, (number, self._book.floor)))
        after = at[0][0] - 1 if at and at[0][1] > number else number
        if self._building is not None and self._building.snapshot_number > number:
            self.abort_snapshot()
        with self._transaction(True):
            sizes = list(self._run("SELECT length(body) FROM rows WHERE first > ?", (after,)))
            list(self._run("DELETE FROM rows WHERE first > ?", (after,)))
            before = list(self._run(_AT, (TOP, self._book.floor)))
            self._book.last = max(before[0][1] if before else 0, self._book.snapshot_number)
            dropped = sum(size for (size,) in sizes)
            self._book.rows -= len(sizes)
            self._book.row_bytes -= dropped
            self._book.since_bytes -= dropped
        if self._building is not None:
            self._building.since_bytes -= dropped
        self._look_at_oldest()
        return len(sizes)

    # -- snapshots

    def begin_snapshot(self, number: int) -> None:
        """As the interface says."""
        self._usable()
        self.abort_snapshot()
        self._serial += 1
        self._building = Book(serial=self._serial, snapshot_number=number)

    def put_snapshot(self, body: bytes) -> None:
        """As the interface says; syncs when many megabytes have gathered."""
        book = self._under_way()
        crc = chunk_crc(self._seed, book.serial, book.parts, body)
        self._chunks.append((book.serial << 32 | book.parts, crc, body))
        book.parts += 1
        book.snapshot_bytes += len(body)
        self._chunk_bytes += len(body)
        if self._chunk_bytes > PENDING_BYTES:
            self.sync()

    def commit_snapshot(self, keep_after: int, *, alone: bool = False) -> None:
        """As the interface says. Beyond the last row (a state from elsewhere), no row from before it is history."""
        new, book = self._under_way(), self._book
        book.serial, book.snapshot_number = new.serial, new.snapshot_number
        book.parts, book.snapshot_bytes, book.since_bytes = new.parts, new.snapshot_bytes, new.since_bytes
        if alone or new.snapshot_number > book.last:
            book.last = book.floor = new.snapshot_number
        book.floor = max(book.floor, min(keep_after, new.snapshot_number))
        with self._transaction(True):
            self._write_rows()
            if alone:
                self._drop_beyond(new.snapshot_number)
            book.floor = self._boundary(book.floor)
            self._meta_set["chp.book"] = book.pack()
            self._write_meta(self._meta_set)
        self._building, self._stale_chunks = None, True
        if self._mark is not None:
            self._mark.sync()

    def _drop_beyond(self, number: int) -> None:
        """Rows that end after a snapshot of another history; those before its number are below the floor."""
        [(count, size)] = self._run("SELECT count(*), sum(length(body)) FROM rows WHERE last > ?", (number,))
        list(self._run("DELETE FROM rows WHERE last > ?", (number,)))
        self._book.rows -= count
        self._book.row_bytes -= int(size or 0)
        self._look_at_oldest()

    def _boundary(self, floor: int) -> int:
        """The floor, or if a row lies across it, the number that row follows."""
        across = list(self._run(_AT, (floor, 0)))
        return int(across[0][2]) if across and across[0][1] > floor else floor

    def _under_way(self) -> Book:
        self._usable()
        if self._building is None:
            raise JournalError(f"{self.place}: no snapshot is under way (an error abandons it); begin one")
        return self._building

    def snapshot_due(self) -> bool:
        """At half the snapshot's size: snapshot, the next one and the rows then stay under three times the state."""
        return self._building is None and self._book.since_bytes > max(SMALL, self._book.snapshot_bytes // 2)

    # -- cleaning up

    def _to_trim(self) -> bool:
        return self._stale_chunks or self._shrinking or self._goes(self._oldest, self._book.row_bytes, int(time()))

    def _goes(self, row: tuple[int, int, int, int] | None, row_bytes: int, now: int) -> bool:
        """Whether the oldest row, of `row_bytes` in all, need not be kept."""
        if row is None or row[1] > self._book.snapshot_number:
            return False
        options = self.options
        return row[0] <= self._book.floor or row_bytes > options.retain_bytes or now - row[3] > options.retain_s

    def _trim(self) -> None:
        if self._stale_chunks:
            self._trim_chunks()
        elif self._goes(self._oldest, self._book.row_bytes, int(time())):
            self._trim_rows()

    def _trim_chunks(self) -> None:
        live, building = self._book.serial, self._building.serial if self._building else self._serial + 1
        size, dead = 0, []
        for key, length in self._run(_DEAD_CHUNKS, (live << 32, (live + 1) << 32, building << 32)):
            if size > TRIM_BYTES:
                break
            dead.append((key,))
            size += length or 0  # nobody has looked into what is dead: it may be damaged
        for params in dead:
            list(self._run("DELETE FROM chunks WHERE id = ?", params))
        self._stale_chunks = bool(dead)

    def _trim_rows(self) -> None:
        now, size, upto = int(time()), 0, 0
        for row in map(numbers_in, self._run(_OLDEST, (TRIM_ROWS,))):
            if size > TRIM_BYTES or not self._goes(row, self._book.row_bytes, now):
                break
            upto, size = row[0], size + row[2]
            self._book.row_bytes -= row[2]
            self._book.rows -= 1
        list(self._run("DELETE FROM rows WHERE first <= ?", (upto,)))
        self._look_at_oldest()

    def _look_at_oldest(self) -> None:
        with self.errors():
            oldest = [numbers_in(row) for row in self._run(_OLDEST, (1,))]
        self._oldest = oldest[0] if oldest else None

    # -- small values, numbers, the end

    def get_meta(self, key: str) -> bytes | None:
        """As the interface says."""
        return self._meta_set.get(key, self._meta.get(key))

    def set_meta(self, key: str, value: bytes) -> None:
        """As the interface says."""
        self._usable()
        if len(value) > META_BYTES_MAX:
            raise JournalError(f"meta value {key!r} has {len(value):,} bytes; the limit is {META_BYTES_MAX:,}")
        self._meta_set[key] = value

    def stats(self) -> dict[str, int | float | str]:
        """As the interface says."""
        times = sorted(self._sync_s) or [0.0]
        book = self._book
        return {
            "store": self.place,
            "store_id": self.store_id.hex(),
            "sync": self.options.sync,
            "number": book.last,
            "snapshot_number": book.snapshot_number,
            "snapshot_bytes": book.snapshot_bytes,
            "rows": book.rows,
            "row_bytes": book.row_bytes,
            "since_snapshot_bytes": book.since_bytes,
            "bytes": self._size(),
            "syncs": self._syncs,
            "sync_last_s": self._sync_s[-1] if self._sync_s else 0.0,
            "sync_p50_s": times[len(times) // 2],
            "sync_p99_s": times[len(times) * 99 // 100],
            "broken": self.broken,
        }
