"""What the core tells its shell to do, and what it tells the application: plain values, no behaviour.

A shell performs one `Effects` a turn, in this order: subscribe, request, publish, then settle tickets, hand
changes to watchers and report states. By then the map already shows what happened, so a program that wakes from a
ticket or a watch reads at least what it was told about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from chp.numbers import Revision, epoch_of, sequence_of


class State(StrEnum):
    """What a Clone's copy is worth."""

    CONNECTING = "CONNECTING"  # nothing held yet
    SYNCED = "SYNCED"  # complete, and the active server is heard
    STALE = "STALE"  # serving its copy; the active is silent, or the copy is being mended
    CLOSED = "CLOSED"


class Ack(NamedTuple):
    """A set was taken: at which number, and what that is worth ("applied", "journaled", "replicated")."""

    epoch: int
    sequence: int
    durability: str

    @property
    def revision(self) -> Revision:
        """The revision that the keys of this set got; 0.1 if the answer was lost and no server remembers it."""
        return Revision(self.epoch << 48 | self.sequence)


def ack_of(revision: int, durability: str) -> Ack:
    """The Ack for a revision as the wire has it."""
    return Ack(epoch_of(revision), sequence_of(revision), durability)


class Changed(NamedTuple):
    """Confirmed changes in their order; a value of None is a delete; one revision for all, or one each.

    `first`: they are what there was when the copy became complete for the first time, and older than that.
    `expiries`: the places of deletes that nobody made. The columns are others' too: nobody changes them.
    """

    keys: list[str]
    values: list[bytes | None]
    revisions: int | list[int]
    first: bool = False
    expiries: Sequence[int] = ()

    def revision_column(self) -> list[Revision]:
        """A revision for each change."""
        revisions = self.revisions
        if isinstance(revisions, list):
            return list(map(_revision, revisions))
        return [Revision(revisions)] * len(self.keys)


_revision: Callable[[int], Revision] = partial(int.__new__, Revision)  # calling `Revision` runs a line of Python


def in_order(found: list[Changed]) -> Changed:
    """What several channels have, as one, the lowest revision first."""
    if len(found) == 1:
        return found[0]
    rows = [row for each in found for row in zip(each.keys, each.values, each.revision_column(), strict=True)]
    rows.sort(key=itemgetter(2))
    return Changed([k for k, _, _ in rows], [v for _, v, _ in rows], [r for _, _, r in rows])


@dataclass(slots=True, init=False)
class Effects:
    """Everything one or more inputs asked for."""

    subscribe: list[tuple[int, bytes]]  # server, topic
    unsubscribe: list[tuple[int, bytes]]
    reconnect: list[int]  # servers whose P+1 says nothing, though they live
    request: list[tuple[int, list[bytes]]]  # to P, on the DEALER
    publish: list[tuple[int, list[bytes]]]  # to P+2, on the XPUB
    settled: list[tuple[Any, Ack | Exception]]  # what `submit` was given, result
    changes: list[Changed]
    missed: list[tuple[Any, list[Changed] | Exception]]  # a watch, what it missed
    states: list[State]
    notes: list[str]  # one line a fact, for logs and transcripts
    warnings: list[str]  # the same, of what somebody should see to
    lags: list[float]  # seconds behind, each time it exceeded the bound

    def __init__(self) -> None:
        self.subscribe, self.unsubscribe, self.reconnect, self.request, self.publish = [], [], [], [], []
        self.settled, self.changes, self.missed, self.states = [], [], [], []
        self.notes, self.warnings, self.lags = [], [], []


class Sink:
    """The effects gathered since they were last taken; the parts of a core share it, and only add to them."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects = Effects()

    def take(self) -> Effects:
        """All of them."""
        effects, self.effects = self.effects, Effects()
        return effects
