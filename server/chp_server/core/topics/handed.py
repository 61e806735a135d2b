"""Messages of a suffix: what a server placed while it was active alone, on their way to the one that serves.

There they get new offsets, in their order, as their sessions' batches: nothing can be in conflict with them. So the
column that says where they were placed is turned back into the messages. A topic, or a group, that was made is made
there; one that was removed stays there, as others may have published meanwhile. Pure: the journal is read by what is
given.
"""

from __future__ import annotations

from collections.abc import Sequence

from chp import columns
from chp.batch import Segment, unpackb
from chp.topics import unpack_messages

from ..state.recordlog import Messages, Record
from .filling import Read
from .topics import Topics

HANDED_BYTES = 64 << 20  # of messages, at most; what is beyond is counted


class Handed:
    """The messages of some records, by topic and offset."""

    def __init__(self, records: Sequence[Record], topics: Topics, read: Read) -> None:
        self.lost = 0
        self._found: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._left = HANDED_BYTES
        self._ids = {topic.id: topic.name for topic in topics.by_name.values()}
        self._by_name = {name: topic_id for topic_id, name in self._ids.items()}
        self._read, self._last = read, records[-1].last if records else 0
        for record in records:
            for row in record.messages or ():
                self._take(row)

    def _take(self, row: Messages) -> None:
        name, at = self._ids.get(row.topic), row.first
        if name is None or self._left < len(row.body):
            return
        self._left -= len(row.body)
        for body in unpackb(row.body, "messages", None):
            n = len(unpack_messages(body)[1])
            self._found[name, at] = n, body
            at += n

    def back(self, segment: Segment) -> Segment:
        """The segment as it was published."""
        extras = segment.extras
        if not extras or columns.OF_TOPICS.isdisjoint(extras):
            return segment
        kept = columns.without(extras, {columns.PLACED, columns.TRIM})
        if columns.TOPIC in kept and kept[columns.TOPIC][1] is None:
            del kept[columns.TOPIC]
        if columns.GROUP in kept and (kept[columns.GROUP][2] is None or "again" in kept[columns.GROUP][2]):
            del kept[columns.GROUP]
        published = []
        for name, first, count, *_ in extras.get(columns.PLACED, [0, []])[1]:
            if (name, first) not in self._found and name in self._by_name:
                for row in self._read(self._by_name[name], first, self._last, 1):
                    self._take(row)
            if (name, first) in self._found:
                published.append([name, *self._found.pop((name, first))])
            else:
                self.lost += count
        if published:
            kept[columns.PUBLISH] = published
        return Segment(segment.keys, segment.values, kept or None)
