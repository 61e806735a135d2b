"""The open record: what was done since the last one, and whose it is (SPEC.md, section 16).

Segments stand in it as the bytes they came in, and are in the map already; sets of CHP/1 gather beside them until they
are a segment. All get the number after the state's as their revision. It is bounded, since a record has to fit a frame.
"""

from __future__ import annotations

from typing import Any

from chp import columns
from chp.batch import Segment, packb
from chp.limits import Limits
from chp.unpacking import BYTE_WEIGHT_MAX

from ..state.record_log import ORIGINS_MAX, SEGMENTS_WEIGHT_MAX, LoggedMessages
from ..state.state import ReplicatedState
from ..state.topics import Topics
from ..state.verdicts import BatchId


class Chp1Sets:
    """The open segment."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._segment = Segment([], [], {columns.UUIDS: []})
        self.keys = self._segment.keys
        self._uuids: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._segment.keys)

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._uuids

    def add(self, key: str, value: bytes, uuid: bytes, properties: bytes, ttl_ms: int | None) -> None:
        """The next one."""
        segment, place = self._segment, len(self._segment.keys)
        extras: dict[str, Any] = segment.extras or {}
        segment.keys.append(key)
        segment.values.append(value)
        extras[columns.UUIDS].append(uuid)
        if uuid:
            self._uuids.add(uuid)
        if not value:
            extras.setdefault(columns.DELETES, []).append(place)
        if properties:
            _sparse(extras, columns.PROPERTIES, place, properties)
            if ttl_ms is not None:
                _sparse(extras, columns.TTLS, place, ttl_ms)

    def take(self) -> Segment:
        """The segment; another begins."""
        segment = self._segment
        self._begin()
        return segment


def _sparse(extras: dict[str, Any], name: str, place: int, value: object) -> None:
    column = extras.setdefault(name, [[], []])
    column[0].append(place)
    column[1].append(value)


HEADER_BYTES_MAX = 1 << 16  # what a record has beside its segments: the origins of one turn, `ORIGINS_MAX`
ROW_BYTES = 1 << 19  # of messages in one row, unless one batch has more: who reads gets whole ones
NOBODYS = (b"", 0)  # no session's batch: of CHP/1, or our own


class OpenRecord:
    """See the module."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.chp1 = Chp1Sets()
        self.begin()

    def begin(self) -> None:
        """Nothing is open."""
        self.segments: list[Segment] = []  # but for what is staged
        self.bodies: list[bytes] = []
        self.origins: dict[bytes, int] = {}  # each session's last batch in it
        self.whose: list[tuple[bytes, int, int]] = []  # session, batch, how many of the segments; no session: our own
        self.items = 0
        self.bytes = 0
        self._each: list[Segment] = []  # what the bodies say
        self._messages: list[tuple[int, int, int, bytes]] = []  # of a topic: the first offset, how many, and their body
        self._message_bytes = 0

    def full(self, size: int) -> bool:
        """Whether it is to be committed before `size` more bytes: it has to fit a frame."""
        if not self.bytes:
            return False
        limits = self.limits
        items = self.items + len(self.chp1.keys) >= limits.record_items_max
        crowd = len(self.whose) >= ORIGINS_MAX or len(self.bodies) >= limits.record_segments_max
        return items or crowd or self.bytes + self._message_bytes + size > limits.batch_bytes_max

    @property
    def large(self) -> bool:
        """Whether it has to be made in parts, if it has several bodies.

        Deletes of our own have no bound, and batches of many small things are heavy for a reader.
        """
        limits = self.limits
        many = self.bytes > limits.batch_bytes_max or self.items > 2 * limits.batch_items_max
        return many or (self.bytes * BYTE_WEIGHT_MAX > SEGMENTS_WEIGHT_MAX and self._heavy)

    @property
    def weights(self) -> list[int]:
        """The weights of the bodies, as a reader counts them."""
        return [segment.weight for segment in self._each]

    @property
    def _heavy(self) -> bool:
        return sum(self.weights) + len(self._each) > SEGMENTS_WEIGHT_MAX

    def crowds(self, session_id: bytes, segment: Segment, state: ReplicatedState) -> bool:
        """Whether another session may have written one of the segment's keys in it."""
        others = len(self.origins) > (session_id in self.origins)
        return others and state.number + 1 in map(state.map.revisions.get, segment.keys)

    def add(self, segment: Segment, body: bytes, batch: BatchId = NOBODYS) -> None:
        """A segment was done."""
        whose = self.whose
        if whose and whose[-1][:2] == batch:
            self.attribute(batch, 1)
        else:
            whose.append((*batch, 1))
        self.bodies.append(body)
        self.bytes += len(body)
        self._each.append(segment)
        if not (segment.extras and columns.STAGE in segment.extras):
            self.segments.append(segment)
            self.items += len(segment.keys)

    def place(self, segment: Segment, topics: Topics, wall_ms: int) -> Segment:
        """Messages get their offsets: the segment as it stands in the record, which has these alone."""
        extras = dict(segment.extras or {})
        placed = []
        for name, count, body in extras.pop(columns.PUBLISH):
            topic, said = topics.place(name, count, body, wall_ms)
            placed.append(said)
            self._messages.append((topic.id, said[1], count, body))
            self._message_bytes += len(body)
        return Segment(segment.keys, segment.values, {**extras, columns.PLACED: [wall_ms, placed]})

    def take_messages(self, number: int, wall_ms: int, most: int | None = None) -> list[LoggedMessages]:
        """What was placed, in rows of a topic each, for the journal and the passive; or the first `most` of it."""
        if not self._messages:
            return []
        taken = self._messages[:most]
        del self._messages[:most]
        self._message_bytes -= sum(len(body) for *_, body in taken)
        rows: list[list[Any]] = []
        last: dict[int, list[Any]] = {}  # of each topic: its id, the first offset, how many, their bytes, their bodies
        for topic, first, count, body in taken:
            row = last.get(topic)
            if row is None or row[3] + len(body) > ROW_BYTES or row[2] + count > self.limits.batch_items_max:
                row = last[topic] = [topic, first, 0, 0, []]
                rows.append(row)
            row[2] += count
            row[3] += len(body)
            row[4].append(body)
        return [
            LoggedMessages(topic, first, count, number, wall_ms, packb(bodies))
            for topic, first, count, _, bodies in rows
        ]

    def attribute(self, batch: BatchId, n: int) -> None:
        """The next `n` segments are a batch's."""
        if self.whose and self.whose[-1][:2] == batch:
            n += self.whose.pop()[2]
        self.whose.append((*batch, n))

    def told_whose(self) -> tuple[list[list[Any]], list[Any]]:
        """The end of its header: origins, and which segments are whose, if not all are one batch's or our own."""
        origins, whose = list(map(list, self.origins.items())), self.whose
        if len(whose) <= 1 and len(origins) <= 1 and bool(whose and whose[0][0]) == bool(origins):
            return origins, []
        places = {session_id: i for i, session_id in enumerate(self.origins, 1)}
        return origins, [[[places.get(session_id, 0), no, n] for session_id, no, n in whose]]
