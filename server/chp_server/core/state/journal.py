"""The journal: what a server must find again after it fell, and the interface all stores have.

    append(rows) .. put_snapshot .. set_meta      gathered in memory, in order
    keep_messages(messages)                        the same of messages that records have placed
    sync()                                         one transaction for the whole turn; returns when it is durable
    load()                                         snapshot, then the rows after it, verified before they are handed out

A row is one record: the numbers `first..last` it covers, and a body nobody here looks into. Numbers are unsigned 64
bit on the wire (epoch << 48 | sequence); epochs stay below 32,768, so stores hold them as signed 64-bit integers.

Rules:
- Rows follow on: the sequence of `first` is one more than that of the last row, or the epoch is higher. Each row
  also keeps the number it followed, under its checksum, so a row that went missing is noticed, not guessed over.
- After an error nothing of the open transaction is in the journal, and a snapshot under way is abandoned. Where the
  disk's answer can't be trusted (a failed fsync, a lost connection) nothing is written until it is opened again.
- A snapshot becomes the snapshot in one transaction. Rows it made superfluous go a few at a time, in later syncs;
  so call `sync` at every heartbeat too: with nothing to do it costs nothing.
- A journal that ends before its mark (journal_mark.py) has been cut short, however sound it looks: that is damage too.
- Damage is never guessed over: `recover="strict"` refuses to open and names the place, `"prefix"` keeps what is
  before it, sets the rest aside (moved, not deleted) and says how much that was.
- `durability` is what an acknowledgement says without a passive: 1 only when `sync` waits for the disk
  (`sync="always"`).

One thread uses a journal. One server owns one: a lock that ends with the process holds others off.
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
BODY_BYTES_MAX = 64 * MIB  # several batches of 16 MiB may gather in one turn
META_BYTES_MAX = MIB  # meta values are written whole, so they must stay small
SYNC_MODES = ("always", "interval", "off")
RECOVER_MODES = ("strict", "prefix")

CUT_SHORT = (
    "it ends at {last}, and its mark says that it had been at {mark}: what came after is missing; let the other server "
    "send its state, restore a backup, or start with --recover prefix to go on without it"
)


class JournalError(ChpError):
    """The journal can't do what was asked; the text names the store, the reason and the remedy."""


class JournalLocked(JournalError):
    """Another server, alive, owns this journal."""


class JournalDamaged(JournalError):
    """Something stored is not what was written; `place` says where."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class JournalFull(JournalError):
    """No room. The journal is as it was at the last sync; free some room and append again."""


class JournalReadOnly(JournalError):
    """The store can't be written to."""


class WrongStore(JournalError):
    """A journal, but not of this server; or no journal of ours at all."""


@dataclass(frozen=True)
class LoadedJournal:
    """What `load` found. Use up both iterators before the next `append`; each can be walked once."""

    number: int  # of the last row, or of the snapshot when there is none after it; 0 in an empty journal
    snapshot_number: int  # 0 when there is no snapshot
    snapshot: Iterator[bytes]  # the chunks, as they were put
    rows: Iterator[LoggedRow]  # those after the snapshot
    report: str  # one line for the log
    rows_aside: int = 0  # rows set aside by recover="prefix"; -1 when they could not be counted
    marked: int = 0  # a number that it had been at, beyond `number`: the peer's to tell what is missing (`catch_up`)
    seen_epoch: int = 0  # no epoch up to here may be opened: its numbers may have been issued, and set aside


@dataclass
class Report:
    """What `verify` found; `line()` is for people."""

    url: str
    store_id: str = ""
    snapshot_number: int = 0
    snapshot_bytes: int = 0
    rows: int = 0
    bytes: int = 0
    number: int = 0
    problems: list[str] = field(default_factory=list)
    read: bool = True  # False: it could not be looked at, which says nothing about it

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def line(self) -> str:
        """The report in one line."""
        if not self.read:
            return f"{self.url}: not checked: {'; '.join(self.problems)}"
        what = (
            f"snapshot {describe(self.snapshot_number)} ({self.snapshot_bytes:,} bytes), {self.rows:,} rows"
            f" ({self.bytes:,} bytes) up to {describe(self.number)}"
        )
        return f"{self.url}: {'sound' if self.ok else 'DAMAGED: ' + '; '.join(self.problems)}: {what}"


