"""A server's part in backfill: what it lacks of messages, what it is asked for, and what its journal lets go.

Told by the peers' link and at the end of a turn. What it is asked for it reads of the journal, which is an effect of
the turn: the answer leaves with the next one.
"""

from __future__ import annotations

from typing import Any

from ..state.missing_messages import PAGE_BYTES, MissingMessages, Spans, answer, asked, unpacked
from ..state.record_log import LoggedMessages
from ..updates.committed import Committed
from ..updates.turn import Fill, ReadMessages, Trim, Turn


class Backfill:
    """See the module."""

    def __init__(self, committed: Committed, wait_s: float) -> None:
        self._committed, self._wait_s = committed, wait_s
        self._filling = MissingMessages()
        # The last turn that had an answer.
        self._filled: Turn | None = None
        # What is read for the peer, and the offset behind the last message that it lacks of that.
        self._asked: dict[ReadMessages, int] = {}

    @property
    def lacks(self) -> int:
        """The number of messages that are in no row of our journal."""
        return self._filling.messages

    def waits(self, turn: Turn) -> bool:
        """Return True if some are not to be read yet, and will be: what came with this turn is written after it."""
        return self._filling.messages > 0 or self._filled is turn

    def begin(self, spans: Spans) -> dict[int, int]:
        """Note what the journal has at the start; return the offsets below which it need keep nothing, by topic."""
        self._committed.state.topics.take_trimmed()  # by records that were read back: it is all said here
        return self._begin(spans)

    def replaced(self, spans: Spans) -> None:
        """Note which messages of the active's state, which was taken over, the journal has."""
        self._committed.state.topics.trimmed |= self._begin(spans)

    def _begin(self, spans: Spans) -> dict[int, int]:
        topics = self._committed.state.topics
        self._filling.begin(topics, spans)
        floors = topics.floors()
        return {**floors, **topics.gone(spans.keys() - floors.keys())}

    def came(self, frame: bytes) -> list[LoggedMessages]:
        """Return the messages of a RECORD, if it had any."""
        messages = unpacked(frame) if frame else []
        self._filling.came(messages)
        return messages

    def end_turn(self, turn: Turn, now: float, *, asks: bool) -> None:
        """Drop expired messages, and request missing ones if there is a peer to ask."""
        topics = self._committed.state.topics
        topics.changed = False
        floors = topics.take_trimmed()
        if floors:
            turn.journal.append(Trim(floors))
        self._filling.look(topics, floors)
        if asks:
            question = self._filling.ask(now, self._wait_s)
            turn.to_peer += [] if question is None else [question]

    def on_lack(self, body: bytes, turn: Turn) -> None:
        """Read what the peer lacks: one that took over may, too, before it had all that it had followed."""
        topic, first, end = asked(body)
        read = ReadMessages(topic, first, self._committed.state.number, PAGE_BYTES)
        self._asked[read] = end
        turn.reads.append(read)

    def read(self, read: ReadMessages, found: Any, turn: Turn) -> bool:
        """Send the peer what the journal has; return False if it was not read for the peer."""
        end = self._asked.pop(read, None)
        if end is None:
            return False
        if isinstance(found, Exception):
            raise found
        turn.confirm.append(answer(read.topic, end, found))
        return True

    def on_fill(self, body: bytes, turn: Turn) -> None:
        """Keep what was asked for."""
        if kept := self._filling.fill(body):
            turn.journal.append(Fill(kept))
            self._filled = turn
