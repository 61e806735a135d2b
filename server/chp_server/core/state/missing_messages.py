"""How a server gets messages that its records have placed, and its journal lacks (SPEC.md, section 35).

    RECORD body messages      as a record is committed: its messages come with it, while they are in memory
    LACK [topic, from, to]    who lacks some of older ones asks for them, a page at a time
    FILL [topic, upto, rows]  the answer, out of the other's journal: all that it has of that page

What is lacked is kept as spans of offsets by topic, computed at the start from what the journal has, so that a passive
which was away, or got the whole state, fills in in the background; and one that took over before it was done asks the
other when that is back in sync. What both lack is passed over. Pure.
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
    """What is lacked here; which of it was asked for last, and when."""

    def __init__(self) -> None:
        self.lacks: Spans = {}
        self._ends: dict[int, int] = {}  # by topic: below it, what is not lacked is here
        self._asked_at = float("-inf")

    @property
    def messages(self) -> int:
        """How many are lacked."""
        return sum(end - first for spans in self.lacks.values() for first, end in spans)

    def begin(self, topics: Topics, have: Spans) -> None:
        """The journal has these: what is lacked is all else that the topics keep."""
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
        """Messages came with their record."""
        for row in messages:
            at = self._ends.get(row.topic, 0)
            self._lack(row.topic, at, row.first)
            self._ends[row.topic] = max(at, row.end)

    def look(self, topics: Topics, floors: dict[int, int]) -> None:
        """Records were followed: what they placed and did not come is lacked; what is not kept any more is not."""
        for topic_id, topic in topics.own.items():  # their messages are written here with their record
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
        """The next page to ask for, or the last one again if it was not answered."""
        if not self.lacks or now - self._asked_at < wait_s:
            return None
        self._asked_at = now
        topic, spans = next(iter(self.lacks.items()))
        return [LACK, packb([topic, *spans[0]])]

    def fill(self, body: bytes) -> list[LoggedMessages]:
        """An answer: what of it is to be kept, as it is lacked."""
        topic, upto, rows = unpackb(body, "FILL")
        spans = self.lacks.get(topic)
        if not spans:
            return []
        first, end = spans[0]
        kept = []
        for row in map(_row, rows):
            if row.topic == topic and row.first < end and row.end > first:  # it may begin below what is kept
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
        raise BadFrame("messages between servers are five numbers and their body")
    return LoggedMessages(*told)


def packed(messages: Sequence[LoggedMessages]) -> bytes:
    """The frame of a RECORD that has its messages."""
    return packb([list(row) for row in messages])


def unpacked(frame: bytes) -> list[LoggedMessages]:
    """Out of that frame."""
    return list(map(_row, unpackb(frame, "the messages of a RECORD")))


def asked(body: bytes) -> tuple[int, int, int]:
    """Return the topic of a LACK, and its offsets: the first, and the one behind the last."""
    topic, first, end = unpackb(body, "LACK")
    return topic, first, end


def answer(topic: int, end: int, found: Sequence[LoggedMessages]) -> list[bytes]:
    """Return FILL, with what the journal has before `end`: offsets that it lacks, or has let go, are passed over."""
    rows = [row for row in found if row.first < end]
    upto = rows[-1].end if rows else end
    return [FILL, packb([topic, upto, [list(row) for row in rows]])]


def spans_of(rows: Iterator[tuple[int, int, int]]) -> Spans:
    """What a journal has, from (topic, first, count) in their order."""
    found: Spans = {}
    for topic, first, count in rows:
        spans = found.setdefault(topic, [])
        if spans and spans[-1][1] >= first:
            spans[-1][1] = max(spans[-1][1], first + count)
        else:
            spans.append([first, first + count])
    return found
