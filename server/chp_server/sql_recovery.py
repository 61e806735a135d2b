"""Reading a journal back: verify first, then decide about damage, then hand out.

Everything is read twice, once with its checksums and once for the caller: a refusal then comes before anything was
built on half a history, and the report is complete when the first chunk is applied. At about 1 GB/s that is cheap.

    damage in            strict     prefix
    the snapshot         refuse     refuse: a part of a state is not an earlier state
    a row it covers      refuse     set the covered rows aside; no history is lost
    a row after it       refuse     keep what is before, set the row and all after it aside
    its end (the mark)   refuse, unless a peer may have it          go on without

Numbers that were set aside have been issued, and clients may be at them. So the highest epoch among them is kept with
the journal, in `chp.seen`, before anything is moved: what is served later is of an epoch above it.
"""

from contextlib import suppress
from copy import copy

from chp.numbers import describe, epoch_of

from .journal import JournalDamaged, Loaded, cut_short
from .journal_rows import Book, Damage, check_rows, chunk_crc, is_sound
from .recordlog import Row
from .sql_base import TOP, SqlBase

SEEN = "chp.seen"
EPOCHS_LOST = 2  # what can't be read any more may have opened one, of either server


class SqlRecovery(SqlBase):
    """See the module."""

    def load(self) -> Loaded:
        """As `Journal.load` says."""
        self._forget_pending()
        book = Book.unpack(self._meta["chp.book"])
        damage = self._snapshot_damage(book)
        if damage:
            raise JournalDamaged(
                f"{self.place}: {damage}; a snapshot can't be kept in part: restore a backup, or move the journal away"
                " and let the other server send its state",
                damage.place,
            )
        damage, aside = self._rows_damage(book), 0
        if damage:
            aside = self._repair(damage, book)
        marked = self._cut_short(book)
        self._book, self._kept, self._loaded = copy(book), copy(book), True
        rows = (Row(r.first, r.last, bytes(r.body)) for r in self._pages(book.floor) if r.last > book.snapshot_number)
        chunks = (body for _, _, body in self._snapshot_chunks(book))
        report = self._report(book, damage, aside)
        seen = max(int.from_bytes(self._meta.get(SEEN, b""), "big"), epoch_of(marked))
        return Loaded(book.last, book.snapshot_number, chunks, rows, report, aside, marked, seen)

    def _cut_short(self, book: Book) -> int:
        """What `recover` says about a journal that ends before its mark; the mark, if a peer is to tell the rest."""
        beyond = self._beyond(book)
        if not beyond:
            return 0
        if self.options.recover == "strict":
            if self.options.catch_up:
                return beyond
            raise JournalDamaged(f"{self.place}: {cut_short(book.last, beyond)}", f"after {describe(book.last)}")
        self._note += f"; {cut_short(book.last, beyond)}"
        seen = max(int.from_bytes(self._epochs_seen(book), "big") - EPOCHS_LOST, epoch_of(beyond))
        with self._transaction(True):
            self._write_meta({SEEN: seen.to_bytes(8, "big")})
        return 0

    def examine(self) -> tuple[Book, list[str]]:
        """All that `load` verifies, without repair: the state and what is wrong with it."""
        book = Book.unpack(self._meta["chp.book"])
        found = [self._snapshot_damage(book), self._rows_damage(book)]
        beyond = self._beyond(book)
        short = [cut_short(book.last, beyond)] if beyond else []
        return book, [str(damage) for damage in found if damage] + short

    def _snapshot_damage(self, book: Book) -> Damage | None:
        part, size = 0, 0
        name = f"snapshot {describe(book.snapshot_number)}"
        try:
            for key, crc, body in self._snapshot_chunks(book):
                if key != book.serial << 32 | part:
                    break
                if chunk_crc(self._seed, book.serial, part, body) != crc:
                    return Damage(f"{name}, chunk {part}", "its checksum does not match", 0)
                part, size = part + 1, size + len(body)
        except JournalDamaged as error:
            return Damage(f"{name}, chunk {part}", str(error), 0)
        if (part, size) == (book.parts, book.snapshot_bytes):
            return None
        return Damage(f"{name}, chunk {part}", f"missing, of {book.parts}", 0)

    def _rows_damage(self, book: Book) -> Damage | None:
        try:
            return check_rows(self._pages(book.floor), self._seed, book)
        except JournalDamaged as error:
            return Damage(f"after row {describe(book.last)}", str(error), book.last)

    def _repair(self, damage: Damage, book: Book) -> int:
        """What `recover` says about damaged rows; `book` becomes that of what is kept."""
        if self.options.recover == "strict":
            raise JournalDamaged(
                f"{self.place}: {damage}; restore a backup, or start with --recover prefix to keep what is before it",
                damage.place,
            )
        seen = self._epochs_seen(book)
        with suppress(JournalDamaged), self._transaction(True):  # a file may be readable, and not writable any more
            self._write_meta({SEEN: seen})
        if damage.number < book.snapshot_number:  # the snapshot covers the damaged row: what follows it may be sound
            book.floor = book.snapshot_number
            later = self._rows_damage(book)
            end = later.number if later else TOP
        else:
            end = damage.number
        self._forget_pending()
        with self.errors():
            aside = self._set_aside(book.floor, max(end, book.floor))
        again = self._rows_damage(book)
        if again:
            raise JournalDamaged(f"{self.place}: {again}; it is still there after the repair", again.place)
        with self._transaction(True):
            self._write_meta({"chp.book": book.pack(), SEEN: seen})
        return aside

    def _epochs_seen(self, book: Book) -> bytes:
        seen = max(int.from_bytes(self._meta.get(SEEN, b""), "big"), epoch_of(max(book.last, book.snapshot_number)))
        with suppress(JournalDamaged):  # as far as it can be read
            for row in self._pages(book.floor):
                if is_sound(row, self._seed):
                    seen = max(seen, epoch_of(row.last))
        return (seen + EPOCHS_LOST).to_bytes(8, "big")

    def _report(self, book: Book, damage: Damage | None, aside: int) -> str:
        found = (
            f"{self.place}: snapshot {describe(book.snapshot_number)} ({book.snapshot_bytes:,} bytes) and"
            f" {book.rows:,} rows ({book.row_bytes:,} bytes) up to {describe(book.last)}"
        )
        if not (book.rows or book.serial):
            found = f"{self.place}: empty"
        if damage:
            count = f"{aside:,} rows" if aside >= 0 else "an unknown number of rows"
            found += f"; damaged at {damage}; {count} set aside"
        return found + self._note
