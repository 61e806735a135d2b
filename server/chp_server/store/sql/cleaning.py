"""What a SQL journal need not keep any more, and how it goes: a bounded piece in each sync, so that no turn waits.

What goes is the chunks of older snapshots, the rows up to the floor, and of the other rows that the snapshot covers,
the oldest, as long as they are too many bytes or too old.
"""

from ...core.state.journal import MIB, Options
from ..journal_rows import Book, StoredRow, numbers_in
from .database import Database, errors
from .sql_tables import delete

TRIM_BYTES = 8 * MIB  # deleted in one sync, about: more than a busy turn writes, so that it catches up
TRIM_ROWS = 1024

_OLDEST = "SELECT first, last, length(body), wrote FROM rows ORDER BY first LIMIT ?"
_DEAD_CHUNKS = "SELECT id, length(body) FROM chunks WHERE id < ? OR (id >= ? AND id < ?) ORDER BY id LIMIT 64"

Oldest = tuple[int, int, int, int]  # of a row: first, last, bytes, when it was written


class Cleaner:
    """See the module. `oldest` and `stale_chunks` are put back when a transaction fails."""

    def __init__(self, database: Database, options: Options) -> None:
        self._database, self._options = database, options
        self._shrinking = False
        self.oldest: Oldest | None = None
        self.stale_chunks = True

    def due(self, book: Book, now: int) -> bool:
        """Whether there is anything to do."""
        return self.stale_chunks or self._shrinking or self._goes(self.oldest, book, now)

    def clean(self, book: Book, building: int, now: int) -> None:
        """Delete a piece, in the open transaction; chunks from serial `building` on are of a snapshot under way."""
        if self.stale_chunks:
            self._delete_chunks(book.serial, building)
        elif self._goes(self.oldest, book, now):
            self._delete_rows(book, now)

    def shrink(self) -> None:
        """Give room back, after a sync."""
        with errors(self._database):
            self._shrinking = self._database.shrink()

    def wrote(self, rows: list[StoredRow]) -> None:
        """These are written; in an empty journal, the first of them is the oldest."""
        if rows and self.oldest is None:
            first = rows[0]
            self.oldest = (first.first, first.last, len(first.body), first.wrote)

    def look_at_oldest(self) -> None:
        """Rows were deleted."""
        with errors(self._database):
            oldest = [numbers_in(row) for row in self._database.run(_OLDEST, (1,))]
        self.oldest = oldest[0] if oldest else None

    def _goes(self, row: Oldest | None, book: Book, now: int) -> bool:
        """Whether this row, when it is the oldest, need not be kept."""
        if row is None or row[1] > book.snapshot_number:
            return False
        options = self._options
        return row[0] <= book.floor or book.row_bytes > options.retain_bytes or now - row[3] > options.retain_s

    def _delete_chunks(self, live: int, building: int) -> None:
        size, dead = 0, []
        for key, length in self._database.run(_DEAD_CHUNKS, (live << 32, (live + 1) << 32, building << 32)):
            if size > TRIM_BYTES:
                break
            dead.append((key,))
            size += length or 0  # nobody has looked into what is dead: it may be damaged
        for params in dead:
            list(self._database.run("DELETE FROM chunks WHERE id = ?", params))
        self.stale_chunks = bool(dead)

    def _delete_rows(self, book: Book, now: int) -> None:
        size, upto = 0, 0
        for row in map(numbers_in, self._database.run(_OLDEST, (TRIM_ROWS,))):
            if size > TRIM_BYTES or not self._goes(row, book, now):
                break
            upto, size = row[0], size + row[2]
            book.row_bytes -= row[2]
            book.rows -= 1
        delete(self._database, "first <=", upto)
        self.look_at_oldest()
