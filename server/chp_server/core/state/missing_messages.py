"""Messages that a server's records have placed, and that its journal lacks (SPEC.md, section 35).

    RECORD body messages      a record is sent to the passive with its messages, while they are in memory
    LACK [topic, from, to]    a server asks its peer for messages that it lacks, a page at a time
    FILL [topic, upto, rows]  the answer: what the peer's journal has of that page

Missing messages are kept as spans of offsets by topic. At the start they are computed from what the journal has. So a
passive that was away, or that got the whole state, is backfilled in the background. A server that became active before
its backfill was done asks its peer once that is in sync again. Messages that both servers lack are skipped. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chp.batch import packb, unpackb
from chp.errors import BadFrame

from .record_log import LoggedMessages
from .topics import Topics

LACK, FILL = b"LACK", b"FILL"
PAGE_BYTES = 1 << 20
Span = list[int]  # from, to
Spans = dict[int, list[Span]]


class MissingMessages:
    """The missing messages, and the time of the last request for a page of them."""

    def __init__(self) -> None:
        self.lacks: Spans = {}
        # topic -> offset. Below this offset, the journal has each message that is not in `lacks`.
        self._ends: dict[int, int] = {}
        self._asked_at = float("-inf")

    @property
    def messages(self) -> int:
        """The number of missing messages."""
        return sum(end - first for spans in self.lacks.values() for first, end in spans)

    def begin(self, topics: Topics, have: Spans) -> None:
        """Begin with what the journal has: every other message that a topic keeps is missing."""
        self.lacks, self._ends = {}, {}
        topics.grown.clear()
        topics.own.clear()
        for topic in topics.by_name.values():
            at = topic.first
            for first, end in have.get(topic.id, ()):
                self._lack(topic.id, at, min(first, topic.next))
                at = max(at, end)
            self._lack(topic.id, at, topic.next)
            self._ends[topic.id] = topic.next

    def _lack(self, topic: int, first: int, end: int) -> None:
        if first < end:
            self.lacks.setdefault(topic, []).append([first, end])

    def came(self, messages: Sequence[LoggedMessages]) -> None:
        """Note messages that came with their record."""
        for row in messages:
            at = self._ends.get(row.topic, 0)
            self._lack(row.topic, at, row.first)
            self._ends[row.topic] = max(at, row.end)

    def dropped(self, topics: Topics) -> None:
        """Forget the messages of a record that never became complete: they are above the ends of the topics."""
        nexts = {topic.id: topic.next for topic in topics.by_name.values()}
        self._ends = {topic_id: min(end, nexts.get(topic_id, 0)) for topic_id, end in self._ends.items()}
        for topic_id, spans in list(self.lacks.items()):
            end = self._ends[topic_id]
            self.lacks[topic_id] = [[first, min(upto, end)] for first, upto in spans if first < end]
            if not self.lacks[topic_id]:
                del self.lacks[topic_id]

    def look(self, topics: Topics, floors: dict[int, int]) -> None:
        """Note what records placed since the last call, and what topics no longer keep.

        Messages that did not come with their record are missing. Messages below `floors` are no longer wanted.
        """
        # Messages placed by this server are written to its journal with their record.
        for topic_id, topic in topics.own.items():
            self._ends[topic_id] = topic.next
        topics.own.clear()
        for topic_id, topic in topics.grown.items():
            at = self._ends.get(topic_id, 0)
            self._lack(topic_id, at, topic.next)
            self._ends[topic_id] = topic.next
        topics.grown.clear()
        for topic_id, floor in floors.items():
            spans = [[max(first, floor), end] for first, end in self.lacks.pop(topic_id, ()) if end > floor]
            if spans:
                self.lacks[topic_id] = spans

    def ask(self, now: float, wait_s: float) -> list[bytes] | None:
        """Return a LACK for the next page, or None if nothing is missing or the last LACK is younger than `wait_s`.

        An answer clears the time of the last LACK, so the next page is requested at once.
        """
        if not self.lacks or now - self._asked_at < wait_s:
            return None
        self._asked_at = now
        topic, spans = next(iter(self.lacks.items()))
        return [LACK, packb([topic, *spans[0]])]

    def fill(self, body: bytes) -> list[LoggedMessages]:
        """Take an answer of the peer; return the messages in it that are missing here."""
        topic, upto, rows = unpackb(body, "FILL")
        spans = self.lacks.get(topic)
        if not spans:
            return []
        first, end = spans[0]
        kept = []
        for row in map(_row, rows):
            # The first row may begin below the span.
            if row.topic == topic and row.first < end and row.end > first:
                kept.append(row)
                first = row.end
        self._asked_at = float("-inf")
        spans[0][0] = max(first, upto)
        if spans[0][0] >= end:
            del spans[0]
        if not spans:
            del self.lacks[topic]
        return kept


def _row(told: list[Any]) -> LoggedMessages:
    if len(told) != 6 or list(map(type, told)) != [int] * 5 + [bytes]:
        raise BadFrame("a row of messages between servers is five numbers and a body")
    return LoggedMessages(*told)


def packed(messages: Sequence[LoggedMessages]) -> bytes:
    """Return the frame of a RECORD that carries its messages."""
    return packb([list(row) for row in messages])


def unpacked(frame: bytes) -> list[LoggedMessages]:
    """Return the messages in a frame that `packed` made."""
    return list(map(_row, unpackb(frame, "the messages of a RECORD")))


def asked(body: bytes) -> tuple[int, int, int]:
    """Return the topic of a LACK, and its offsets: the first, and the one behind the last."""
    told = unpackb(body, "LACK")
    if type(told) is not list or list(map(type, told)) != [int] * 3:
        raise BadFrame("a LACK is three numbers: a topic, and two offsets")
    topic, first, end = told
    return topic, first, end


def answer(topic: int, end: int, found: Sequence[LoggedMessages]) -> list[bytes]:
    """Return the FILL for a page that ends before `end`. It skips offsets that the journal lacks or has deleted."""
    rows = [row for row in found if row.first < end]
    upto = rows[-1].end if rows else end
    return [FILL, packb([topic, upto, [list(row) for row in rows]])]


def spans_of(rows: Iterator[tuple[int, int, int]]) -> Spans:
    """Return the spans of a journal, given the (topic, first, count) of its rows in order."""
    found: Spans = {}
    for topic, first, count in rows:
        spans = found.setdefault(topic, [])
        if spans and spans[-1][1] >= first:
            spans[-1][1] = max(spans[-1][1], first + count)
        else:
            spans.append([first, first + count])
    return found
