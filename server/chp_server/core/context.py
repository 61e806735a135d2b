"""The values that the parts of the server's core share, and what a part may ask the core to do.

    CoreConfig        the settings that the core needs
    Peer              what the peer last said of itself; IncompatiblePeer: why a server can't be the peer
    ServerContext     the settings, the time, the turn under way, what the server holds, what it knows of its peer
    Ask               what a part may yield: an event of Binary Star, `RiseAbove`, `Vote`, `TellStatus`, or a read of
                      the journal

A part that yields an `Ask` goes on when the core has done it, and reads the result here. After a read of the journal it
goes on at the start of the next turn.

A part knows the context and its own parts, but never the core. Only the core decides which server is active (core.py);
the context tells the other parts. A method here may change the state, the turn or the record, but it decides nothing.
Pure: the time is that of `begin_turn`.
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
from .pair.set_shares import SetShares
from .state.epochs import Epochs
from .state.history import Position
from .state.state import ReplicatedState
from .updates.authorizer import Authorizer
from .updates.commit import Committer
from .updates.committed import Committed
from .updates.listeners import HeartbeatInterval
from .updates.resource_limits import ResourceLimits
from .updates.turn import DropAfter, ReadMessages, ReadSpans, Turn

# Reading an attribute of an enum takes ten times as long as reading a global name of the module.
ACTIVE, PASSIVE = State.ACTIVE, State.PASSIVE
# The active expects the next message of a peer's suffix within this many `peer_timeout_s`.
SUFFIX_S = 2.0


@dataclass(frozen=True, slots=True)
class RiseAbove:
    """A request: serve above this epoch, which the peer or a client of our store has seen."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A request: take a client's question as its vote for this server."""


@dataclass(frozen=True, slots=True)
class TellStatus:
    """A request: answer an operator with the status of the server."""

    identity: bytes
    request_id: int


Ask = PairEvent | RiseAbove | Vote | TellStatus | ReadMessages | ReadSpans
Asking = Generator[Ask, Any, None]


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings that the core needs, and values that the shell adds; times are in seconds."""

    primary: bool = True
    has_peer: bool = False
    has_arbiter: bool = False
    name: str = ""
    # The secret of this run, which only the peer is told.
    secret: bytes = b""
    # True if the shell writes an audit of operators' commands.
    audited: bool = False
    # True if clients and the peer have keys, so that the sender of each message is known.
    keyed: bool = False
    # True if other hosts can reach this server without a key.
    exposed: bool = False
    heartbeat_s: float = Config.heartbeat_s
    peer_timeout_s: float = Config.peer_timeout_s
    solo_wait_s: float | None = Config.solo_wait_s
    bootstrap: bool = Config.bootstrap
    replica_timeout_s: float = Config.replica_timeout_s
    slow_peer_s: float = Config.slow_peer_s
    durability: int = 0
    scrub_s: float = Config.scrub_s
    keys_max: int | None = None
    disk_free_min: int = 0

    @classmethod
    def of(cls, config: Config, *, secret: bytes, durability: int, disk_free_min: int) -> Self:
        """Return the core's part of a server's settings."""
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
    """The peer: what it last said of itself, and when."""

    state: State
    at: Position
    server: bytes
    heard: float
    name: str
    primary: bool
    in_sync: bool
    # What an active says: it sends us its records.
    follows: bool
    version: int
    settings: dict[str, Any] = field(default_factory=dict)
    # True if it has room to take sets.
    room: bool = True
    # True after its LEAVE: what it said before does not count.
    left: bool = False
    # How long its turn under way has taken, as its last BEAT said.
    turn_ms: int = 0
    # The secret of its run, which it tells to this server only.
    secret: bytes = b""
    # Our own secret, if it has heard us.
    echo: bytes = b""

    @property
    def number(self) -> int:
        """The peer's last number."""
        return self.at.number

    @property
    def epoch(self) -> int:
        """The epoch of the peer's last number."""
        return epoch_of(self.at.number)


@dataclass(slots=True)
class IncompatiblePeer:
    """A server that speaks on P+3 but can't be our peer, and why; `text` tells people the remedy."""

    kind: str
    text: str
    name: str
    store: bytes
    active: bool
    heard: float

    def status(self, now: float) -> dict[str, Any]:
        """Return the facts for the status."""
        return {
            "kind": self.kind, "text": self.text, "name": self.name, "store": self.store.hex(), "active": self.active,
            "silent_s": round(now - self.heard, 3),
        }  # fmt: skip


