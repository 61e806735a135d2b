"""The values that some parts of the server's core share, and what they may ask the core to do.

    ServerContext   who it is, the time, the turn under way, what it holds, what it knows of its peer
    Ask         an event for Binary Star's table, `RiseAbove`, `Vote`: a part that needs one yields it, and goes on
                when it is done; what it meant is then to be read here. The peers' link may ask for a read of the
                journal as well: it goes on when that has come, before the next turn

A part knows this and the parts that it is made of, never the core: who is active is decided in one place (core.py), and
told here. What changes the state of the server, its turn or its record is a method here only if it decides nothing.
Pure: the time is what `begin_turn` was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, fields
from typing import Any, Self

from chp import headers
from chp.batch import Segment, encode
from chp.headers import State
from chp.limits import Limits
from chp.numbers import epoch_of
from chp.versions import VERSION

from ..settings.config import BY_NAME, Config
from .deadlines import BEAT, Deadlines
from .pair.arbitration import Arbitration
from .pair.binary_star import PairEvent
from .pair.follow import Follower
from .pair.liveness import Liveness
from .pair.pending import PendingList
from .state.epochs import Epochs
from .state.history import Position
from .state.state import ReplicatedState
from .updates.authorizer import Authorizer
from .updates.commit import Committer
from .updates.committed import Committed
from .updates.listeners import HeartbeatInterval
from .updates.resource_limits import ResourceLimits
from .updates.turn import DropAfter, ReadMessages, ReadSpans, Turn

ACTIVE, PASSIVE = State.ACTIVE, State.PASSIVE  # each look into the class costs as much as ten into the module
SUFFIX_S = 2.0  # times peer_timeout_s, between two words of a peer that hands over its suffix


@dataclass(frozen=True, slots=True)
class RiseAbove:
    """Somebody of our store has seen this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A client asks to be served."""


@dataclass(frozen=True, slots=True)
class TellStatus:
    """An operator asks for the status of all of the server."""

    identity: bytes
    request_id: int


Ask = PairEvent | RiseAbove | Vote | TellStatus | ReadMessages | ReadSpans
Asking = Generator[Ask, Any, None]


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The slice of the settings that the core needs, and what the shell adds; times in seconds."""

    primary: bool = True
    has_peer: bool = False
    has_arbiter: bool = False
    name: str = ""
    # The secret of this run, which only the peer is told.
    secret: bytes = b""
    # Whether the shell writes an audit of operators' commands.
    audited: bool = False
    # Whether clients and the peer have keys, so that the sender of each message is known.
    keyed: bool = False
    # Whether other hosts reach this server without a key.
    exposed: bool = False
    heartbeat_s: float = Config.heartbeat_s
    peer_timeout_s: float = Config.peer_timeout_s
    solo_wait_s: float | None = Config.solo_wait_s
    bootstrap: bool = Config.bootstrap
    replica_timeout_s: float = Config.replica_timeout_s
    durability: int = 0
    scrub_s: float = Config.scrub_s
    keys_max: int | None = None
    disk_free_min: int = 0

    @classmethod
    def of(cls, config: Config, *, secret: bytes, durability: int, disk_free_min: int) -> Self:
        """Return the slice of a server's settings."""
        return cls(
            primary=config.role != "backup",
            has_peer=config.peer is not None,
            has_arbiter=config.arbiter is not None,
            secret=secret,
            audited=config.audit is not None,
            keyed=config.keys is not None,
            exposed=config.exposed,
            durability=durability,
            keys_max=config.max_keys or None,
            disk_free_min=disk_free_min,
            **{each.name: getattr(config, each.name) for each in fields(cls) if each.name in BY_NAME},
        )


@dataclass(slots=True)
class Peer:
    """What the peer last said of itself, and when."""

    state: State
    at: Position
    server: bytes
    heard: float
    name: str
    primary: bool
    in_sync: bool
    follows: bool  # an active's word: it sends us its records
    version: int
    settings: dict[str, Any] = field(default_factory=dict)
    room: bool = True  # it could take sets
    left: bool = False  # on purpose: what it said before is of no account
    turn_ms: int = 0  # how long the turn takes that it is busy with, as it said last
    secret: bytes = b""  # which is told to nobody else
    echo: bytes = b""  # our own, if it heard us

    @property
    def number(self) -> int:
        """Its last number."""
        return self.at.number

    @property
    def epoch(self) -> int:
        """The epoch of that."""
        return epoch_of(self.at.number)


@dataclass(slots=True)
class IncompatiblePeer:
    """Somebody at P+3 who can't be our peer, and why; `text` is for people, and has the remedy."""

    kind: str
    text: str
    name: str
    store: bytes
    active: bool
    heard: float

    def status(self, now: float) -> dict[str, Any]:
        """For `status`."""
        return {
            "kind": self.kind, "text": self.text, "name": self.name, "store": self.store.hex(), "active": self.active,
            "silent_s": round(now - self.heard, 3),
        }  # fmt: skip


