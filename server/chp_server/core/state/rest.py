"""Everything of the state but the map, as one body: copied at once, packed a slice a turn.

A lease may have a million keys, and a hundred thousand sessions are remembered. To copy references takes some
nanoseconds each, to pack what they lead to a hundred times as long; so a snapshot copies at its number, as it does for
the map (image.py), and packs in the turns to come.

    body = STATE header, [number, history, sessions, leases, uuids, versions, refusals, store, ended, digest]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chp.batch import array_head, encode, packb
from chp.headers import StateHead

from .image import NOT_YET

SLICE = 16_384  # items of a list that are packed in one turn: about 2 ms


def packing(
    head: StateHead, first: list[Any], sessions: Sequence[Any], leases: Sequence[Any], last: list[Any]
) -> Iterator[bytes]:
    """The body, after `NOT_YET` for each slice before it is whole, of lists that nobody changes."""
    pieces = [array_head(len(first) + 2 + len(last)), *map(packb, first)]
    for _ in _list(sessions, pieces):
        yield NOT_YET
    pieces.append(array_head(len(leases)))
    for name, ttl_ms, left_ms, keys, owner in leases:
        pieces += array_head(5), packb(name), packb(ttl_ms), packb(left_ms)
        for _ in _list(keys, pieces):
            yield NOT_YET
        pieces.append(packb(owner))
    pieces += map(packb, last)
    yield encode(head, [b"".join(pieces)])


def _list(items: Sequence[Any], pieces: list[bytes]) -> Iterator[None]:
    """A list onto the pieces, and a rest after each full slice of it."""
    pieces.append(array_head(len(items)))
    for start in range(0, len(items), SLICE):
        some = items[start : start + SLICE]
        pieces.append(packb(some)[len(array_head(len(some))) :])
        if len(some) == SLICE:
            yield
