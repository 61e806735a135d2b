"""Who reads topics on port P: from an offset on, as far as the reader has room, and what comes (SPEC.md, section 35).

A reading is a place in a topic, and credit. Each answer is stored messages as they are, about `messages_page_bytes`;
one without messages says that there are no more now, once when that is so and then once a second: the server lives.
Those cost no credit.

Only what is in this journal is given, and while the passive is in sync only what it has confirmed too: a message that
somebody has seen is not lost with one server, and does not come again under another offset. Pure.
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
PAGES_A_TURN = 4  # to one reader: a turn takes more of messages than a page
Frames = list[bytes]
Key = tuple[bytes, int]


@dataclass(slots=True)
class Cursor:
    """One reader's place."""

    name: str
    topic: int  # its id
    offset: int  # of the next message
    credit: int
    touched: float  # when there was credit last
    seen: int = -1  # up to this number there is nothing more for it
    said: float = float("-inf")  # when it was told anything last
    user: str = ""


class TopicDelivery:
    """All readings."""

    def __init__(self, limits: Limits, pages: MessagePages) -> None:
        self._limits, self._pages = limits, pages
        self._readings: dict[Key, Cursor] = {}
        self._lost: list[Key] = []
        self.written = 0  # the number that the journal has when the next turn begins
        self._filling = self._whole = False
        self.delivered = 0

    def __len__(self) -> int:
        return len(self._readings)

    def open(self, key: Key, topic: TopicLog, after: int, credit: int, now: float, *, user: str = "") -> str:
        """A reader comes; why it can't be taken, or ""."""
        mine = sum(identity == key[0] for identity, _ in self._readings)
        if mine >= self._limits.readings_of_one_max or not self._has_room(user):
            return f"{len(self._readings)} readers of topics are here; ask again when one is done"
        offset = topic.next if after < 0 else after
        room = min(credit, self._limits.sync_credit_max)
        self._readings[key] = Cursor(topic.name, topic.id, offset, room, now, user=user)
        return ""

    def _has_room(self, user: str) -> bool:
        """Whether there is room for one more of a user's; a reader of the user who has most may be ended for it."""
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
        """Return the readers that were ended for those of others since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def grant(self, identity: bytes, request_id: int, more: int, now: float) -> None:
        """Room for more."""
        reading = self._readings.get((identity, request_id))
        if reading is not None:
            reading.credit = min(reading.credit + more, self._limits.sync_credit_max)
            reading.touched = now

    def serves(self, identity: bytes) -> bool:
        """Whether somebody reads here, were it that nothing comes."""
        return any(key[0] == identity for key in self._readings)

    def close(self, identity: bytes, request_id: int | None = None) -> None:
        """A reader has left, or ends one reading."""
        for key in [key for key in self._readings if key[0] == identity and request_id in (None, key[1])]:
            del self._readings[key]

    def clear(self, state: int) -> Iterator[tuple[bytes, list[Frames]]]:
        """The server serves no more: every reader is told, and goes to the one that does."""
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
        """What each reader gets in this turn, at the end of which the journal will have `number`.

        Messages that are missing are passed over, unless the journal is `filling`: then they may come.
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
        """What one gets now: a page, or a word, or nothing."""
        reading = self._readings[key]
        topic = topics.by_name.get(reading.name)
        if topic is None or topic.id != reading.topic:
            del self._readings[key]
            return _refusal(key[1], "topic", f"there is no topic {reading.name} any more")
        if key[0] in blocked:
            if now - reading.touched > self._limits.sync_idle_s_max and not reading.credit:
                del self._readings[key]
            return None
        try:
            body = self._page(key[1], reading, topic, upto, now)
        except ChpError as error:  # of the journal: it is damaged there
            del self._readings[key]
            return _refusal(key[1], "damaged", str(error))
        return reply(pack(upto), body) if body else None

    def upto(self, confirmed: int | None) -> int:
        """Up to which number a reader may see messages: those that no single failure takes back."""
        return self.written if confirmed is None else min(self.written, confirmed)

    def _page(self, request_id: int, reading: Cursor, topic: TopicLog, upto: int, now: float) -> bytes:
        """The next answer; nothing if there is none now."""
        rows: list[LoggedMessages] = []
        if reading.credit and reading.seen < upto and reading.offset < topic.next:
            at = max(reading.offset, topic.first)
            found = self._pages.find(reading.topic, at, topic.next, upto, self._limits.messages_page_bytes)
            if found is None:
                return b""  # it is read at the end of this turn
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
        return encode(told, [item_of(row) for row in rows])

    def ready(self, blocked: Container[bytes], topics: Topics, confirmed: int | None) -> bool:
        """Whether somebody could be given more at once."""
        upto = self.upto(confirmed)
        return any(
            reading.credit and reading.seen < upto and key[0] not in blocked
            and (topic := topics.by_name.get(reading.name)) is not None and reading.offset < topic.next
            for key, reading in self._readings.items()
        )  # fmt: skip


def _refusal(request_id: int, code: str, detail: Any) -> Frames:
    return reply(pack(0), encode(headers.Refused(request_id, code, detail)))
