"""STATE: what a server tells its peer each heartbeat, and whether the two can be a pair (SPEC.md, section 21).

    Handshake    makes STATE, and reads it: then it returns a `Peer`, or an `IncompatiblePeer` with the reason
    foreign      the reason: the servers have different stores
    role         the reason: both servers are the primary, or both are the backup
    version      the reason: the other server speaks a version that this one does not

The servers of a pair have one store, or one of them has none yet. A server takes nothing from an incompatible peer, and
does not give way to it. An active server goes on and logs the problem; a server that is not active yet does not begin.
STATE also tells the settings that should be equal on both servers, so that a difference is seen early.

Pure: the time is that of the turn.
"""

from __future__ import annotations

from typing import Any

from chp.batch import packb, unpackb
from chp.errors import BadFrame
from chp.headers import State
from chp.numbers import EPOCH_MAX, epoch_of
from chp.unpacking import QUESTION
from chp.versions import ACCESS_SINCE, DELIVERIES_SINCE, VERSION, spoken, unspoken

from ..pair.follow import STATE
from ..pair.pair_state import ACTIVE, IncompatiblePeer, PairState, Peer
from ..state.history import Position
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn

TYPES = {
    "number": int, "epoch": int, "server": bytes, "name": str, "primary": bool, "in_sync": bool, "follows": int,
    "store": bytes, "opener": bytes, "digest": int, "settings": dict, "room": bool,
}  # fmt: skip
# At most this many characters of another server's name are kept.
NAME_MAX = 64
FOREIGN = (
    "it holds another store ({theirs}) than this server ({ours}): they can't be a pair. If they should be one, start "
    "the one whose data may go with an empty data directory; else correct --peer"
)
# A server whose STATE does not tell its `copies` counts as one with this many.
COPIES = 2
# The name under which the journal keeps `PeerLink.foreign`.
FOREIGN_STORE = "foreign"
FOREIGN_MET = (
    "the server at --peer held another store ({theirs}) than this server ({ours}) when it was heard, so its silence "
    "is no reason to serve: one of the two has another pair's data. If this one has the right data, say so: `chp "
    "switch --force --servers` with this server alone; else start it with an empty data directory"
)
EMPTY = (
    "it holds no store and does not hear its peer, which may hold one: start the other server; if there is no store, "
    "start this one with --bootstrap to open a new one"
)
LATER_EPOCH = (
    "a client has seen epoch {seen}, and this server's journal ends in epoch {ours}: the other server served later, "
    "and may serve yet. Start it, or mend the link between the two. If it is gone for good: `chp switch --force "
    "--servers` with this server alone"
)
EVENTS = {"foreign": "foreign peer", "role": "role peer", "version": "version peer"}
NO_RULES = (
    f"it speaks a version of CHP/2 below {ACCESS_SINCE}, which knows no rules of access, and this server has some; "
    "install the same release on both"
)
NO_NEWER_GROUPS = (
    f"it speaks a version of CHP/2 below {DELIVERIES_SINCE}, which can't count deliveries or give an alarm, and "
    "a group here does; "
    "install the same release on both"
)
SAME_ROLE = "both servers are --{role}; start one of them as the other"


