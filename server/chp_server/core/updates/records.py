"""Records as bytes: what was done becomes one body, or as many as its size asks for (SPEC.md, section 16).

All keys of a record get its first number as their revision, also where it comes in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

from chp import headers
from chp.batch import encode
from chp.digest import link

from ..state.recordlog import Record, grouped, numbered


def in_parts(
    bodies: list[bytes], items: int, told: list[Any], *, after: Record, wall_ms: int, part_bytes: int
) -> Iterator[Record]:
    """A record that follows on `after`; its last part has what is `told`: whose batches it has, and which is whose."""
    origins, *whose = told
    groups = grouped(bodies, part_bytes)
    first, digest = after.last + 1, after.digest
    last = after.last + max(items, len(groups))
    for (before, start, end), more, group in numbered(groups, after.last, first, last):
        header = headers.Batch(before, start, end, wall_ms, [] if more else origins, more, *([] if more else whose))
        body = encode(header, group)
        digest = link(digest, crc32(body))
        yield Record(before, start, end, body, digest)
