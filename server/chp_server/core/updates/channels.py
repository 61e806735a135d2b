"""The publisher: a channel for each subscribed subtree, and plain KVPUBs for CHP/1 (SPEC.md, section 16).

The publisher is an XPUB socket, so the server sees each subscription come and go. A subtree's channel carries
at most one BATCH a turn. Each BATCH has the previous number of the same channel in it. So a subscriber can
tell a lost BATCH from updates that do not concern it. A channel keeps the fingerprint of its subtree, and a
digest of the BATCHes it carried.

The server knows subscribers of CHP/1 by their topics, which are not reserved. They get a KVPUB for each update, before
the BATCHes of the same turn. So a subscriber to everything can drop the BATCHes by their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any
from zlib import crc32

from chp import columns, headers
from chp.batch import Segment, encode, narrow, shown
from chp.digest import NOTHING, link
from chp.hashmap import SUM_KEYS_MAX, Hashmap
from chp.keys import ETX, STX, channel_topic, topic_subtree
from chp.limits import Limits
from chp.messages import hugz
from chp.numbers import U64_MASK, ZERO, pack
from chp.properties import with_ttl_s

from ..state.image import Image
from ..state.record_log import grouped, numbered
from ..state.shares import Subtrees
from ..state.staging import StagedBatch
from .listeners import LINGERING_MAX, Listeners

Frames = list[bytes]
# With up to this many channels, a segment is compared with each channel's subtree, which takes two comparisons each.
FEW = 4
# A heartbeat looks at no more than this many keys for the fingerprints of channels, which takes some 10 ms.
LOOKED_AT_MAX = 1 << 17
# The most prefixes of CHP/1. If there are more, all updates are published, and the socket selects those to be sent.
PREFIXES_MAX = 1000


@dataclass(slots=True)
class PublishedChannel:
    """A subscribed subtree: its last number, its fingerprint, and what this turn has for it."""

    subtree: str
    topic: bytes
    last: int
    count: int = 0
    revision_sum: int = 0
    # True if `count` and `revision_sum` are those of the map. Under load they are not kept up to date, as in `Hashmap`.
    known: bool = True
    # An image whose count of the subtree is awaited. Updates that come meanwhile are added to `count` and
    # `revision_sum`, which began at 0.
    measuring: Image | None = None
    noted: int = 0
    parts: list[bytes] = field(default_factory=list)
    # The segments whose encoded form is in `parts`. A part that is not published is b"", and has no entry here.
    shares: list[Segment | StagedBatch] = field(default_factory=list)
    # The sessions that wrote the parts; b"" stands for the server.
    writers: dict[bytes, None] = field(default_factory=dict)
    # The number from which `digest` counts.
    since: int = 0
    # The digest of the bodies that were published.
    digest: int = 0

    def cost(self, hashmap: Hashmap) -> int:
        """Return how many keys `fingerprint` would look at."""
        return 0 if self.known or not self.subtree else len(hashmap)

    def fingerprint(self, hashmap: Hashmap) -> tuple[int, int]:
        """Return the count of keys in the subtree and the sum of their revisions, as `Hashmap.fingerprint` does."""
        if not self.subtree:
            return hashmap.fingerprint()
        if not self.known:
            self.measure(hashmap)
        self.noted = 0
        return self.count, self.revision_sum & U64_MASK

    def carried(self, body_crc: int) -> None:
        """Add a BATCH that was published to the digest."""
        self.digest = link(self.digest, body_crc)

    def begin_digest(self, number: int) -> None:
        """Begin the digest anew after `number`."""
        self.since, self.digest = number, 0

    def told(self, origins: list[list[Any]]) -> list[list[Any]]:
        """Return the origins of a record that wrote in the subtree; other origins do not concern the readers of it."""
        if not self.subtree or not origins:
            return origins
        numbers = dict(origins)
        return [[writer, numbers[writer]] for writer in self.writers if writer in numbers]

    def take(self, last: int) -> list[bytes]:
        """Take out the parts, which become one BATCH or are dropped; the next ones follow on `last`."""
        parts, self.parts, self.shares, self.last = self.parts, [], [], last
        if self.writers:
            self.writers = {}
        return parts

    def measure(self, hashmap: Hashmap) -> None:
        """Count and add up what the map has in the subtree."""
        if self.subtree:
            revisions = [r for k, r in hashmap.revisions.items() if k.startswith(self.subtree)]
            self.count, self.revision_sum = len(revisions), sum(revisions)
        self.known, self.measuring = True, None

    def measure_by(self, image: Image) -> None:
        """Let an image that was just begun count the keys of the subtree. The caller has committed the open record."""
        self.count = self.revision_sum = self.noted = 0
        self.known, self.measuring = False, image

    def look(self) -> None:
        """Take over the count of the image, if the image is complete by now."""
        if self.measuring is not None and self.measuring.ready:
            count, revision_sum = self.measuring.fingerprint()
            self.count += count
            self.revision_sum += revision_sum
            self.known, self.measuring = True, None

    def let_go(self) -> None:
        """Drop the fingerprint."""
        self.known, self.measuring = False, None

    def note(self, part: Segment, revision: int, before: Hashmap) -> None:
        """Update the fingerprint for a segment that is about to be applied with `revision`."""
        self.noted += len(part.keys)
        if self.noted > len(before) and len(before) <= SUM_KEYS_MAX:
            self.let_go()
        if not self.known and self.measuring is None:
            return
        written = dict.fromkeys(part.keys, revision)
        old = before.revisions
        self.count += len(written) - sum(map(old.__contains__, written))
        self.revision_sum += revision * len(written) - sum(map(old.get, written, repeat(0)))
        gone = len(set(before.deleted_by(part)))
        self.count -= gone
        self.revision_sum -= revision * gone


class PublishedChannels:
    """All channels of one server, and the CHP/1 prefixes that are subscribed to."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_topic: dict[bytes, PublishedChannel] = {}
        self._subtrees = Subtrees()  # the subtrees of these
        # The channels for which the open record has something.
        self._touched: dict[str, PublishedChannel] = {}
        self.listeners = Listeners(limits)
        self.chp1: dict[bytes, None] = {}
        # The session that wrote the segments that come next.
        self.writer = b""
        self.refused = 0
        # topic -> functions that make the BATCHes which this channel publishes in later turns, in order.
        self._later: dict[bytes, deque[Callable[[], Frames]]] = {}
        # Subtrees whose fingerprints are wanted, and need a pass over the map.
        self.unmeasured: list[str] = []

    # -- subscriptions

    def subscribe(self, topic: bytes, state: Any, who: bytes, now: float) -> PublishedChannel | None:
        """Subscribe a connection to a subtree's topic.

        Return its channel, which is made if it is new; None if there is no room, or if the topic is no subtree's.
        """
        subtree = topic_subtree(topic)
        if subtree is None:
            return None
        channel, listeners = self.by_topic.get(topic), self.listeners
        if not listeners.has(who, topic) and not listeners.room(who):
            channel = None
        elif channel is None and self._has_room(now):
            channel = self.by_topic[topic] = PublishedChannel(
                subtree, topic, state.number, known=False, since=state.number
            )
            self._subtrees.add(subtree)
        if channel is None:
            self.refused += 1
            return None
        listeners.join(who, channel.topic)
        return channel

    def _has_room(self, now: float) -> bool:
        most = self._limits.channels_max
        if len(self.by_topic) >= most:
            self.let_go(now, room=0)
        return len(self.by_topic) < most

    def subscribe_chp1(self, prefix: bytes, who: bytes) -> None:
        """Subscribe a CHP/1 connection to the keys with a prefix, or to all keys.

        The connection gets all keys if it has too many prefixes, or if all connections together have too many.
        """
        # No key begins with such a prefix.
        if prefix == b"HUGZ" or len(prefix) > self._limits.key_bytes_max:
            return
        crowd = len(self.chp1) >= PREFIXES_MAX and prefix not in self.chp1
        if not self.listeners.has(who, prefix) and (crowd or not self.listeners.room(who)):
            prefix = b""
        self.chp1[prefix] = None
        self.listeners.join(who, prefix)

    def let_go(self, now: float, room: int = LINGERING_MAX) -> None:
        """Forget the channels and prefixes that no connection has listened to for some seconds."""
        for topic in self.listeners.abandoned(now, room):
            channel = self.by_topic.pop(topic, None)
            if channel is None:
                self.chp1.pop(topic, None)
            else:
                self._subtrees.remove(channel.subtree)
                self._touched.pop(channel.subtree, None)
                self._later.pop(topic, None)

    def shown(self) -> dict[str, int]:
        """Return the number of listeners of each channel, for an operator; of the first hundred."""
        return {c.subtree: self.listeners.counts[c.topic] for c in islice(self.by_topic.values(), 100)}

    def reset(self, state: Any) -> None:
        """Begin every channel anew, after the state was replaced as a whole."""
        self._touched.clear()
        self.drop_later()
        for channel in self.by_topic.values():
            channel.take(state.number)
            channel.let_go()
            channel.begin_digest(state.number)

    def begin_epoch(self, first: int) -> None:
        """Begin all digests anew for a new epoch, because another server may have published before it."""
        self.drop_later()
        for channel in self.by_topic.values():
            channel.begin_digest(first)

    def digest_of(self, subtree: str) -> tuple[int, int]:
        """Return the number from which the digest of a subtree's channel counts, and the digest; `NOTHING` if none."""
        channel = self.by_topic.get(channel_topic(subtree))
        return NOTHING if channel is None else (channel.since, channel.digest)

    def measured(
        self, hashmap: Hashmap, topics: Iterable[bytes] | None = None
    ) -> Iterator[tuple[PublishedChannel, tuple[int, int] | None]]:
        """Yield channels with their fingerprints; None for a channel whose fingerprint would take too long now.

        Afterwards `unmeasured` names these subtrees, and the caller begins one pass over the map for all of them.
        """
        looked, self.unmeasured = 0, []
        for channel in map(self.by_topic.__getitem__, list(self.by_topic if topics is None else topics)):
            channel.look()
            cost = channel.cost(hashmap)
            if cost and looked + cost > LOOKED_AT_MAX:
                if channel.measuring is None:
                    self.unmeasured.append(channel.subtree)
                yield channel, None
            else:
                looked += cost
                yield channel, channel.fingerprint(hashmap)

    def measure_by(self, images: dict[str, Image]) -> None:
        """Let images that were just begun count the keys for channels of their subtrees that have no fingerprint."""
        for subtree, image in images.items():
            channel = self.by_topic.get(channel_topic(subtree))
            if channel is not None and subtree and not channel.known and channel.measuring is None:
                channel.measure_by(image)

    def fingerprint_of(self, subtree: str, hashmap: Hashmap) -> tuple[int, int] | None:
        """Return a subtree's fingerprint if it needs no look at all keys; else None."""
        if not subtree:
            return hashmap.fingerprint()
        channel = self.by_topic.get(channel_topic(subtree))
        if channel is None:
            return None
        channel.look()
        return channel.fingerprint(hashmap) if channel.known else None

    # -- a turn

    def note(self, segment: Segment, encoded: bytes, revision: int, before: Hashmap) -> None:
        """Give each channel its part of a segment, before the map has it."""
        for channel, part in self._shares(segment):
            if channel.subtree:
                channel.note(part, revision, before)
                channel.writers[self.writer] = None
            channel.parts.append(encoded if part is segment else part.encode())
            channel.shares.append(part)

    def gather(self, segment: Segment, encoded: bytes | None) -> None:
        """Give each channel its part of a large segment, and drop the fingerprints: to recompute them is cheaper.

        If `encoded`, the bytes of the segment, is None, nothing is published.
        """
        for channel, part in self._shares(segment):
            self._take_large(channel, part, None if encoded is None else encoded if part is segment else part.encode())

    def gather_staged(self, batch: StagedBatch, *, publish: bool) -> None:
        """Give each channel its part of a plain batch of a large commit, as `gather` does."""
        for channel, part in self._shares_of_staged(batch):
            self._take_large(channel, part, part.encode() if publish else None)

    def _shares_of_staged(self, batch: StagedBatch) -> Iterator[tuple[PublishedChannel, Segment | StagedBatch]]:
        """Yield what `_shares` does; the batch is decoded only if a channel has a part of it."""
        if len(self.by_topic) <= FEW:
            for channel in self.by_topic.values():
                if (part := batch.narrowed(channel.subtree)) is not None:
                    self._touched[channel.subtree] = channel
                    yield channel, part
        elif (whole := self._subtrees.holding(batch.low, batch.high)) is not None:
            for subtree in whole:
                channel = self._touched[subtree] = self.by_topic[channel_topic(subtree)]
                yield channel, batch
        else:
            yield from self._shares(batch.segment())

    def _take_large(self, channel: PublishedChannel, part: Segment | StagedBatch, encoded: bytes | None) -> None:
        channel.let_go()
        if encoded is None:
            channel.parts.append(b"")
            return
        channel.writers[self.writer] = None
        channel.parts.append(encoded)
        channel.shares.append(part)

    def follow(self, segment: Segment, revision: int, before: Hashmap) -> None:
        """Update the fingerprints of a passive's channels for a segment, before the map has it; publish nothing."""
        for channel, part in self._shares(segment):
            if channel.subtree:
                channel.note(part, revision, before)
            channel.parts.append(b"")

    def _shares(self, segment: Segment) -> Iterator[tuple[PublishedChannel, Segment]]:
        """Yield the channels that a segment concerns, each with its part."""
        if not segment.keys or (segment.extras and columns.STAGE in segment.extras):
            return
        if len(self.by_topic) <= FEW:
            for channel in self.by_topic.values():
                part = narrow(segment, channel.subtree) if channel.subtree else segment
                if part is not None:
                    self._touched[channel.subtree] = channel
                    yield channel, shown(part) if channel.subtree else part
        else:
            for subtree, part in self._subtrees.shares(segment):
                channel = self._touched[subtree] = self.by_topic[channel_topic(subtree)]
                yield channel, shown(part) if subtree else part

    def _take_touched(self) -> Iterator[PublishedChannel]:
        touched, self._touched = self._touched, {}
        return (channel for channel in touched.values() if channel.parts)

    def skip(self, last: int) -> None:
        """Drop the parts of a record that is complete and is not published."""
        for channel in self._take_touched():
            channel.take(last)

    def publish(self, header: headers.Batch, record_body: bytes, record_crc: int, items: int) -> list[Frames]:
        """Return a BATCH for each channel that has parts of the record, and take these parts out.

        `record_body` and `record_crc` are those of the whole record, which has `items` segments.
        """
        out: list[Frames] = []
        prev, last, number = header.prev, header.last, pack(header.last)
        touched, self._touched = self._touched, {}
        for channel in touched.values():
            if not channel.parts:
                continue
            body, crc = record_body, record_crc
            before, origins = channel.last, channel.told(header.origins)
            parts = channel.take(last)
            if self._later and channel.topic in self._later:
                header_after = header.after(before, origins)
                self._later[channel.topic].append(partial(_one, channel, header_after, parts))
                continue
            if channel.subtree or before != prev or len(parts) != items:
                body = encode(header.after(before, origins), parts)
                crc = crc32(body)
            channel.carried(crc)
            out.append([channel.topic, number, b"", b"", body])
        return out

    def publish_parts(self, first: int, last: int, wall_ms: int, origins: list[list[Any]]) -> list[Frames]:
        """Return the BATCHes of a record that may be large: several a channel, the last one with the origins."""
        out: list[Frames] = []
        for channel, batches in self._in_parts(first, last, wall_ms, origins):
            if channel.topic in self._later:
                self._later[channel.topic] += batches
            else:
                out += (make() for make in batches)
        return out

    def publish_later(self, first: int, last: int, wall_ms: int, origins: list[list[Any]]) -> None:
        """Let a large record be published as by `publish_parts`, but later: a share a turn (`share`)."""
        for channel, batches in self._in_parts(first, last, wall_ms, origins):
            self._later.setdefault(channel.topic, deque()).extend(batches)

    def _in_parts(
        self, first: int, last: int, wall_ms: int, origins: list[list[Any]]
    ) -> Iterator[tuple[PublishedChannel, list[Callable[[], Frames]]]]:
        """Yield each channel that has parts of the record, with functions that make its BATCHes. Take the parts out."""
        for channel in self._take_touched():
            at, told = channel.last, channel.told(origins)
            weights = [share.weight for share in channel.shares]
            groups = grouped(channel.take(last), weights, self._limits.part_bytes)
            yield (
                channel,
                [
                    partial(
                        _one, channel, headers.Batch(before, start, end, wall_ms, [] if more else told, more), group
                    )
                    for (before, start, end), more, group in numbered(groups, at, first, last)
                ],
            )

    @property
    def behind(self) -> bool:
        """True if a part of a large record is not published yet."""
        return bool(self._later)

    def drop_later(self) -> None:
        """Drop what is not published yet: another server is active, and readers resume there."""
        self._later.clear()

    def share(self, left: int) -> list[Frames]:
        """Return the next BATCHes of large records in the order of each channel, until `left` bytes are done."""
        out: list[Frames] = []
        while self._later and left > 0:
            topic, waiting = next(iter(self._later.items()))
            out.append(waiting.popleft()())
            left -= len(out[-1][-1])
            # The channels take turns.
            del self._later[topic]
            if waiting:
                self._later[topic] = waiting
        return out

    def kvpubs(self, segments: Iterable[Segment | StagedBatch], first: int, last: int) -> list[Frames]:
        """Return a KVPUB for each update of first..last that a CHP/1 subscriber may want, in order.

        If the number rises without an update, a HUGZ tells the new number. A subscriber to everything can then drop the
        greetings and heartbeats that carry it.
        """
        if not self.chp1:
            return []
        prefixes = self._prefixes()
        everything = "" in prefixes
        out: list[Frames] = []
        for each in segments:
            segment = each.segment() if isinstance(each, StagedBatch) else each
            if everything or any(narrow(segment, prefix) for prefix in prefixes):
                out += _kvpubs(segment, first, () if everything else prefixes)
            first += len(segment.keys)
        if first <= last:
            out.append(alive(last))
        return out

    def _prefixes(self) -> tuple[str, ...]:
        return tuple(prefix for topic in self.chp1 if (prefix := _text_prefix(topic)) is not None)


