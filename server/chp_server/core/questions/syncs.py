"""The streams that answer requests: snapshots, resumes and feeds, sent in chunks (SPEC.md, section 17).

    snapshot_parts, resume_parts, chp1_parts    yield the messages of an answer, in parts
    SyncStream                                  one answer on its way: its parts, and the reader's credit
    Syncs                                       all streams of a server, served in turn

A snapshot reads an image of its subtree (image.py), which stays as it is while the server goes on serving. A chunk is
encoded when it is sent. A CHP/2 reader never has more chunks on their way than the credit that it gave. A CHP/1 reader
gives no credit: it gets a portion of its KVSYNCs each turn, as fast as its socket takes them. The reactor tells which
readers' sockets are full.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

from chp import columns, headers
from chp.batch import Segment, decode, encode, narrow, packb, segment_of, shown
from chp.errors import BadInput
from chp.fair import making_room
from chp.hashmap import Hashmap, ms_until
from chp.keys import RESERVED_KEY
from chp.limits import Limits
from chp.messages import kthxbai
from chp.numbers import describe, pack
from chp.parts import Parts
from chp.properties import with_ttl_until
from chp.unpacking import CARRIED, CONTAINER, WHOLE_STATE, Load, weight_of

from ..state.image import Image
from ..state.record_log import Record

Frames = list[bytes]
# A waiting reader gets an empty chunk this often, in seconds. The promise is one each second, but turns may be a
# heartbeat apart.
WORD_S = 0.75
# The times that copies took are kept for at most this many of the latest copies.
TOOK_MAX = 1000
# A CHP/1 snapshot sends at most this many items or about this many bytes in a turn, or one larger value.
PORTION_ITEMS, PORTION_BYTES = 256, 1 << 20


@dataclass(slots=True)
class SyncStream:
    """The answer to one request, on its way: the parts that are still to come, and the reader's credit."""

    identity: bytes
    request_id: int
    parts: Iterator[list[Frames]]
    credit: int
    # True for CHP/2, where each part costs one credit.
    counted: bool
    touched: float
    # The subtree whose image the answer needs, until its first part is made; then None.
    wants: str | None = None
    # If it is a copy for a Clone: the Clone's session and the subtree.
    copy: tuple[bytes, str] | None = None
    # Later requests of a CHP/1 reader, which are answered after this one, in order.
    waiting: deque[SyncStream] = field(default_factory=deque)
    # The time when a copy was asked for.
    began: float = 0.0
    user: str = ""
    # Returns True while the answer can't begin yet.
    waits: Callable[[], bool] | None = None
    # Makes an empty chunk, for a reader that waits.
    empty: Callable[[], Frames] | None = None
    # The time when the last chunk was sent.
    said: float = 0.0

    def word(self, now: float) -> list[Frames]:
        """Return an empty chunk if the reader was sent nothing for a while, as its answer is still being prepared."""
        if self.empty is None or now - self.said < WORD_S:
            return []
        self.said = now
        return [self.empty()]

    def part(self) -> list[Frames] | None:
        """Return the next part; None at the end."""
        self.wants = None
        try:
            return next(self.parts, None)
        except BadInput as error:
            # The log no longer has the records that this answer reads.
            self.parts = iter(())
            return [reply(pack(0), encode(headers.Refused(self.request_id, "retained", str(error))))]


def snapshot_parts(
    image: Image,
    request_id: int,
    ending: list[Any],
    limits: Limits,
    now: Callable[[], float],
    *,
    indices: Iterator[int],
) -> Iterator[list[Frames]]:
    """Yield the SYNC chunks and the KTHXBAI of a snapshot, each a list of one message, once the image is complete.

    `ending` are the last fields of KTHXBAI. `indices` continue those of the empty chunks that were sent before.
    """
    yield from gathered(image)
    number = pack(image.number)
    for segment in image.chunks(limits, now):
        yield [reply(number, encode(headers.Sync(request_id, next(indices)), [segment.encode()]))]
    end = headers.Kthxbai(request_id, image.number, *image.fingerprint(), *ending)
    yield [reply(number, encode(end))]


