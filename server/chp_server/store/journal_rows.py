"""The columns and checksums by which a journal finds damage, the chain of its rows, and its own state.

    row    crc32(prev, first, last, body)      prev: the number that this row follows
    chunk  crc32(snapshot serial, part, body)
    meta   crc32(key, value)

All start from crc32(store id), so the checksum of a row from another store's file fails. CRC-32 finds every flipped bit
and every burst up to 32 bits. It is not meant to help against an enemy who can write the file.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from chp.numbers import EPOCH_MAX, EPOCH_SHIFT, describe, epoch_of, sequence_of

from ..core.state.journal import BODY_BYTES_MAX, JournalError
from ..core.state.record_log import LoggedRow

# The format of a journal and of a backup; 0.1, which was never released, wrote 1.
FORMAT = 2
_ROW = struct.Struct(">QQQ")
_CHUNK = struct.Struct(">QQ")
_BOOK = struct.Struct(">QQQQQ")
_COUNTED = struct.Struct(">QQQ")


def wrong_format(place: str, found: object) -> str:
    """Return a text about a journal that another version wrote."""
    return (
        f"{place} has format {found}, and this program reads format {FORMAT}; start with an empty data directory and "
        "bring the keys over: `chp dump` with the release that wrote it, `chp load` with this one"
    )


class StoredRow(NamedTuple):
    """A row as stored, in the order of the columns; `wrote` is the local time, for the removal of old rows only."""

    first: int
    last: int
    prev: int
    wrote: int
    crc: int
    body: bytes


class Damage(NamedTuple):
    """The place where damage begins, its kind, and the last number before it."""

    place: str
    what: str
    number: int

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(slots=True)
class JournalMeta:
    """The journal's own state. `pack` makes the stored part, `pack_counts` the counts; a start counts the rest."""

    # The serial of the snapshot; 0 if there is none.
    serial: int = 0
    snapshot_number: int = 0
    parts: int = 0
    snapshot_bytes: int = 0
    # Rows up to this number count as deleted, though clean-up may not have removed all of them yet.
    floor: int = 0
    last: int = 0
    rows: int = 0
    row_bytes: int = 0
    # The bytes of rows after the snapshot.
    since_bytes: int = 0

    def pack(self) -> bytes:
        """Return the durable part."""
        return _BOOK.pack(self.serial, self.snapshot_number, self.parts, self.snapshot_bytes, self.floor)

    def copied(self) -> "JournalMeta":
        """Return a copy; `copy.copy` would take eight times as long."""
        return JournalMeta(
            self.serial, self.snapshot_number, self.parts, self.snapshot_bytes, self.floor, self.last, self.rows,
            self.row_bytes, self.since_bytes,
        )  # fmt: skip

    def pack_counts(self) -> bytes:
        """Return the number of rows and their bytes, with the number up to which they are counted."""
        return _COUNTED.pack(self.last, max(0, self.rows), max(0, self.row_bytes))

    @classmethod
    def unpack(cls, data: bytes) -> "JournalMeta":
        """Return a state from its durable part; all else is zero."""
        return cls(*_BOOK.unpack(data))


def unpack_counts(data: bytes) -> tuple[int, int, int]:
    """Return what `pack_counts` packed: the number, the rows and their bytes; zeros if the data are missing."""
    return _COUNTED.unpack(data) if len(data) == _COUNTED.size else (0, 0, 0)


def stored_row(record: tuple[Any, ...]) -> StoredRow:
    """Return a row from a database. A body of another type stays as it is, and its checksum fails."""
    first, last, prev, wrote, crc, body = record
    return StoredRow(first, last, prev, wrote, crc, bytes(body) if isinstance(body, memoryview) else body)