def _one(channel: PublishedChannel, header: headers.Batch, parts: list[bytes]) -> Frames:
    """Make a BATCH of a channel. A channel's BATCHes have to be made in order, because each extends the digest."""
    body = encode(header, parts)
    channel.carried(crc32(body))
    return [channel.topic, pack(header.last), b"", b"", body]


def alive(number: int) -> Frames:
    """Return a HUGZ with the number up to which all was published."""
    return hugz(number, properties=b"chp=2\n")


def _text_prefix(topic: bytes) -> str | None:
    """Return a topic as text; None if no key can begin with it. A character that is cut off at the end is left out."""
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        cut_short = error.end == len(topic) and error.reason == "unexpected end of data"
        return topic[: error.start].decode() if cut_short else None


def _kvpubs(segment: Segment, first: int, prefixes: tuple[str, ...]) -> list[Frames]:
    uuids, properties = _columns(segment)
    extras = segment.extras
    deletes = set(extras[columns.DELETES]) if extras and columns.DELETES in extras else ()
    out: list[Frames] = []
    for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
        if prefixes and not key.startswith(prefixes):
            continue
        out.append(
            [
                key.encode(),
                pack(first + i),
                uuids[i] if uuids else b"",
                properties.get(i, b""),
                b"" if i in deletes else value,
            ]
        )
    return out


def _columns(segment: Segment) -> tuple[list[bytes], dict[int, bytes]]:
    extras = segment.extras
    if not extras:
        return [], {}
    properties: dict[int, bytes] = {}
    ttl = extras.get(columns.TTLS)
    if type(ttl) is int:
        properties = dict.fromkeys(range(len(segment.keys)), with_ttl_s(b"", ttl))
    elif ttl:
        properties = {i: with_ttl_s(b"", ms) for i, ms in zip(*ttl, strict=True)}
    if columns.PROPERTIES in extras:
        properties.update(zip(*extras[columns.PROPERTIES], strict=True))
    return extras.get(columns.UUIDS, []), properties


def greeting(topic: bytes, number: int, body: bytes) -> Frames:
    """Return a GREETING, HEARTBEAT or ACK as a message on its topic."""
    return [topic, pack(number) if number else ZERO, b"", b"", body]


def is_session_topic(topic: bytes) -> bool:
    """Return whether a topic is a client's own channel: STX, '@', 32 hex digits, ETX."""
    return len(topic) == 35 and topic[:2] == STX + b"@" and topic[-1:] == ETX