class ServerContext:
    """The values that the parts of one server's core share."""

    def __init__(self, config: CoreConfig, server: bytes, now: float, limits: Limits) -> None:
        self.config = config
        # The id of this run of the server: 16 random bytes.
        self.server = server
        self.limits = limits
        # The times when the server started, and when its state last changed.
        self.started = self.since = now
        # Since this time the server would have heard a peer that lives. It begins anew after a pause of this server.
        self.listens_since = now
        # The times of the turn, as in `Now`.
        self.now = self.arrival = now
        self.wall = 0.0
        self.turn = Turn()
        self.deadlines = Deadlines()
        # The number that the journal had when this turn began.
        self.written = 0
        self.commits = Committed(limits)
        self.room = ResourceLimits(keys_max=config.keys_max, disk_free_min=config.disk_free_min)
        self.authorizer = Authorizer()
        self.committer = Committer(self.commits, self.room, config.durability)
        self.pending = PendingList(limits)
        # On the active: the sets that wait for their turn.
        self.sets = SetShares(limits, self.committer)
        self.counts: Counter[str] = Counter()
        self.epochs = Epochs(now)
        self.arbitration = Arbitration(config.has_arbiter, "primary" if config.primary else "backup", now)
        self.bstate = State.PRIMARY if config.primary else State.BACKUP
        self.peer: Peer | None = None
        self.liveness = Liveness(config.peer_timeout_s)
        # The time when a stranger on P+3 last said that it has our store: see `may_follow`.
        self.posed_at = float("-inf")
        # On the active: the passive.
        self.follower: Follower | None = None
        # Until this time the server takes no sets, because the passive is asked to take over.
        self.handover_until: float | None = None
        # After a pause of its own the server acknowledges nothing before this time: the peer may speak first.
        self.hold_until = now
        self.next_beat = now
        # While a state that was taken over is not in the journal yet: the number up to which the journal's messages are
        # of this history.
        self.replacing: int | None = None
        # On the passive: the number that it confirmed last.
        self.confirmed = 0
        self.pace = HeartbeatInterval(config.heartbeat_s)

    # -- what is known

    @property
    def state(self) -> ReplicatedState:
        """The replicated state."""
        return self.commits.state

    @property
    def active(self) -> bool:
        """True if this server is active."""
        return self.bstate is ACTIVE

    @property
    def serving(self) -> bool:
        """True if this server takes sets: it is active, and not about to hand over."""
        return self.bstate is ACTIVE and self.handover_until is None

    def alive(self) -> bool:
        """Return True if the peer lives, by the rule of `Liveness`, and has not left."""
        peer = self.peer
        return peer is not None and not peer.left and self.liveness.is_heard(peer.heard, self.now)

    def is_prompt(self) -> bool:
        """Return True if the peer was heard within `peer_timeout_s`: the active waits no longer for confirmations."""
        return self.alive() and self.peer is not None and self.now - self.peer.heard <= self.config.peer_timeout_s

    def may_follow(self, who: Peer | IncompatiblePeer) -> None:
        """Note a stranger on P+3 of our store: it may be the peer's next run, begun while this server was stopped.

        The stranger is heard once the run before is silent. Until then this server opens no epoch beside the
        stranger's.
        """
        if isinstance(who, Peer) and who.at.store == self.state.store:
            self.posed_at = self.now
            self.epochs.hear(who.epoch)

    def is_there(self) -> bool:
        """Return True if the peer lives, or a server that may be its next run."""
        return self.alive() or self.liveness.is_heard(self.posed_at, self.now)

    def hears_us(self) -> bool:
        """Return True if the peer says that it hears us."""
        return self.alive() and self.peer is not None and self.peer.echo == self.config.secret

    def outruns(self, number: int) -> bool:
        """Return True if `number` is stale: this server and the peer are both past it."""
        return self.peer is not None and number < self.state.number < self.peer.number

    def in_sync(self) -> bool:
        """Return True if the pair is in sync: the active knows it, and the passive believes the active."""
        if self.bstate is ACTIVE:
            return self.follower is not None and self.follower.in_sync
        return self.bstate is PASSIVE and self.peer is not None and self.peer.in_sync and self.alive()

    @property
    def handing_over(self) -> bool:
        """True if the passive has everything, and is asked to take over."""
        if self.handover_until is None or self.follower is None:
            return False
        return self.follower.confirmed == self.state.number

    # -- what is done

    def commit(self) -> None:
        """Make a record of the open updates, so that the state is at one number."""
        self.committer.commit(self.turn, self.arrival, self.wall)

    def recommit(self, segments: list[Segment], origins: list[list[Any]]) -> None:
        """Do again what another history has done: in the open record, or in the next one if it does not fit."""
        self.committer.recommit(self.turn, segments, origins, self.arrival, self.wall)

    def drop_partial(self) -> None:
        """Forget the parts of a record that will never be complete, in the journal too."""
        if self.commits.drop_partial():
            self.turn.journal.append(DropAfter(self.state.number))

    def await_suffix(self) -> None:
        """Expect the suffix of a peer that was active too: it gives way, gets our state, and hands over its updates."""
        self.committer.await_suffix(self.now + SUFFIX_S * self.config.peer_timeout_s)

    def deny(self, what: str) -> None:
        """Count and log that the rules deny something to the current message's user."""
        self.counts["denied"] += 1
        self.turn.fact("denied", "warning", **self.authorizer.who(), what=what)

    def beat_now(self) -> None:
        """Send heartbeats with this turn, because something has changed that the peer and clients want to know."""
        self.next_beat = self.now
        self.deadlines.set(BEAT, self.now)

    def greeting(self) -> bytes:
        """Return a GREETING for this moment."""
        beat_ms = round(self.pace.told_s * 1000)
        return encode(headers.Greeting(VERSION, self.bstate, self.state.number, beat_ms, self.server, self.config.name))