def slice_parts(
    image: Image,
    request_id: int,
    ending: list[Any],
    limits: Limits,
    now: Callable[[], float],
    *,
    form: Callable[[Segment], bytes],
    indices: Iterator[int],
) -> Iterator[list[Frames]]:
    """Yield the SYNC chunks and the KTHXBAI of a part of an image, while the image is gathered."""
    number = pack(image.number)
    for segment in image.arriving(limits, now):
        yield (
            [] if segment is None else [reply(number, encode(headers.Sync(request_id, next(indices)), [form(segment)]))]
        )
    yield [reply(number, encode(headers.Kthxbai(request_id, image.number, *image.fingerprint(), *ending)))]


def packed(segment: Segment) -> bytes:
    """Return a chunk for a reader of columns: all keys joined, all values joined, and their lengths."""
    text = "".join(segment.keys)
    keys = text.encode()
    plain = len(keys) == len(text)
    sizes = map(len, segment.keys) if plain else (len(key.encode()) for key in segment.keys)
    lengths = {columns.KEY_BYTES: _octets(sizes), columns.VALUE_BYTES: _octets(map(len, segment.values))}
    return packb((keys, b"".join(segment.values), {**(segment.extras or {}), **lengths}))


def _octets(sizes: Iterable[int]) -> bytes:
    """Return each size in 32 bits, with the low byte first."""
    column = array("I", sizes)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def gathered(image: Image) -> Iterator[list[Frames]]:
    """Yield an empty list, again and again, until the image is complete."""
    return ([] for _ in image.waiting())


def resume_parts(
    records: Iterator[Record | None],
    after: int,
    subtree: str,
    end: headers.Kthxbai,
    limits: Limits,
    *,
    opener: Callable[[int], bytes],
    indices: Iterator[int] | None = None,
    as_of_now: Callable[[Segment, int], Segment] | None = None,
) -> Iterator[list[Frames]]:
    """Yield RECORDS chunks of a subtree's part of `records`, and then `end`.

    Records without a part in the subtree are left out, so the `prev` of a record names the last one that was sent. A
    record that is None is still being read: the stream waits. `opener` returns the opener of a number's epoch.
    `indices` continue those of the empty chunks that were sent before. `as_of_now` takes each segment and the revision
    of its keys, and returns the segment that is sent.
    """
    request_id, number = end.request, pack(end.number)
    prev, unfinished, parts = after, False, Parts()
    bodies: list[bytes] = []
    load = Load(limits.sync_chunk_bytes)
    # For each segment of the record under way: whether a part of it is in the subtree.
    kept_of: list[bool] = []
    last, indices = 0, indices or count()
    for record in records:
        if record is None:
            yield []
            continue
        header, found = narrow_items(record.body, subtree)
        if not isinstance(header, headers.Batch):
            continue
        kept_of += (part is not None for part in found)
        if not header.more:
            header, kept_of = _of_kept(header, kept_of), []
        # The revision of the record's keys, even if its first part is left out.
        first = parts.revision(header)
        parts.add(header, [])
        kept = [part if as_of_now is None else as_of_now(part, first) for part in found if part is not None]
        # The last part of a record is sent even if it is empty, when an earlier part was sent.
        if not kept and (header.more or not unfinished):
            continue
        header = header._replace(prev=prev, first=header.first if unfinished else first)
        body, weight = encode(header, [part.encode() for part in kept]), _weight(header, kept)
        if weight > CARRIED:
            raise BadInput(
                f"the record {header.span} is heavier than any reader takes; read from {describe(header.last)}"
            )
        prev, unfinished = record.last, header.more
        if not load.takes(len(body), weight):
            yield [reply(number, encode(headers.Records(request_id, next(indices), opener(last)), bodies))]
            bodies = []
            load.begin(len(body), weight)
        last = record.last
        bodies.append(body)
    if bodies:
        yield [reply(number, encode(headers.Records(request_id, next(indices), opener(last)), bodies))]
    yield [reply(number, encode(end))]


def narrow_items(body: bytes, subtree: str) -> tuple[headers.Header, list[Segment | None]]:
    """Return a record's header, and the part of each segment that readers of a subtree get; None if there is none."""
    header, items = decode(body, WHOLE_STATE)
    parts = [narrow(segment_of(item), subtree) for item in items]
    return header, [None if part is None else shown(part) for part in parts] if subtree else parts


def _weight(header: headers.Batch, kept: list[Segment]) -> int:
    """Return the weight of a record for a reader."""
    return CONTAINER + 1 + len(kept) + weight_of(headers.fields_of(header)) + sum(part.weight for part in kept)