class ServerContext:
    """See the module."""

    def __init__(self, config: CoreConfig, server: bytes, now: float, limits: Limits) -> None:
        self.config = config
        self.server = server  # 16 bytes, new at each start
        self.limits = limits
        self.started = self.since = now  # when the server began, and when its state last changed
        self.listens_since = now  # from when on a peer that is there would have been heard: not while we were stopped
        self.now = self.arrival = now  # of the turn; by when all in hand has arrived: times to live count from then
        self.wall = 0.0
        self.turn = Turn()
        self.deadlines = Deadlines()
        self.written = 0  # the number that the journal had when this turn began
        self.commits = Committed(limits)
        self.room = ResourceLimits(keys_max=config.keys_max, disk_free_min=config.disk_free_min)
        self.authorizer = Authorizer()
        self.committer = Committer(self.commits, self.room, config.durability)
        self.pending = PendingList(limits)
        self.counts: Counter[str] = Counter()
        self.epochs = Epochs(now)
        self.arbitration = Arbitration(config.has_arbiter, "primary" if config.primary else "backup", now)
        self.bstate = State.PRIMARY if config.primary else State.BACKUP
        self.peer: Peer | None = None
        self.liveness = Liveness(config.peer_timeout_s)
        self.posed_at = float("-inf")  # when somebody on P+3 said to be of our store, and was not heard: `may_follow`
        self.follower: Follower | None = None  # on the active: the passive
        self.handover_until: float | None = None  # no sets are taken until then, as the passive is to take over
        self.hold_until = now  # after a pause of our own: nothing is acknowledged before the peer had its say
        self.next_beat = now
        # a state that was taken over is not in the journal yet, whose messages are this history's up to this number
        self.replacing: int | None = None
        self.confirmed = 0  # on the passive: the number that the active was told
        self.pace = HeartbeatInterval(config.heartbeat_s)

    # -- how it stands

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
        return self.bstate is ACTIVE and self.handover_until is None

    def alive(self) -> bool:
        """Return whether the peer lives, by the rule of `Liveness`; not one that left."""
        peer = self.peer
        return peer is not None and not peer.left and self.liveness.is_heard(peer.heard, self.now)

    def is_prompt(self) -> bool:
        """Return whether the peer was heard within `peer_timeout_s`: the active waits no longer for a confirmation."""
        return self.alive() and self.peer is not None and self.now - self.peer.heard <= self.config.peer_timeout_s

    def may_follow(self, who: Peer | IncompatiblePeer) -> None:
        """A stranger on P+3 may be the peer's next run, which did not hear us while we stood still.

        If so it is heard as soon as the one before is silent. Until then we open no epoch beside its own.
        """
        if isinstance(who, Peer) and who.at.store == self.state.store:
            self.posed_at = self.now
            self.epochs.hear(who.epoch)

    def is_there(self) -> bool:
        """Return whether the peer lives, or a server that may be its next run."""
        return self.alive() or self.liveness.is_heard(self.posed_at, self.now)

    def hears_us(self) -> bool:
        """Whether the peer says that it hears us."""
        return self.alive() and self.peer is not None and self.peer.echo == self.config.secret

    def outruns(self, number: int) -> bool:
        """Whether we are beyond a number, and who serves is beyond us: what is of that number is old."""
        return self.peer is not None and number < self.state.number < self.peer.number

    def in_sync(self) -> bool:
        """On the active: whether the passive confirms; on the passive: whether the active says so."""
        if self.bstate is ACTIVE:
            return self.follower is not None and self.follower.in_sync
        return self.bstate is PASSIVE and self.peer is not None and self.peer.in_sync and self.alive()

    @property
    def handing_over(self) -> bool:
        """Whether the passive has everything, and is asked to take over."""
        if self.handover_until is None or self.follower is None:
            return False
        return self.follower.confirmed == self.state.number

    # -- what is done

    def commit(self) -> None:
        """Make a record of what is open, so that the state is at its number."""
        self.committer.commit(self.turn, self.arrival, self.wall)

    def recommit(self, segments: list[Segment], origins: list[list[Any]]) -> None:
        """Set again what another history has done, in the open record or, if it does not fit there, in the next."""
        self.committer.recommit(self.turn, segments, origins, self.arrival, self.wall)

    def drop_partial(self) -> None:
        """Forget the parts of a record that won't be complete, in the journal too."""
        if self.commits.drop_partial():
            self.turn.journal.append(DropAfter(self.state.number))

    def await_suffix(self) -> None:
        """The peer was active too: it gives way, gets our state, and hands over what it did."""
        self.committer.await_suffix(self.now + SUFFIX_S * self.config.peer_timeout_s)

    def deny(self, what: str) -> None:
        """The rules deny something to who speaks: counted, and told."""
        self.counts["denied"] += 1
        self.turn.fact("denied", "warning", **self.authorizer.who(), what=what)

    def beat_now(self) -> None:
        """Let the next heartbeats go out with this turn: something changed that others want to know."""
        self.next_beat = self.now
        self.deadlines.set(BEAT, self.now)

    def greeting(self) -> bytes:
        """A GREETING as of now."""
        beat_ms = round(self.pace.told_s * 1000)
        return encode(headers.Greeting(VERSION, self.bstate, self.state.number, beat_ms, self.server, self.config.name))
