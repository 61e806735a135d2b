"""The journal of a server without a store: rows in memory, for clients that come back soon, and no recovery.

It has the interface of the other journals, so the reactor uses all of them alike. Snapshots are not kept, as their
state is in memory already. `durability` is 0: a server that runs alone acknowledges with "applied".
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from chp.numbers import describe

from ..core.state.journal import Journal, JournalError, LoadedJournal, Options
from ..core.state.missing_messages import Spans, spans_of
from ..core.state.record_log import LoggedMessages, LoggedRow
from .journal_rows import follows


class MessageShelf:
    """The messages of topics, by topic, in the order of their offsets."""

    def __init__(self) -> None:
        self._rows: dict[int, list[LoggedMessages]] = {}

    def keep(self, messages: Sequence[LoggedMessages]) -> None:
        """Add rows, nearly always at the end of their topic."""
        for row in messages:
            rows = self._rows.setdefault(row.topic, [])
            at = len(rows) if not rows or rows[-1].first < row.first else bisect_right(rows, row.first, key=_first)
            rows.insert(at, row)

    def read(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        rows = self._rows.get(topic, [])
        found: list[LoggedMessages] = []
        size = 0
        for row in rows[max(0, bisect_right(rows, offset, key=_first) - 1) :]:
            if row.end <= offset:
                continue
            if row.number > number or (found and size + len(row.body) > bytes_max):
                break
            found.append(row)
            size += len(row.body)
            offset = row.end
        return found

    def spans(self, number: int) -> Spans:
        topics = sorted(self._rows.items())
        return spans_of((r.topic, r.first, r.n) for _, rows in topics for r in rows if r.number <= number)

    def trim(self, floors: dict[int, int]) -> None:
        """Drop messages below these offsets at once."""
        for topic, floor in floors.items():
            kept = [row for row in self._rows.pop(topic, []) if row.end > floor]
            if kept:
                self._rows[topic] = kept

    def drop_after(self, number: int) -> None:
        """Drop messages of records after a number."""
        for topic, rows in list(self._rows.items()):
            self._rows[topic] = [row for row in rows if row.number <= number]


def _first(row: LoggedMessages) -> int:
    return row.first


class MemoryStore(Journal):
    """A journal in memory only."""

    durability = 0

    def __init__(self, url: str, options: Options) -> None:
        self._retain_bytes = options.retain_bytes
        # The rows, each with the number that it follows.
        self._rows: deque[tuple[int, LoggedRow]] = deque()
        self._bytes = 0
        self._last = 0
        # The number at which the last snapshot ended. No record has parts on both sides of it.
        self._floor = 0
        self._meta: dict[str, bytes] = {}
        self._building: int | None = None
        self._shelf = MessageShelf()

    def append(self, rows: Sequence[LoggedRow]) -> None:
        """Keep the rows, and drop the oldest when they have too many bytes."""
        last = self._last
        for row in rows:
            if not follows(last, row):
                raise JournalError(f"row {describe(row.first)} does not follow {describe(last)}; not appended")
            last = row.last
        for row in rows:
            self._rows.append((self._last, row))
            self._bytes += len(row.body)
            self._last = row.last
        while self._bytes > self._retain_bytes and self._rows:
            self._forget_oldest()

    def sync(self) -> None:
        """Do nothing, as there is no disk to wait for."""

    def load(self) -> LoadedJournal:
        """Return an empty journal."""
        return LoadedJournal(self._last, 0, iter(()), iter(()), "memory: nothing is kept from run to run")

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        if number >= self._last:
            return [] if number == self._last else None
        found: list[LoggedRow] = []
        size = 0
        for prev, row in self._rows:
            if row.last <= number:
                continue
            if not found and not (prev == number or row.first <= number):
                return None
            if found and size + len(row.body) > bytes_max:
                break
            found.append(row)
            size += len(row.body)
        return found or None

    def oldest(self) -> tuple[int, bool]:
        begin = self._rows[0][0] if self._rows else self._last
        return begin, begin <= self._floor

    def press(self, short: int) -> None:
        """Do nothing, as no disk is used."""

    def drop_after(self, number: int) -> int:
        dropped = 0
        while self._rows and self._rows[-1][1].last > number:
            self._last, row = self._rows.pop()
            self._bytes -= len(row.body)
            dropped += 1
        self._shelf.drop_after(number)
        return dropped

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        self._shelf.keep(messages)

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        return self._shelf.read(topic, offset, number, bytes_max)

    def message_spans(self, number: int) -> Spans:
        return self._shelf.spans(number)

    def trim_messages(self, floors: dict[int, int]) -> None:
        self._shelf.trim(floors)

    def begin_snapshot(self, number: int) -> None:
        """Note the number of the snapshot: if it is beyond the last row, the next row has to follow it."""
        self._building = number

    def put_snapshot(self, body: bytes) -> None:
        """Drop a chunk, as snapshots are not kept."""
        if self._building is None:
            raise JournalError("no snapshot is under way; call begin_snapshot first")

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        if self._building is None:
            raise JournalError("no snapshot is under way; call begin_snapshot first")
        if alone:
            self._rows.clear()
            self._bytes = 0
            self._shelf.drop_after(shared)
        if alone or self._building > self._last:
            self._last = self._floor = keep_after = self._building
        while self._rows and self._rows[0][1].last <= min(keep_after, self._building):
            self._forget_oldest()
        self._building = None

    def abort_snapshot(self) -> None:
        self._building = None

    def get_meta(self, key: str) -> bytes | None:
        return self._meta.get(key)

    def set_meta(self, key: str, value: bytes) -> None:
        self._meta[key] = value

    def snapshot_due(self) -> bool:
        """Return False, as a snapshot would gain nothing."""
        return False

    def stats(self) -> dict[str, int | float | str]:
        return {"store": "memory", "rows": len(self._rows), "row_bytes": self._bytes, "number": self._last}

    def close(self) -> None:
        """Do nothing, as no file is open."""

    def _forget_oldest(self) -> None:
        _, row = self._rows.popleft()
        self._bytes -= len(row.body)