def with_ttls_left(segment: Segment, revision: int, hashmap: Hashmap, now: float) -> Segment:
    """Return a segment with the time that is left of each ttl, if the map has the key at this revision."""
    extras = segment.extras
    if not extras or columns.TTLS not in extras:
        return segment
    ttls, keys = extras[columns.TTLS], segment.keys
    places, times = (list(range(len(keys))), repeat(ttls)) if type(ttls) is int else ttls
    revisions, deadlines = hashmap.revisions.get, hashmap.deadlines.get
    left = [
        ms_until(deadline, now)
        if (deadline := deadlines(keys[i])) is not None and revisions(keys[i]) == revision
        else ms
        for i, ms in zip(places, times, strict=False)
    ]
    same = type(ttls) is int and len(set(left)) == 1
    return Segment(keys, segment.values, {**extras, columns.TTLS: left[0] if same else [places, left]})


def _of_kept(header: headers.Batch, kept_of: list[bool]) -> headers.Batch:
    """Return a header with the origins of only those segments that a reader gets."""
    if header.whose is None:
        return header
    runs, at = [], 0
    for place, no, n in header.whose:
        if kept := sum(kept_of[at : at + n]):
            runs.append((place, no, kept))
        at += n
    places = {place: i for i, place in enumerate(dict.fromkeys(place for place, _, _ in runs if place), 1)}
    origins = [header.origins[place - 1] for place in places]
    whose = [[places.get(place, 0), no, kept] for place, no, kept in runs]
    of_one = [run[1] for run in whose if run[0]] == [no for _, no in origins] and len(whose) <= 1
    return header._replace(origins=origins, whose=None if of_one else whose)


def chp1_parts(image: Image, subtree: str, wall_s: float, now: Callable[[], float]) -> Iterator[list[Frames]]:
    """Yield the KVSYNCs of a CHP/1 snapshot in portions, and its KTHXBAI (RFC 12)."""
    yield from gathered(image)
    portion: list[Frames] = []
    size = 0
    for key, value, revision in image.items():
        # In CHP/1 an empty value means that the key is deleted.
        if not value:
            continue
        deadline = image.deadlines.get(key)
        properties = b"" if deadline is None else with_ttl_until(b"", ms_until(deadline, now()), wall_s)
        portion.append([key.encode(), pack(revision), b"", properties, value])
        size += len(value)
        if len(portion) == PORTION_ITEMS or size > PORTION_BYTES:
            yield portion
            portion, size = [], 0
    yield [*portion, kthxbai(image.number, subtree)]


def reply(number: bytes, body: bytes) -> Frames:
    """Return a CHP/2 message for the snapshot port."""
    return [RESERVED_KEY, number, b"", b"", body]