def cut_short(last: int, mark: int) -> str:
    """What is wrong with a journal that ends before its mark, and what can be done."""
    return CUT_SHORT.format(last=describe(last), mark=describe(mark))


class Journal(Protocol):
    """What the reactor knows of a store."""

    durability: int

    def append(self, rows: Sequence[LoggedRow]) -> None:
        """Add rows to the open transaction; `JournalError` (and none of them added) unless they follow on."""

    def sync(self) -> None:
        """Commit the open transaction; return when it is as durable as was asked for."""

    def load(self) -> LoadedJournal:
        """Verify everything, then hand out the snapshot and the rows after it."""

    def read_after(self, number: int, bytes_max: int) -> list[LoggedRow] | None:
        """Synced rows after `number`, at least one if there is any; None when they don't reach back to it.

        None too when `number` is not a place in this history (the end of a record that was dropped, say).
        """

    def drop_after(self, number: int) -> int:
        """Discard the rows after `number`, which are not history, durably; how many they were.

        A snapshot under way of a state beyond `number` is abandoned, an earlier one goes on. Below the snapshot
        nothing can be dropped (`JournalError`): a whole snapshot of the other server replaces everything.
        """

    def begin_snapshot(self, number: int) -> None:
        """Start a snapshot of the state at `number`; one that was under way is abandoned."""

    def put_snapshot(self, body: bytes) -> None:
        """Add a chunk to the snapshot under way."""

    def commit_snapshot(self, keep_after: int, *, alone: bool = False, shared: int = 0) -> None:
        """Make it the snapshot, durably. Rows up to `keep_after` (never beyond the snapshot) will be deleted.

        With `alone` all rows go, whatever their numbers: they are of another history; and messages beyond `shared`.
        """

    def keep_messages(self, messages: Sequence[LoggedMessages]) -> None:
        """Add messages to the open transaction: of a topic in their order, or filling a gap."""

    def read_messages(self, topic: int, offset: int, number: int, bytes_max: int) -> list[LoggedMessages]:
        """Synced messages of a topic, those at `offset` and after it, of records up to `number`.

        At least one row if there is one; the first may begin before `offset`, or after it if what is there is missing.
        """

    def message_spans(self, number: int) -> Spans:
        """Which offsets of which topics are here, of records up to `number`; only what was synced."""

    def trim_messages(self, floors: dict[int, int]) -> None:
        """Messages of a topic below an offset need not be kept: they go piece by piece, in later syncs."""

    def abort_snapshot(self) -> None:
        """Forget the snapshot under way, if any; the one before stays."""

    def get_meta(self, key: str) -> bytes | None:
        """A small value by name, as set last."""

    def set_meta(self, key: str, value: bytes) -> None:
        """Set a small value in the open transaction. Names that begin with "chp." are the journal's own."""

    def snapshot_due(self) -> bool:
        """Whether the rows after the snapshot have grown so much that a new one is worth its bytes."""

    def stats(self) -> dict[str, int | float | str]:
        """Sizes and times, for status and metrics."""

    def close(self) -> None:
        """Let go of the store, without a sync of what was not synced. Twice is fine."""


@dataclass(frozen=True)
class Options:
    """The options of a journal; see `store_url.open_journal`."""

    sync: str = Config.sync
    recover: str = Config.recover
    retain_bytes: int = Config.retain_bytes
    retain_s: float = Config.retain_s
    interval_s: float = 1.0
    store_id: bytes | None = None
    catch_up: bool = False  # a journal that was cut short is loaded all the same: the peer may have the rest
    mark: bool = True  # keep one beside the journal (journal_mark.py)

    def __post_init__(self) -> None:
        if self.sync not in SYNC_MODES:
            raise JournalError(f"sync={self.sync!r} is not a mode; use one of {', '.join(SYNC_MODES)}")
        if self.recover not in RECOVER_MODES:
            raise JournalError(f"recover={self.recover!r} is not a mode; use one of {', '.join(RECOVER_MODES)}")
