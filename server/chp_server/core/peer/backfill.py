"""A server's part in backfill: what it lacks of messages, what it is asked for, and what its journal lets go.

Told by the peers' link and at the end of a turn. What it is asked for it reads of the journal, which is an effect of
the turn: the answer leaves with the next one.
"""

from __future__ import annotations

from typing import Any

from chp.headers import State

from ..context import ServerContext
from ..deadlines import LINK
from ..state.missing_messages import PAGE_BYTES, MissingMessages, Spans, answer, asked, unpacked
from ..state.record_log import LoggedMessages
from ..updates.turn import Fill, ReadMessages, Trim, Turn


class Backfill:
    """See the module."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self._filling = MissingMessages()
        self._filled: Turn | None = None  # the last turn that had an answer
        self._asked: dict[ReadMessages, int] = {}  # what the peer lacks, and the offset behind the last of that

    @property
    def lacks(self) -> int:
        """How many messages are in no row of our journal."""
        return self._filling.messages

    @property
    def waits(self) -> bool:
        """Whether some are not to be read yet, and will be: what came with this turn is written after it."""
        return self._filling.messages > 0 or self._filled is self._ctx.turn

    def begin(self, spans: Spans) -> dict[int, int]:
        """Note what the journal has at the start; return the offsets below which it need keep nothing, by topic."""
        self._ctx.state.topics.take_trimmed()  # by records that were read back: it is all said here
        return self._begin(spans)

    def replaced(self, spans: Spans) -> None:
        """Note which messages of the active's state, which was taken over, the journal has."""
        self._ctx.state.topics.trimmed |= self._begin(spans)

    def _begin(self, spans: Spans) -> dict[int, int]:
        topics = self._ctx.state.topics
        self._filling.begin(topics, spans)
        floors = topics.floors()
        return {**floors, **topics.gone(spans.keys() - floors.keys())}

    def came(self, frame: bytes) -> list[LoggedMessages]:
        """The messages of a RECORD, if it had any."""
        messages = unpacked(frame) if frame else []
        self._filling.came(messages)
        return messages

    def end_turn(self, *, asks: bool) -> None:
        """Drop expired messages, and request missing ones."""
        ctx = self._ctx
        topics = ctx.state.topics
        topics.changed = False
        floors = topics.take_trimmed()
        if floors:
            ctx.turn.journal.append(Trim(floors))
        self._filling.look(topics, floors)
        if asks and ctx.alive() and (ctx.bstate is State.PASSIVE or ctx.in_sync()):
            question = self._filling.ask(ctx.now, ctx.config.peer_timeout_s)
            ctx.turn.to_peer += [] if question is None else [question]

    def on_lack(self, body: bytes) -> None:
        """Read what the peer lacks: one that took over may, too, before it had all that it had followed."""
        ctx = self._ctx
        if ctx.active or ctx.in_sync():
            topic, first, end = asked(body)
            read = ReadMessages(topic, first, ctx.state.number, PAGE_BYTES)
            self._asked[read] = end
            ctx.turn.reads.append(read)

    def read(self, read: ReadMessages, found: Any) -> None:
        """Send the peer what the journal has, if that was read for it."""
        end = self._asked.pop(read, None)
        if end is None:
            return
        if isinstance(found, Exception):
            raise found
        self._ctx.turn.confirm.append(answer(read.topic, end, found))
        self._ctx.deadlines.set(LINK, self._ctx.now)

    def on_fill(self, body: bytes) -> None:
        """What was asked for."""
        ctx = self._ctx
        if (ctx.bstate is State.PASSIVE or ctx.in_sync()) and (kept := self._filling.fill(body)):
            ctx.turn.journal.append(Fill(kept))
            self._filled = ctx.turn
