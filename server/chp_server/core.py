"""The server as a pure core: messages and `now` in, one `Turn` of effects out.

    begin_turn(now, wall)                                 every clock reading a turn will use
    subscription / collect / request / peer_message       what came in; the order among them is the caller's
    end_turn() -> Turn                                    timers, commit, streams; turn.py says what order it promises
    next_deadline()                                       when to call again if nothing comes in

    core        Binary Star, the collector, subscriptions, timers      commits     updates, records, acknowledgements
    link        the peer (peerlink.py)                                 requests    the snapshot port (requests.py)

A message that makes no sense is counted by port and told in `facts`; it never stops anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chp import headers
from chp.batch import Segment, encode
from chp.errors import BadInput
from chp.headers import Epoch, State
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT, Limits
from chp.messages import parse_kvset
from chp.numbers import describe, next_epoch, number, sequence_of, unpack
from chp.versions import VERSION

from . import meeting, subscribing
from .arbitration import Arbitration
from .binary_star import Event, step
from .channels import alive, greeting
from .commit import Committer
from .ending import Endings
from .epochs import Epochs
from .journal import cut_short
from .peerlink import SAY_AGAIN_S, PeerLink
from .pending import Pending, batch_identity, by_public_id
from .pulse import Pulse
from .recordlog import Row
from .requests import Requests
from .resting import Resting
from .room import Room
from .staging import StagedCommit
from .state import ReplicatedState
from .status import status_of
from .turn import DropAfter, Turn
from .verdicts import KeyInOpenRecord

ACTIVE = State.ACTIVE  # each look into the class costs as much as ten into the module
HUGZ_S = 1.0  # RFC 12: once a second
LATE_A_TURN = 50_000  # items of a large commit that are put into the map a turn: a few heartbeats apart at most
WAITING_SAID_S = 5.0  # after the start, at the latest


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What the core needs to know of the server's settings; times in seconds."""

    primary: bool = True
    has_peer: bool = False
    has_arbiter: bool = False
    name: str = ""
    secret: bytes = b""  # of this run; only the peer is told it
    exposed: bool = False  # other hosts reach it, and there is no access control
    heartbeat_s: float = 0.25
    peer_timeout_s: float = 1.0
    solo_wait_s: float | None = 3.0  # None: never
    bootstrap: bool = False  # without a store and without its peer, it opens one
    replica_timeout_s: float = 2.0
    durability: int = 0
    scrub_s: float = 600.0  # in which the peers compare their contents once; 0: never
    keys_max: int | None = None
    disk_free_min: int = 0


