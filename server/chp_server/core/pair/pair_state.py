"""What a server knows of its pair: its own state in it, and what the peer last said.

    PairState           the object that the peer's link, the heartbeats and the core share
    PairView            the little of it that the questions of port P may read
    Peer                what the peer last said of itself
    IncompatiblePeer    why a server can't be the peer

`PairState` answers questions and keeps values; it decides nothing. The core alone enters a state (core.py). The link
writes down what the peer says (peerlink.py). Pure: the time is that of the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chp.headers import State
from chp.numbers import epoch_of

from ..core_config import CoreConfig
from ..state.epochs import Epochs
from ..state.history import Position
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn
from .arbitration import Arbitration, Wish
from .follow import Follower
from .liveness import Liveness

# Reading an attribute of an enum takes ten times as long as reading a global name of the module.
ACTIVE, PASSIVE = State.ACTIVE, State.PASSIVE
LONG_AGO = float("-inf")


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
    # True if an active says that it sends its records to this server.
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


class PairView(Protocol):
    """What the questions of port P may know of the pair."""

    @property
    def config(self) -> CoreConfig:
        """The settings of the core."""

    @property
    def bstate(self) -> State:
        """Binary Star's state of this server."""

    @property
    def serving(self) -> bool:
        """True if this server takes sets: it is active, and not about to hand over."""

    @property
    def hold_until(self) -> float:
        """The time before which this server acknowledges nothing."""

    @property
    def peer(self) -> Peer | None:
        """The peer, as it was heard last."""

    @property
    def epochs(self) -> Epochs:
        """The epochs that this server has heard of."""

    def in_sync(self) -> bool:
        """Return True if the pair is in sync."""

    def safe_up_to(self, written: int) -> int | None:
        """Return the number up to which readers may see messages; None if that is all that is `written`."""


