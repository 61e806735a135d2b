"""The table of messages in SQL: a row for the messages of each record in each topic.

    messages   id, topic, first, count, number, wall, crc, body      index: topic, first

`id` is a counter: with this key, rows are added at the end and deleted at the beginning, which costs nothing. The
checksum of a row covers all its columns and starts from the store, so that no row is taken for another. It is verified
when the row is read: there may be gigabytes, and a start does not wait for them.

Each sync deletes a piece of what is to be trimmed, as `Cleaner` does; the records tell the offsets below which messages
may go.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from ...core.state.journal import BODY_BYTES_MAX, MIB, JournalDamaged, JournalError
from ...core.state.missing_messages import Spans, spans_of
from ...core.state.record_log import LoggedMessages
from .database import Database, errors

# One sync deletes about this much.
TRIM_ROWS, TRIM_BYTES = 512, 8 * MIB
# This many rows are read at a time.
READ_ROWS = 64
ALL = "topic, first, count, number, wall, crc, body"

_HEAD = struct.Struct(">QQQQQ")
_AT = f"SELECT {ALL} FROM messages WHERE topic = ? AND first <= ? ORDER BY first DESC, id DESC LIMIT 1"
_AFTER = f"SELECT {ALL} FROM messages WHERE topic = ? AND first > ? ORDER BY first, id LIMIT ?"
_OLDEST = "SELECT id, first + count, length(body) FROM messages WHERE topic = ? ORDER BY first LIMIT ?"
_SPANS = "SELECT topic, first, count FROM messages WHERE number <= ? ORDER BY topic, first"
_PAGE = f"SELECT id, {ALL} FROM messages WHERE id > ? ORDER BY id LIMIT 256"


class MessageTable:
    """The table of messages of one journal; the next transaction writes `gathered`."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database, self._seed = database, seed
        self.gathered: list[LoggedMessages] = []
        self._floors: dict[int, int] = {}
        self._next_id = 0

    def open(self, last: int) -> bool:
        """Prepare for writing; return True if there are messages of records that are not history any more."""
        with errors(self._database):
            [(highest, beyond)] = self._database.run("SELECT max(id), max(number) FROM messages")
        self._next_id = (highest or 0) + 1
        return (beyond or 0) > last

    # -- writing, in the open transaction

    def keep(self, messages: Sequence[LoggedMessages]) -> None:
        """Add rows to `gathered`."""
        for row in messages:
            if len(row.body) > BODY_BYTES_MAX:
                size = len(row.body)
                raise JournalError(f"messages of one record have {size:,} bytes; the limit is {BODY_BYTES_MAX:,}")
        self.gathered += messages

    def write(self) -> None:
        """Insert the gathered rows."""
        if self.gathered:
            seed, first = self._seed, self._next_id
            rows = [(first + i, *row[:5], _crc(seed, row), row.body) for i, row in enumerate(self.gathered)]
            self._database.insert("messages", rows)
            self._next_id += len(rows)

    def drop_after(self, number: int) -> None:
        """Delete the messages of records after a number."""
        list(self._database.run("DELETE FROM messages WHERE number > ?", (number,)))

    def trim(self, floors: dict[int, int]) -> None:
        """Remember the offsets below which messages may go."""
        self._floors |= floors

    @property
    def due(self) -> bool:
        """True while messages are to be trimmed."""
        return bool(self._floors)

    def clean(self) -> None:
        """Delete a piece of one topic's messages that may go."""
        topic, floor = next(iter(self._floors.items()), (0, 0))
        size, dead = 0, []
        for row_id, end, length in list(self._database.run(_OLDEST, (topic, TRIM_ROWS))):
            if end > floor or size > TRIM_BYTES:
                break
            dead.append(row_id)
            size += length
        for row_id in dead:
            list(self._database.run("DELETE FROM messages WHERE id = ?", (row_id,)))
        if not dead:
            self._floors.pop(topic, None)

    # -- reading

    def read(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        found: list[LoggedMessages] = []
        size, limit = 0, 4
        with errors(self._database):
            page = list(self._database.run(_AT, (topic, offset)))
            after = offset
            while True:
                for row in map(self._checked, page):
                    after = max(after, row.first)
                    if row.end <= offset:
                        continue
                    if row.number > number or (found and size + len(row.body) > bytes_max):
                        return found
                    found.append(row)
                    size, offset = size + len(row.body), row.end
                if size >= bytes_max or (not page and limit > 4):
                    return found
                page = list(self._database.run(_AFTER, (topic, after, limit)))
                limit = READ_ROWS

    def _checked(self, stored: Sequence[Any]) -> LoggedMessages:
        topic, first, n, number, wall_ms, crc, body = stored
        try:
            row = LoggedMessages(topic, first, n, number, wall_ms, bytes(body))
            sound = _crc(self._seed, row) == crc
        except (struct.error, TypeError):
            sound = False
        if not sound:
            where = f"messages of topic number {topic} at offset {first}"
            raise JournalDamaged(f"{self._database.place}: {where}: their checksum does not match", where)
        return row

    def spans(self, number: int) -> Spans:
        with errors(self._database):
            return spans_of((int(a), int(b), int(c)) for a, b, c in self._database.run(_SPANS, (number,)))

    def pages(self) -> Iterator[tuple[Any, ...]]:
        """Yield all rows as they are stored, for a copy."""
        after, more = 0, True
        while more:
            more = False
            with errors(self._database):
                for row in list(self._database.run(_PAGE, (after,))):
                    more, after = True, int(row[0])
                    yield tuple(row)

    def problems(self) -> Iterator[str]:
        """Yield a text for each damaged row."""
        for _, *stored in self.pages():
            try:
                self._checked(stored)
            except JournalDamaged as error:
                yield str(error)


def _crc(seed: int, row: LoggedMessages) -> int:
    return crc32(row.body, crc32(_HEAD.pack(*row[:5]), seed))