class Syncs:
    """The streams of all readers, served in turn."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # All streams; the one that has waited longest for a turn comes first.
        self._streams: dict[tuple[bytes, int], SyncStream] = {}
        # The number of streams of each reader.
        self._readers: Counter[bytes] = Counter()
        # The id of the request for each Clone's copy.
        self._copies: dict[tuple[bytes, tuple[bytes, str]], int] = {}
        # The times that copies took, until the shell takes them for its metrics.
        self.took: deque[float] = deque(maxlen=TOOK_MAX)
        # Streams that were ended to make room for another user's, until `take_lost` takes them.
        self._lost: list[SyncStream] = []
        self.refused = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, stream: SyncStream) -> bool:
        """Begin a stream; return False if there are too many. A CHP/1 reader's streams wait for each other.

        A Clone that asks again for a copy has given up the one before, so that stream ends. It would wait here for
        credit until it was idle for too long. A server that was stopped for a minute finds many such requests.
        """
        if stream.copy is not None and (given_up := self._copies.get((stream.identity, stream.copy))) is not None:
            self._end((stream.identity, given_up))
        before = None if stream.counted else self._streams.get((stream.identity, stream.request_id))
        if self._full(stream.identity, before) and not self._make_room(stream, before):
            self.refused += 1
            return False
        if before is None:
            self._end((stream.identity, stream.request_id))
            self._streams[stream.identity, stream.request_id] = stream
            self._readers[stream.identity] += 1
            if stream.copy is not None:
                self._copies[stream.identity, stream.copy], stream.began = stream.request_id, stream.touched
        else:
            before.waiting.append(stream)
        return True

    def _full(self, identity: bytes, before: SyncStream | None) -> bool:
        limits = self._limits
        if before is not None:
            return len(before.waiting) >= limits.requests_max
        return len(self._streams) >= limits.syncs_max or self._readers[identity] >= limits.syncs_of_one_max

    def _make_room(self, stream: SyncStream, before: SyncStream | None) -> bool:
        """End a stream of the user that has most of them; return False if none may be ended for this stream."""
        if before is not None or self._readers[stream.identity] >= self._limits.syncs_of_one_max:
            return False
        users = {key: other.user for key, other in self._streams.items()}
        key = making_room(users, self._limits.syncs_max, stream.user, lambda key: self._streams[key].touched)
        if key is not None:
            self._lost.append(self._streams[key])
            self._end(key)
        return key is not None

    def take_lost(self) -> list[SyncStream]:
        """Return the streams that were ended since the last call, to make room for other users' streams."""
        lost, self._lost = self._lost, []
        return lost

    def _end(self, key: tuple[bytes, int]) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            if stream.copy is not None:
                self._copies.pop((key[0], stream.copy), None)
            self._readers[key[0]] -= 1
            if not self._readers[key[0]]:
                del self._readers[key[0]]

    def serves(self, identity: bytes) -> bool:
        """Return True if a reader has a stream."""
        return identity in self._readers

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """Give a reader's stream credit for `more` chunks."""
        stream = self._streams.get((identity, request_id))
        if stream is not None:
            stream.credit = min(stream.credit + more, self._limits.sync_credit_max)
            stream.touched = now

    def close(self, identity: bytes) -> None:
        """End all streams of a reader."""
        for key in [key for key in self._streams if key[0] == identity]:
            self._end(key)

    def clear(self) -> None:
        """Drop all streams: this server no longer serves."""
        self._streams.clear()
        self._readers.clear()
        self._copies.clear()

    def wanted(self, blocked: set[bytes]) -> set[str]:
        """Return the subtrees whose images are needed by streams that could begin now."""
        streams = self._streams.values()
        return {s.wants for s in streams if s.wants is not None and s.credit > 0 and s.identity not in blocked}

    def pump(
        self, blocked: set[bytes], may_begin: Callable[[str], bool], now: float, room: int, *, pressed: bool = False
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """Yield a part of each stream that has credit, with its reader's identity, up to the bytes of one turn.

        No reader gets more than its share of a turn, because the server keeps what a socket does not take yet.
        `pressed` says that other streams wait for the images of these. Then a reader without progress loses its
        stream sooner.
        """
        idle_s = self._limits.reader_pressed_s_max if pressed else self._limits.sync_idle_s_max
        room, share = min(room, self._limits.sync_turn_bytes), self._limits.sync_turn_of_one_bytes
        sent: Counter[bytes] = Counter()
        for key, stream in list(self._streams.items()):
            if now - stream.touched > idle_s:
                self._end(key)
                self.dropped += 1
            elif stream.waits is not None and stream.waits():
                stream.touched = now
            elif stream.wants is not None and not may_begin(stream.wants):
                # The server makes the stream wait, so the stream does not count as idle.
                stream.touched = now
                if stream.credit > 0 and key[0] not in blocked and (word := stream.word(now)):
                    yield stream.identity, word
            elif room > 0 and stream.credit > 0 and key[0] not in blocked and sent[key[0]] <= share:
                part = stream.part()
                if part is None:
                    if stream.copy is not None:
                        self.took.append(now - stream.began)
                    self._next(key, stream)
                    continue
                stream.touched = now
                if not part:
                    # Its image is not complete yet, or its records are still being read.
                    if word := stream.word(now):
                        yield stream.identity, word
                    continue
                stream.said = now
                stream.credit -= stream.counted
                size = sum(len(frames[-1]) for frames in part)
                room -= size
                sent[key[0]] += size
                # Move the stream to the end, so that streams that sent nothing come first in the next turn.
                self._streams[key] = self._streams.pop(key)
                yield stream.identity, part

    def _next(self, key: tuple[bytes, int], stream: SyncStream) -> None:
        if stream.waiting:
            after = stream.waiting.popleft()
            stream.parts, stream.wants = after.parts, after.wants
        else:
            self._end(key)

    def ready(self, blocked: set[bytes]) -> bool:
        """Return True if a stream could send now."""
        return any(
            s.credit > 0 and s.identity not in blocked and not (s.waits is not None and s.waits())
            for s in self._streams.values()
        )
