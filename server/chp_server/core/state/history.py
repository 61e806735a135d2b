"""Whose history a server holds: who opened each epoch, how it ended, and what tells two histories apart.

    store     the server that opened the first epoch: whose data these are, for as long as they live
    Tenure     of each epoch: its last number, the digest there, and who opened it, when and why
    Proof     how far a replica is, told with what only a part of the same history can tell

Numbers alone prove nothing: two servers that never met count the same way. But an epoch is opened by one run of one
server, whose id is 16 random bytes, and only that run adds records to it. So a number and the opener of its epoch name
one place in one history, with all that is before it. The digest, CRC-32 chained over the bodies of all records (of a
record in parts, over each part's), also tells a replica that was damaged, or taken apart by a defect; it is compared
wherever both sides know it. It is no proof against forgers.

Pure, and without a state of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from chp.errors import BadFrame
from chp.numbers import describe, epoch_of


class EpochEntry(NamedTuple):
    """An epoch: how far it goes, and how it began; the wall clock and the reason are for people."""

    last: int = 0
    digest: int = 0
    opener: bytes = b""
    name: str = ""
    because: str = ""
    wall_ms: int = 0


History = dict[int, EpochEntry]


class Position(NamedTuple):
    """A place in a history: the store, the number, who opened its epoch, and the digest there."""

    store: bytes
    number: int
    opener: bytes
    digest: int

    @staticmethod
    def of(item: object) -> Position:
        """What somebody else said; `BadFrame` unless it is of this form."""
        types = (bytes, int, bytes, int)
        if not isinstance(item, list) or tuple(map(type, item)) != types or item[1] < 0:
            raise BadFrame("a place in a history is told as store, number, opener and digest")
        return Position(*item)

    def describe(self) -> str:
        """`1.7 of store 0123..`, for logs."""
        return f"{describe(self.number)} of store {self.store.hex()[:8] or '-'}"


def opener_of(history: History, number: int) -> bytes:
    """Who opened the epoch of a number; nothing if that is not known."""
    return history.get(epoch_of(number), EpochEntry()).opener


def holds(history: History, proof: Position, digest: int | None) -> bool:
    """Whether a place is part of this history, in which the digest at its number is `digest`, if that is known."""
    epoch = history.get(epoch_of(proof.number))
    if epoch is None or proof.number > epoch.last or proof.opener != epoch.opener:
        return False
    known = epoch.digest if proof.number == epoch.last else digest
    return known is None or known == proof.digest


def common(ours: History, theirs: History) -> int:
    """The last number that both histories share; 0 if there is none."""
    for number in sorted(ours.keys() & theirs.keys(), reverse=True):
        one, other = ours[number], theirs[number]
        damaged = one.last == other.last and one.digest != other.digest
        if one.opener == other.opener and not damaged:
            return min(one.last, other.last)
    return 0


def to_list(history: History) -> list[list[Any]]:
    """As messages and snapshots carry it."""
    return [[number, *epoch] for number, epoch in history.items()]


def from_list(items: list[list[Any]]) -> History:
    """What `to_list` made."""
    return {number: EpochEntry(*epoch) for number, *epoch in items}
