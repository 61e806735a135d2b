"""Recovery of a journal: verify first, then decide about damage, then hand out.

The snapshot and the rows after it are read twice, once with their checksums and once for the caller. So a refusal comes
before the caller builds on half a history, and the report is complete when the first chunk is applied. At about 1 GB/s
the second reading is cheap. The rows that the snapshot covers may be a hundred times as many, and a start needs none of
them. So only a start with `prefix` reads them; otherwise each is verified when a reader asks for it
(`SqlJournal.read_after`).

    damage in            strict     prefix
    the snapshot         refuse     refuse: a part of a state is not an earlier state
    a row it covers      not seen   set the covered rows aside; no history is lost
    a row after it       refuse     keep what is before, set the row and all after it aside
    its end (the mark)   refuse, unless a peer may have it          go on without

Numbers that were set aside have been issued, and clients may be at them. So the highest epoch among them is kept with
the journal, in `chp.seen`, before rows are moved: the server later opens an epoch above it.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4
from zlib import crc32

from chp.numbers import describe, epoch_of

from ...core.state.journal import JournalDamaged, Options, WrongStore, cut_short
from ..journal_rows import (
    FORMAT,
    Damage,
    JournalMeta,
    check_rows,
    chunk_crc,
    is_sound,
    meta_crc,
    unpack_counts,
    wrong_format,
)
from .database import Database, Tables, Transaction, errors
from .journal_mark import JournalMark
from .sql_messages import MessageTable
from .sql_tables import TOP, chunks, count, last_key, pages, read_meta, write_meta

SEEN = "chp.seen"
# The name of the value with the number of rows and their bytes at the last snapshot or clean-up. So a start need not
# count the rows.
COUNTS = "chp.counts"
# This many more epochs count as used after damage: unreadable rows may have opened an epoch of each server.
EPOCHS_LOST = 2


@dataclass
class RecoverySource:
    """The source of a recovery: a database with its small values, its mark, and the options."""

    database: Database
    meta: dict[str, bytes]
    mark: JournalMark
    options: Options

    @property
    def messages(self) -> MessageTable:
        """The table of messages."""
        return MessageTable(self.database, self.seed)

    @property
    def store(self) -> bytes:
        """The id of this journal, which its backups keep."""
        return self.meta["chp.store"]

    @property
    def seed(self) -> int:
        """The start of this journal's checksums."""
        return crc32(self.store)

    def book(self) -> JournalMeta:
        """Return the journal's own state, as stored."""
        return JournalMeta.unpack(self.meta["chp.book"])

    def seen(self) -> int:
        """Return the highest epoch that was set aside."""
        return int.from_bytes(self.meta.get(SEEN, b""), "big")


@dataclass
class Recovered:
    """The result of `recover`."""

    book: JournalMeta
    # One line for the log.
    report: str
    # The number of rows set aside.
    aside: int = 0
    # A number beyond the journal's end that the journal has reached before; 0 if there is none.
    marked: int = 0
    # No epoch up to this one may be opened again.
    seen: int = 0


# A function that sets small values in a durable transaction of their own.
Save = Callable[[dict[str, bytes]], None]


def new_store(database: Database) -> None:
    """Write the first small values, if there are none yet."""
    if read_meta(database):
        return
    store = uuid4().bytes
    first = {"chp.store": store, "chp.book": JournalMeta().pack(), "chp.format": str(FORMAT).encode()}
    with Transaction(database, True):
        write_meta(database, crc32(store), first)


