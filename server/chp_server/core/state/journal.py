"""The journal: what a server must find again after it stopped, and the interface that all stores have.

    append(rows), put_snapshot, set_meta    gather rows, chunks and values in memory, in order
    keep_messages(messages)                 gathers messages of topics
    sync()                                  commits all that was gathered in one transaction; returns when it is durable
    load()                                  verifies everything, then returns the snapshot and the rows after it

A row is one record: the numbers `first..last` that it covers, and a body that the journal does not
look into. Numbers are unsigned 64 bit on the wire (epoch << 48 | sequence). Epochs stay below 32,768,
so stores keep numbers as signed 64 bit.

Rules:
- Rows follow on: the sequence of `first` is one more than that of the last row's `last`, or the epoch is higher.
  Each row also keeps the number that it followed, under its checksum. So the journal notices a missing row.
- After an error nothing of the open transaction is in the journal, and a snapshot under way is abandoned. If the disk's
  answer can't be trusted (a failed fsync, a lost connection), nothing is written until the journal is opened again.
- A snapshot replaces the earlier snapshot in one transaction. The rows that it covers are deleted a few at a time, in
  later syncs. So call `sync` at every heartbeat too; it costs nothing if there is nothing to do.
- A journal that ends before its high-water mark (journal_mark.py) was cut short. This is damage, even if the remaining
  rows are sound.
- The journal never guesses damaged contents: `recover="strict"` refuses to open, and names the place. `"prefix"` keeps
  the rows before the damage, sets the rest aside (moved, not deleted), and says how many rows these were.
- `durability` is what an acknowledgement of a server without a passive promises. It is 1 (journaled) only if `sync`
  waits for the disk (`sync="always"`).

One thread uses a journal. One server owns it: a lock that ends with the process keeps other servers out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chp.errors import ChpError
from chp.numbers import describe

from ...settings.config import Config
from .missing_messages import Spans
from .record_log import LoggedMessages, LoggedRow

MIB = 1 << 20
# The largest body of a row. It is above 16 MiB, because a turn may gather several batches of that size.
BODY_BYTES_MAX = 64 * MIB
# Meta values are written whole, so they must stay small.
META_BYTES_MAX = MIB
SYNC_MODES = ("always", "interval", "off")
RECOVER_MODES = ("strict", "prefix")

CUT_SHORT = (
    "it ends at {last}, and its mark says that it had been at {mark}: what came after is missing; let the other server "
    "send its state, restore a backup, or start with --recover prefix to go on without it"
)


class JournalError(ChpError):
    """An error of the journal; its text names the store, the reason and the remedy."""


class JournalLocked(JournalError):
    """Another server that is alive owns this journal."""


class JournalDamaged(JournalError):
    """Stored bytes differ from what was written; `place` says where."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class RetainedDamaged(JournalDamaged):
    """Rows that the snapshot covers are damaged. Only log reads need such rows; the journal reads them no more."""


class JournalFull(JournalError):
    """The store has no room. The journal is as it was at the last sync; free some room and append again."""


class JournalReadOnly(JournalError):
    """The store can't be written to."""


class WrongStore(JournalError):
    """The store is the journal of another server, or no CHP journal."""


@dataclass(frozen=True)
class LoadedJournal:
    """A journal as `load` found it. Use up both iterators before the next `append`; each can be walked once."""

    # The number of the last row, or of the snapshot if there is no row after it; 0 in an empty journal.
    number: int
    # 0 if there is no snapshot.
    snapshot_number: int
    # The chunks of the snapshot, as they were put.
    snapshot: Iterator[bytes]
    # The rows after the snapshot.
    rows: Iterator[LoggedRow]
    # One line for the log.
    report: str
    # Rows that recover="prefix" set aside; -1 if they could not be counted.
    rows_aside: int = 0
    # The number of the high-water mark, if the journal ends before it. The peer may have the missing rows (`catch_up`).
    marked: int = 0
    # The highest epoch that may have been issued in rows set aside; the next epoch must be above it.
    seen_epoch: int = 0


@dataclass
class Report:
    """The result of `verify`; `line()` is for people."""

    url: str
    store_id: str = ""
    snapshot_number: int = 0
    snapshot_bytes: int = 0
    rows: int = 0
    bytes: int = 0
    number: int = 0
    problems: list[str] = field(default_factory=list)
    # False if the journal could not be read; that says nothing about its contents.
    read: bool = True

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    def line(self) -> str:
        """Return the report in one line."""
        if not self.read:
            return f"{self.url}: not checked: {'; '.join(self.problems)}"
        what = (
            f"snapshot {describe(self.snapshot_number)} ({self.snapshot_bytes:,} bytes), {self.rows:,} rows"
            f" ({self.bytes:,} bytes) up to {describe(self.number)}"
        )
        return f"{self.url}: {'sound' if self.ok else 'DAMAGED: ' + '; '.join(self.problems)}: {what}"


