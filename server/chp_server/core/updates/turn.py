"""What a turn of the server must do, and in which order: the fields are the durability contract.

A turn drains a bounded number of messages, decides, and hands the reactor one `Turn`. The reactor performs it from the
first field to the last:

    0  saves        what turned out not to be history, to a file of its own, before the journal forgets it
    1  to_peer      records for the passive: it writes while we write
    2  deliveries   messages of topics: both journals have had them since before the turn, so they wait for no sync
    3  journal      what becomes durable, then one sync
    4  opened       to the peer, before all others: the epoch that this turn opened, which it gives way to
    5  publish      KVPUBs, batches, greetings and heartbeats: nobody sees what is not in the journal
    6  acks         acknowledgements and refusals: they promise what 1 and 3 did
    7  promises     the same on the snapshot port, of what an operator changed as a set does
    8  confirm      to the peer: what we now have in our journal
    9  replies      on the snapshot port
    10 facts        for the log
    11 reads        of the journal, with all that this turn has written; the core is given them before the next turn
    12 copies       of an operator: backups and restores, which the shell begins with the next turn
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..state.record_log import LoggedMessages, LoggedRow

Frames = list[bytes]


ALREADY = "already"


@dataclass(slots=True)
class Update:
    """The last update of a key in a suffix, and what becomes of it; `value` is None for a delete."""

    key: str
    value: bytes | None
    ttl_ms: int | None
    number: int
    outcome: str = ALREADY


@dataclass(slots=True)
class Append:
    """Journal: add a record."""

    first: int
    last: int
    body: bytes
    messages: Sequence[LoggedMessages] = ()  # that the record has placed

    def row(self) -> LoggedRow:
        """As the journal takes it."""
        return LoggedRow(self.first, self.last, self.body)


@dataclass(slots=True)
class Replace:
    """Journal: everything before is replaced by the state as it is now, at `number`.

    Messages up to the number `shared` are of this history too, and stay.
    """

    number: int
    shared: int = 0


@dataclass(slots=True)
class DropAfter:
    """Journal: rows after `number` are not history: the parts of a record that will never be complete."""

    number: int


@dataclass(slots=True)
class Remember:
    """Journal: a small value that a start has to know, whatever the records are."""

    key: str
    value: bytes


@dataclass(slots=True)
class Fill:
    """Journal: messages of records that it has, or that its snapshot covers."""

    messages: Sequence[LoggedMessages]


@dataclass(slots=True)
class Trim:
    """Journal: messages below an offset are let go; by topic."""

    floors: dict[int, int]


JournalOp = Append | Replace | DropAfter | Remember | Fill | Trim


@dataclass(slots=True)
class Save:
    """A file of its own: updates that this server made and that are not history, each with what became of it."""

    name: str
    updates: list[Update]


@dataclass(slots=True)
class Fact:
    """Something an operator may want to know; one line of the log."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Journal: a page of rows that follow on `after`, at least one if there is one; about `bytes_max` at most."""

    after: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """Journal: rows of a topic from an offset on, of records up to `number`; about `bytes_max`, at least one row."""

    topic: int
    offset: int
    number: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadSpans:
    """Journal: which offsets of which topics are there, of records up to `number`."""

    number: int


JournalRead = Read | ReadMessages | ReadSpans


@dataclass(slots=True)
class Copy:
    """A backup or a restore that an operator asked for; the shell has the files, and answers when it is done."""

    command: str
    identity: bytes
    options: dict[str, Any]


@dataclass(slots=True, init=False)
class Turn:
    """The effects of one turn, in the order in which they are performed."""

    saves: list[Save]
    to_peer: list[Frames]
    deliveries: list[tuple[bytes, list[Frames]]]
    journal: list[JournalOp]
    opened: list[Frames]
    publish: list[Frames]
    acks: list[Frames]
    promises: list[tuple[bytes, list[Frames]]]
    confirm: list[Frames]
    replies: list[tuple[bytes, list[Frames]]]
    facts: list[Fact]
    reads: list[JournalRead]
    copies: list[Copy]

    def __init__(self, **given: Any) -> None:
        self.saves, self.to_peer, self.deliveries, self.journal = [], [], [], []
        self.opened, self.publish, self.acks, self.promises, self.confirm = [], [], [], [], []
        self.replies, self.facts, self.reads, self.copies = [], [], [], []
        for name, effects in given.items():
            setattr(self, name, effects)

    def fact(self, event: str, level: str = "info", **fields: Any) -> None:
        """Note something for the log."""
        self.facts.append(Fact(level, event, fields))