def identify(database: Database, wanted: bytes | None) -> dict[str, bytes]:
    """Return the verified small values; raise `WrongStore` for another store than `wanted`, or another format."""
    place, stored = database.place, read_meta(database)
    values = {str(key): bytes(value) for key, value, _ in stored if isinstance(value, bytes | memoryview)}
    if "chp.store" not in values or "chp.book" not in values:
        raise JournalDamaged(f"{place}: the journal's own meta values are missing; restore a backup", "meta")
    seed = crc32(values["chp.store"])
    for key, _, crc in stored:
        if meta_crc(seed, str(key), values.get(str(key), b"")) != crc:
            raise JournalDamaged(
                f"{place}: meta value {key!r}: its checksum does not match; restore a backup", f"meta {key}"
            )
    found = values.get("chp.format", b"1").decode()
    if found != str(FORMAT):
        raise WrongStore(wrong_format(place, found))
    if wanted is not None and wanted != values["chp.store"]:
        raise WrongStore(
            f"{place} is store {values['chp.store'].hex()}, not {wanted.hex()}; point the server at its own"
        )
    return values


def recover(found: RecoverySource, save: Save) -> Recovered:
    """Verify the journal, and treat damage as the options say."""
    place, book = found.database.place, found.book()
    damage = _snapshot_damage(found, book)
    if damage:
        raise JournalDamaged(
            f"{place}: {damage}; a snapshot can't be kept in part: restore a backup, or move the journal away"
            " and let the other server send its state",
            damage.place,
        )
    aside, whole = 0, found.options.recover != "strict"
    damage = _rows_damage(found, book) if whole else _later_damage(found, book)
    if damage:
        aside = _repair(found, damage, book, save)
    if whole:
        _add_deleted(found, book)
    marked, short = _judge_the_mark(found, book, save)
    report = _report(place, book, damage, aside) + found.database.note + found.mark.note + short
    return Recovered(book, report, aside, marked, max(found.seen(), epoch_of(marked)))


def examine(found: RecoverySource) -> tuple[JournalMeta, list[str]]:
    """Verify what `recover` verifies, without repair; return the state and what is wrong with it."""
    book = found.book()
    damages = [_snapshot_damage(found, book), _rows_damage(found, book)]
    beyond = found.mark.beyond(found.store, book.last)
    short = [cut_short(book.last, beyond)] if beyond else []
    return book, [str(damage) for damage in damages if damage] + short + list(found.messages.problems())


def everything(found: RecoverySource, book: JournalMeta, end: int = TOP) -> Tables:
    """Yield all of the journal up to the row `end`, table by table, for a copy."""
    seed = found.seed
    # The counts include deleted rows, which are not copied.
    meta = {key: value for key, value in found.meta.items() if key != COUNTS}
    yield "meta", [(key, value, meta_crc(seed, key, value)) for key, value in meta.items()]
    yield "chunks", chunks(found.database, book)
    yield "rows", pages(found.database, book.floor, end)
    yield "messages", found.messages.pages()


def _snapshot_damage(found: RecoverySource, book: JournalMeta) -> Damage | None:
    part, size = 0, 0
    name, seed = f"snapshot {describe(book.snapshot_number)}", found.seed
    try:
        for key, crc, body in chunks(found.database, book):
            if key != book.serial << 32 | part:
                break
            if chunk_crc(seed, book.serial, part, body) != crc:
                return Damage(f"{name}, chunk {part}", "its checksum does not match", 0)
            part, size = part + 1, size + len(body)
    except JournalDamaged as error:
        return Damage(f"{name}, chunk {part}", str(error), 0)
    if (part, size) == (book.parts, book.snapshot_bytes):
        return None
    return Damage(f"{name}, chunk {part}", f"missing, of {book.parts}", 0)


def _rows_damage(found: RecoverySource, book: JournalMeta) -> Damage | None:
    """Verify and count all rows that are not deleted."""
    book.rows = book.row_bytes = 0
    return _damage_after(found, book, book.floor)


def _later_damage(found: RecoverySource, book: JournalMeta) -> Damage | None:
    """Verify the rows after the snapshot, and add them to the counts that the journal keeps of the earlier rows."""
    number = 0
    if book.serial:
        number, book.rows, book.row_bytes = unpack_counts(found.meta.get(COUNTS, b""))
    with errors(found.database):
        begin = last_key(found.database, book.snapshot_number, book.floor)
    damage = _damage_after(found, book, begin, number)
    if book.serial and not damage and not 0 < number <= book.last:
        # The counts are missing or wrong: an older release wrote the journal, or it is a copy, or it was cut short.
        with errors(found.database):
            book.rows, book.row_bytes = count(found.database, "first <=", TOP)
    return damage


