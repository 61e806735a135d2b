"""The table of messages in SQL: what records have placed in topics, a row for each record and topic.

    messages   id, topic, first, count, number, wall, crc, body      index: topic, first

`id` only counts: with it as the key, rows go in at the end and out at the beginning, which costs nothing. A row's
checksum is of all that it says, and starts from the store, so that no row passes for another. It is looked at when the
row is read: there may be gigabytes, and a start does not wait for them.

What is trimmed goes a piece in each sync, as in cleaning.py; which offsets are below which floor the records tell.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from ...core.state.journal import BODY_BYTES_MAX, MIB, JournalDamaged, JournalError
from ...core.state.missing_messages import Spans, spans_of
from ...core.state.record_log import LoggedMessages
from .database import Database, errors

TRIM_ROWS, TRIM_BYTES = 512, 8 * MIB  # deleted in one sync, about
READ_ROWS = 64  # at a time
ALL = "topic, first, count, number, wall, crc, body"

_HEAD = struct.Struct(">QQQQQ")
_AT = f"SELECT {ALL} FROM messages WHERE topic = ? AND first <= ? ORDER BY first DESC, id DESC LIMIT 1"
_AFTER = f"SELECT {ALL} FROM messages WHERE topic = ? AND first > ? ORDER BY first, id LIMIT ?"
_OLDEST = "SELECT id, first + count, length(body) FROM messages WHERE topic = ? ORDER BY first LIMIT ?"
_SPANS = "SELECT topic, first, count FROM messages WHERE number <= ? ORDER BY topic, first"
_PAGE = f"SELECT id, {ALL} FROM messages WHERE id > ? ORDER BY id LIMIT 256"


class MessageTable:
    """See the module; `gathered` is written with the next transaction."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database, self._seed = database, seed
        self.gathered: list[LoggedMessages] = []
        self._floors: dict[int, int] = {}
        self._next_id = 0

    def open(self, last: int) -> bool:
        """At the start: whether there are messages of records that are not history any more."""
        with errors(self._database):
            [(highest, beyond)] = self._database.run("SELECT max(id), max(number) FROM messages")
        self._next_id = (highest or 0) + 1
        return (beyond or 0) > last

    # -- writing, in the open transaction

    def keep(self, messages: Sequence[LoggedMessages]) -> None:
        """Add rows to what is gathered."""
        for row in messages:
            if len(row.body) > BODY_BYTES_MAX:
                size = len(row.body)
                raise JournalError(f"messages of one record have {size:,} bytes; the limit is {BODY_BYTES_MAX:,}")
        self.gathered += messages

    def write(self) -> None:
        """Insert what was gathered."""
        if self.gathered:
            seed, first = self._seed, self._next_id
            rows = [(first + i, *row[:5], _crc(seed, row), row.body) for i, row in enumerate(self.gathered)]
            self._database.insert("messages", rows)
            self._next_id += len(rows)

    def drop_after(self, number: int) -> None:
        """Delete what records after a number have placed."""
        list(self._database.run("DELETE FROM messages WHERE number > ?", (number,)))

    def trim(self, floors: dict[int, int]) -> None:
        """Remember what may go."""
        self._floors |= floors

    @property
    def due(self) -> bool:
        """Whether something is to be trimmed."""
        return bool(self._floors)

    def clean(self) -> None:
        """Delete a piece of one topic."""
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
        """As `Journal.read_messages`."""
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
        """As `Journal.message_spans`."""
        with errors(self._database):
            return spans_of((int(a), int(b), int(c)) for a, b, c in self._database.run(_SPANS, (number,)))

    def pages(self) -> Iterator[tuple[Any, ...]]:
        """All rows as they are stored, for a copy."""
        after, more = 0, True
        while more:
            more = False
            with errors(self._database):
                for row in list(self._database.run(_PAGE, (after,))):
                    more, after = True, int(row[0])
                    yield tuple(row)

    def problems(self) -> Iterator[str]:
        """What is damaged."""
        for _, *stored in self.pages():
            try:
                self._checked(stored)
            except JournalDamaged as error:
                yield str(error)


def _crc(seed: int, row: LoggedMessages) -> int:
    return crc32(row.body, crc32(_HEAD.pack(*row[:5]), seed))
