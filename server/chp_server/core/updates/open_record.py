"""The open record: the segments that were done since the last record, and the batch of each (SPEC.md, section 16).

The record has the segments as the bytes in which they came, and the map has their updates already. Sets of CHP/1 gather
beside the segments until they become a segment too. All written keys get the state's number plus 1 as their revision.
The size of the record is bounded, because it has to fit a frame.
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
    """The sets of CHP/1 that are gathered into one segment."""

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
        """Add a set."""
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
        """Return the segment, and begin another one."""
        segment = self._segment
        self._begin()
        return segment


def _sparse(extras: dict[str, Any], name: str, place: int, value: object) -> None:
    column = extras.setdefault(name, [[], []])
    column[0].append(place)
    column[1].append(value)


# The most bytes of a record beside its segments: mainly its origins, of which there are at most `ORIGINS_MAX`.
HEADER_BYTES_MAX = 1 << 16
# The most bytes of messages in one row. A row of a single batch may have more, because readers get whole batches.
ROW_BYTES = 1 << 19
# The batch id of a segment that belongs to no session: CHP/1 or the server itself made it.
NOBODYS = (b"", 0)


class OpenRecord:
    """The record that the next commit makes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.chp1 = Chp1Sets()
        self.begin()

    def begin(self) -> None:
        """Begin an empty record."""
        # The segments, without those that are staged.
        self.segments: list[Segment] = []
        self.bodies: list[bytes] = []
        self.origins: dict[bytes, int] = {}  # session -> its last batch in the record
        # (session, batch, number of its segments) in the order of the segments; b"" as session for the server's own.
        self.whose: list[tuple[bytes, int, int]] = []
        self.items = 0
        self.bytes = 0
        # The segments that the bodies encode.
        self._each: list[Segment] = []
        self._messages: list[tuple[int, int, int, bytes]] = []  # topic, first offset, count, body
        self._message_bytes = 0

    def full(self, size: int) -> bool:
        """Return whether the record must be committed before `size` more bytes are added."""
        if not self.bytes:
            return False
        limits = self.limits
        items = self.items + len(self.chp1.keys) >= limits.record_items_max
        crowd = len(self.whose) >= ORIGINS_MAX or len(self.bodies) >= limits.record_segments_max
        return items or crowd or self.bytes + self._message_bytes + size > limits.batch_bytes_max

    @property
    def large(self) -> bool:
        """True if the record has to be published in parts. A record with a single body is published whole anyway.

        The server's own deletes have no bound, and batches of many small things are heavy for a reader.
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
        """Return whether another session may have written one of the segment's keys in this record."""
        others = len(self.origins) > (session_id in self.origins)
        return others and state.number + 1 in map(state.map_so_far.revisions.get, segment.keys)

    def add(self, segment: Segment, body: bytes, batch: BatchId = NOBODYS) -> None:
        """Add a segment that was done."""
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
        """Give messages their offsets; return the segment of the record, with offsets in place of messages."""
        extras = dict(segment.extras or {})
        placed = []
        for name, count, body in extras.pop(columns.PUBLISH):
            topic, said = topics.place(name, count, body, wall_ms)
            placed.append(said)
            self._messages.append((topic.id, said[1], count, body))
            self._message_bytes += len(body)
        return Segment(segment.keys, segment.values, {**extras, columns.PLACED: [wall_ms, placed]})

    def take_messages(self, number: int, wall_ms: int, most: int | None = None) -> list[LoggedMessages]:
        """Take out the messages that were placed, or the first `most` of them, as rows of one topic each."""
        if not self._messages:
            return []
        taken = self._messages[:most]
        del self._messages[:most]
        self._message_bytes -= sum(len(body) for *_, body in taken)
        rows: list[list[Any]] = []
        # topic -> its row: the topic, first offset, count, bytes, bodies.
        last: dict[int, list[Any]] = {}
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
        """Note that the next `n` segments belong to a batch."""
        if self.whose and self.whose[-1][:2] == batch:
            n += self.whose.pop()[2]
        self.whose.append((*batch, n))

    def told_whose(self) -> tuple[list[list[Any]], list[Any]]:
        """Return the end of the record's header: its origins, and the session and batch of the segments.

        The second list is empty if all segments are of one batch, or all are the server's own.
        """
        origins, whose = list(map(list, self.origins.items())), self.whose
        if len(whose) <= 1 and len(origins) <= 1 and bool(whose and whose[0][0]) == bool(origins):
            return origins, []
        places = {session_id: i for i, session_id in enumerate(self.origins, 1)}
        return origins, [[[places.get(session_id, 0), no, n] for session_id, no, n in whose]]
