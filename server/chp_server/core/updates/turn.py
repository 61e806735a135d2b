"""A turn of the server: what it must do, and in which order. The order of the fields is the durability contract.

A turn drains a bounded number of messages, decides, and hands the reactor one `Turn`. The reactor performs
it from the first field to the last:

    0  saves        write updates that turned out not to be history to a file, before the journal drops them
    1  to_peer      send records to the passive, which then writes while this server writes
    2  deliveries   send messages of topics; both journals have had them since before the turn, so they wait for no sync
    3  journal      write to the journal, then sync once
    4  opened       tell the peer, before all others, the epoch that this turn opened; the peer then gives way
    5  publish      send KVPUBs, BATCHes, greetings and heartbeats; no client sees what is not in the journal
    6  acks         send acknowledgements and refusals; they promise what 1 and 3 did
    7  promises     answer on the snapshot port what an operator changed; these are acknowledgements too
    8  confirm      tell the peer what this server now has in its journal
    9  replies      send the other answers on the snapshot port
    10 facts        write to the log
    11 reads        read the journal, which has this turn's writes by now; the core gets the result before the next turn
    12 copies       begin backups and restores that an operator asked for, with the next turn
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..state.record_log import LoggedMessages, LoggedRow

Frames = list[bytes]


ALREADY = "already"


@dataclass(slots=True)
class Update:
    """The last update of a key in a suffix, and the outcome of its replay; `value` is None for a delete."""

    key: str
    value: bytes | None
    ttl_ms: int | None
    number: int
    outcome: str = ALREADY


@dataclass(slots=True)
class Append:
    """An order to the journal: add a record."""

    first: int
    last: int
    body: bytes
    # The messages that the record has placed.
    messages: Sequence[LoggedMessages] = ()

    def row(self) -> LoggedRow:
        """Return the row that the journal keeps."""
        return LoggedRow(self.first, self.last, self.body)


@dataclass(slots=True)
class Replace:
    """An order to the journal: replace everything by the state as it is now, at `number`.

    Messages of records up to the number `shared` are of this history too, and stay.
    """

    number: int
    shared: int = 0


@dataclass(slots=True)
class DropAfter:
    """An order to the journal: drop the rows after `number`. They are parts of a record that will never be complete."""

    number: int


@dataclass(slots=True)
class Remember:
    """An order to the journal: keep a small value that a starting server needs. It does not depend on records."""

    key: str
    value: bytes


@dataclass(slots=True)
class Fill:
    """An order to the journal: add messages of records that it has, or that its snapshot covers."""

    messages: Sequence[LoggedMessages]


@dataclass(slots=True)
class Trim:
    """An order to the journal: delete the messages of each topic below an offset."""

    floors: dict[int, int]


JournalOp = Append | Replace | DropAfter | Remember | Fill | Trim


@dataclass(slots=True)
class Save:
    """An order to write a file with updates of this server that are not history, and the outcome of each."""

    name: str
    updates: list[Update]


@dataclass(slots=True)
class Fact:
    """One line of the log that an operator may want to read."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """A request for rows of the journal after a number: about `bytes_max` at most, but at least one if there is one."""

    after: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """A request for rows of a topic from an offset on, of records up to `number`.

    The rows have about `bytes_max`, but there is at least one row if the journal has any.
    """

    topic: int
    offset: int
    number: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadSpans:
    """A request for the offsets of each topic that the journal has, of records up to `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadOldest:
    """A request for the number at which the journal's rows begin (`Journal.oldest`)."""


JournalRead = Read | ReadMessages | ReadSpans | ReadOldest


@dataclass(slots=True)
class Copy:
    """A backup or a restore that an operator asked for. The shell has the files, and answers when it is done."""

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


@dataclass(slots=True)
class CurrentTurn:
    """The turn under way: its times, and the effects that it has so far.

    The core begins and ends turns. Its parts share this object: they read the times, and add effects.
    """

    # The time when the turn began, by the monotonic clock.
    now: float
    # A time at which the current message had arrived already; ttls count from this time.
    arrival: float = 0.0
    # The wall clock when the turn began.
    wall_s: float = 0.0
    # The number that the journal had when the turn began.
    written: int = 0
    effects: Turn = field(default_factory=Turn)
    # The channels that were greeted with the turn whose effects are `_greets_with`. Other effects mean a new turn.
    _greeted: set[bytes] = field(default_factory=set)
    _greets_with: Turn | None = None

    def greets(self, topic: bytes) -> bool:
        """Note that a channel is greeted with this turn. Return False if it was greeted already.

        All clients that subscribe to a channel in one turn get the same greeting. Otherwise n readers that come at once
        would each get n greetings.
        """
        if self._greets_with is not self.effects:
            self._greets_with, self._greeted = self.effects, set()
        news = topic not in self._greeted
        self._greeted.add(topic)
        return news

    def arrived(self, now: float) -> None:
        """Note a time at which the next messages had arrived already; it may be later than the begin of the turn."""
        self.arrival = now
