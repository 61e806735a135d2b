"""Backfill: a server requests topic messages that its journal lacks from its peer, and answers such requests.

    begin, replaced     note which messages the journal has, at the start or after a new state was taken over
    came                notes the messages of a record
    dropped             forgets the messages of a record whose last part did not come
    end_turn            drops expired messages from the journal, and requests missing ones
    on_lack, read       answer the peer: the journal is read at the end of a turn, and the next turn sends the answer
    on_fill             keeps the messages that the peer sent

missing_messages.py keeps what is missing, and has the messages LACK and FILL. Pure.
"""

from __future__ import annotations

from typing import Any

from ..state.missing_messages import PAGE_BYTES, MissingMessages, Spans, answer, asked, unpacked
from ..state.record_log import LoggedMessages
from ..updates.committed import Committed
from ..updates.turn import Fill, ReadMessages, Trim, Turn


class Backfill:
    """The missing messages of this server, and the reads for its peer."""

    def __init__(self, committed: Committed, wait_s: float) -> None:
        self._committed, self._wait_s = committed, wait_s
        self._missing = MissingMessages()
        # The last turn in which missing messages came from the peer.
        self._filled: Turn | None = None
        # The reads for the peer, each with the offset behind the last message that the peer lacks there.
        self._asked: dict[ReadMessages, int] = {}

    @property
    def lacks(self) -> int:
        """The number of messages that our journal lacks."""
        return self._missing.messages

    def waits(self, turn: Turn) -> bool:
        """Return True if messages are missing, or if this turn fills some, which reach the journal only later."""
        return self._missing.messages > 0 or self._filled is turn

    def begin(self, spans: Spans) -> dict[int, int]:
        """Note what the journal has at the start; return, by topic, the offsets below which it need keep nothing."""
        # Reading the records back has trimmed topics too. The offsets that this method returns cover these trims.
        self._committed.state.topics.take_trimmed()
        return self._begin(spans)

    def replaced(self, spans: Spans) -> None:
        """Note what the journal has, after the active's state was taken over."""
        self._committed.state.topics.trimmed |= self._begin(spans)

    def _begin(self, spans: Spans) -> dict[int, int]:
        topics = self._committed.state.topics
        self._missing.begin(topics, spans)
        floors = topics.floors()
        return {**floors, **topics.gone(spans.keys() - floors.keys())}

    def came(self, frame: bytes) -> list[LoggedMessages]:
        """Note the messages of a RECORD, if it has any, and return them."""
        messages = unpacked(frame) if frame else []
        self._missing.came(messages)
        return messages

    def dropped(self) -> None:
        """Note that a record was dropped before its last part came: it may come again without its messages."""
        self._missing.dropped(self._committed.state.topics)

    def end_turn(self, turn: Turn, now: float, *, asks: bool) -> None:
        """Drop expired messages, and request missing ones if there is a peer to ask."""
        topics = self._committed.state.topics
        topics.changed = False
        floors = topics.take_trimmed()
        if floors:
            turn.journal.append(Trim(floors))
        self._missing.look(topics, floors)
        if asks:
            question = self.question(now)
            turn.to_peer += [] if question is None else [question]

    def question(self, now: float) -> list[bytes] | None:
        """Return the LACK for the next page of missing messages; None if none is due."""
        return self._missing.ask(now, self._wait_s)

    def on_lack(self, body: bytes, turn: Turn) -> None:
        """Read messages that the peer lacks.

        An active may lack messages as well as a passive, if it took over before its backfill was done.
        """
        topic, first, end = asked(body)
        read = ReadMessages(topic, first, self._committed.state.number, PAGE_BYTES)
        self._asked[read] = end
        turn.reads.append(read)

    def read(self, read: ReadMessages, found: Any, turn: Turn) -> bool:
        """Send the peer what a read has found; return False if the read was not for the peer."""
        end = self._asked.pop(read, None)
        if end is None:
            return False
        if isinstance(found, Exception):
            raise found
        turn.confirm.append(answer(read.topic, end, found))
        return True

    def on_fill(self, body: bytes, turn: Turn) -> None:
        """Keep the messages that the peer sent."""
        if kept := self._missing.fill(body):
            turn.journal.append(Fill(kept))
            self._filled = turn
