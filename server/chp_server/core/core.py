"""The server as a pure core: messages and times go in, and a `Turn` of effects comes out.

    begin_turn(now, wall)                             takes every clock reading of the turn
    subscription, collect, request, peer_message      take the messages that came in, in any order
    page                                              takes what the journal has for a read of the last turn
    end_turn() -> Turn                                does what is due, commits, and returns the effects (turn.py)
    next_deadline()                                   returns when to take the next turn if no message comes

Its parts share a context (context.py): the committer makes records, the link speaks with the peer (peerlink.py), and
the requests answer the snapshot port (requests.py). The core itself decides, by Binary Star, whether this server is
active. When a part asks for something in the middle of its work, `_do` does it.

A malformed message is counted by port and logged. It never stops the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import Any, TypeVar, cast

from chp.errors import BadInput
from chp.headers import Epoch, State
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT, Limits
from chp.numbers import describe, next_epoch, number, sequence_of

from . import subscriptions
from .context import ACTIVE, PASSIVE, Ask, Asking, CoreConfig, RiseAbove, ServerContext, TellStatus, Vote
from .deadlines import BEAT, EXPIRY, HANDOVER, LINK
from .expiry import Expiry
from .heartbeats import HeartbeatTimer
from .now import Now
from .pair.arbitration import Members, Wish
from .pair.beat import BeatTimer
from .pair.binary_star import PairEvent, step
from .pair.pending import by_public_id
from .peer.health import HealthCheck
from .peer.peerlink import PeerLink
from .questions.access_changes import AccessChanges
from .questions.requests import Requests
from .questions.status import status_of
from .release import AckRelease
from .state.journal import cut_short
from .state.state import ReplicatedState
from .updates.authorizer import with_user
from .updates.channels import alive
from .updates.resource_limits import ResourceUsage
from .updates.turn import JournalRead, ReadMessages, ReadSpans, Turn

__all__ = ["CoreConfig", "ServerCore"]
T = TypeVar("T")
# Stands for the result of a read of the journal that has not come yet.
WAITS = object()
# Items of a large commit that a turn puts into the map. All are there after a few heartbeats at most.
DEFERRED_A_TURN = 50_000


class ServerCore:
    """One server of a pair, or a lone one."""

    def __init__(self, config: CoreConfig, server: bytes, now: float, limits: Limits = DEFAULT) -> None:
        self.ctx = ctx = ServerContext(config, server, now, limits)
        self.config, self.server, self.limits = config, server, limits
        self.commits, self.committer, self.room = ctx.commits, ctx.committer, ctx.room
        self.pending, self.counts = ctx.pending, ctx.counts
        self.epochs, self.arbitration = ctx.epochs, ctx.arbitration
        self.pulse = BeatTimer(config.secret or server, now, min(config.heartbeat_s, config.peer_timeout_s / 4))
        self.health, self.expiry = HealthCheck(ctx.room), Expiry(ctx.committer, ctx.counts, ctx.sets.queue)
        self.link = PeerLink(ctx, self.health)
        self.changes = AccessChanges(ctx)
        self.requests = Requests(ctx, self.link, self.changes)
        # The shell puts its own facts of the status here.
        self.shell_facts: Callable[[], dict[str, Any]] = lambda: {"journal": {}, "turns": {}}
        # The high-water mark of the journal. A journal that ends below it was cut short; only the peer has the rest.
        self.marked = 0
        # The reason why a server with such a journal can't go on; the shell then ends it.
        self.cut_short = ""
        stopped_s = config.peer_timeout_s / 2 if config.has_peer else inf
        self.releasing = AckRelease(ctx.committer.acks, ctx.arbitration, stopped_s)
        self.beating = HeartbeatTimer(ctx, self.link)
        # True if this turn has done its share of the sets that wait.
        self._shared = False
        self._woke = False
        # A message of the peer that waits for the journal, with its read.
        self._parked: tuple[Generator[Ask, Any, Any], Ask] | None = None
        # What that read has found.
        self._found: Any = WAITS
        # The peer's messages that came after it.
        self._behind: deque[tuple[list[bytes], bytes]] = deque()

    @property
    def state(self) -> ReplicatedState:
        """The replicated state."""
        return self.commits.state

    @property
    def bstate(self) -> State:
        """Binary Star's state."""
        return self.ctx.bstate

    @property
    def now(self) -> float:
        """The time of the turn."""
        return self.ctx.now

    @property
    def active(self) -> bool:
        """True if this server is active."""
        return self.ctx.bstate is ACTIVE

    @property
    def serving(self) -> bool:
        """True if this server takes sets: it is active, and not about to hand over."""
        return self.ctx.serving

    # -- a turn

    def begin_turn(
        self,
        now: float,
        wall_s: float,
        arbiter: tuple[float, Members | None] | None = None,
        connection: Sequence[bool] = (),
    ) -> None:
        """Take every clock reading of the turn, the arbiter's answer, and the events of the connection to the peer.

        An event is True if the connection to the peer's P+3 is up, with its handshake, and False if it broke. A long
        gap in which this server was silent means that its process was stopped.
        """
        ctx, state = self.ctx, self.commits.state
        ctx.written = state.number
        if arbiter is not None:
            self.arbitration.hear(*arbiter)
        gap = now - ctx.now
        silent_s = self.pulse.begins(now) if self.config.has_peer else gap
        # After such a gap the messages in the sockets are old.
        self._woke = gap > self.config.peer_timeout_s / 2
        ctx.now, ctx.arrival, ctx.wall = now, now, wall_s
        if self._woke:
            # The process was stopped, or was busy with recovering the journal.
            ctx.listens_since = now
            if ctx.peer is not None:
                ctx.liveness.excuse(ctx.peer.heard, now)
            ctx.deadlines.set(LINK, now)
        for up in connection:
            ctx.liveness.connection(up, now)
            ctx.deadlines.set(LINK, now)
        if state.deferred:
            state.catch_up(DEFERRED_A_TURN)
        arbitrated = self.arbitration.enabled and ctx.active and not ctx.handing_over
        if arbitrated and not self.arbitration.holds(now, state.number):
            self.step(PairEvent.LEASE_LOST)
        if self._woke and ctx.active and self.config.has_peer:
            if silent_s > self.config.peer_timeout_s / 2:
                ctx.hold_until = now + self.config.peer_timeout_s
                ctx.turn.fact("paused", "warning", seconds=round(gap, 3))
            self.link.excuse()
        if self._parked is not None:
            self._go_on_with_peer()
        if not self.config.has_peer and ctx.bstate is not ACTIVE:
            # This comes before the first request: a CHP/1 client would ask again only after 5 s.
            self._alone()

    def arrived(self, now: float) -> None:
        """Take the time by which the next messages have arrived; it may be after the turn began."""
        self.ctx.arrival = now

    def end_turn(self) -> Turn:
        """Do what is due, commit, pass new records to the peer and to streams, and return all effects of the turn."""
        ctx, now = self.ctx, self.ctx.now
        if ctx.bstate is not ACTIVE and (ctx.bstate is not PASSIVE or self.arbitration.enabled):
            self._alone()
        if ctx.sets.queue.sessions and not (self._shared or self.state.deferred or self.state.listing):
            self.take_sets()
        self._shared = False
        due = ctx.deadlines.due(now)
        beats = now >= ctx.next_beat
        if beats or EXPIRY in due:
            self._expire(beats=beats)
        # The allowance of the next turn, which the sets of clients use first.
        self.committer.ends_left = self.limits.ending_keys_max
        if HANDOVER in due:
            self._give_up_handover()
        if self.pending.taken:
            self._go_on_with_pending()
        self.committer.commit(ctx.turn, ctx.arrival, ctx.wall)
        if self.room.taken >= self.room.ample or self.health.failures or self.health.told:
            self._look_at_health()
        if self.config.has_peer:
            self.link.end_turn(look=beats or LINK in due)
        elif self.state.topics.changed:
            self.link.filler.end_turn(ctx.turn, now, asks=False)
        self._answer()
        if BEAT in due or now >= ctx.next_beat:
            self.beating.end_turn()
            self.requests.forget()
        if self.state.busy:
            self.state.go_on(self.limits.gather_quiet_times if self.state.number == ctx.written else 1)
        if self.requests.awake:
            self.requests.pump()
        self.link.opens = False
        turn, ctx.turn = ctx.turn, Turn()
        return turn

    def _answer(self) -> None:
        """Release the answers that clients and operators may have by now."""
        ctx, acks = self.ctx, self.committer.acks
        owes = acks.waiting or self.releasing.waits or self.arbitration.enabled
        if owes and ctx.bstate is ACTIVE and ctx.now >= ctx.hold_until:
            follower = ctx.follower
            confirmed = follower.confirmed if follower is not None and follower.in_sync else None
            self.releasing.end_turn(ctx.turn, confirmed, ctx.commits.state.number)
        if self.changes.owed:
            self.changes.tell(acks.answered, self.requests.promise)

    def next_deadline(self) -> float:
        """Return when the next turn is due if no message comes; that is now if work of this turn is left."""
        ctx, state = self.ctx, self.commits.state
        goes_on = bool(state.busy or state.deferred or self.pending.taken or self.link.ready)
        if ctx.sets.queue.sessions:
            goes_on = goes_on or ctx.sets.ready(ctx.follower, ctx.now)
        if goes_on or (self.requests.awake and self.requests.ready):
            return ctx.now
        return ctx.deadlines.next()

    # -- what comes in

    def _garbage(self, port: str, error: Exception) -> None:
        self.counts[f"garbage_{port}"] += 1
        self.ctx.turn.fact("garbage", "warning", port=port, error=str(error))

    def subscription(self, frames: list[bytes]) -> None:
        """Take an event of P+1: a subscription, a cancellation, or the end of a connection."""
        ctx = self.ctx
        try:
            if subscriptions.begins(frames):
                ctx.commit()
            ctx.turn.publish += subscriptions.hear(frames, ctx.commits, ctx.now, ctx.greeting)
        except BadInput as error:
            self._garbage("updates", error)

    def collect(self, frames: list[bytes]) -> None:
        """Take a KVSET of P+2, of CHP/1 or CHP/2; from here on its session goes by its public id."""
        try:
            known = with_user(frames, by_public_id(frames)) if frames[0] == RESERVED_KEY else frames
            if self.pending.taken and self.pending.queues(known, self.state):
                self.pending.taken.append(known)
            else:
                self._collect(known)
        except BadInput as error:
            self._garbage("collector", error)
        except Exception:
            # It is a defect of the server, or memory is exhausted; the shell logs it.
            self.health.failures += 1
            raise

    def take_sets(self) -> None:
        """Do the sets that waited for their turn, as far as this turn may."""
        ctx, self._shared = self.ctx, True
        if ctx.sets.queue.sessions:
            for frames in ctx.sets.take(ctx.follower, ctx.now) if ctx.serving else ctx.sets.queue.take_all():
                self._collect(frames, waited=True)

    def _collect(self, frames: list[bytes], *, waited: bool = False) -> None:
        """Do a set, keep it for the active, or let it wait for its turn unless it has `waited`."""
        ctx = self.ctx
        try:
            if not ctx.serving:
                if not self.pending.keep(frames, self.state, ctx.now):
                    self.counts["pending_without_uuid"] += 1
                return
            may_wait = not waited and (len(frames[-1]) > self.limits.small_set_bytes or ctx.sets.queue.sessions)
            if may_wait and ctx.sets.queues(frames, ctx.follower):
                return
            if not self.committer.collect(frames, ctx.turn, ctx.arrival, ctx.wall):
                ctx.deadlines.set(EXPIRY, ctx.now)
            self.health.failures = 0
        except BadInput as error:
            self._garbage("collector", error)

    def request(self, frames: list[bytes]) -> None:
        """Take a message of the snapshot port P: the identity of the connection, then the request."""
        self.ctx.deadlines.set(EXPIRY, self.ctx.now)
        self.ctx.authorizer.heed(frames)
        try:
            self._do(self.requests.message(frames))
        except BadInput as error:
            self._garbage("snapshot", error)

    def page(self, read: JournalRead, found: Any) -> None:
        """Take what the journal has for a read of the last turn, or an error if the journal is damaged there."""
        if isinstance(found, Exception) and not isinstance(read, ReadMessages):
            raise found
        if isinstance(read, ReadMessages) and self.link.filler.read(read, found, self.ctx.turn):
            self.ctx.deadlines.set(LINK, self.ctx.now)
        self.requests.page(read, found)
        if self._parked is not None and self._parked[1] == read:
            self._found = found
            self.ctx.deadlines.set(LINK, self.ctx.now)

    def _go_on_with_peer(self) -> None:
        """Go on with the peer's message that waited for the journal, and then with those that came after it."""
        if self._parked is not None and self._found is not WAITS:
            asking, found = self._parked[0], self._found
            self._parked, self._found = None, WAITS
            self._hear_peer(asking, found)
        while self._behind and self._parked is None:
            self._hear_peer(self.link.message(*self._behind.popleft()))

    def peer_message(self, frames: list[bytes], line: bytes = b"") -> None:
        """Take a message of P+3, and the identity of its connection."""
        if self._parked is None:
            self._hear_peer(self.link.message(frames, line))
        else:
            self._behind.append((frames, line))

    def _hear_peer(self, asking: Asking, answer: Any = None) -> None:
        try:
            self._do(asking, answer)
        except BadInput as error:
            self._garbage("peer", error)

    def _do(self, asking: Generator[Ask, Any, T], answer: Any = None) -> T | None:
        """Run a part, and do what it asks for meanwhile; return None if it waits for the journal."""
        while True:
            try:
                ask = asking.send(answer)
            except StopIteration as done:
                return cast(T, done.value)
            answer = None
            match ask:
                case ReadMessages() | ReadSpans():
                    self.ctx.turn.reads.append(ask)
                    self._parked = asking, ask
                    return None
                case RiseAbove(epoch):
                    self.rise_above(epoch)
                case Vote():
                    self.vote()
                case TellStatus(identity, request_id):
                    self.requests.answer(identity, request_id, self.status())
                case _:
                    self.step(ask)

    def force(self) -> dict[str, Any]:
        """Let an operator force this server to serve: see `PeerLink.force`."""
        return self._do(self.link.force()) or {}

    def measured(self, seen: ResourceUsage, *, aside: bool = False) -> str:
        """Take the shell's measures of memory and disk; return why there is little room, or "".

        `aside` says that this call comes in the middle of a turn.
        """
        self.ctx.deadlines.set(EXPIRY, self.ctx.now)
        before = self.room.read_only
        self.room.measured(seen)
        if not aside:
            if before and not self.room.read_only:
                # No client could refresh a lease meanwhile.
                self.state.renew_leases(self.ctx.now)
            self._look_at_health()
        return self.room.tight

    def _look_at_health(self) -> None:
        """Hand over if this server is unhealthy, and the passive can take over."""
        ctx = self.ctx
        if self.health.look(ctx.turn):
            ctx.beat_now()
        ready = ctx.serving and ctx.in_sync() and ctx.arbitration.both and ctx.peer is not None and ctx.peer.room
        if ready and self.health.wants_relief(ctx.now):
            self.link.switch()

    def vote(self) -> bool:
        """Take a client's question as its vote to serve; return True if this server takes sets after it."""
        if not self.ctx.active and self.link.loader is None and self.ctx.replacing is None:
            self.step(PairEvent.VOTE_PEER_ALIVE if self.ctx.is_there() else PairEvent.VOTE_PEER_SILENT)
        return self.ctx.serving

    # -- Binary Star

    def step(self, event: PairEvent) -> None:
        """Let Binary Star's table decide on an event, and enter the new state if there is one."""
        ctx = self.ctx
        after = step(ctx.bstate, event)
        if after is ctx.bstate:
            return
        if after is State.ACTIVE and self.state.number < self.marked:
            self._miss(event)
            return
        if after is State.ACTIVE and not self._may_begin(event):
            return
        if after is State.ACTIVE and not self.arbitration.holds(ctx.now, self.state.number):
            self.arbitration.want(ctx.now)
            return
        self._parked, self._found = None, WAITS
        self._behind.clear()
        before, ctx.bstate, ctx.since = ctx.bstate, after, ctx.now
        ctx.deadlines.set(LINK, ctx.now)
        ctx.deadlines.set(EXPIRY, ctx.now)
        self.health.stepped(event, ctx.now)
        ctx.turn.fact("state", before=before.name.lower(), after=after.name.lower(), because=event.name.lower())
        if after is State.ACTIVE:
            self._become_active(event.name.lower())
        else:
            self._become_passive()
        ctx.beat_now()

    def _miss(self, event: PairEvent) -> None:
        """Refuse to become active with a journal that was cut short; end the server if no peer can have more."""
        alone = "the peer was not heard" if self.config.has_peer else "there is no peer"
        why = {PairEvent.ALONE: alone, PairEvent.PEER_BEHIND: "the peer has no more than this server"}.get(event)
        if why:
            self.cut_short = f"{cut_short(self.state.number, self.marked)} ({why})"

    @property
    def asks_arbiter(self) -> tuple[bool, Wish | None]:
        """The request to the arbiter: True to get or keep the lease, and the set of servers to write, or None."""
        ctx, wish = self.ctx, self.arbitration.wish
        if ctx.active:
            # The peer can't take over before this server gives up the lease.
            return not ctx.handing_over, wish
        return self.arbitration.wants_lease(ctx.now, self.state.number), wish

    def _become_active(self, because: str) -> None:
        ctx = self.ctx
        self.link.reset()
        self.link.remember_foreign(b"")
        ctx.drop_partial()
        held = self.state.number
        self._open_epoch(because)
        self.arbitration.begin(ctx.now)
        self.state.renew_leases(ctx.now)
        self.requests.readers.sharing.begin()
        self.link.replay.own(held)
        taken = self.pending.take(ctx.now)
        self._go_on_with_pending()
        # This HUGZ comes before any other message with a number of the new epoch.
        ctx.turn.publish.append(alive(self.state.number))
        self.beating.greet_all()
        ctx.turn.fact("active", epoch=self.state.epoch, number=describe(self.state.number), pending=taken)

    def _open_epoch(self, because: str) -> None:
        """Open an epoch above all that this server has heard of: make its first record."""
        prev, wall_ms = self.state.number, round(self.ctx.wall * 1000)
        above = self.epochs.spend(self.state.epoch, self.ctx.now)
        first = number(next_epoch(above, odd=self.config.primary), sequence_of(prev) + 1)
        store = self.state.store or self.server
        told = Epoch(prev, first, first, wall_ms, self.server, self.config.name, because, store)
        self.commits.open_epoch(told, self.ctx.turn)
        self.link.opens = True
        self.commits.channels.begin_epoch(first)

    def rise_above(self, epoch: int) -> None:
        """Open an epoch above `epoch`, which the peer or a client has seen, if ours is not above it.

        Otherwise clients and the peer would take what this server serves as stale.
        """
        ctx = self.ctx
        self.epochs.hear(epoch)
        if ctx.active and self.epochs.above(self.state.epoch, ctx.now) > self.state.epoch:
            ctx.commit()
            self._open_epoch(f"epoch {epoch} was heard of")
            ctx.turn.publish.append(alive(self.state.number))
            self.beating.greet_all()
            ctx.turn.fact("epoch opened", "warning", epoch=self.state.epoch, above=epoch)

    def _go_on_with_pending(self) -> None:
        for frames in self.pending.slice():
            self._collect(frames)
        self.ctx.commit()

    def _become_passive(self) -> None:
        self.ctx.commit()
        self.arbitration.end()
        self.link.reset()
        self.committer.unwritten.clear()
        self.releasing.clear(self.ctx.turn)
        self.requests.clear()
        self.changes.owed.clear()
        while self.pending.taken:
            self._collect(self.pending.taken.popleft())
        self.take_sets()
        self.beating.greet_all()
        self.ctx.turn.fact("passive", number=describe(self.state.number))

    def _alone(self) -> None:
        ctx = self.ctx
        if self.arbitration.forced(ctx.now):
            self.step(PairEvent.FORCED)
        if ctx.bstate in (State.PRIMARY, State.BACKUP):
            wait = self.config.solo_wait_s
            waited = wait is not None and ctx.now - ctx.listens_since >= wait
            waited = waited and not ctx.liveness.may_be_there(ctx.now)
            waited = waited and not (self.link.foreign or self.link.outdone)
            if not self.config.has_peer or (waited and not self.link.bars(wait or 0.0)):
                self.step(PairEvent.ALONE)

    def _may_begin(self, event: PairEvent) -> bool:
        """Return True if this server may become active: it has a store, or may open one.

        A server that was stopped does not trust old messages of its peer; the peer repeats them soon. A passive also
        waits while an active server that can't be its peer speaks on P+3.
        """
        if event is PairEvent.PEER_BEHIND and self._woke:
            return False
        if self.ctx.bstate is State.PASSIVE:
            stranger = self.link.misfit
            if stranger is not None and stranger.active and self.link.bars(self.config.peer_timeout_s):
                return False
        elif not self.config.has_peer or (self.config.bootstrap and event is PairEvent.ALONE):
            return True
        # A peer that is behind an empty server has no store either.
        return self.state.number > 0 or event is PairEvent.PEER_BEHIND

    def _give_up_handover(self) -> None:
        ctx = self.ctx
        if ctx.active and ctx.handover_until is not None and ctx.now >= ctx.handover_until:
            ctx.handover_until = None
            ctx.turn.fact("handover given up", "warning", number=describe(self.state.number))
            if self.arbitration.leased(ctx.now):
                self.pending.take(ctx.now)
            else:
                self.step(PairEvent.LEASE_LOST)

    # -- what is due at the end of a turn

    def _expire(self, *, beats: bool) -> None:
        """End what is over, and set the time of the next check; all kinds are checked with each heartbeat."""
        ctx, state, room = self.ctx, self.commits.state, self.room
        if not ctx.serving or room.read_only:
            self.expiry.ready = False
            ctx.deadlines.clear(EXPIRY)
        elif state.deferred or state.listing or self.pending.taken:
            ctx.deadlines.set(EXPIRY, ctx.now)
        elif ctx.now < ctx.hold_until:
            # This server was stopped. A successor may have refreshed what is over here.
            ctx.deadlines.set(EXPIRY, ctx.hold_until)
        else:
            self.expiry.step(Now(ctx.now, ctx.arrival, ctx.wall), scan=beats)
            self.requests.readers.settle(beat=beats)
            at = ctx.now if self.expiry.ready else state.map.next_deadline()
            if at is not None:
                ctx.deadlines.set(EXPIRY, at)

    @property
    def ends(self) -> str:
        """The reason why this server can't go on, or ""; the shell ends it with the exit code of a wrong setting."""
        return self.link.ends

    # -- the status

    def status(self) -> dict[str, Any]:
        """Return the facts for `chp status`, metrics and logs; counts are since the server's start."""
        return status_of(self.ctx, self.link, self.requests, **self.shell_facts())
