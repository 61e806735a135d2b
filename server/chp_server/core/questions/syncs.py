"""Snapshots and resumes under way: streams of chunks, each sent only when its reader has room (SPEC.md, section 17).

A stream holds an image of its subtree (image.py), which is consistent while the server goes on serving. Chunks are
encoded when they are sent, and a CHP/2 reader never has more in flight than the credit it gave. A CHP/1 reader gives no
credit; its KVSYNCs go out a portion a turn, as fast as its socket takes them: the reactor tells who is blocked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

from chp import columns, headers
from chp.batch import Segment, decode, encode, narrow, segment_of, shown
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
WORD_S = 0.75  # less than the second that is promised, as turns come with the heartbeats at least
TOOK_MAX = 1000  # of the latest copies
PORTION_ITEMS, PORTION_BYTES = 256, 1 << 20  # of a CHP/1 snapshot in one turn, or one value


@dataclass(slots=True)
class SyncStream:
    """One reader's way from its request to KTHXBAI: bodies or portions still to come, and the room it gave."""

    identity: bytes
    request_id: int
    parts: Iterator[list[Frames]]
    credit: int
    counted: bool  # CHP/2: each part costs one credit
    touched: float
    wants: str | None = None  # until it has begun: the subtree of which it needs an image
    copy: tuple[bytes, str] | None = None  # the session and the subtree whose copy it is
    waiting: deque[SyncStream] = field(default_factory=deque)  # CHP/1: asked for meanwhile, in order
    began: float = 0.0  # of a copy
    user: str = ""
    empty: Callable[[], Frames] | None = None  # makes a chunk that has nothing, for a reader that waits
    said: float = 0.0  # when a chunk was sent last

    def word(self, now: float) -> list[Frames]:
        """Return an empty chunk if the reader was sent nothing for a while: we prepare its answer."""
        if self.empty is None or now - self.said < WORD_S:
            return []
        self.said = now
        return [self.empty()]

    def part(self) -> list[Frames] | None:
        """The next part; None when it is at its end."""
        self.wants = None
        try:
            return next(self.parts, None)
        except BadInput as error:  # what it reads is not there any more
            self.parts = iter(())
            return [reply(pack(0), encode(headers.Refused(self.request_id, "retained", str(error))))]


def snapshot_parts(
    image: Image,
    request_id: int,
    ending: list[Any],
    limits: Limits,
    now: Callable[[], float],
    *,
    form: Callable[[Segment], bytes] = Segment.encode,
    indices: Iterator[int] | None = None,
) -> Iterator[list[Frames]]:
    """SYNC chunks and the KTHXBAI of a snapshot, with `ending`, each a list of one message, once the image is whole.

    `indices` go on behind those of empty chunks that were sent before.
    """
    yield from gathered(image)
    number, indices = pack(image.number), indices or count()
    for segment in image.chunks(limits, now):
        yield [reply(number, encode(headers.Sync(request_id, next(indices)), [form(segment)]))]
    end = headers.Kthxbai(request_id, image.number, *image.fingerprint(), *ending)
    yield [reply(number, encode(end))]


def gathered(image: Image) -> Iterator[list[Frames]]:
    """Nothing to send, as often as somebody asks before the image is whole."""
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
    """RECORDS chunks of what a subtree missed, and the KTHXBAI that `end` is; `prev` skips what is left out.

    `opener` tells who opened the epoch of a number. A record that is None is not here yet: there is nothing to send.
    `indices` go on behind those of empty chunks that were sent before. `as_of_now` is given each segment and the
    revision of its keys, and returns what is sent of it.
    """
    request_id, number = end.request, pack(end.number)
    prev, unfinished, parts = after, False, Parts()
    bodies: list[bytes] = []
    load = Load(limits.sync_chunk_bytes)
    kept_of: list[bool] = []  # of each segment of the record under way, whether it is in the subtree
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
        first = parts.revision(header)  # that of its keys, also if the first part is left out
        parts.add(header, [])
        kept = [part if as_of_now is None else as_of_now(part, first) for part in found if part is not None]
        if not kept and (header.more or not unfinished):  # the last part of a record is needed, were it empty
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
    """Return a record's header, and of each of its segments what readers of a subtree get."""
    header, items = decode(body, WHOLE_STATE)
    parts = [narrow(segment_of(item), subtree) for item in items]
    return header, [None if part is None else shown(part) for part in parts] if subtree else parts


def _weight(header: headers.Batch, kept: list[Segment]) -> int:
    """Return what a record weighs for a reader."""
    return CONTAINER + 1 + len(kept) + weight_of(headers.fields_of(header)) + sum(part.weight for part in kept)


