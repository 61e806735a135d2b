"""The tables of a journal in SQL, and the statements on them.

    rows    first, last, prev, wrote, crc, body      one record each
    chunks  id = serial << 32 | part, crc, body      of the snapshot, of one under way, of old ones not yet deleted
    messages                                         of topics (sql_messages.py)
    meta    key, value, crc                          "chp.store" (id), "chp.book" (`JournalMeta`), the server's own

Readers read page by page, so none of them keeps a transaction open.
"""

from collections.abc import Iterator
from typing import Any

from ...core.state.journal import MIB, JournalDamaged
from ..journal_rows import JournalMeta, StoredRow, meta_crc, stored_row
from .database import Database, errors

# The bytes that are read at a time.
PAGE_BYTES = 4 * MIB
TOP = (1 << 63) - 1
COLUMNS = {
    "rows": "first, last, prev, wrote, crc, body", "chunks": "id, crc, body", "meta": "key, value, crc",
    "messages": "id, topic, first, count, number, wall, crc, body",
}  # fmt: skip

_META_SET = (
    "INSERT INTO meta (key, value, crc) VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_ROWS = "SELECT first, last, prev, wrote, crc, body FROM rows WHERE first > ? AND first <= ? ORDER BY first LIMIT ?"
_AT = "SELECT first, last, prev, wrote, crc, body FROM rows WHERE first <= ? AND first > ? ORDER BY first DESC LIMIT 1"
_CHUNKS = "SELECT id, crc, body FROM chunks WHERE id > ? AND id < ? ORDER BY id LIMIT 4"


def read_meta(database: Database) -> list[tuple[Any, ...]]:
    """Return all small values, as stored."""
    return list(database.run("SELECT key, value, crc FROM meta"))


def write_meta(database: Database, seed: int, values: dict[str, bytes]) -> None:
    """Set small values, in the open transaction."""
    for key, value in values.items():
        list(database.run(_META_SET, (key, value, meta_crc(seed, key, value))))


def highest_serial(database: Database) -> int:
    """Return the serial of the newest snapshot that has a chunk."""
    found = list(database.run("SELECT id FROM chunks ORDER BY id DESC LIMIT 1"))
    return int(found[0][0]) >> 32 if found else 0


def chunks(database: Database, book: JournalMeta) -> Iterator[tuple[int, int, bytes]]:
    """Yield the chunks of the snapshot, in order."""
    key, end = (book.serial << 32) - 1, (book.serial + 1) << 32
    more = book.serial > 0
    while more:
        more = False
        with errors(database):
            for found in list(database.run(_CHUNKS, (key, end))):
                more, key = True, found[0]
                if not isinstance(found[2], bytes | memoryview):
                    raise JournalDamaged(f"{database.place}: chunk id {key}: its body is not bytes", f"chunk id {key}")
                yield key, found[1], bytes(found[2])


def pages(database: Database, after: int, end: int = TOP) -> Iterator[StoredRow]:
    """Yield rows with after < first <= end, in order, reading some megabytes at a time."""
    limit = 16
    while True:
        got = size = 0
        with errors(database):
            for record in database.run(_ROWS, (after, end, limit)):
                row = stored_row(record)
                after, got, size = row.first, got + 1, size + (len(row.body) if isinstance(row.body, bytes) else 0)
                yield row
        if got < limit:
            return
        limit = max(8, min(4096, PAGE_BYTES * limit // (size + 1)))


def row_at(database: Database, number: int, floor: int = 0) -> StoredRow | None:
    """Return the last row with floor < first <= number: `number` lies in it or after it."""
    found = list(database.run(_AT, (number, floor)))
    return stored_row(found[0]) if found else None


def last_key(database: Database, number: int, floor: int = 0) -> int:
    """Return the key after which all rows end after a number; no earlier row does."""
    across = row_at(database, number, floor)
    # A damaged column may have another type.
    if across is not None and type(across.last) is int and across.last > number:
        return across.first - 1
    return max(number, floor)


def count(database: Database, where: str, number: int) -> tuple[int, int]:
    """Return the number of rows that match a condition, and their bytes."""
    [(rows, size)] = database.run(f"SELECT count(*), sum(length(body)) FROM rows WHERE {where} ?", (number,))
    return int(rows), int(size or 0)


def delete(database: Database, where: str, number: int) -> None:
    """Delete the rows that match a condition."""
    list(database.run(f"DELETE FROM rows WHERE {where} ?", (number,)))
