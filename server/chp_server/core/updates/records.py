"""Records as bytes: what was done becomes one body, or as many as its size asks for (SPEC.md, section 16).

All keys of a record get its first number as their revision, also where it comes in parts. Messages that it placed go
with the part that says where, so that no part is large for them either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

from chp import columns, headers
from chp.batch import Segment, encode
from chp.digest import link

from ..state.recordlog import Record, numbered


def in_parts(
    groups: list[list[bytes]], items: int, told: list[Any], *, after: Record, wall_ms: int
) -> Iterator[Record]:
    """A record that follows on `after`; its last part has what is `told`: whose batches it has, and which is whose."""
    origins, *whose = told
    first, digest = after.last + 1, after.digest
    last = after.last + max(items, len(groups))
    for (before, start, end), more, group in numbered(groups, after.last, first, last):
        header = headers.Batch(before, start, end, wall_ms, [] if more else origins, more, *([] if more else whose))
        body = encode(header, group)
        digest = link(digest, crc32(body))
        yield Record(before, start, end, body, digest, more=more)


def placed_by(segments: list[Segment], bodies: list[bytes]) -> list[list[int]]:
    """The sizes of the batches of messages that each body placed; where staged ones are among them, none is told."""
    if len(segments) != len(bodies):
        return [[]] * len(bodies)
    placed = ((segment.extras or {}).get(columns.PLACED) for segment in segments)
    return [[] if column is None else [each[3] for each in column[1]] for column in placed]
