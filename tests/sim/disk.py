"""The disk under a server: the journal's interface, and what is left of it after a crash.

Operations gather until `sync`; then they are on the disk for good. A crash keeps a first part of what was not synced,
chosen by chance, and tears the row after it, which its checksum shows: it is gone. A snapshot becomes valid at once or
not at all. The rules for rows that follow on are the real journal's (`journal_rows.follows`).
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
KEPT = 4 << 20  # bytes that are to stay free
FREE = {
    "room": 1 << 30, "tight": KEPT + (1 << 19), "low": KEPT - (1 << 19), "little": KEPT // 4, "read-only": 0, "none": 0,
}  # fmt: skip


class Disk:
    """One server's journal; it outlives the server."""

    def __init__(self, durability: int = 1, snapshot_every: int = 0) -> None:
        self.durability = durability
        self.snapshot_every = snapshot_every
        self.rows: list[LoggedRow] = []
        self.snapshot: list[bytes] = []
        self.snapshot_number = 0
        self._open: list[Op] = []
        self._last = 0  # with what is not synced
        self._building: list[bytes] | None = None
        self._building_number = 0
        self._since_snapshot = 0
        self.torn = 0
        self.mark = self._floor = 0  # how far it had been, as beside the real journal; and what it does not go below
        self.free = "room"
        self._meta: dict[str, bytes] = {}
        self.shelf = MessageShelf()

    @property
    def measured(self) -> str:
        """What a server sees of it: the last byte goes between two looks."""
        return "room" if self.free == "none" else self.free

    @property
    def unsynced(self) -> bool:
        """Whether something waits for the next sync."""
        return bool(self._open)

    @property
    def number(self) -> int:
        """The last number that is on the disk."""
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
        """Everything so far is durable; or, without room, none of it, and it is forgotten."""
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
        self.abort_snapshot()
        self._last = self.number
        self.shelf.drop_after(number)
        self._move_mark()
        return before - len(self.rows)

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        """Synced rows after `number`; None when they don't reach back to it."""
        if number == self.number:
            return []
        if number != self.snapshot_number and not any(row.last == number for row in self.rows):
            return None
        return [row for row in self.rows if row.last > number] or None

    def begin_snapshot(self, number: int) -> None:
        """Start one; the one under way is forgotten."""
        self._building, self._building_number = [], number

    def put_snapshot(self, body: bytes) -> None:
        """Add a chunk."""
        if self._building is None:
            raise JournalError("no snapshot is under way")
        self._building.append(body)

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        """Messages of records, with the next sync; what a crash leaves of it may be without its record."""
        self._open.append(lambda: self.shelf.keep(messages))

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        """What was synced."""
        return self.shelf.read(topic, offset, number, bytes_max)

    def message_spans(self, number: int) -> Spans:
        """What was synced."""
        return self.shelf.spans(number)

    def trim_messages(self, floors: dict[int, int]) -> None:
        """With the next sync; at once, if nothing waits for that: these need not be kept by what is on the disk."""
        if self._open:
            self._open.append(lambda: self.shelf.trim(floors))
        else:
            self.shelf.trim(floors)

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        """It becomes the snapshot; rows up to `keep_after` go, or all if it is beyond the last, or to be alone."""
        if self._building is None:
            raise JournalError("no snapshot is under way")
        if self.free == "none":
            raise JournalFull("not a byte is free")
        self.sync()
        number = self._building_number
        if alone or number > self._last:
            self.rows.clear()
            self._last = number
        if alone:
            self.shelf.drop_after(shared)
        self.snapshot, self.snapshot_number = self._building, number
        self.rows = [row for row in self.rows if row.last > min(keep_after, number)]
        self._last = max(self._last, self.number)
        self._move_mark()
        self._building, self._since_snapshot = None, 0

    def abort_snapshot(self) -> None:
        """Forget the one under way."""
        self._building = None

    def snapshot_due(self) -> bool:
        """Every so many rows; never, as for the store in memory, if nothing is kept."""
        due = self.snapshot_every > 0 and self._since_snapshot >= self.snapshot_every
        return due and self.durability > 0 and self._building is None

    def get_meta(self, key: str) -> bytes | None:
        """A small value, as synced last."""
        return self._meta.get(key)

    def set_meta(self, key: str, value: bytes) -> None:
        """A small value, with the next sync."""
        self._open.append(lambda: self._meta.update({key: value}))

    def stats(self) -> dict[str, Any]:
        """The last number is all that is looked at."""
        return {"number": self.number}

    def close(self) -> None:
        """Nothing is open."""

    def load(self) -> LoadedJournal:
        """What a restart finds."""
        self.shelf.drop_after(self.number)
        after = [row for row in self.rows if row.last > self.snapshot_number]
        self._floor = self.mark if self.mark > self.number else 0
        chunks = iter(list(self.snapshot))
        return LoadedJournal(self.number, self.snapshot_number, chunks, iter(after), "sim", marked=self._floor)

    # -- faults

    def crash(self, rng: random.Random) -> None:
        """The process dies: a first part of what was not synced stays."""
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
        """The last rows are gone, as from a log that was put back from an earlier moment."""
        del self.rows[max(0, len(self.rows) - n) :]
        self._last = self.number

    def wipe(self) -> None:
        """The disk is lost."""
        self.__init__(self.durability, self.snapshot_every)  # type: ignore[misc]  # says what empty means