def _damage_after(found: RecoverySource, book: JournalMeta, after: int, counted: int = 0) -> Damage | None:
    try:
        return check_rows(pages(found.database, after), found.seed, book, counted)
    except JournalDamaged as error:
        return Damage(f"after row {describe(book.last)}", str(error), book.last)


def _add_deleted(found: RecoverySource, book: JournalMeta) -> None:
    """Add the rows that count as deleted, and are still to be cleaned up, to the counts."""
    with errors(found.database):
        dead, size = count(found.database, "first <=", book.floor)
    book.rows += dead
    book.row_bytes += size


def _repair(found: RecoverySource, damage: Damage, book: JournalMeta, save: Save) -> int:
    """Treat damaged rows as `recover` says; `book` becomes the state of the rows that are kept."""
    database = found.database
    if found.options.recover == "strict":
        raise JournalDamaged(
            f"{database.place}: {damage}; restore a backup, or start with --recover prefix to keep what is before it",
            damage.place,
        )
    seen = (_epochs_seen(found, book) + EPOCHS_LOST).to_bytes(8, "big")
    # A file may be readable, and not writable any more.
    with suppress(JournalDamaged):
        save({SEEN: seen})
    # The snapshot covers the damaged row, so the rows after it may be sound.
    if damage.number < book.snapshot_number:
        book.floor = book.snapshot_number
        later = _rows_damage(found, book)
        end = later.number if later else TOP
    else:
        end = damage.number
    end = max(end, book.floor)
    with errors(database):
        aside = database.set_aside(book.floor, end, everything(found, book, end))
    again = _rows_damage(found, book)
    if again:
        raise JournalDamaged(f"{database.place}: {again}; it is still there after the repair", again.place)
    save({"chp.book": book.pack(), COUNTS: book.pack_counts(), SEEN: seen})
    return aside


def _epochs_seen(found: RecoverySource, book: JournalMeta) -> int:
    """Return the highest epoch that can be read in the journal."""
    seen = max(found.seen(), epoch_of(max(book.last, book.snapshot_number)))
    with suppress(JournalDamaged):
        for row in pages(found.database, book.floor):
            if is_sound(row, found.seed):
                seen = max(seen, epoch_of(row.last))
    return seen


def _judge_the_mark(found: RecoverySource, book: JournalMeta, save: Save) -> tuple[int, str]:
    """Decide about a journal that may end before its mark.

    Return the mark's number, or 0 if no peer is to send the rest; and a note for the report.
    """
    beyond = found.mark.beyond(found.store, book.last)
    if not beyond:
        return 0, ""
    short = cut_short(book.last, beyond)
    if found.options.recover == "strict":
        if found.options.catch_up:
            return beyond, ""
        raise JournalDamaged(f"{found.database.place}: {short}", f"after {describe(book.last)}")
    seen = max(_epochs_seen(found, book), epoch_of(beyond))
    save({SEEN: seen.to_bytes(8, "big")})
    return 0, f"; its mark says that it had been at {describe(beyond)}: going on without what came after"


def _report(place: str, book: JournalMeta, damage: Damage | None, aside: int) -> str:
    found = (
        f"{place}: snapshot {describe(book.snapshot_number)} ({book.snapshot_bytes:,} bytes) and"
        f" {book.rows:,} rows ({book.row_bytes:,} bytes) up to {describe(book.last)}"
    )
    if not (book.rows or book.serial):
        found = f"{place}: empty"
    if damage:
        count = f"{aside:,} rows" if aside >= 0 else "an unknown number of rows"
        found += f"; damaged at {damage}; {count} set aside"
    return found
