"""The messages that a member gets, as columns: a chunk from a server, cut into parts that fit one record each.

The messages of a batch that can't be handled go to the dead topic in the record that acknowledges them, together with
the sets of a commit. A dead letter is larger than its message, and a chunk may have 65,536 messages, or 16 MiB of them.
So a chunk that is larger than a part is handed out as several batches. Each batch begins at the offset where the one
before ends. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple

from chp.headers import Messages
from chp.numbers import Revision
from chp.topics import NO_HEADERS, Headers, pack_slots, unpack_slots, unpack_with_headers

# A part has at most this many messages, and this many bytes of keys and values. A single message may be larger.
PART_MESSAGES, PART_BYTES = 8192, 3 << 20


class ChunkPart(NamedTuple):
    """Messages as columns. `spans` has their slots, and the first offset for these; all messages lie below `upto`."""

    spans: list[list[Any]]
    upto: int
    missed: int
    offsets: Sequence[int]
    keys: list[str | None]
    values: list[bytes]
    times: list[float]
    revisions: list[Revision]
    # The headers of each message; None if no message has any.
    headers: list[Headers] | None
    # How often a message that comes alone was given. Then how often it may be given; None if the group counts nothing.
    deliveries: int = 1
    deliveries_max: int | None = None


def parts_of(header: Messages, items: list[Any]) -> list[ChunkPart]:
    """Return the parts of a chunk. The first part begins with the chunk, each other one at its first message."""
    spans = header.spans or []
    missed = max(0, header.first - min((after for _, after in spans), default=header.first))
    size = sum(len(body) for item in items for body in item[4])
    whole = ChunkPart(spans, header.upto, missed, *_columns(items))
    if header.counted:
        times, most = header.counted
        whole = whole._replace(deliveries=times + 1, deliveries_max=most)
    if len(whole.values) <= PART_MESSAGES and size <= PART_BYTES:
        return [whole]
    places = [0, *_cuts(whole), len(whole.values)]
    return [_slice(whole, start, end) for start, end in pairwise(places)]


def joined(steps: Iterable[list[Any]]) -> list[list[Any]]:
    """Return the steps in hand as ranges: adjacent steps of a slot become one range.

    A slot is in one range, unless the server moved its position on between two steps. So there are at most about 256
    ranges.
    """
    chains: dict[int, dict[int, int]] = {}  # end -> beginning -> slots
    for slots, after, upto in steps:
        left, new = unpack_slots(slots), chains.get(after, {})
        for begin, held in list(new.items()):
            if follows := held & left:
                _put(new, begin, held & ~follows)
                _put(chains.setdefault(upto, {}), begin, chains[upto].get(begin, 0) | follows)
                left &= ~follows
        if left:
            _put(chains.setdefault(upto, {}), after, chains[upto].get(after, 0) | left)
    return [[pack_slots(slots), begin, end] for end, of in sorted(chains.items()) for begin, slots in of.items()]


def _put(where: dict[int, int], begin: int, slots: int) -> None:
    if slots:
        where[begin] = slots
    else:
        where.pop(begin, None)


def _columns(items: list[Any]) -> tuple[Any, ...]:
    offsets: list[Sequence[int]] = []
    keys: list[str | None] = []
    values: list[bytes] = []
    times: list[float] = []
    revisions: list[Revision] = []
    headers: list[Headers] = []
    for first, n, number, wall_ms, bodies, *mask in items:
        before = len(values)
        for body in bodies:
            some, more, carried = unpack_with_headers(body)
            if carried is not None:
                headers += [NO_HEADERS] * (len(values) - len(headers))
                headers += carried
            keys += [None] * len(more) if some is None else some if all(some) else [key or None for key in some]
            values += more
        all_of_it = range(first, first + n)
        offsets.append(list(compress(all_of_it, mask[0])) if mask else all_of_it)
        times += [wall_ms / 1000] * (len(values) - before)
        revisions += [Revision(number)] * (len(values) - before)
    if headers:
        headers += [NO_HEADERS] * (len(values) - len(headers))
    there = offsets[0] if len(offsets) == 1 else list(chain(*offsets))
    return there, keys, values, times, revisions, headers or None


def _cuts(whole: ChunkPart) -> Iterator[int]:
    """Yield the index of the first message of each part after the first part."""
    begin = size = 0
    for at, (key, value) in enumerate(zip(whole.keys, whole.values, strict=True)):
        more = len(value) + len((key or "").encode())
        if at > begin and (at - begin >= PART_MESSAGES or size + more > PART_BYTES):
            begin, size = at, 0
            yield at
        size += more


def _slice(whole: ChunkPart, start: int, end: int) -> ChunkPart:
    first = whole.offsets[start] if start else 0
    upto = whole.offsets[end] if end < len(whole.values) else whole.upto
    spans = [[slots, max(after, first)] for slots, after in whole.spans if after < upto]
    columns: Any = (column and column[start:end] for column in whole[3:9])
    part = ChunkPart(spans, upto, 0 if start else whole.missed, *columns)
    return part._replace(deliveries=whole.deliveries, deliveries_max=whole.deliveries_max)