class ServerCore:
    """One server of a pair, or a lone one."""

    def __init__(self, config: CoreConfig, server: bytes, now: float, limits: Limits = DEFAULT) -> None:
        self.config = config
        self.server = server  # 16 bytes, new at each start
        self.limits = limits
        self.commits = Committer(limits, config.durability)
        self.room = self.commits.room = Room(keys_max=config.keys_max, disk_free_min=config.disk_free_min)
        self.pending, self.turn = Pending(limits), Turn()
        self.counts: Counter[str] = Counter()
        self.now = self.started = self.since = now
        self.arrival, self.wall = now, 0.0  # by when all in hand has arrived: times to live count from then
        self.bstate = State.PRIMARY if config.primary else State.BACKUP
        self.epochs = Epochs(now)
        self.pulse = Pulse(config.secret or server, now, min(config.heartbeat_s, config.peer_timeout_s / 4))
        self.link = PeerLink(self)
        self.resting, self.endings, self.requests = Resting(self), Endings(self), Requests(self)
        self.read_journal: Callable[[int, int], list[Row] | None] = lambda _after, _bytes: None
        self.journal_stats: Callable[[], dict[str, int | float | str]] = dict
        self.marked = 0  # a number that our journal had been at: below it, only the peer can tell what is missing
        self.cut_short = ""  # why it can't; the shell ends the server then
        self.turn_facts: Callable[[], dict[str, Any]] = dict
        self.arbitration = Arbitration(config.has_arbiter, "primary" if config.primary else "backup", now)
        self._late_acks: list[list[bytes]] = []  # of a turn in the middle of which we were stopped
        self.ends = ""  # why this server can't go on, if so; the shell ends it with the exit code of a wrong setting
        self._say_waiting_at = now + min(config.solo_wait_s or WAITING_SAID_S, WAITING_SAID_S)
        self._woke = False
        self._hold_until = now  # after a pause of our own: nothing is acknowledged before the peer had its say
        self._next_beat = self._next_hugz = now

    @property
    def state(self) -> ReplicatedState:
        """The replicated state."""
        return self.commits.state

    @property
    def active(self) -> bool:
        """Whether this server serves."""
        return self.bstate is ACTIVE

    @property
    def serving(self) -> bool:
        """Whether it takes sets: active, and not about to hand over."""
        return self.bstate is ACTIVE and self.link.handover_until is None

    # -- a turn

    def begin_turn(self, now: float, wall_s: float) -> None:
        """Every clock reading of the turn. A long gap since the last one, in which we were silent: we were stopped."""
        gap = now - self.now
        silent_s = self.pulse.begins(now) if self.config.has_peer else gap
        self._woke = gap > self.config.peer_timeout_s / 2  # what lies in the sockets is old
        self.now, self.arrival, self.wall = now, now, wall_s
        if self.state.late:
            self.state.catch_up(LATE_A_TURN)
        arbitrated = self.arbitration.enabled and self.active and not self.link.handing_over
        if arbitrated and not self.arbitration.holds(now, self.state.number):
            self.step(Event.LEASE_LOST)
        if self._woke and self.active and self.config.has_peer:
            if silent_s > self.config.peer_timeout_s / 2:
                self._hold_until = now + self.config.peer_timeout_s
                self.turn.fact("paused", "warning", seconds=round(gap, 3))
            self.link.excuse()
        if not self.config.has_peer and self.bstate is not ACTIVE:
            self._alone()  # before the first request is looked at: a classic client asks again after 5 s only

    def arrived(self, now: float) -> None:
        """What is handed over next has arrived by now, maybe since the turn began."""
        self.arrival = now

    def end_turn(self) -> Turn:
        """Decide what is due, and hand over everything that is to be done."""
        if self.bstate is not ACTIVE:
            self._alone()
        self._expire()
        self.endings.end_turn()
        if self.link.handover_until is not None:
            self._give_up_handover()
        self._go_on_with_pending()
        self.resting.look()
        if self.config.has_peer:
            self.link.end_turn()
        if self.commits.answers.waiting or self._late_acks or self.arbitration.enabled:
            self._release()
        if self.now >= min(self._next_beat, self._next_hugz):
            self._beat()
        if self.state.busy:
            self.state.go_on()
        self.requests.pump()
        turn, self.turn = self.turn, Turn()
        return turn

    def next_deadline(self) -> float:
        """When something is due next, if nothing comes in."""
        state = self.commits.state
        if self.requests.ready or self.link.ready or state.late or state.busy or self.pending.taken:
            return self.now
        if self.endings.ready and self.now >= self._hold_until:
            return self.now
        due = min(self._next_beat, self._next_hugz)
        expiry = self.state.map.next_deadline() if self.active and not self.room.read_only else None
        return due if expiry is None else min(due, max(expiry, self._hold_until))

    def beat_now(self) -> None:
        """Let the next heartbeats go out with this turn: something changed that others want to know."""
        self._next_beat = self.now

    def commit(self) -> None:
        """Make a record of what is open, so that the state is at its number."""
        self.commits.commit(self.turn, self.arrival, self.wall, hold=self._holding())

    def recommit(self, segments: list[Segment], origins: list[list[Any]]) -> None:
        """Set again what another history has done, in the open record or, if it does not fit there, in the next."""
        self.commits.recommit(self.turn, segments, origins, self.arrival, self.wall, hold=self._holding())

    def _holding(self) -> bool:
        """Whether acknowledgements wait: for the passive's word, or because we were stopped and may be replaced."""
        if not self.config.has_peer:
            return self.arbitration.enabled
        return self.arbitration.enabled or self.link.in_sync() or self.now < self._hold_until

    # -- what comes in

    def _garbage(self, port: str, error: Exception) -> None:
        self.counts[f"garbage_{port}"] += 1
        self.turn.fact("garbage", "warning", port=port, error=str(error))

    def subscription(self, frames: list[bytes]) -> None:
        """P+1: a connection's event, or its end."""
        try:
            subscribing.hear(self, frames)
        except BadInput as error:
            self._garbage("updates", error)

    def collect(self, frames: list[bytes]) -> None:
        """P+2: a KVSET, of CHP/1 or CHP/2; from here on its session is known by the public id alone."""
        try:
            known = by_public_id(frames) if frames[0] == RESERVED_KEY else frames
        except BadInput as error:
            self._garbage("collector", error)
        else:
            self.pending.taken.append(known) if self.pending.taken else self._collect(known)

    def _collect(self, frames: list[bytes]) -> None:
        try:
            if not self.serving:
                self._keep_pending(frames)
                return
            if self.commits.full(len(frames[-1])):
                self.commit()
            try:
                staged = self._add(frames)
            except KeyInOpenRecord:
                self.commit()
                staged = self._add(frames)
            self.resting.failures = 0
            if staged is not None:
                self.commit()
                self.commits.commit_staged(self.turn, staged, self.arrival, self.wall, hold=self._holding())
        except BadInput as error:
            self._garbage("collector", error)

    def _add(self, frames: list[bytes]) -> StagedCommit | None:
        if frames[0] == RESERVED_KEY:
            return self.commits.add_batch(frames, self.arrival)
        self.commits.add_plain(frames)
        return None

    def _keep_pending(self, frames: list[bytes]) -> None:
        if frames[0] == RESERVED_KEY:
            session = self.state.sessions.get(frames[2])
            if session is None or unpack(frames[1]) > session.no:
                self.pending.add(batch_identity(frames[2], frames[1]), frames, self.now)
            return
        _, uuid, _, _ = parse_kvset(frames)
        if not uuid:
            self.counts["pending_without_uuid"] += 1
        elif uuid not in self.state.uuids:
            self.pending.add(uuid, frames, self.now)

    def request(self, frames: list[bytes]) -> None:
        """P: a message from the snapshot port, behind its identity."""
        try:
            self.requests.message(frames)
        except BadInput as error:
            self._garbage("snapshot", error)

    def peer_message(self, frames: list[bytes], line: bytes = b"") -> None:
        """P+3: a message of the peer's, and the identity of its connection."""
        try:
            self.link.message(frames, line)
        except BadInput as error:
            self._garbage("peer", error)

    def vote(self) -> bool:
        """A client asks to be served; whether it will be."""
        if not self.active and self.link.loader is None:
            self.step(Event.VOTE_PEER_ALIVE if self.link.alive() else Event.VOTE_PEER_SILENT)
        return self.serving

    # -- Binary Star

    def step(self, event: Event) -> None:
        """Let the table decide on an event, and do what a new state asks for."""
        after = step(self.bstate, event)
        if after is self.bstate:
            return
        if after is State.ACTIVE and self.state.number < self.marked:
            self._miss(event)
            return
        if after is State.ACTIVE and not self._may_begin(event):
            return
        if after is State.ACTIVE and not self.arbitration.holds(self.now, self.state.number):
            self.arbitration.want(self.now)
            return
        before, self.bstate, self.since = self.bstate, after, self.now
        self.resting.stepped(event)
        self.turn.fact("state", before=before.name.lower(), after=after.name.lower(), because=event.name.lower())
        if after is State.ACTIVE:
            self._become_active(event.name.lower())
        else:
            self._become_passive()
        self.beat_now()

    def _miss(self, event: Event) -> None:
        """We were to serve, and our journal was cut short: that is for the peer to do, if it has more."""
        if event is Event.ALONE:
            why = "there is no peer" if not self.config.has_peer else "the peer was not heard"
        elif event is Event.PEER_BEHIND:
            why = "the peer has no more than this server"
        else:
            return
        self.cut_short = f"{cut_short(self.state.number, self.marked)} ({why})"

    @property
    def wants_lease(self) -> bool:
        """Whether the arbiter is to be asked for the lease, or to keep it."""
        if self.active:
            return not self.link.handing_over  # the other one can't serve without it
        return self.arbitration.wants_lease(self.now, self.state.number)

    def _become_active(self, because: str) -> None:
        self.link.reset()
        self.link.remember_foreign(b"")
        self.drop_held()
        self._open_epoch(because)
        self.arbitration.begin(self.now)
        self.state.renew_leases(self.now)
        self.link.replay.own()
        taken = self.pending.take(self.now)
        self._go_on_with_pending()
        self.turn.publish.append(alive(self.state.number))  # before anything else that carries the new epoch
        self._greet_all()
        self.turn.fact("active", epoch=self.state.epoch, number=describe(self.state.number), pending=taken)

    def drop_held(self) -> None:
        """Forget the parts of a record that won't be complete, in the journal too."""
        if self.commits.drop_held():
            self.turn.journal.append(DropAfter(self.state.number))

    def _open_epoch(self, because: str) -> None:
        """The first record of an epoch above all that were heard of."""
        prev, wall_ms = self.state.number, round(self.wall * 1000)
        above = self.epochs.spend(self.state.epoch, self.now)
        first = number(next_epoch(above, odd=self.config.primary), sequence_of(prev) + 1)
        store = self.state.store or self.server
        told = Epoch(prev, first, first, wall_ms, self.server, self.config.name, because, store)
        self.commits.open_epoch(told, self.turn)
        self.commits.channels.begin_epoch(first)

    def rise_above(self, epoch: int) -> None:
        """Somebody of our store has seen `epoch`: what is served has to be above it, or it would be taken for stale."""
        self.epochs.hear(epoch)
        if self.active and self.epochs.above(self.state.epoch, self.now) > self.state.epoch:
            self.commit()
            self._open_epoch(f"epoch {epoch} was heard of")
            self.turn.publish.append(alive(self.state.number))
            self._greet_all()
            self.turn.fact("epoch opened", "warning", epoch=self.state.epoch, above=epoch)

    def _go_on_with_pending(self) -> None:
        for frames in self.pending.slice():
            self._collect(frames)
        self.commit()

    def _become_passive(self) -> None:
        self.commit()
        self.arbitration.end()
        self.link.reset()
        self.commits.unwritten.clear()
        self.turn.acks.clear()  # of this turn too: it may have begun with a peer's word of long ago, as after a stop
        self._late_acks = []
        self.commits.answers.waiting.clear()  # never to be acknowledged: their clients send them to the active again
        self.requests.clear()
        while self.pending.taken:
            self._collect(self.pending.taken.popleft())
        self._greet_all()
        self.turn.fact("passive", number=describe(self.state.number))

    def _alone(self) -> None:
        if self.arbitration.forced(self.now):
            self.step(Event.FORCED)
        if self.bstate in (State.PRIMARY, State.BACKUP):
            wait = self.config.solo_wait_s
            waited = wait is not None and not self.link.alive() and self.now - self.started >= wait
            waited = waited and not self.link.foreign
            if not self.config.has_peer or (waited and not self.link.bars(wait or 0.0)):
                self.step(Event.ALONE)

    def _may_begin(self, event: Event) -> bool:
        """Whether we may serve: no stranger is in the peer's place, and we have a store, or may open one."""
        if self.bstate is State.PASSIVE:  # of a store, or of one that it never got
            stranger = self.link.misfit
            if stranger is not None and stranger.active and self.link.bars(self.config.peer_timeout_s):
                return False
        elif not self.config.has_peer or (self.config.bootstrap and event is Event.ALONE):
            return True
        return self.state.number > 0 or (event is Event.PEER_BEHIND and not self._woke)  # it has none either

    @property
    def waits_for(self) -> str:
        """What a server that does not serve waits for, and what a person can do; nothing if all is well."""
        return meeting.waits_for(self)

    def _give_up_handover(self) -> None:
        until = self.link.handover_until
        if self.active and until is not None and self.now >= until:
            self.link.handover_until = None
            self.turn.fact("handover given up", "warning", number=describe(self.state.number))
            if self.arbitration.leased(self.now):
                self.pending.take(self.now)
            else:
                self.step(Event.LEASE_LOST)

    # -- what is due at the end of a turn

    def _expire(self) -> None:
        self.endings.ready &= self.serving and not self.room.read_only
        if not self.serving or self.room.read_only or self.state.late or self.state.listing or self.pending.taken:
            return
        if self.now < self._hold_until:  # we were stopped: what is over here may have been refreshed at a successor
            return
        self.endings.step(scan=self.now >= self._next_beat)

    def _release(self) -> None:
        if not self.active or self.now < self._hold_until:
            return
        answers, follower = self.commits.answers, self.link.follower
        confirmed = follower.confirmed if follower is not None and follower.in_sync else None
        if not self.arbitration.agreed(confirmed, answers.told, bool(answers.waiting or self._late_acks)):
            return
        self.turn.acks += self._late_acks
        self._late_acks = []
        if confirmed is not None:
            answers.release(self.turn, confirmed, self.state.number)
        else:
            answers.release_alone(self.turn, self.state.number)

    def in_time(self, acks: list[list[bytes]], now: float) -> list[list[bytes]]:
        """The acknowledgements that may leave now: none after a stop in mid-turn, until the peer had its say.

        With an arbiter, none either if the lease may have ended since the turn began.
        """
        stopped = self.config.has_peer and now - self.now > self.config.peer_timeout_s / 2
        if not stopped and self.arbitration.leased(now):
            return acks
        self._late_acks += acks
        return []

    def _beat(self) -> None:
        if self.now >= self._next_hugz:
            self._next_hugz = self.now + HUGZ_S
            if self.active:
                self.turn.publish.append(alive(self.state.number))
        if self.now < self._next_beat:
            return
        self._next_beat = self.now + self.config.heartbeat_s
        if self.config.has_peer:
            self.turn.to_peer.append(self.link.state_message())
            self._say_waiting()
        self.pending.expire(self.now)
        self.state.forget_idle_sessions(self.now)
        self.commits.channels.let_go(self.now)
        if self.active and self.state.late:
            self._greet_all()  # alive, and not able to give fingerprints now
        elif self.active:
            self._heartbeats()

    def _say_waiting(self) -> None:
        if self.now >= self._say_waiting_at and self.waits_for:
            self._say_waiting_at = self.now + SAY_AGAIN_S
            self.turn.fact("waiting", "warning", why=self.waits_for)

    def _heartbeats(self) -> None:
        at, beat_ms, wall_ms = self.state.number, round(self.config.heartbeat_s * 1000), round(self.wall * 1000)
        for channel, fingerprint in self.commits.channels.measured(self.state.map):
            if fingerprint is None:
                self.turn.publish.append(greeting(channel.topic, at, self.greeting()))
                continue
            digest = channel.since, channel.digest
            beat = headers.Heartbeat(self.bstate, at, channel.last, *fingerprint, beat_ms, wall_ms, *digest)
            self.turn.publish.append(greeting(channel.topic, at, encode(beat)))
        if self.commits.channels.unmeasured and not self.state.gathering:
            self.commits.channels.measure_by(self.state.images(self.commits.channels.unmeasured))

    def greeting(self) -> bytes:
        """A GREETING as of now."""
        beat_ms = round(self.config.heartbeat_s * 1000)
        return encode(headers.Greeting(VERSION, self.bstate, self.state.number, beat_ms, self.server, self.config.name))

    def _greet_all(self) -> None:
        body = self.greeting()
        for topic in self.commits.channels.by_topic:
            self.turn.publish.append(greeting(topic, self.state.number, body))

    # -- looking

    def status(self) -> dict[str, Any]:
        """What this server is and does, for `chp status`, metrics and logs; counts are since its start."""
        return status_of(self)