class Handshake:
    """The STATE of this server, and what the peer's STATE says."""

    def __init__(self, turn: CurrentTurn, pair: PairState, committed: Committed) -> None:
        self._turn, self._pair, self._committed, config = turn, pair, committed, pair.config
        # The settings that should be equal on both servers.
        self._settings = {
            "heartbeat_s": config.heartbeat_s, "peer_timeout_s": config.peer_timeout_s,
            "replica_timeout_s": config.replica_timeout_s, "arbiter": config.has_arbiter,
            "pending_bytes_max": committed.limits.pending_bytes_max, "retain_bytes": config.retain_bytes,
            "retain_s": config.retain_s, "retain_memory_bytes": committed.limits.log_bytes_max,
        }  # fmt: skip
        if config.copies > COPIES:
            self._settings["copies"] = config.copies

    def tell(self, *, room: bool) -> list[bytes]:
        """Return STATE, as it is sent each heartbeat."""
        pair, config, state = self._pair, self._pair.config, self._committed.state
        at = state.proof()
        said = {
            "state": int(pair.bstate), "number": at.number, "epoch": state.epoch, "server": pair.server,
            "name": config.name, "primary": config.primary, "in_sync": pair.active and pair.in_sync(),
            # This is no bool, so that a server of 0.1 logs that this one is of another version.
            "follows": int(pair.follower is not None),
            "version": VERSION, "store": at.store, "opener": at.opener, "digest": at.digest,
            "settings": self._settings, "room": room, "secret": config.secret,
            "echo": b"" if pair.peer is None else pair.peer.secret,
        }  # fmt: skip
        return [STATE, packb(said)]

    def heard(self, body: bytes) -> Peer | IncompatiblePeer:
        """Return the sender of a STATE; raise `BadFrame` if it is malformed, or if this server sent it itself."""
        said, now = unpackb(body, "the peer's STATE", QUESTION), self._turn.now
        # Servers of 0.1 did not tell their version.
        version = said.get("version", 2)
        if not spoken(version):
            name, active = str(said.get("name"))[:NAME_MAX], said.get("state") == ACTIVE
            return IncompatiblePeer("version", unspoken(version), name, b"", active, now)
        state, server = State(said["state"]), said["server"]
        if [type(said[name]) for name in TYPES] != list(TYPES.values()) or said["number"] < 0 or said["epoch"] < 0:
            raise BadFrame("a peer's STATE has a field of another type; both servers have to be of the same version")
        if len(server) != 16 or len(said["store"]) not in (0, 16) or len(said["opener"]) not in (0, 16):
            raise BadFrame("a peer's STATE has an id that is not of 16 bytes")
        if server == self._pair.server:
            raise BadFrame("--peer leads back to this server; name the other one's address")
        if version < ACCESS_SINCE and self._committed.state.access.rules is not None:
            return IncompatiblePeer("version", NO_RULES, said["name"][:NAME_MAX], b"", state is ACTIVE, now)
        if version < DELIVERIES_SINCE and self._committed.state.topics.groups.any_newer:
            return IncompatiblePeer("version", NO_NEWER_GROUPS, said["name"][:NAME_MAX], b"", state is ACTIVE, now)
        at = Position(said["store"], said["number"], said["opener"], said["digest"])
        peer = Peer(
            state, at, server, now, said["name"][:NAME_MAX], said["primary"], said["in_sync"], said["follows"] > 0,
            version, self._known_settings(said["settings"]), said["room"],
            secret=_token(said.get("secret")), echo=_token(said.get("echo")),
        )  # fmt: skip
        # The next active has to open a higher epoch, and each server uses only every second number.
        if epoch_of(at.number) > EPOCH_MAX - 2:
            raise BadFrame(f"the peer tells of epoch {peer.epoch}; there is none above {EPOCH_MAX}")
        return self._incompatible(peer) or peer

    def _known_settings(self, said: dict[Any, Any]) -> dict[str, Any]:
        """Return those of the peer's settings that this server knows, and whose types are right."""
        return {name: said[name] for name in self._settings if type(said.get(name)) in (bool, int, float)}

    def _incompatible(self, peer: Peer) -> IncompatiblePeer | None:
        """Return why a server can't be the peer; None if it can."""
        ours = self._committed.state.store
        if peer.primary == self._pair.config.primary:
            text = SAME_ROLE.format(role="primary" if peer.primary else "backup")
            kind = "role"
        elif ours and peer.at.store and ours != peer.at.store:
            kind, text = "foreign", FOREIGN.format(theirs=peer.at.store.hex(), ours=ours.hex())
        else:
            return None
        return IncompatiblePeer(kind, text, peer.name, peer.at.store, peer.state is ACTIVE, peer.heard)

    def differences(self, peer: Peer) -> dict[str, list[Any]]:
        """Return the settings that differ, each with ours and the peer's; one that a server lacks is left out."""
        ours = {**self._settings, "version": VERSION}
        theirs = {"copies": COPIES, **peer.settings, "version": peer.version}
        return {name: [value, theirs[name]] for name, value in ours.items() if theirs.get(name, value) != value}


def _token(said: object) -> bytes:
    return said if type(said) is bytes and len(said) == 16 else b""