def with_ttls_left(segment: Segment, revision: int, hashmap: Hashmap, now: float) -> Segment:
    """Return a segment of a record with what is left of its ttls, as far as the map has its keys of that revision."""
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
    """With the origins of those segments alone that a reader gets: who wrote elsewhere is nothing to it."""
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
    """KVSYNCs in portions, and the KTHXBAI, as RFC 12 has them: for a CHP/1 reader."""
    yield from gathered(image)
    portion: list[Frames] = []
    size = 0
    for key, value, revision in image.items():
        if not value:  # in CHP/1 it would say deleted
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
    """A CHP/2 message on the snapshot port."""
    return [RESERVED_KEY, number, b"", b"", body]


class Syncs:
    """The streams of all readers, served in turn."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: dict[tuple[bytes, int], SyncStream] = {}  # who has waited longest for a turn comes first
        self._readers: Counter[bytes] = Counter()  # how many of them each has
        self._copies: dict[tuple[bytes, tuple[bytes, str]], int] = {}  # the request of each Clone's copy
        self.took: deque[float] = deque(maxlen=TOOK_MAX)  # how long copies took, until somebody takes that away
        self._lost: list[SyncStream] = []  # what made room for another user's, until somebody takes that away
        self.refused = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, stream: SyncStream) -> bool:
        """Begin a stream, after the one that a CHP/1 reader has asked for before; False when there are too many.

        A Clone that asks again for a copy has given up the one before: it would wait here, for credit, until it is idle
        for too long, and a server that was stopped for a minute finds all that was asked meanwhile.
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
        """Whether a stream of the user who has most of them was ended for one of another user."""
        if before is not None or self._readers[stream.identity] >= self._limits.syncs_of_one_max:
            return False
        users = {key: other.user for key, other in self._streams.items()}
        key = making_room(users, self._limits.syncs_max, stream.user, lambda key: self._streams[key].touched)
        if key is not None:
            self._lost.append(self._streams[key])
            self._end(key)
        return key is not None

    def take_lost(self) -> list[SyncStream]:
        """Return the streams that were ended for those of others since the last call."""
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
        """Whether a reader has asked for something that it does not have yet."""
        return identity in self._readers

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """A reader gives room for `more` chunks."""
        stream = self._streams.get((identity, request_id))
        if stream is not None:
            stream.credit = min(stream.credit + more, self._limits.sync_credit_max)
            stream.touched = now

    def close(self, identity: bytes) -> None:
        """A reader is gone."""
        for key in [key for key in self._streams if key[0] == identity]:
            self._end(key)

    def clear(self) -> None:
        """Drop all streams: the server no longer serves."""
        self._streams.clear()
        self._readers.clear()
        self._copies.clear()

    def wanted(self, blocked: set[bytes]) -> set[str]:
        """The subtrees of which streams that could begin need an image."""
        streams = self._streams.values()
        return {s.wants for s in streams if s.wants is not None and s.credit > 0 and s.identity not in blocked}

    def pump(
        self, blocked: set[bytes], may_begin: Callable[[str], bool], now: float, room: int, *, pressed: bool = False
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """One part of each stream that has room, with its reader's identity, as far as one turn may send.

        No reader gets more than its share of a turn, as what it does not take is held for it. `pressed`: others wait
        for the room that its streams take, so who lets them stand still loses them sooner.
        """
        idle_s = self._limits.reader_pressed_s_max if pressed else self._limits.sync_idle_s_max
        room, share = min(room, self._limits.sync_turn_bytes), self._limits.sync_turn_of_one_bytes
        sent: Counter[bytes] = Counter()
        for key, stream in list(self._streams.items()):
            if now - stream.touched > idle_s:
                self._end(key)
                self.dropped += 1
            elif stream.wants is not None and not may_begin(stream.wants):
                stream.touched = now  # it is we who make it wait
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
                if not part:  # its image is not whole yet
                    if word := stream.word(now):
                        yield stream.identity, word
                    continue
                stream.said = now
                stream.credit -= stream.counted
                size = sum(len(frames[-1]) for frames in part)
                room -= size
                sent[key[0]] += size
                self._streams[key] = self._streams.pop(key)  # behind those that had no turn
                yield stream.identity, part

    def _next(self, key: tuple[bytes, int], stream: SyncStream) -> None:
        if stream.waiting:
            after = stream.waiting.popleft()
            stream.parts, stream.wants = after.parts, after.wants
        else:
            self._end(key)

    def ready(self, blocked: set[bytes]) -> bool:
        """Whether some stream could send now."""
        return any(s.credit > 0 and s.identity not in blocked for s in self._streams.values())
