"""What is published, and to whom: a channel for each subscribed subtree, plain KVPUBs for CHP/1 (SPEC.md, section 16).

The publisher is an XPUB socket, so the server sees each subscription come and go. A subtree's channel gets one BATCH a
turn, with the previous number of the same channel in it; a subscriber can tell a hole from a filter. Its fingerprint
is kept beside it, and a digest of the BATCHes it carried. CHP/1 subscribers, known by topics that are not reserved, get
a KVPUB for each update, before the batches of the same turn, so that one who subscribed to everything drops the batches
by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from .listeners import LINGERING_MAX, Listeners

Frames = list[bytes]
FEW = 4  # channels: up to here each looks at a column, which takes two comparisons
LOOKED_AT_MAX = 1 << 17  # keys a heartbeat looks at for the fingerprints of channels: some 10 ms
PREFIXES_MAX = 1000  # of CHP/1; for one more, all updates are published, and sorting them is left to the socket


@dataclass(slots=True)
class PublishedChannel:
    """A subscribed subtree: its last number, its fingerprint, and what this turn has for it."""

    subtree: str
    topic: bytes
    last: int
    count: int = 0
    revision_sum: int = 0
    known: bool = True  # whether count and sum are those of the map; as in `Hashmap`, they are let go under load
    measuring: Image | None = None  # what is there is counted: what comes meanwhile is added up beside it
    noted: int = 0
    parts: list[bytes] = field(default_factory=list)
    shares: list[Segment] = field(default_factory=list)  # what the parts say, if they are published
    writers: dict[bytes, None] = field(default_factory=dict)  # the sessions that those are of; b"": our own
    since: int = 0  # the number from which `digest` counts
    digest: int = 0  # of the bodies that were published

    def cost(self, hashmap: Hashmap) -> int:
        """How many keys `fingerprint` would look at."""
        return 0 if self.known or not self.subtree else len(hashmap)

    def fingerprint(self, hashmap: Hashmap) -> tuple[int, int]:
        """As `Hashmap.fingerprint`, of the keys in the subtree."""
        if not self.subtree:
            return hashmap.fingerprint()
        if not self.known:
            self.measure(hashmap)
        self.noted = 0
        return self.count, self.revision_sum & U64_MASK

    def carried(self, body_crc: int) -> None:
        """A BATCH is published on the channel."""
        self.digest = link(self.digest, body_crc)

    def begin_digest(self, number: int) -> None:
        """Count from here on: what was carried before is of no account."""
        self.since, self.digest = number, 0

    def told(self, origins: list[list[Any]]) -> list[list[Any]]:
        """Of a record's origins, those that wrote in the subtree: who wrote elsewhere is nothing to its readers."""
        if not self.subtree or not origins:
            return origins
        numbers = dict(origins)
        return [[writer, numbers[writer]] for writer in self.writers if writer in numbers]

    def take(self, last: int) -> list[bytes]:
        """The parts, that go out as one record or are not to; the next ones come after `last`."""
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
        """Let an image that has just been begun count what is there; nothing is open."""
        self.count = self.revision_sum = self.noted = 0
        self.known, self.measuring = False, image

    def look(self) -> None:
        """If the image is whole by now, what is there is known."""
        if self.measuring is not None and self.measuring.ready:
            count, revision_sum = self.measuring.fingerprint()
            self.count += count
            self.revision_sum += revision_sum
            self.known, self.measuring = True, None

    def let_go(self) -> None:
        """What is there is not known any more."""
        self.known, self.measuring = False, None

    def note(self, part: Segment, revision: int, before: Hashmap) -> None:
        """Move the fingerprint by a segment that is about to be applied with `revision`."""
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
    """All channels of one server, and the CHP/1 prefixes that somebody subscribed to."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_topic: dict[bytes, PublishedChannel] = {}
        self._subtrees = Subtrees()  # of those
        self._touched: dict[str, PublishedChannel] = {}  # those for which the open record has something
        self.listeners = Listeners(limits)
        self.chp1: dict[bytes, None] = {}
        self.writer = b""  # the session whose segments are noted
        self.refused = 0
        self.unmeasured: list[str] = []  # subtrees whose fingerprints are wanted, and take a pass over the map

    # -- subscriptions

    def subscribe(self, topic: bytes, state: Any, who: bytes, now: float) -> PublishedChannel | None:
        """A connection subscribed to a subtree's topic: its channel, made if it was not there; None without room."""
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
        """A connection of CHP/1 wants the keys with a prefix: all of them if it, or all together, want too many."""
        if prefix == b"HUGZ" or len(prefix) > self._limits.key_bytes_max:  # no key begins with that
            return
        crowd = len(self.chp1) >= PREFIXES_MAX and prefix not in self.chp1
        if not self.listeners.has(who, prefix) and (crowd or not self.listeners.room(who)):
            prefix = b""
        self.chp1[prefix] = None
        self.listeners.join(who, prefix)

    def let_go(self, now: float, room: int = LINGERING_MAX) -> None:
        """Forget the channels and prefixes that nobody has listened to for some seconds."""
        for topic in self.listeners.abandoned(now, room):
            channel = self.by_topic.pop(topic, None)
            if channel is None:
                self.chp1.pop(topic, None)
            else:
                self._subtrees.remove(channel.subtree)
                self._touched.pop(channel.subtree, None)

    def shown(self) -> dict[str, int]:
        """Of an operator's first hundred: how many listen to each."""
        return {c.subtree: self.listeners.counts[c.topic] for c in islice(self.by_topic.values(), 100)}

    def reset(self, state: Any) -> None:
        """Start every channel anew, after the state was replaced as a whole."""
        self._touched.clear()
        for channel in self.by_topic.values():
            channel.take(state.number)
            channel.let_go()
            channel.begin_digest(state.number)

    def begin_epoch(self, first: int) -> None:
        """An epoch has been opened: another server may have published before, so digests begin anew."""
        for channel in self.by_topic.values():
            channel.begin_digest(first)

    def digest_of(self, subtree: str) -> tuple[int, int]:
        """Since when, and what: the digest of a subtree's channel as of now; `NOTHING` if there is none."""
        channel = self.by_topic.get(channel_topic(subtree))
        return NOTHING if channel is None else (channel.since, channel.digest)

    def measured(
        self, hashmap: Hashmap, topics: Iterable[bytes] | None = None
    ) -> Iterator[tuple[PublishedChannel, tuple[int, int] | None]]:
        """Channels with their fingerprints; None for one that is not measured yet, as that takes a look at all keys.

        What a heartbeat has no time for is named by `unmeasured` afterwards: a pass for all of them is to be begun.
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
        """Images were begun: they count what is there for the channels of these subtrees that want to know."""
        for subtree, image in images.items():
            channel = self.by_topic.get(channel_topic(subtree))
            if channel is not None and subtree and not channel.known and channel.measuring is None:
                channel.measure_by(image)

    def fingerprint_of(self, subtree: str, hashmap: Hashmap) -> tuple[int, int] | None:
        """A subtree's fingerprint, if that is known without a look at all keys."""
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

    def gather(self, segment: Segment, encoded: bytes) -> None:
        """As `note`, of much: the fingerprints are let go, as adding up what the map has is the cheaper way then."""
        for channel, part in self._shares(segment):
            channel.let_go()
            channel.writers[self.writer] = None
            channel.parts.append(encoded if part is segment else part.encode())
            channel.shares.append(part)

    def follow(self, segment: Segment, revision: int, before: Hashmap) -> None:
        """As `note`, on a passive server: channels move, and nothing is published."""
        for channel, part in self._shares(segment):
            if channel.subtree:
                channel.note(part, revision, before)
            channel.parts.append(b"")

    def _shares(self, segment: Segment) -> Iterator[tuple[PublishedChannel, Segment]]:
        """The channels that a segment concerns, each with its part."""
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
        """The record that `follow` was told of is complete."""
        for channel in self._take_touched():
            channel.take(last)

    def publish(self, header: headers.Batch, record_body: bytes, record_crc: int, items: int) -> list[Frames]:
        """The BATCH of each channel that has a part in the record of `items` segments; all parts are taken."""
        out: list[Frames] = []
        prev, last, number = header.prev, header.last, pack(header.last)
        touched, self._touched = self._touched, {}
        for channel in touched.values():
            if not channel.parts:
                continue
            body, crc = record_body, record_crc
            before, origins = channel.last, channel.told(header.origins)
            parts = channel.take(last)
            if channel.subtree or before != prev or len(parts) != items:
                body = encode(header.after(before, origins), parts)
                crc = crc32(body)
            channel.carried(crc)
            out.append([channel.topic, number, b"", b"", body])
        return out

    def publish_parts(self, first: int, last: int, wall_ms: int, origins: list[list[Any]]) -> list[Frames]:
        """As `publish`, of a record that may be large: several BATCHes a channel, of which the last has the origins."""
        out: list[Frames] = []
        for channel in self._take_touched():
            at, told = channel.last, channel.told(origins)
            weights = [share.weight for share in channel.shares]
            groups = grouped(channel.take(last), weights, self._limits.part_bytes)
            for (before, start, end), more, group in numbered(groups, at, first, last):
                body = encode(headers.Batch(before, start, end, wall_ms, [] if more else told, more), group)
                channel.carried(crc32(body))
                out.append([channel.topic, pack(end), b"", b"", body])
        return out

    def kvpubs(self, segments: list[Segment], first: int, last: int) -> list[Frames]:
        """A KVPUB for each update of first..last that a CHP/1 subscriber may want, in order.

        Where the number moves on without an update, a HUGZ says so: a subscriber to everything can then drop the
        greetings and heartbeats that carry the number.
        """
        if not self.chp1:
            return []
        prefixes = self._prefixes()
        everything = "" in prefixes
        out: list[Frames] = []
        for segment in segments:
            if everything or any(narrow(segment, prefix) for prefix in prefixes):
                out += _kvpubs(segment, first, () if everything else prefixes)
            first += len(segment.keys)
        if first <= last:
            out.append(alive(last))
        return out

    def _prefixes(self) -> tuple[str, ...]:
        return tuple(prefix for topic in self.chp1 if (prefix := _text_prefix(topic)) is not None)


def alive(number: int) -> Frames:
    """HUGZ, with the number up to which all was published."""
    return hugz(number, properties=b"chp=2\n")


def _text_prefix(topic: bytes) -> str | None:
    """The text with which a topic begins, since it may end within a character; None if no key can begin with it."""
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
    """A GREETING, HEARTBEAT or ACK as a message on its topic."""
    return [topic, pack(number) if number else ZERO, b"", b"", body]


def is_session_topic(topic: bytes) -> bool:
    """Whether a topic is a client's own channel: STX, '@', 32 hex digits, ETX."""
    return len(topic) == 35 and topic[:2] == STX + b"@" and topic[-1:] == ETX
