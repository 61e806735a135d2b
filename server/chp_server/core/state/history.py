"""The history of a server: which run opened each epoch, how the epoch ended, and what tells two histories apart.

    store        the id of the run that opened the first epoch; it names the data for as long as they exist
    EpochEntry   of each epoch: its last number, the digest there, the run that opened it, when and why
    Position     how far a server is, and a proof of whose history this is: the store, the opener and the digest

Numbers alone prove nothing: two servers that never met count the same way. But one run of one server opens an epoch,
and only that run adds records to it. The run has a random id of 16 bytes. So a number together with the opener of its
epoch names one place in one history, and all that is before it.

The digest is a CRC-32 chained over the bodies of all records (over each part of a record in parts). It also detects a
server whose history was damaged, or changed by a defect. Servers compare the digest wherever both sides know it. The
digest does not protect against forgers.

Pure, and without a state of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from chp.errors import BadFrame
from chp.numbers import describe, epoch_of


class EpochEntry(NamedTuple):
    """An epoch: how far it goes, and how it began. The wall clock and the reason are for people."""

    last: int = 0
    digest: int = 0
    opener: bytes = b""
    name: str = ""
    because: str = ""
    wall_ms: int = 0


# The type of each field of an `EpochEntry`.
KINDS = (int, int, bytes, str, str, int)
History = dict[int, EpochEntry]


class Position(NamedTuple):
    """A place in a history: the store, the number, the opener of its epoch, and the digest there."""

    store: bytes
    number: int
    opener: bytes
    digest: int

    @staticmethod
    def of(item: object) -> Position:
        """Return a position that a message carries; raise `BadFrame` if it is malformed."""
        types = (bytes, int, bytes, int)
        if not isinstance(item, list) or tuple(map(type, item)) != types or item[1] < 0:
            raise BadFrame("a position is a list of store, number, opener and digest")
        return Position(*item)

    def describe(self) -> str:
        """Return the position for logs, such as `1.7 of store 0123..`."""
        return f"{describe(self.number)} of store {self.store.hex()[:8] or '-'}"


def opener_of(history: History, number: int) -> bytes:
    """Return the run that opened the epoch of a number; empty bytes if that is not known."""
    return history.get(epoch_of(number), EpochEntry()).opener


def holds(history: History, proof: Position, digest: int | None) -> bool:
    """Return whether a position is part of this history; `digest` is our digest at the position's number, if known."""
    epoch = history.get(epoch_of(proof.number))
    if epoch is None or proof.number > epoch.last or proof.opener != epoch.opener:
        return False
    known = epoch.digest if proof.number == epoch.last else digest
    return known is None or known == proof.digest


def common(ours: History, theirs: History) -> int:
    """Return the last number that both histories share; 0 if there is none."""
    for number in sorted(ours.keys() & theirs.keys(), reverse=True):
        one, other = ours[number], theirs[number]
        damaged = one.last == other.last and one.digest != other.digest
        if one.opener == other.opener and not damaged:
            return min(one.last, other.last)
    return 0


def to_list(history: History) -> list[list[Any]]:
    """Return a history as a list, as messages and snapshots carry it."""
    return [[number, *epoch] for number, epoch in history.items()]


def from_list(items: list[list[Any]]) -> History:
    """Return the history that `to_list` made a list of; raise ValueError for another list."""
    history = {number: EpochEntry(*epoch) for number, *epoch in items}
    for number, epoch in history.items():
        if type(number) is not int or not all(map(isinstance, epoch, KINDS)):
            raise ValueError(f"a history has no epoch {number!r:.40} with {epoch!r:.80}")
    return history
