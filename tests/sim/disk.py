"""The disk under a server: the journal's interface, and what a crash leaves of it.

Operations gather until `sync`. Then they are durable. A crash keeps a random first part of what was not synced. It
tears the row after that part, which is gone because its checksum is wrong. A snapshot becomes valid at once or not at
all. The rule for consecutive rows is that of the real journal (`journal_rows.follows`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from chp.numbers import describe
from chp_server.core.state.journal import JournalError, JournalFull, LoadedJournal
from chp_server.core.state.missing_messages import Spans
from chp_server.core.state.record_log import LoggedMessages, LoggedRow
from chp_server.store.journal_rows import follows
from chp_server.store.memory_store import MessageShelf

Op = Callable[[], None]
# The bytes that a server keeps free on its disk (`disk_free_min`).
KEPT = 4 << 20
FREE = {
    "room": 1 << 30, "tight": KEPT + (1 << 19), "low": KEPT - (1 << 19), "little": KEPT // 4, "read-only": 0, "none": 0,
}  # fmt: skip


class Disk:
    """A server's journal, which outlives the server's process."""

    def __init__(self, durability: int = 1, snapshot_every: int = 0) -> None:
        self.durability = durability
        self.snapshot_every = snapshot_every
        self.rows: list[LoggedRow] = []
        self.snapshot: list[bytes] = []
        self.snapshot_number = 0
        # The number that the oldest row follows on.
        self._begin = 0
        self._open: list[Op] = []
        # The last number, including rows that are not synced.
        self._last = 0
        self._building: list[bytes] | None = None
        self._building_number = 0
        self._since_snapshot = 0
        self.torn = 0
        # The high-water mark, as beside the real journal, and the number below which it does not fall.
        self.mark = self._floor = 0
        self.free = "room"
        self._meta: dict[str, bytes] = {}
        self.shelf = MessageShelf()

    @property
    def measured(self) -> str:
        """The free space that a server measures. A disk runs full between two measurements, so "none" is never seen."""
        return "room" if self.free == "none" else self.free

    @property
    def unsynced(self) -> bool:
        """True if an operation waits for the next sync."""
        return bool(self._open)

    @property
    def number(self) -> int:
        """The last number on the disk."""
        return max(self.rows[-1].last if self.rows else 0, self.snapshot_number)

    # -- what the reactor calls

    def append(self, rows: Sequence[LoggedRow]) -> None:
        """Add rows to what the next sync makes durable."""
        for row in rows:
            if not follows(self._last, row):
                raise JournalError(f"row {describe(row.first)} does not follow {describe(self._last)}")
            self._last = row.last
            self._since_snapshot += 1
            self._open.append(lambda row=row: self.rows.append(row))  # type: ignore[misc]

    def sync(self) -> None:
        """Make all operations so far durable. Without room, forget them and raise `JournalFull`."""
        if self._open and self.free == "none":
            self._open.clear()
            self._last = self.number
            self.abort_snapshot()
            raise JournalFull("not a byte is free")
        for op in self._open:
            op()
        self._open.clear()
        self._move_mark()

    def _move_mark(self) -> None:
        self.mark = max(self.number, self._floor)

    def drop_after(self, number: int) -> int:
        """Discard rows after `number`, durably."""
        self.sync()
        if number < self.snapshot_number:
            raise JournalError(f"can't drop to {describe(number)}: the snapshot is at {describe(self.snapshot_number)}")
        before = len(self.rows)
        while self.rows and self.rows[-1].last > number:
            self.rows.pop()
        if self._building_number > number:
            self.abort_snapshot()
        self._last = self.number
        self.shelf.drop_after(number)
        self._move_mark()
        return before - len(self.rows)

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        """Return the synced rows after `number`, or None if they do not reach back to it."""
        if number == self.number:
            return []
        if number not in (self.snapshot_number, self._begin) and not any(row.last == number for row in self.rows):
            return None
        return [row for row in self.rows if row.last > number] or None

    def oldest(self) -> tuple[int, bool]:
        """Return the number that the oldest row follows on, and True, because no row after that number was deleted."""
        return self._begin, True

    def press(self, short: int) -> None:
        """Do nothing, because the free space of this disk does not depend on its rows."""

    def begin_snapshot(self, number: int) -> None:
        """Start a snapshot, and forget the one under way."""
        self._building, self._building_number = [], number

    def put_snapshot(self, body: bytes) -> None:
        """Add a chunk to the snapshot."""
        if self._building is None:
            raise JournalError("no snapshot is under way")
        self._building.append(body)

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        """Keep messages of records from the next sync on. A crash may leave messages without their record."""
        self._open.append(lambda: self.shelf.keep(messages))

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        """Return synced messages of a topic."""
        return self.shelf.read(topic, offset, number, bytes_max)

    def message_spans(self, number: int) -> Spans:
        """Return the spans of the synced messages."""
        return self.shelf.spans(number)

    def trim_messages(self, floors: dict[int, int]) -> None:
        """Drop messages below some offsets with the next sync, or at once if no operation waits for a sync."""
        if self._open:
            self._open.append(lambda: self.shelf.trim(floors))
        else:
            self.shelf.trim(floors)

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        """Make the new snapshot valid, and drop rows.

        Rows up to `keep_after` go. All rows go if the snapshot is beyond the last row, or if `alone` is set.
        """
        if self._building is None:
            raise JournalError("no snapshot is under way")
        if self.free == "none":
            raise JournalFull("not a byte is free")
        self.sync()
        number = self._building_number
        if alone or number > self._last:
            self.rows.clear()
            self._last = self._begin = number
        if alone:
            self.shelf.drop_after(shared)
        self.snapshot, self.snapshot_number = self._building, number
        self.rows = [row for row in self.rows if row.last > min(keep_after, number)]
        self._last = max(self._last, self.number)
        self._move_mark()
        self._building, self._since_snapshot = None, 0

    def abort_snapshot(self) -> None:
        """Forget the snapshot under way."""
        self._building = None

    def snapshot_due(self) -> bool:
        """Return True after `snapshot_every` rows. A disk without durability never needs a snapshot."""
        due = self.snapshot_every > 0 and self._since_snapshot >= self.snapshot_every
        return due and self.durability > 0 and self._building is None

    def get_meta(self, key: str) -> bytes | None:
        """Return a small value as it was last synced."""
        return self._meta.get(key)

    def set_meta(self, key: str, value: bytes) -> None:
        """Set a small value with the next sync."""
        self._open.append(lambda: self._meta.update({key: value}))

    def stats(self) -> dict[str, Any]:
        """Return the last number, which is all that the core looks at."""
        return {"number": self.number}

    def close(self) -> None:
        """Do nothing: a simulated disk has no open file."""

    def load(self) -> LoadedJournal:
        """Return what a restart finds."""
        self.shelf.drop_after(self.number)
        after = [row for row in self.rows if row.last > self.snapshot_number]
        self._floor = self.mark if self.mark > self.number else 0
        chunks = iter(list(self.snapshot))
        return LoadedJournal(self.number, self.snapshot_number, chunks, iter(after), "sim", marked=self._floor)

    # -- faults

    def crash(self, rng: random.Random) -> None:
        """Keep a random first part of what was not synced, because the process dies."""
        if self.durability == 0:
            self.wipe()
            return
        kept = rng.randint(0, len(self._open)) if self._open else 0
        self.torn += len(self._open) - kept
        for op in self._open[:kept]:
            op()
        self._open.clear()
        self._building = None
        self._last = self.number

    def shorten(self, n: int) -> None:
        """Drop the last rows, as if the log was restored from an earlier backup."""
        del self.rows[max(0, len(self.rows) - n) :]
        if self.snapshot_number > max((row.last for row in self.rows), default=0):
            # The next row does not follow on these. The journals check that, and readers begin after the hole.
            self.rows.clear()
            self._begin = self.snapshot_number
        self._last = self.number

    def wipe(self) -> None:
        """Lose all contents of the disk."""
        self.__init__(self.durability, self.snapshot_every)  # type: ignore[misc]  # says what empty means
