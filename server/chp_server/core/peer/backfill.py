"""A server's part in `filling`: what it lacks of messages, what it is asked for, and what its journal lets go.

Told by the peers' link and at the end of each turn; it reads the journal by what the shell has put in the place of
`read`, `spans` and `floors`.
"""

from __future__ import annotations

from collections.abc import Callable

from chp.headers import State

from ..context import ServerContext
from ..state.missing_messages import MissingMessages, Read, Spans, answer, unpacked
from ..state.record_log import LoggedMessages
from ..updates.turn import Fill, Trim, Turn


class Backfill:
    """See the module."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self._filling = MissingMessages()
        self._filled: Turn | None = None  # the last turn that had an answer
        self.read: Read = lambda _topic, _offset, _number, _bytes: []
        self.spans: Callable[[int], Spans] = lambda _number: {}  # that the journal has, of records up to a number

    @property
    def lacks(self) -> int:
        """How many messages are in no row of our journal."""
        return self._filling.messages

    @property
    def waits(self) -> bool:
        """Whether some are not to be read yet, and will be: what came with this turn is written after it."""
        return self._filling.messages > 0 or self._filled is self._ctx.turn

    def begin(self) -> dict[int, int]:
        """At the start: what there is, and what is lacked. Below which offsets the journal need keep nothing."""
        self._ctx.state.topics.take_trimmed()  # by records that were read back: it is all said here
        return self._begin((1 << 63) - 1)

    def replaced(self, common: int) -> None:
        """The active's state was taken over: messages up to `common` are its history too."""
        self._ctx.state.topics.trimmed |= self._begin(common)

    def _begin(self, number: int) -> dict[int, int]:
        topics = self._ctx.state.topics
        spans = self.spans(number)
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
        """The peer lacks some: one that took over may, too, before it had all that it had followed."""
        ctx = self._ctx
        if ctx.active or ctx.in_sync():
            ctx.turn.confirm.append(answer(body, self.read, ctx.state.number))

    def on_fill(self, body: bytes) -> None:
        """What was asked for."""
        ctx = self._ctx
        if (ctx.bstate is State.PASSIVE or ctx.in_sync()) and (kept := self._filling.fill(body)):
            ctx.turn.journal.append(Fill(kept))
            self._filled = ctx.turn
