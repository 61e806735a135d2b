"""The server as a pure core: messages and times go in, and a `Turn` of effects comes out.

    begin_turn(now, wall)                             takes every clock reading of the turn
    subscription, collect, request, peer_message      take the messages that came in, in any order
    page                                              takes what the journal has for a read of the last turn
    end_turn() -> Turn                                does what is due, commits, and returns the effects (turn.py)
    next_deadline()                                   returns when to take the next turn if no message comes
    begin_short_turn, end_short_turn                  take what needs no whole turn, between two turns

The core gives each part the other parts that it needs, and the turn under way, with its times and effects (turn.py).
The committer makes records, the link speaks with the peer (peerlink.py), and the requests answer the snapshot port
(requests.py). What is known of the pair is in one place (pair_state.py). The core itself decides, by Binary Star,
whether this server is active. If a part asks for such a decision in the middle of its work (asks.py), `do` makes it.

A malformed message is counted by port and logged. It never stops the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from math import inf
from typing import Any, TypeVar, cast

from chp.errors import BadInput
from chp.headers import Epoch, State
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT, Limits
from chp.numbers import describe, next_epoch, number, sequence_of

from . import subscriptions
from .asks import Ask, Decision, RiseAbove, Vote
from .core_config import CoreConfig
from .deadlines import BEAT, EXPIRY, HANDOVER, LINK, NOTHING, Deadlines
from .expiry import Expiry
from .heartbeats import HeartbeatTimer
from .pair.arbitration import Members
from .pair.binary_star import PairEvent, step
from .pair.pair_state import ACTIVE, PASSIVE, PairState
from .pair.pending import PendingList, by_public_id
from .pair.set_shares import SetShares
from .peer.health import HealthCheck
from .peer.peerlink import PeerLink
from .questions.requests import Requests
from .questions.status import status_of
from .release import AckRelease, CopiesRelease
from .state.epochs import JUMPS
from .state.journal import RetainedDamaged, cut_short
from .state.state import ReplicatedState
from .updates.acks import CountedAcks
from .updates.authorizer import VOUCHED, Authorizer, with_user
from .updates.channels import alive
from .updates.commit import Committer
from .updates.committed import Committed
from .updates.resource_limits import ResourceLimits, ResourceUsage
from .updates.turn import CurrentTurn, JournalRead, ReadMessages, ReadSpans, Remember, Turn

__all__ = ["CoreConfig", "ServerCore"]
T = TypeVar("T")
# Stands for the result of a read of the journal that has not come yet.
WAITS = object()
# The number of servers of a pair. Further copies are on replicas that confirm.
COPIES_OF_A_PAIR = 2
# A promoted server opens an epoch at least this many above its last one, because the pair may have opened epochs that
# the replica missed. Other servers believe jumps of twice this size (epochs.py).
PROMOTED_EPOCHS = JUMPS // 2
LOST = (
    "what the pair acknowledged above this number, unless one of its servers comes back; that is nothing of what was "
    "replicated, if this replica was one of the copies that its acknowledgements counted"
)


class ServerCore:
    """One server of a pair, or a lone one."""

    def __init__(self, config: CoreConfig, server: bytes, now: float, limits: Limits = DEFAULT) -> None:
        self.turn = turn = CurrentTurn(now, now)
        committed = Committed(limits)
        room = ResourceLimits(keys_max=config.keys_max, disk_free_min=config.disk_free_min)
        self.committer = Committer(committed, room, config.durability)
        counts_copies = config.copies > COPIES_OF_A_PAIR
        if counts_copies:
            acks = self.committer.acks = CountedAcks(self.committer.acks.durability, self.committer.counts)
        self.committer.retains = config.retain_bytes, config.retain_s
        self.pair = PairState(config, server, turn, committed)
        self._config, self._committed, self._room = config, committed, room
        self._deadlines, self._pending = Deadlines(), PendingList(limits)
        # On the active: the sets that wait for their turn.
        self._sets = SetShares(limits, self.committer)
        self._health, self._expiry = HealthCheck(room), Expiry(turn, self.committer, self._sets.queue)
        self.link = PeerLink(
            turn,
            self.pair,
            self.committer,
            self._deadlines,
            pending=self._pending,
            health=self._health,
            sets=self._sets,
        )
        self.requests = Requests(turn, self.pair, self.committer, Authorizer(), self.link, status=self.status)
        self._changes = self.requests.changes
        stopped_s = config.peer_timeout_s / 2 if config.has_peer else inf
        self.release = AckRelease(self.committer.acks, self.pair.arbitration, stopped_s)
        if counts_copies:
            self.release = CopiesRelease(
                acks,
                self.pair.arbitration,
                self.requests.replicas,
                stopped_s,
                copies=config.copies,
                passive_has=self._passive_has,
            )
        self.heartbeats = HeartbeatTimer(turn, self.pair, committed, self._deadlines, self.link)
        self._ending_keys_max = limits.ending_keys_max
        # The most items and bytes of a large commit that a turn does: without messages, and with messages.
        self._quiet_slice = limits.deferred_slice_items, limits.publish_slice_bytes
        self._busy_slice = max(1, self._quiet_slice[0] // 2), max(1, self._quiet_slice[1] // 2)
        self._small_set_bytes, self._quiet_times = limits.small_set_bytes, limits.gather_quiet_times
        # True if this turn has done its share of the sets that wait.
        self._shared = False
        # True if this turn took a message of a client or of the peer; its sender may wait for the end of the turn.
        self._heard = False
        # True if this server was stopped before the turn, so that the messages in its sockets are old.
        self._woke = False
        # The name of the replica's mark in the journal, if this server was promoted; "" once it is cleared.
        self._mark = ""
        # The handling of a peer's message that waits for a read of the journal, and that read.
        self._parked: tuple[Generator[Ask, Any, Any], Ask] | None = None
        # The result of the read in `_parked`.
        self._found: Any = WAITS
        # The peer's messages that came after the one in `_parked`.
        self._behind: deque[tuple[list[bytes], bytes]] = deque()

    @property
    def state(self) -> ReplicatedState:
        """The replicated state."""
        return self._committed.state

    @property
    def active(self) -> bool:
        """True if this server is active."""
        return self.pair.active

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
        gap since the last turn, in which this server sent nothing, means that its process was stopped.
        """
        turn, pair, state = self.turn, self.pair, self._committed.state
        config = self._config
        if arbiter is not None:
            pair.arbitration.hear(*arbiter)
        gap, silent_s = now - turn.now, 0.0
        self._woke = gap > config.peer_timeout_s / 2
        turn.now = turn.arrival = now
        turn.wall_s, turn.written = wall_s, state.number
        if self._woke:
            silent_s = self.link.beat_timer.silent_s(now)
            # The process was stopped, or was busy with recovering the journal.
            pair.listens_since = now
            if pair.peer is not None:
                pair.liveness.excuse(pair.peer.heard, now)
            self._deadlines.set(LINK, now)
        for up in connection:
            pair.liveness.connection(up, now)
            self._deadlines.set(LINK, now)
        if config.has_peer:
            self.link.beat_timer.begins(now)
        self._heard = False
        if self._committed.busy:
            self._go_on_with_commit(self._busy_slice)
        arbitrated = config.has_arbiter and pair.active and not pair.is_handing_over()
        if arbitrated and not pair.arbitration.holds(now, state.number):
            self._step(PairEvent.LEASE_LOST)
        if self._woke and pair.active and config.has_peer:
            if silent_s > config.peer_timeout_s / 2:
                pair.hold_until = now + config.peer_timeout_s
                turn.effects.fact("paused", "warning", seconds=round(gap, 3))
            self.link.excuse()
            self.requests.replicas.excuse()
        if self._parked is not None:
            self._go_on_with_peer()
        if not config.has_peer and not pair.active:
            # A lone server becomes active before it handles the first request: a CHP/1 client would ask again only
            # after 5 s.
            self._alone()

    def _go_on_with_commit(self, most: tuple[int, int]) -> None:
        """Put the next items of a large commit into the map, and publish the next bytes of it."""
        items, size = most
        channels, state = self._committed.channels, self._committed.state
        state.catch_up(items)
        # A replica publishes too, even while it is behind its pair.
        if channels.behind and (self.pair.active or self._config.replica):
            self.turn.effects.publish += channels.share(size)
        elif channels.behind:
            channels.drop_later()

    def end_turn(self) -> Turn:
        """Do what is due, commit, pass new records to the peer and to streams, and return all effects of the turn."""
        turn, deadlines, state, pair = self.turn, self._deadlines, self._committed.state, self.pair
        now = turn.now
        if not pair.active and (pair.bstate is not PASSIVE or self._config.has_arbiter):
            self._alone()
        if self._sets.queue.sessions:
            self._take_sets()
        self._shared = False
        due = NOTHING if now < deadlines.first else self._do_what_is_due()
        # The next turn may delete this many keys of ended leases. Sets of clients that end leases use this first.
        self.committer.ends_left = self._ending_keys_max
        if self._pending.taken:
            self._go_on_with_pending()
        self.committer.commit(turn)
        if self._room.taken >= self._room.ample or self._health.failures or self._health.told:
            self._look_at_health()
        if self._config.has_peer:
            self.link.end_turn(look=LINK in due)
        elif state.topics.changed:
            self.link.backfill.end_turn(turn.effects, now, asks=False)
        self._answer()
        if now >= deadlines.next_beat or BEAT in due:
            self.heartbeats.end_turn()
            self.requests.forget()
        if state.busy:
            state.go_on(self._quiet_times if state.number == turn.written else 1)
        if self.requests.replicas.streams:
            self.requests.replicas.pump(self.requests.blocked, self.requests.room)
        if self.requests.awake or self.requests.replicas.reads or self.requests.replicas.more:
            self.requests.pump()
        if self._committed.busy and not self._heard:
            # No client waits for the end of this turn, so it does more of the commit.
            items, size = self._quiet_slice
            self._go_on_with_commit((items - self._busy_slice[0], size - self._busy_slice[1]))
        self.link.opens = False
        effects, turn.effects = turn.effects, Turn()
        return effects

    def begin_short_turn(self, now: float, wall_s: float) -> bool:
        """Begin a turn that takes one kind of message; return False if this server needs a whole turn instead.

        In a short turn, a passive may only `collect` sets, which it keeps. The active may only take the passive's
        confirmations, and then call `end_short_turn`.
        """
        turn, pair = self.turn, self.pair
        other = self._config.has_arbiter or self.requests.awake or self._sets.queue.sessions
        stopped = now - turn.now > self._config.peer_timeout_s / 2
        if other or stopped or not (pair.serving or pair.bstate is PASSIVE):
            return False
        self._woke = False
        turn.now = turn.arrival = now
        turn.wall_s = wall_s
        self.link.beat_timer.begins(now)
        return True

    def end_short_turn(self) -> Turn | None:
        """Return the effects of confirmations that were heard; None if a whole turn must follow."""
        follower, deadlines, turn = self.pair.follower, self._deadlines, self.turn
        if turn.now >= deadlines.first or follower is None or follower.position != self._committed.state.number:
            return None
        self._answer()
        effects, turn.effects = turn.effects, Turn()
        return effects

    def _passive_has(self, number: int) -> bool:
        """Return True if the passive has confirmed a number."""
        return self.pair.follower is not None and self.pair.follower.confirmed >= number

    def _answer(self) -> None:
        """Release the answers that clients and operators may have by now."""
        pair, acks = self.pair, self.committer.acks
        owes = acks.waiting or self.release.waits or self._config.has_arbiter
        if owes and pair.active and self.turn.now >= pair.hold_until:
            follower = pair.follower
            confirmed = follower.confirmed if follower is not None and follower.in_sync else None
            self.release.end_turn(self.turn.effects, confirmed, self._committed.state.number)
        if self._changes.owed:
            self._changes.tell(acks.answered, self.requests.promise)
        if self.requests.readers.owed:
            self.requests.readers.tell(acks.answered)
        if self.requests.owed:
            self.requests.tell_plans(acks.answered)

    def next_deadline(self) -> float:
        """Return the time when the next turn is due if no message comes. This is now if work is left over."""
        state, now = self._committed.state, self.turn.now
        if state.busy or self._committed.busy or self._pending.taken or self.link.ready:
            return now
        if self._sets.queue.sessions and self._sets.ready(self.pair.follower, now):
            return now
        return now if self.requests.awake and self.requests.ready else self._deadlines.first

    # -- what comes in

    def stand_still(self) -> None:
        """Note that this turn waits for room in the journal, and that no other turn begins meanwhile.

        A plain server does nothing. A replica overrides this.
        """

    def _garbage(self, port: str, error: Exception) -> None:
        self.committer.counts[f"garbage_{port}"] += 1
        self.turn.effects.fact("garbage", "warning", port=port, error=str(error))

    def subscription(self, frames: list[bytes]) -> None:
        """Take an event of P+1: a subscription, a cancellation, or the end of a connection."""
        turn = self.turn
        try:
            if subscriptions.begins(frames):
                self.committer.commit(turn)
            greeting = self.heartbeats.greeting
            turn.effects.publish += subscriptions.hear(frames, self._committed, turn, greeting)
        except BadInput as error:
            self._garbage("updates", error)

    def collect(self, frames: list[bytes]) -> None:
        """Take a KVSET of CHP/1 or CHP/2 from P+2. From here on, the public id stands for its session."""
        self._heard = True
        try:
            if frames[0] == VOUCHED:
                frames = self._vouched(frames, 0)
            known = with_user(frames, by_public_id(frames)) if frames[0] == RESERVED_KEY else frames
            if self._pending.taken and self._pending.queues(known, self._committed.state):
                self._pending.taken.append(known)
            else:
                self._collect(known)
        except BadInput as error:
            self._garbage("collector", error)
        except Exception:
            # It is a defect of the server, or memory is exhausted; the shell logs it.
            self._health.failures += 1
            raise

    def _vouched(self, frames: list[bytes], at: int) -> list[bytes]:
        """Return a message that a replica sends for a user, as if that user had sent it."""
        access, keyed = self._committed.state.access, self._config.keyed
        return self.requests.authorizer.vouched(access, frames, at, keyed=keyed)

    def _take_sets(self) -> None:
        """Do sets from the queue, as many as this turn may. Only the first call in a turn has an effect."""
        sets, pair, state = self._sets, self.pair, self._committed.state
        if self._shared or state.listing:
            return
        self._shared = True
        for frames in sets.take(pair.follower, self.turn.now) if pair.serving else sets.queue.take_all():
            self._collect(frames, waited=True)

    def _collect(self, frames: list[bytes], *, waited: bool = False) -> None:
        """Do a set. A passive keeps it instead; the active may queue it, unless it has `waited` already."""
        turn, committer = self.turn, self.committer
        try:
            if not self.pair.serving:
                if not self._pending.keep(frames, self._committed.state, turn.now):
                    committer.counts["pending_without_uuid"] += 1
                return
            may_wait = not waited and (len(frames[-1]) > self._small_set_bytes or self._sets.queue.sessions)
            if may_wait and self._sets.queues(frames, self.pair.follower):
                return
            if not committer.collect(frames, turn):
                self._deadlines.set(EXPIRY, turn.now)
            self._health.failures = 0
        except BadInput as error:
            self._garbage("collector", error)

    def request(self, frames: list[bytes]) -> None:
        """Take a message of the snapshot port P: the identity of the connection, then the request.

        Sets that came before the request are done first. The request may begin a list of all keys, for which sets wait.
        """
        if self._sets.queue.sessions:
            self._take_sets()
        self._deadlines.set(EXPIRY, self.turn.now)
        authorizer = self.requests.authorizer
        authorizer.heed(frames)
        try:
            if frames[1:2] == [VOUCHED]:
                frames = self._vouched(frames, 1)
                authorizer.heed(frames)
            self._run(self.requests.message(frames))
        except BadInput as error:
            self._garbage("snapshot", error)

    def page(self, read: JournalRead, found: Any) -> None:
        """Take the result of a read of the journal that the last turn asked for, or the error of a damaged journal."""
        if isinstance(found, RetainedDamaged):
            self.committer.counts["retained_damaged"] += 1
            self.turn.effects.fact("retained records damaged", "warning", why=str(found))
            found = None
        if isinstance(found, Exception) and not isinstance(read, ReadMessages):
            raise found
        if isinstance(read, ReadMessages):
            if self.link.backfill.read(read, found, self.turn.effects):
                self._deadlines.set(LINK, self.turn.now)
            self.requests.replicas.read(read, found)
        self.requests.page(read, found)
        if self._parked is not None and self._parked[1] == read:
            self._found = found
            self._deadlines.set(LINK, self.turn.now)

    def _go_on_with_peer(self) -> None:
        """Go on with the peer's message that waited for the journal, and then with those that came after it."""
        if self._parked is not None and self._found is not WAITS:
            asking, found = self._parked[0], self._found
            self._parked, self._found = None, WAITS
            try:
                self._run(asking, found)
            except BadInput as error:
                self._garbage("peer", error)
        while self._behind and self._parked is None:
            self._hear_peer(*self._behind.popleft())

    def peer_message(self, frames: list[bytes], line: bytes = b"") -> None:
        """Take a message of P+3, and the identity of its connection."""
        self._heard = True
        if self._parked is None:
            self._hear_peer(frames, line)
        else:
            self._behind.append((frames, line))

    def _hear_peer(self, frames: list[bytes], line: bytes) -> None:
        try:
            asking = self.link.message(frames, line)
            if asking is not None:
                self._run(asking)
        except BadInput as error:
            self._garbage("peer", error)

    def _run(self, asking: Generator[Ask, Any, T], answer: Any = None) -> T | None:
        """Run a part, and do what the part asks for; return its result, or None if it waits for the journal."""
        while True:
            try:
                ask = asking.send(answer)
            except StopIteration as done:
                return cast(T, done.value)
            answer = None
            match ask:
                case ReadMessages() | ReadSpans():
                    self.turn.effects.reads.append(ask)
                    self._parked = asking, ask
                    return None
                case _:
                    self.do(ask)

    def measured(self, seen: ResourceUsage, *, aside: bool = False) -> str:
        """Take the shell's measurements of memory and disk; return why there is little room, or "".

        `aside` says that the shell calls this in the middle of a turn.
        """
        self._deadlines.set(EXPIRY, self.turn.now)
        room = self._room
        before = room.read_only
        room.measured(seen)
        if not aside:
            if before and not room.read_only:
                # While the server was read-only, no client could refresh a lease.
                self._committed.state.renew_leases(self.turn.now)
            self._look_at_health()
        return room.tight

    def _look_at_health(self) -> None:
        """Hand over if this server is unhealthy, and the passive can take over."""
        turn, pair = self.turn, self.pair
        if self._health.look(turn.effects):
            self.heartbeats.beat_now()
        ready = pair.serving and pair.in_sync() and pair.arbitration.both and pair.peer is not None and pair.peer.room
        if ready and self._health.wants_relief(turn.now):
            self.link.switch()

    # -- Binary Star

    def do(self, ask: Decision) -> bool:
        """Decide what a part asks for; return True if this server takes sets after it."""
        match ask:
            case RiseAbove(epoch):
                self._rise_above(epoch)
            case Vote():
                self._vote()
            case _:
                self._step(ask)
        return self.pair.serving

    def _vote(self) -> None:
        """Take a client's question as its vote for this server.

        While a state is being received from a living peer, or written to the journal, the vote has no effect. The rest
        of a state that a silent peer began to send will not come, so that state is no hindrance.
        """
        pair, alive = self.pair, self.pair.peer_may_serve()
        if not pair.active and pair.replacing is None and (self.link.loader is None or not alive):
            self._step(PairEvent.VOTE_PEER_ALIVE if alive else PairEvent.VOTE_PEER_SILENT)

    def _step(self, event: PairEvent) -> None:
        """Let Binary Star's table decide on an event, and enter the new state if there is one."""
        turn, pair, number = self.turn, self.pair, self._committed.state.number
        before, after = pair.bstate, step(pair.bstate, event)
        if after is before:
            return
        if after is ACTIVE and number < pair.high_water_mark:
            self._miss(event)
            return
        if after is ACTIVE and not self._may_begin(event):
            return
        if after is ACTIVE and not pair.arbitration.holds(turn.now, number):
            pair.arbitration.want(turn.now)
            return
        self._parked, self._found = None, WAITS
        self._behind.clear()
        pair.enter(after)
        self._deadlines.set(LINK, turn.now)
        self._deadlines.set(EXPIRY, turn.now)
        self._health.stepped(event, turn.now)
        because = event.name.lower()
        turn.effects.fact("state", before=before.name.lower(), after=after.name.lower(), because=because)
        if after is ACTIVE:
            self._become_active(because)
        else:
            self._become_passive()
        if self._mark:
            # The mark is cleared behind the record that opens the epoch. So a server that dies between the two is
            # promoted again.
            turn.effects.journal.append(Remember(self._mark, b""))
            self._mark = ""
        self.heartbeats.beat_now()

    def _miss(self, event: PairEvent) -> None:
        """Refuse to become active with a journal that was cut short; end the server if no peer can have more."""
        alone = "the peer was not heard" if self._config.has_peer else "there is no peer"
        why = {PairEvent.ALONE: alone, PairEvent.PEER_BEHIND: "the peer has no more than this server"}.get(event)
        if why:
            told = cut_short(self._committed.state.number, self.pair.high_water_mark)
            self.pair.cut_short = f"{told} ({why})"

    def _become_active(self, because: str) -> None:
        turn, pair, committed = self.turn, self.pair, self._committed
        self.link.reset()
        self.link.remember_foreign(b"")
        self.link.drop_partial()
        held = committed.state.number
        self._open_epoch(because)
        pair.arbitration.begin(turn.now)
        committed.state.renew_leases(turn.now)
        pair.safe = held
        self.requests.readers.coordinator.begin(self.turn.now)
        self.link.replay.own(held)
        taken = self._pending.take(turn.now)
        self._go_on_with_pending()
        # This HUGZ comes before any other message with a number of the new epoch.
        turn.effects.publish.append(alive(committed.state.number))
        self.heartbeats.greet_all()
        epoch, at = committed.state.epoch, describe(committed.state.number)
        turn.effects.fact("active", epoch=epoch, number=at, pending=taken)

    def _open_epoch(self, because: str) -> None:
        """Open an epoch above all epochs that this server has heard of, and make the first record of the new epoch."""
        turn, pair, config, state = self.turn, self.pair, self._config, self._committed.state
        prev, wall_ms = state.number, round(turn.wall_s * 1000)
        above = pair.epochs.spend(state.epoch, turn.now)
        first = number(next_epoch(above, odd=config.primary), sequence_of(prev) + 1)
        store = state.store or pair.server
        told = Epoch(prev, first, first, wall_ms, pair.server, config.name, because, store)
        self._committed.open_epoch(told, turn.effects)
        self.link.opens = True
        self._committed.channels.begin_epoch(first)

    def _rise_above(self, epoch: int) -> None:
        """Open an epoch above `epoch`, which the peer or a client has seen, unless this server's epoch is above it.

        With a lower epoch, clients and the peer would take what this server serves as stale.
        """
        turn, pair, state = self.turn, self.pair, self._committed.state
        pair.epochs.hear(epoch)
        if pair.active and pair.epochs.above(state.epoch, turn.now) > state.epoch:
            self.committer.commit(turn)
            self._open_epoch(f"epoch {epoch} was heard of")
            turn.effects.publish.append(alive(state.number))
            self.heartbeats.greet_all()
            # Another active server of a lower epoch has to hear of the new epoch soon.
            self.heartbeats.beat_now()
            turn.effects.fact("epoch opened", "warning", epoch=state.epoch, above=epoch)

    def _go_on_with_pending(self) -> None:
        for frames in self._pending.slice():
            self._collect(frames)
        self.committer.commit(self.turn)

    def _become_passive(self) -> None:
        turn, pending = self.turn, self._pending
        self.committer.commit(turn)
        self.pair.arbitration.end()
        self.link.reset()
        self.committer.unwritten.clear()
        self.release.clear(turn.effects)
        self.requests.clear()
        while pending.taken:
            self._collect(pending.taken.popleft())
        for frames in self._sets.queue.take_all():
            self._collect(frames)
        self.heartbeats.greet_all()
        turn.effects.fact("passive", number=describe(self._committed.state.number))

    def _alone(self) -> None:
        turn, pair, link = self.turn, self.pair, self.link
        if pair.arbitration.forced(turn.now):
            self._step(PairEvent.FORCED)
        if pair.bstate in (State.PRIMARY, State.BACKUP):
            wait = self._config.solo_wait_s
            waited = wait is not None and turn.now - pair.listens_since >= wait
            waited = waited and not pair.liveness.may_be_there(turn.now)
            waited = waited and not (link.foreign or link.later_epoch)
            if not self._config.has_peer or (waited and not link.bars(wait or 0.0)):
                self._step(PairEvent.ALONE)

    def _may_begin(self, event: PairEvent) -> bool:
        """Return True if this server may become active: it has a store, or may open one.

        A server that was stopped does not trust old messages of its peer; the peer repeats them soon. A passive also
        waits while an active server that can't be its peer speaks on P+3.
        """
        if event is PairEvent.PEER_BEHIND and self._woke:
            return False
        if self.pair.bstate is PASSIVE:
            other = self.link.incompatible
            if other is not None and other.active and self.link.bars(self._config.peer_timeout_s):
                return False
        elif not self._config.has_peer or (self._config.bootstrap and event is PairEvent.ALONE):
            return True
        # A peer that is behind an empty server has no store either.
        return self._committed.state.number > 0 or event is PairEvent.PEER_BEHIND

    def _give_up_handover(self) -> None:
        turn, pair = self.turn, self.pair
        if pair.active and pair.handover_until is not None and turn.now >= pair.handover_until:
            pair.end_handover()
            turn.effects.fact("handover given up", "warning", number=describe(self._committed.state.number))
            if pair.arbitration.leased(turn.now):
                self._pending.take(turn.now)
            else:
                self._step(PairEvent.LEASE_LOST)

    # -- what is due at the end of a turn

    def _do_what_is_due(self) -> frozenset[str]:
        """Do what is due before the commit, and return the names that are due. Each heartbeat makes LINK due too."""
        deadlines, now = self._deadlines, self.turn.now
        due, beats = deadlines.due(now), now >= deadlines.next_beat
        if beats or EXPIRY in due:
            self._expire(beats=beats)
        if HANDOVER in due:
            self._give_up_handover()
        return due | {LINK} if beats else due

    def _expire(self, *, beats: bool) -> None:
        """End what is over by time, and set the time of the next check. With a heartbeat, all kinds are checked."""
        pair, state, now = self.pair, self._committed.state, self.turn.now
        expiry, deadlines = self._expiry, self._deadlines
        if not pair.serving or self._room.read_only or self._config.replica:
            expiry.ready = False
            deadlines.clear(EXPIRY)
        elif state.deferred or state.listing or self._pending.taken:
            deadlines.set(EXPIRY, now)
        elif now < pair.hold_until:
            # The process of this server was stopped. A successor may have refreshed leases that are over here.
            deadlines.set(EXPIRY, pair.hold_until)
        else:
            expiry.step(scan=beats)
            self.requests.readers.settle(beat=beats)
            if beats:
                self.requests.forget_numbers()
            times = (expiry.next_at(), self.requests.readers.coordinator.due_at(now))
            at = now if expiry.ready else min((each for each in times if each is not None), default=None)
            if at is not None:
                deadlines.set(EXPIRY, at)

    # -- the promotion of a replica

    def promote(self, mark: str) -> None:
        """Begin from the journal of a replica: the next epoch is above those that the pair may have opened meanwhile.

        The journal keeps the mark of a replica until this server is active or follows its peer.
        """
        epochs, state = self.pair.epochs, self._committed.state
        self._mark = mark
        epochs.used = max(epochs.used, state.epoch + PROMOTED_EPOCHS)
        self.turn.effects.fact("promoted", "warning", number=describe(state.number), lost=LOST)

    # -- the status

    def status(self) -> dict[str, Any]:
        """Return the facts for `chp status`, metrics and logs; counts are since the server's start."""
        return status_of(self.turn, self.pair, self.committer, self.link, self.requests)