def numbers_in(row: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Return a row's numbers, with 0 for a value of another type: rows to be deleted may be damaged."""
    first, last, size, wrote = (value if type(value) is int else 0 for value in row)
    return first, last, size, wrote


def row_crc(seed: int, prev: int, row: LoggedRow) -> int:
    """Return the checksum of a row that follows `prev`."""
    return crc32(row.body, crc32(_ROW.pack(prev, row.first, row.last), seed))


def chunk_crc(seed: int, serial: int, part: int, body: bytes) -> int:
    """Return the checksum of a snapshot's chunk."""
    return crc32(body, crc32(_CHUNK.pack(serial, part), seed))


def meta_crc(seed: int, key: str, value: bytes) -> int:
    """Return the checksum of a meta value."""
    return crc32(value, crc32(key.encode() + b"\0", seed))


def stored(seed: int, last: int, wrote: int, rows: Sequence[LoggedRow]) -> list[StoredRow]:
    """Return rows ready to be stored after `last`; raise `JournalError` unless each follows the one before."""
    result = []
    for row in rows:
        if not follows(last, row):
            raise JournalError(
                f"row {describe(row.first)}..{describe(row.last)} does not follow {describe(last)}; not appended"
            )
        if len(row.body) > BODY_BYTES_MAX:
            size = len(row.body)
            raise JournalError(f"row {describe(row.first)} has {size:,} bytes; the limit is {BODY_BYTES_MAX:,}")
        result.append(StoredRow(row.first, row.last, last, wrote, row_crc(seed, last, row), row.body))
        last = row.last
    return result


def follows(last: int, row: LoggedRow) -> bool:
    """Return True if `row` may come after `last`: it has the next sequence, or opens a higher epoch."""
    if row.first == last + 1 <= row.last and row.last >> EPOCH_SHIFT == last >> EPOCH_SHIFT <= EPOCH_MAX:
        # This quick test finds nearly all rows.
        return True
    if not (last < row.first <= row.last) or epoch_of(row.last) > EPOCH_MAX:
        return False
    if epoch_of(row.first) != epoch_of(row.last):
        return False
    step = sequence_of(row.first) - sequence_of(last)
    return step == 1 or (step == 0 and epoch_of(row.first) > epoch_of(last))


def check_rows(rows: Iterable[StoredRow], seed: int, book: JournalMeta, counted: int = 0) -> Damage | None:
    """Walk rows in order, count those after `counted` into `book`, and return the first damage, or None."""
    book.last = book.since_bytes = 0
    prev: int | None = None
    for row in rows:
        what = _row_damage(row, prev, seed, book)
        if what:
            return Damage(_place(row), what, book.last)
        prev = row.last
        book.last = row.last
        if row.last > counted:
            book.rows += 1
            book.row_bytes += len(row.body)
        book.since_bytes += len(row.body) if row.last > book.snapshot_number else 0
    book.last = max(book.last, book.snapshot_number)
    return None


def _place(row: StoredRow) -> str:
    try:
        return f"row id {row.first}, numbers {describe(row.first)}..{describe(row.last)}"
    except (TypeError, ValueError):
        return f"row id {row.first}"


def is_sound(row: StoredRow, seed: int) -> bool:
    """Return True if a row is as it was stored; the rows around it do not matter."""
    return _content_damage(row, seed) is None


def _content_damage(row: StoredRow, seed: int) -> str | None:
    try:
        crc = row_crc(seed, row.prev, LoggedRow(row.first, row.last, row.body))
    # A column has another type than was stored.
    except (struct.error, TypeError):
        return "its columns are not numbers and bytes"
    return None if crc == row.crc else "its checksum does not match"


def _row_damage(row: StoredRow, prev: int | None, seed: int, book: JournalMeta) -> str | None:
    what = _content_damage(row, seed)
    if what:
        return what
    gap = row.prev > book.snapshot_number if prev is None else row.prev != prev
    if gap:
        before = describe(book.snapshot_number if prev is None else prev)
        return f"it follows {describe(row.prev)}, but what is before it ends at {before}: rows are missing"
    return None