def cut_short(last: int, mark: int) -> str:
    """Return the text for a journal that ends before its mark: what is wrong, and what an operator can do."""
    return CUT_SHORT.format(last=describe(last), mark=describe(mark))


class Journal(Protocol):
    """The part of a store that the reactor uses."""

    durability: int

    def append(self, rows: Sequence[LoggedRow]) -> None:
        """Add rows to the open transaction. If the rows do not follow on, add none of them and raise `JournalError`."""

    def sync(self) -> None:
        """Commit the open transaction; return when it is as durable as the options ask for."""

    def load(self) -> LoadedJournal:
        """Verify everything, then hand out the snapshot and the rows after it."""

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        """Return synced rows after `number`, at least one if there is any; None if the rows don't reach back to it.

        Also return None if `number` is not a place in this history, such as the end of a record that was dropped. Raise
        `RetainedDamaged` if a row that the snapshot covers is damaged; the journal reads this and earlier rows no more.
        """

    def oldest(self) -> tuple[int, bool]:
        """Return the number that the oldest retained row follows on, and whether a record surely begins there.

        A record in parts has several rows, and the first of them may be deleted. Without rows, return the last number.
        """

    def press(self, short: int) -> None:
        """Let later syncs delete rows that are covered but still retained, because the disk lacks `short` bytes.

        With `short` 0 they retain rows again. Free room inside the journal's file counts as room.
        """

    def drop_after(self, number: int) -> int:
        """Discard the rows after `number`, which are not history, durably; return their count.

        A snapshot under way is abandoned if its state is beyond `number`, and else goes on. Raise `JournalError` if
        `number` is below the journal's snapshot: then the other server must send a whole state, which replaces all.
        """

    def begin_snapshot(self, number: int) -> None:
        """Start a snapshot of the state at `number`; one that was under way is abandoned."""

    def put_snapshot(self, body: bytes) -> None:
        """Add a chunk to the snapshot under way."""

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        """Make the snapshot under way the current one, durably. Rows up to `keep_after` will be deleted.

        `keep_after` is never beyond the snapshot. With `alone` all rows are deleted, whatever their numbers, because
        they are of another history. Messages of records beyond the number `shared` are deleted too.
        """

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        """Add messages to the open transaction. The messages of a topic come in order, or fill a gap."""

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        """Return synced messages of a topic from `offset` on, of records up to `number`.

        Return at least one row if there is one. The first row may begin before `offset`, or, if messages are missing,
        after it.
        """

    def message_spans(self, number: int) -> Spans:
        """Return the spans of offsets of each topic whose messages are synced and of records up to `number`."""

    def trim_messages(self, floors: dict[int, int]) -> None:
        """Allow the journal to delete the messages of each topic below an offset, piece by piece, in later syncs."""

    def abort_snapshot(self) -> None:
        """Forget the snapshot under way, if there is one; the current snapshot stays."""

    def get_meta(self, key: str) -> bytes | None:
        """Return a small value by its name, as it was set last."""

    def set_meta(self, key: str, value: bytes) -> None:
        """Set a small value in the open transaction. Names that begin with "chp." are the journal's own."""

    def snapshot_due(self) -> bool:
        """Return whether the rows after the snapshot have grown so much that a new snapshot is worth its cost."""

    def stats(self) -> dict[str, int | float | str]:
        """Return sizes and times, for status and metrics."""

    def close(self) -> None:
        """Close the store without a sync. A second call does nothing."""


@dataclass(frozen=True)
class Options:
    """The options of a journal; see `store_url.open_journal`."""

    sync: str = Config.sync
    recover: str = Config.recover
    retain_bytes: int = Config.retain_bytes
    retain_s: float = Config.retain_s
    interval_s: float = 1.0
    store_id: bytes | None = None
    # True: load a journal even if it was cut short, because the peer may have the rest.
    catch_up: bool = False
    # Keep a high-water mark beside the journal (journal_mark.py).
    mark: bool = True
    # Reserve the full size of a log file, so that commits do not make the file longer.
    reserve_log: bool = False

    def __post_init__(self) -> None:
        if self.sync not in SYNC_MODES:
            raise JournalError(f"sync={self.sync!r} is not a mode; use one of {', '.join(SYNC_MODES)}")
        if self.recover not in RECOVER_MODES:
            raise JournalError(f"recover={self.recover!r} is not a mode; use one of {', '.join(RECOVER_MODES)}")
