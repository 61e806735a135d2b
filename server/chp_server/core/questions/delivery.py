"""The delivery of topics to single readers on port P, from an offset on (SPEC.md, section 35).

A reader has a cursor, which is its place in a topic, and credit. Each answer has stored messages of about
`messages_page_bytes`, unchanged, and costs one credit. An answer without messages costs none. It says that there are no
more messages now. It is sent once when the reader reaches the end, and then once a second, to show that the server
lives.

Readers get only messages that this server's journal has, and, while a passive is in sync, that the passive has
confirmed. So a message that a reader has seen is not lost with one server, and never comes again under another offset.
Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from chp import headers
from chp.batch import encode
from chp.errors import ChpError
from chp.fair import making_room
from chp.limits import Limits
from chp.numbers import pack

from ..state.record_log import LoggedMessages
from ..state.topics import TopicLog, Topics
from .message_pages import MessagePages, item_of, load_of_page, takes_row
from .syncs import reply

BEAT_S = 1.0
# One reader gets at most this many pages in a turn.
PAGES_A_TURN = 4
Frames = list[bytes]
Key = tuple[bytes, int]


@dataclass(slots=True)
class Cursor:
    """The place of one reader in a topic, and its credit."""

    name: str
    topic: int  # the topic's id
    # The offset of the next message.
    offset: int
    credit: int
    # The time when the reader had credit last.
    touched: float
    # There is nothing more for the reader up to this number.
    seen: int = -1
    # The time when the reader was sent anything last.
    said: float = float("-inf")
    user: str = ""
    # True if the reader is of an older version, which knows no headers.
    plain: bool = False


class TopicDelivery:
    """The cursors of all readers."""

    def __init__(self, limits: Limits, pages: MessagePages) -> None:
        self._limits, self._pages = limits, pages
        self._readings: dict[Key, Cursor] = {}
        self._lost: list[Key] = []
        # The number that the journal has when the next turn begins.
        self.written = 0
        self._filling = self._whole = False
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._readings)

    def open(
        self, key: Key, topic: TopicLog, after: int, credit: int, now: float, *, user: str = "", plain: bool = False
    ) -> str:
        """Add a reader; return why it can't be served, or "" if it is. `after` is an offset, or -1 for the end.

        A `plain` reader is of an older version, and gets messages without headers.
        """
        mine = sum(identity == key[0] for identity, _ in self._readings)
        if mine >= self._limits.readings_of_one_max or not self._has_room(user):
            return f"{len(self._readings)} readers of topics are open; ask again when one is done"
        offset = topic.next if after < 0 else after
        room = min(credit, self._limits.sync_credit_max)
        self._readings[key] = Cursor(topic.name, topic.id, offset, room, now, user=user, plain=plain)
        return ""

    def _has_room(self, user: str) -> bool:
        """Return True if a user may have one more reader; a reader of the user that has most may be ended for it."""
        readings, most = self._readings, self._limits.readings_max
        if len(readings) < most:
            return True
        users = {key: reading.user for key, reading in readings.items()}
        lost = making_room(users, most, user, lambda key: readings[key].touched)
        if lost is not None:
            del readings[lost]
            self._lost.append(lost)
        return lost is not None

    def take_lost(self) -> list[Key]:
        """Return the readers that were ended since the last call, to make room for other users' readers."""
        lost, self._lost = self._lost, []
        return lost

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """Give a reader more credit."""
        reading = self._readings.get((identity, request_id))
        if reading is not None:
            reading.credit = min(reading.credit + more, self._limits.sync_credit_max)
            reading.touched = now

    def serves(self, identity: bytes) -> bool:
        """Return True if this connection has a reader, even if there is nothing for it."""
        return any(key[0] == identity for key in self._readings)

    def reads(self, topic: TopicLog) -> bool:
        """Return True if a topic has a reader."""
        return any(reading.topic == topic.id for reading in self._readings.values())

    def close(self, identity: bytes, request_id: int | None = None) -> None:
        """Remove one reader of a connection, or all of them if its connection has ended."""
        for key in [key for key in self._readings if key[0] == identity and request_id in (None, key[1])]:
            del self._readings[key]

    def clear(self, state: int) -> Iterator[tuple[bytes, list[Frames]]]:
        """Remove all readers, because this server no longer serves them; yield a refusal for each."""
        for identity, request_id in self._readings:
            yield identity, [_refusal(request_id, "passive", state)]
        self._readings.clear()

    def pump(
        self,
        topics: Topics,
        blocked: Container[bytes],
        now: float,
        number: int,
        confirmed: int | None,
        *,
        filling: bool = False,
    ) -> Iterator[tuple[bytes, list[Frames]]]:
        """Yield what each reader gets in this turn. The journal has `number` when the turn ends.

        Missing messages are skipped, unless backfill is under way (`filling`), which may bring them.
        """
        upto = self.upto(confirmed)
        self._filling, self._whole = filling, upto == number and not filling
        left, keys = self._limits.sync_turn_bytes, list(self._readings)
        for _ in range(PAGES_A_TURN):
            more: list[Key] = []
            for key in keys:
                credit = self._readings[key].credit
                message = self._given(key, topics, upto, now, blocked) if left > 0 else None
                if message:
                    left -= len(message[-1])
                    yield key[0], [message]
                if key in self._readings and self._readings[key].credit < credit:
                    more.append(key)
            keys = more
        self.written = number

    def _given(self, key: Key, topics: Topics, upto: int, now: float, blocked: Container[bytes]) -> Frames | None:
        """Return what one reader gets now: a page, a sign of life, a refusal, or None."""
        reading = self._readings[key]
        topic = topics.by_name.get(reading.name)
        if topic is None or topic.id != reading.topic:
            del self._readings[key]
            return _refusal(key[1], "topic", f"topic {reading.name} was removed")
        if key[0] in blocked:
            if now - reading.touched > self._limits.sync_idle_s_max and not reading.credit:
                del self._readings[key]
            return None
        try:
            body = self._page(key[1], reading, topic, upto, now)
        except ChpError as error:
            # The journal is damaged at this place.
            del self._readings[key]
            return _refusal(key[1], "damaged", str(error))
        return reply(pack(upto), body) if body else None

    def upto(self, confirmed: int | None) -> int:
        """Return the number up to which readers may see messages: no single failure can undo these."""
        return self.written if confirmed is None else min(self.written, confirmed)

    def _page(self, request_id: int, reading: Cursor, topic: TopicLog, upto: int, now: float) -> bytes:
        """Return the next answer; b"" if there is none now."""
        rows: list[LoggedMessages] = []
        if reading.credit and reading.seen < upto and reading.offset < topic.next:
            at = max(reading.offset, topic.first)
            found = self._pages.find(reading.topic, at, topic.next, upto, self._limits.messages_page_bytes)
            if found is None:
                # The journal is read at the end of this turn.
                return b""
            rows = [row.stored for row in found]
            if rows and rows[0].first > at and self._filling:
                rows = []
            elif not rows and self._whole:
                reading.offset = topic.next
            load = load_of_page()
            rows = list(takewhile(lambda row: takes_row(load, row, len(row.body)), rows))
            if rows:
                reading.offset = rows[-1].end
                reading.credit -= 1
                reading.touched = now
                self.delivered += sum(row.n for row in rows)
        if not rows:
            reading.seen = upto if reading.credit else reading.seen
            if now - reading.said < BEAT_S:
                return b""
        reading.said = now
        told = headers.Messages(request_id, reading.offset, topic.first, topic.next)
        return encode(told, [item_of(row, plain=reading.plain) for row in rows])

    def ready(self, blocked: Container[bytes], topics: Topics, confirmed: int | None) -> bool:
        """Return True if a reader could get more messages, so the next turn should begin at once."""
        upto = self.upto(confirmed)
        return any(
            reading.credit and reading.seen < upto and key[0] not in blocked
            and (topic := topics.by_name.get(reading.name)) is not None and reading.offset < topic.next
            for key, reading in self._readings.items()
        )  # fmt: skip


def _refusal(request_id: int, code: str, detail: Any) -> Frames:
    return reply(pack(0), encode(headers.Refused(request_id, code, detail)))
