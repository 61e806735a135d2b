"""The values that the core returns: what its shell has to do, and what the application is told. They have no behaviour.

A shell performs one `Effects` in each turn, in this order: it changes subscriptions, sends requests, publishes batches,
settles tickets, hands changes to watches and reports states. The map shows the changes before any of these steps. So a
program that wakes from a ticket or a watch reads at least the changes that it was told about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, reduce
from operator import itemgetter
from typing import Any, NamedTuple

from chp.headers import DURABILITY_NAMES
from chp.numbers import EPOCH_SHIFT, SEQUENCE_MASK, Revision


class State(StrEnum):
    """The state of a Clone's copy."""

    # The copy was never complete.
    CONNECTING = "CONNECTING"
    # The copy is complete, and the client hears the active.
    SYNCED = "SYNCED"
    # The Clone still serves its copy, but the active is silent or the copy is being repaired.
    STALE = "STALE"
    CLOSED = "CLOSED"


class Ack(NamedTuple):
    """An acknowledgement: the number of a set, and its durability ("applied", "journaled", "replicated").

    `counted` is the number of servers that have it on disk, if the pair counts them (`--copies`); else None.
    """

    epoch: int
    sequence: int
    durability: str
    counted: int | None = None

    @property
    def copies(self) -> int:
        """The number of servers that have this set on disk, or in memory if they keep no journal.

        0 means that the set is only in the memory of a server that has a journal.
        """
        return DURABILITY_NAMES.index(self.durability) if self.counted is None else self.counted

    @property
    def revision(self) -> Revision:
        """The revision that the keys of this set got; 0.1 if the answer was lost and no server remembers it."""
        return revision_of(self.epoch << EPOCH_SHIFT | self.sequence)


def ack_of(revision: int, durability: str, counted: int | None = None) -> Ack:
    """Return the Ack for a revision as it is sent on the wire."""
    return Ack(revision >> EPOCH_SHIFT, revision & SEQUENCE_MASK, durability, counted)


def least(first: Ack, second: Ack) -> Ack:
    """Return the later of two acknowledgements, with the weaker durability, and the lower number of copies."""
    order = DURABILITY_NAMES.index
    weaker = min(first.durability, second.durability, key=order)
    counted = None if first.counted is second.counted is None else min(first.copies, second.copies)
    later = first if first[:2] > second[:2] else second
    return later._replace(durability=weaker, counted=counted)


def weakest(acks: Sequence[Ack]) -> Ack:
    """Return an acknowledgement for sets at several pairs, whose numbers have nothing in common: it has no revision."""
    return reduce(least, acks)._replace(epoch=0, sequence=0)


class Changed(NamedTuple):
    """Confirmed changes in their order. A value of None is a delete.

    `revisions` is one revision for all changes, or a list with one for each. `first` says that these are the keys held
    when the copy became complete for the first time, or older changes. `expiries` lists the places of deletes by a ttl
    or a lease. Other parts share the columns, so a reader must not change them.
    """

    keys: list[str]
    values: list[bytes | None]
    revisions: int | list[int]
    first: bool = False
    expiries: Sequence[int] = ()

    @property
    def mount(self) -> str:
        """The mount that has these keys; "" for a Clone of one pair. `MountedChanged` overrides this property."""
        return ""

    def revision_column(self) -> list[Revision]:
        """Return a list with the revision of each change."""
        revisions = self.revisions
        if isinstance(revisions, list):
            return list(map(revision_of, revisions))
        return [revision_of(revisions)] * len(self.keys)


# This is faster than a call of `Revision`, which runs Python code for each revision.
revision_of: Callable[[int], Revision] = partial(int.__new__, Revision)


def in_order(found: list[Changed]) -> Changed:
    """Return the changes of several channels as one `Changed`, with the lowest revision first."""
    if len(found) == 1:
        return found[0]
    rows = [row for each in found for row in zip(each.keys, each.values, each.revision_column(), strict=True)]
    rows.sort(key=itemgetter(2))
    return Changed([k for k, _, _ in rows], [v for _, v, _ in rows], [r for _, _, r in rows])


@dataclass(slots=True, init=False)
class Effects:
    """The effects of one or more inputs: what the shell must do, and what it must tell the application."""

    # Each entry is a server and a topic.
    subscribe: list[tuple[int, bytes]]
    unsubscribe: list[tuple[int, bytes]]
    # These servers live, but nothing arrives from their port P+1.
    reconnect: list[int]
    # Each entry is a server and a message for its port P, sent by the DEALER.
    request: list[tuple[int, list[bytes]]]
    # Each entry is a server and a message for its port P+2, sent by the XPUB.
    publish: list[tuple[int, list[bytes]]]
    # Each entry is the handle that `submit` was given, and the result.
    settled: list[tuple[Any, Ack | Exception]]
    changes: list[Changed]
    # Each entry is a watch, and the changes that it missed or an error.
    missed: list[tuple[Any, list[Changed] | Exception]]
    states: list[State]
    # Each note is one line about one fact, for logs and transcripts.
    notes: list[str]
    # Each warning is one line about something that an operator should look into.
    warnings: list[str]
    # Each entry is the lag in seconds when it exceeded the bound.
    lags: list[float]

    def __init__(self) -> None:
        self.subscribe, self.unsubscribe, self.reconnect, self.request, self.publish = [], [], [], [], []
        self.settled, self.changes, self.missed, self.states = [], [], [], []
        self.notes, self.warnings, self.lags = [], [], []


class Sink:
    """The effects gathered since the core's last `take`. The parts of a core share it, and only add to it."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects = Effects()
