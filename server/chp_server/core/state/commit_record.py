"""The record of a large commit, which names staged batches instead of carrying them (SPEC.md, section 43).

    COMMIT header     transaction, application, version, and for each part: its name, its digest, and its numbers
    items             the deletes by which the commit replaces a subtree

Both servers have the staged batches already, in memory and in their journals. To write and send them again would hold
up all clients for a second. The passive, and a server that recovers, take them from their own staging
(`Staging.named`), and the digests prove that they are the same. The numbers are those of the records that staged the
batches, so a reader of the journal finds the rows there.

Readers never get a COMMIT: `in_updates` turns it into BATCHes, part by part, as if the record had carried its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from chp import columns, headers
from chp.batch import Segment, decode, encode, segment_of
from chp.errors import BadFrame
from chp.unpacking import WHOLE_STATE, Load

from .record_log import NEVER_FULL, SEGMENTS_WEIGHT_MAX, Record
from .staging import StagedBatch

# The offset of the kind of a header in a body. The head of an array precedes the header, and takes 1, 3 or 5 bytes; its
# first byte is the key of this table. An array with a head of 1 byte is not in the table: its offset is 2.
_PLACES = {0xDC: 4, 0xDD: 6}
# The staged batches of a record. None among them says that the journal is still being asked for the next one.
Batches = Iterable[StagedBatch | None]


def is_commit(body: bytes) -> bool:
    """Return True if a record names staged batches; this looks at one byte."""
    at = _PLACES.get(body[0], 2)
    return len(body) > at and body[at] == headers.COMMIT


def done(header: headers.Commit) -> Segment:
    """Return the segment that says which version of which application was committed."""
    return Segment([], [], {columns.DONE: [header.application, header.version, header.transaction]})


def segments_of(record: Record) -> list[Segment]:
    """Return the segments of a commit whose staged batches are in memory, decoded."""
    header, items = decoded(record.body)
    return [*map(segment_of, items), *(batch.segment() for batch in record.staged), done(header)]


def decoded(body: bytes) -> tuple[headers.Commit, list[Any]]:
    """Return the header of a COMMIT, and its items."""
    header, items = decode(body, WHOLE_STATE)
    if not isinstance(header, headers.Commit):
        raise BadFrame(f"a {headers.name_of(header)} came where a COMMIT was due")
    return header, items


def in_updates(header: headers.Commit, items: list[Any], batches: Batches, bytes_max: int) -> Iterator[Record | None]:
    """Yield the parts of a commit as readers get them, each of about `bytes_max`. Yield None where `batches` does."""
    group, held, at = list[bytes](), 0, header.prev
    load = Load(NEVER_FULL, SEGMENTS_WEIGHT_MAX)
    for each in _in_order(header, items, batches):
        if each is None:
            yield None
            continue
        body, weight = each.encode(), each.weight
        if group and (held >= bytes_max or not load.takes(len(body), weight)):
            part = _part(header, at, group, more=True)
            yield part
            at, group, held = part.last, [], 0
        if not group:
            load.begin(len(body), weight)
        group.append(body)
        held += len(body)
    yield _part(header, at, group, more=False)


def in_memory(records: Iterable[Record], bytes_max: int) -> Iterator[Record]:
    """Yield records as readers get them. The staged batches that the records name must be in memory."""
    for record in records:
        if is_commit(record.body):
            found = in_updates(*decoded(record.body), record.staged, bytes_max)
            yield from (part for part in found if part is not None)
        else:
            yield record


def _in_order(header: headers.Commit, items: list[Any], batches: Batches) -> Iterator[StagedBatch | Segment | None]:
    yield from map(segment_of, items)
    yield from batches
    yield done(header)


def _part(header: headers.Commit, prev: int, group: list[bytes], *, more: bool) -> Record:
    first = header.first if prev == header.prev else prev + 1
    last = first if more else header.last
    told = headers.Batch(prev, first, last, header.wall_ms, [] if more else header.origins, more)
    return Record(prev, first, last, encode(told, group), more=more)


def staged_in(body: bytes, transaction: bytes, part: str) -> tuple[list[StagedBatch], bool]:
    """Return the batches of a part that a record has staged, and whether more rows of that record follow."""
    header, items = decode(body, WHOLE_STATE)
    found = []
    for item in items:
        extras = item[2]
        if extras and extras.get(columns.STAGE) == [transaction, part]:
            segment = segment_of(item)
            extras = columns.without(extras, {columns.STAGE})
            found.append(StagedBatch.of(Segment(segment.keys, segment.values, extras or None)))
    return found, isinstance(header, headers.Batch) and header.more
