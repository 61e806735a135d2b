"""A replica as a pure core: the server's own core, with an upstream in the place of a peer and of a committer.

    what comes in                    what the replica does
    PEER (upstream)                  takes records, publishes them, and holds them as a passive does
    COLLECTOR (P+2)                  passes each KVSET to the servers of the pair
    SNAPSHOT (P)                     answers copies, log reads, images and inspections; passes on what only the active
                                     answers (`PASSED_COMMANDS`, topics, plans of reads)
    UPDATES (P+1)                    has the channels of subtrees, and passes subscriptions to own channels

A replica says ACTIVE while it is in sync with upstream, and PASSIVE otherwise. It commits nothing, and ends no ttl.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from chp.batch import decode_options
from chp.errors import BadFrame, BadInput
from chp.keys import ETX, STX
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.numbers import describe

from ..asks import Decision
from ..core import ServerCore
from ..core_config import CoreConfig
from ..deadlines import LINK
from ..pair.arbitration import Members
from ..pair.pair_state import ACTIVE, PASSIVE
from ..state.missing_messages import Spans
from ..updates.authorizer import signer
from ..updates.channels import alive
from ..updates.turn import JournalRead, ReadSpans, Turn
from .moves import MoveRequests
from .upstream import QUESTIONS, Upstream

NO_KEYS = "the pair has rules, and without keys no client of this replica is known; start it with --keys DIR"
# The commands that a replica passes to the active.
PASSED_COMMANDS = frozenset({b"switch", b"leases", b"backup", b"restore", b"access"})


class ReplicaCore(ServerCore):
    """A replica of a pair."""

    def __init__(
        self, config: CoreConfig, server: bytes, now: float, limits: Limits = DEFAULT, *, upstream: int = 2
    ) -> None:
        super().__init__(config, server, now, limits)
        turn, committed, requests = self.turn, self.committer.committed, self.requests
        self.upstream = Upstream(
            turn,
            committed,
            requests,
            self.heartbeats.greeting,
            servers=upstream,
            timeout_s=config.peer_timeout_s,
            backfill=self.link.backfill if config.confirms else None,
            journal=lambda: self.pair.journal or server,
        )
        # Messages of upstream wait in `_later` until the journal has told which topic messages it has. `_spans` is what
        # the journal told.
        self._later: deque[tuple[list[bytes], bytes]] = deque()
        self._spans: Spans | None = None
        # The share of a core that the process used in the last second, in thousandths; the shell measures it.
        self.cpu = 0
        self._moves = MoveRequests(config.readers_max, requests.clients)
        self.pair.load = requests.replicas.load = self.load
        requests.replicas.server, requests.replicas.wall_ms = server, lambda: self.upstream.wall_ms
        requests.passes, self.upstream.answer_here = self.upstream.pass_read, self._answer_here
        self.pair.enter(PASSIVE)

    def load(self) -> dict[str, Any]:
        """Return what greetings and heartbeats tell of this replica."""
        upstream, readers = self.upstream, self.committer.committed.channels.listeners.readers
        return {"hops": max(1, upstream.hops), "age": upstream.age_ms(), "readers": readers, "cpu": self.cpu}

    # -- what comes in

    def peer_message(self, frames: list[bytes], line: bytes = b"") -> None:
        """Take a message of upstream, and the line by which it came."""
        if self.upstream.taking is not None and line[:1] == QUESTIONS:
            self._later.append((frames, line))
            return
        try:
            self.upstream.message(frames, line)
        except BadInput as error:
            self._garbage("upstream", error)

    def collect(self, frames: list[bytes]) -> None:
        """Pass a KVSET to the pair."""
        try:
            self.upstream.pass_set(self._vouched(frames, 0))
        except BadInput as error:
            self._garbage("collector", error)

    def subscription(self, frames: list[bytes]) -> None:
        """Take an event of P+1. `Upstream` takes the events of clients' own channels."""
        if not self.upstream.subscription(frames):
            super().subscription(frames)

    def request(self, frames: list[bytes]) -> None:
        """Answer a message of P, or pass it to the active."""
        self.requests.authorizer.heed(frames)
        try:
            frames = self._vouched(frames, 1)
        except BadInput as error:
            self._garbage("snapshot", error)
            return
        if len(frames) == 4 and frames[1] == ICANHAZ and self._is_passed(frames):
            return
        super().request(frames)

    def _answer_here(self, frames: list[bytes]) -> None:
        """Answer a question for records that the active does not have either."""
        requests = self.requests
        requests.passes = None
        super().request(frames)
        requests.passes = self.upstream.pass_read

    def _is_passed(self, frames: list[bytes]) -> bool:
        """Pass a question that only the active answers; return False if this replica answers it."""
        identity, _, subtree, packed = frames
        try:
            options = decode_options(packed)
        except BadFrame:
            # This replica answers the question itself, and says what is wrong with it.
            return False
        if type(options) is not dict or type(options.get("id")) is not int:
            return False
        if subtree[:1] == STX and subtree[-1:] == ETX:
            passes = subtree[1:-1] in PASSED_COMMANDS
        elif "more" in options:
            self.upstream.pass_more(identity, signer(frames), frames[1:])
            return False
        else:
            # The plan of a read needs a record; the parts of the read are answered here.
            plans = options.get("image") == 0
            passes = plans or "topic" in options or "topics" in options
        if passes:
            self.upstream.pass_question(identity, signer(frames), frames[1:], options["id"])
        return passes

    # -- turns

    def begin_turn(
        self,
        now: float,
        wall_s: float,
        arbiter: tuple[float, Members | None] | None = None,
        connection: Sequence[bool] = (),
    ) -> None:
        """Begin a turn; by now a state that was taken over may be in the journal."""
        super().begin_turn(now, wall_s, arbiter, connection)
        self.upstream.replaces = self.pair.replacing is not None
        if self._spans is not None:
            self.upstream.take_spans(self._spans)
            self._spans = None
        while self._later and self.upstream.taking is None:
            self.peer_message(*self._later.popleft())

    def page(self, read: JournalRead, found: Any) -> None:
        """Take what the journal has for a read of the last turn."""
        super().page(read, found)
        if isinstance(read, ReadSpans) and self.upstream.taking is not None:
            self._spans = found
            self._deadlines.set(LINK, self.turn.now)

    def begin_short_turn(self, now: float, wall_s: float) -> bool:
        """Return False: each turn of a replica is a whole one."""
        return False

    def end_turn(self) -> Turn:
        """Ask upstream for what is due, say whether this replica serves, and return all effects of the turn."""
        upstream, pair = self.upstream, self.pair
        upstream.end_turn(pair.server, pair.config.name, self.committer.committed.channels.listeners.readers)
        if self.state.access.changed and not pair.config.keyed:
            upstream.ends = NO_KEYS
        serves = upstream.in_sync and not upstream.ends
        if serves is not pair.active:
            self._step_to(active=serves)
        elif upstream.greets and pair.active:
            self._greet()
        if upstream.lives:
            # The heartbeat leaves in this turn. So the age that it tells is not made greater by a wait here.
            self.heartbeats.beat_now()
        pair.wall_ms = upstream.wall_ms
        upstream.greets, upstream.lives, self.link.ends = False, False, upstream.ends
        if pair.active:
            self._ask_to_move()
        self._deadlines.set(LINK, upstream.next_at())
        effects = super().end_turn()
        if pair.config.confirms:
            upstream.confirm(effects.confirm)
        return effects

    def stand_still(self) -> None:
        """Say PASSIVE while a turn waits for room: the pair goes on, and what this replica holds becomes old."""
        self.pair.enter(PASSIVE)

    def _ask_to_move(self) -> None:
        """Ask readers to go to another replica, if there are too many here."""
        readers = self.committer.committed.channels.listeners.readers
        if self._moves.due(self.turn.now, readers, self.cpu):
            asked = self._moves.ask(readers, self.upstream.own.topics(), self.state.number)
            self.turn.effects.publish += asked
            self.committer.counts["moves_asked"] += len(asked)
            self.turn.effects.fact("asks readers to move", readers=readers, asked=len(asked), cpu=self.cpu)

    def _step_to(self, *, active: bool) -> None:
        pair, turn = self.pair, self.turn
        pair.enter(ACTIVE if active else PASSIVE)
        because = "upstream" if active else "upstream is silent"
        turn.effects.fact(
            "state",
            before=(PASSIVE if active else ACTIVE).name.lower(),
            after=pair.bstate.name.lower(),
            because=because,
        )
        if not active:
            self.requests.clear()
        self._greet()
        self.heartbeats.beat_now()

    def _greet(self) -> None:
        """Tell all clients the state and the epoch of this replica."""
        number = self.state.number
        if self.active:
            self.turn.effects.publish.append(alive(number))
        self.heartbeats.greet_all()
        self.turn.effects.fact("serves" if self.active else "waits", number=describe(number))

    def do(self, ask: Decision) -> bool:
        """Decide nothing: a question is no vote for a replica. Return True if it answers."""
        return self.pair.serving

    def status(self) -> dict[str, Any]:
        """Return the facts of a server, and those of a replica."""
        return {
            **super().status(),
            "role": "replica",
            "in_sync": self.active,
            "replica": {**self.load(), **self.upstream.status()},
        }