class PairState:
    """The state of this server in its pair, and what it knows of the other server."""

    def __init__(self, config: CoreConfig, server: bytes, turn: CurrentTurn, committed: Committed) -> None:
        self._turn, self._committed, now = turn, committed, turn.now
        self.config = config
        # The id of this run of the server: 16 random bytes.
        self.server = server
        # Binary Star's state, and what follows from it. Only `enter` and the two methods of a hand-over change them.
        self.bstate = State.PRIMARY if config.primary else State.BACKUP
        self.active = self.serving = False
        # The times when the server started, and when its state last changed.
        self.started = self.since = now
        # This server listens since this time, and would have heard a living peer. A pause of the server sets it anew.
        self.listens_since = now
        self.peer: Peer | None = None
        self.liveness = Liveness(config.peer_timeout_s)
        self.epochs = Epochs(now)
        self.arbitration = Arbitration(config.has_arbiter, "primary" if config.primary else "backup", now)
        # The time when a stranger on P+3 last said that it has our store: see `note_possible_successor`.
        self.possible_successor_at = LONG_AGO
        # The last known number up to which readers of topics may see messages.
        self.safe = 0
        # On the active: the passive.
        self.follower: Follower | None = None
        # Until this time the server takes no sets, because the passive is asked to take over.
        self.handover_until: float | None = None
        # After a pause, this server acknowledges nothing before this time, so that it first hears the peer, or the next
        # run of the peer.
        self.hold_until = now
        # While a state that was taken over is not in the journal yet: the number up to which the journal's messages are
        # of this history.
        self.replacing: int | None = None
        # On the passive: the number that it confirmed last.
        self.confirmed = 0
        # The high-water mark of the journal. A journal that ends below it was cut short; only the peer has the rest.
        self.high_water_mark = 0
        # The reason why a server with such a journal can't go on; the shell then ends it.
        self.cut_short = ""
        # On a replica: the name of its journal; b"" if it has none.
        self.journal = b""
        # The wall clock of the active that a replica was told; 0 on a server of a pair.
        self.wall_ms = 0
        # What a replica says of its load in greetings and heartbeats; a server of a pair says nothing.
        self.load: Callable[[], dict[str, Any] | None] = lambda: None

    # -- the state of this server

    def enter(self, state: State) -> None:
        """Enter a state of Binary Star."""
        self.bstate, self.since = state, self._turn.now
        self.active = state is ACTIVE
        self.serving = self.active and self.handover_until is None

    def begin_handover(self, until: float) -> None:
        """Take no sets until a time, because the passive is asked to take over."""
        self.handover_until, self.serving = until, False

    def end_handover(self) -> None:
        """Take sets again if this server is active: it no longer hands over."""
        self.handover_until, self.serving = None, self.active

    def is_handing_over(self) -> bool:
        """Return True if the passive has everything, and is asked to take over."""
        if self.handover_until is None or self.follower is None:
            return False
        return self.follower.confirmed == self._committed.state.number

    def asks_arbiter(self) -> tuple[bool, Wish | None]:
        """Return what to ask the arbiter: True to get or keep the lease, and the set of servers to write, or None."""
        wish = self.arbitration.wish
        if self.active:
            # The peer can't take over before this server gives up the lease.
            return not self.is_handing_over(), wish
        return self.arbitration.wants_lease(self._turn.now, self._committed.state.number), wish

    # -- the peer

    def peer_lives(self) -> bool:
        """Return True if the peer lives, by the rule of `Liveness`, and has not left."""
        peer = self.peer
        return peer is not None and not peer.left and self.liveness.is_heard(peer.heard, self._turn.now)

    def peer_stands(self) -> bool:
        """Return True if the peer lives, and the connection to it has not broken since it was heard."""
        return self.peer is not None and self.peer_lives() and self.liveness.is_unbroken(self.peer.heard)

    def peer_is_prompt(self) -> bool:
        """Return True if the peer was heard within `peer_timeout_s`.

        The active no longer waits for the confirmations of a peer that was not heard for this long.
        """
        peer = self.peer
        return peer is not None and self.peer_lives() and self._turn.now - peer.heard <= self.config.peer_timeout_s

    def peer_hears_us(self) -> bool:
        """Return True if the peer says that it hears this server."""
        peer = self.peer
        return peer is not None and self.peer_lives() and peer.echo == self.config.secret

    def peer_may_serve(self) -> bool:
        """Return True if the peer lives, or if a server lives that may be the peer's next run."""
        return self.peer_lives() or self.liveness.is_heard(self.possible_successor_at, self._turn.now)

    def note_possible_successor(self, who: Peer | IncompatiblePeer) -> None:
        """Note a stranger on P+3 with our store: it may be the peer's next run, begun while this server was stopped.

        The stranger is taken as the peer only once the peer's known run is silent. Until then this server opens no
        epoch of its own beside the stranger's. If the stranger is active in a later epoch, and the known run has said
        nothing since this server was stopped, this server acknowledges nothing either.
        """
        now = self._turn.now
        if isinstance(who, Peer) and self.note_possible_run(who.at.store):
            self.epochs.hear(who.epoch)
            silent = self.peer is None or self.peer.heard <= self.listens_since
            if self.active and who.state is ACTIVE and who.epoch > self._committed.state.epoch and silent:
                self.hold_until = now + self.config.peer_timeout_s

    def note_possible_run(self, store: bytes) -> bool:
        """Note a message of another run than the peer's. Return True if that may be the peer's next run."""
        same = store == self._committed.state.store
        if same:
            self.possible_successor_at = self._turn.now
        return same

    def is_stale(self, number: int) -> bool:
        """Return True if this server and the peer are both past a number."""
        return self.peer is not None and number < self._committed.state.number < self.peer.number

    # -- both servers

    def in_sync(self) -> bool:
        """Return True if the pair is in sync: the active knows it, and the passive believes the active."""
        if self.active:
            return self.follower is not None and self.follower.in_sync
        return self.bstate is PASSIVE and self.peer is not None and self.peer.in_sync and self.peer_lives()

    def passive_has(self) -> int | None:
        """Return the number that a passive in sync has in its journal; None without one."""
        follower = self.follower
        return follower.confirmed if follower is not None and follower.in_sync else None

    def safe_up_to(self, written: int) -> int | None:
        """Return the number up to which readers may see messages; None if that is all that is `written`.

        If the passive is gone, but the arbiter still lets it take over, readers see no new messages: these might be
        undone.
        """
        bound = self.passive_has()
        if bound is None and not self.arbitration.alone:
            return self.safe
        self.safe = max(self.safe, written if bound is None else min(bound, written))
        return bound

    def passive_is_spare(self) -> bool:
        """Return True if this passive is not needed for the data: it hears an active that has all of them."""
        peer = self.peer
        if self.bstate is not PASSIVE or peer is None or peer.state is not ACTIVE:
            return False
        return self.peer_hears_us() and peer.number >= self._committed.state.number
