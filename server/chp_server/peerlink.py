"""The peers' link, as one server sees it: hearing the other, catching up with it, or letting it catch up.

STATE      each heartbeat: Binary Star's state, number and epoch; what the table decides by
WANT ...   see follow.py for how a passive catches up and stays in sync
HANDOVER   the active, which takes no sets any more, asks the passive that has everything to take over
LEAVE      this server ends, on purpose: the other one need not wait for its silence
REPLAY     a server that was active alone hands over what it did, see replay.py; REPLAYED answers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from chp.batch import EPOCH, packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import State
from chp.numbers import EPOCH_MAX, describe, epoch_of, pack, unpack
from chp.unpacking import QUESTION

from . import follow
from .binary_star import Event, peer_event
from .follow import Follower, Loader, begins_snapshot
from .replay import Replay
from .turn import Replace

if TYPE_CHECKING:
    from .core import ServerCore

LONG_AGO = -1e9
ASKED_MAX = 6  # doublings of the wait before a passive asks again
STATE_TYPES = {
    "number": int, "epoch": int, "server": bytes, "name": str, "primary": bool, "in_sync": bool,
    "follows": bool,
}  # fmt: skip


@dataclass(slots=True)
class Peer:
    """What the peer last said of itself, and when."""

    state: State
    number: int
    epoch: int
    server: bytes
    heard: float
    name: str
    in_sync: bool
    follows: bool  # an active's word: it sends us its records


def _check_epoch(epoch: int) -> None:
    """Whoever serves next has to open one above it, so there has to be one, of either server."""
    if not 0 <= epoch <= EPOCH_MAX - 2:
        raise BadFrame(f"the peer tells of epoch {epoch}; there is none above {EPOCH_MAX}")


class PeerLink:
    """This server's end of the link."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.peer: Peer | None = None
        self.follower: Follower | None = None
        self.loader: Loader | None = None
        self.seen_epoch = 0
        self.handover_until: float | None = None
        self.replay = Replay(core)
        self._wanted_at = LONG_AGO
        self._unanswered = 0  # times that we asked since anything of an answer came
        self._confirmed = 0
        self._was_in_sync = False
        self.in_sync_since = core.now  # when that last changed

    # -- what others ask

    def alive(self) -> bool:
        """Whether the peer was heard within `peer_timeout_s`."""
        core = self._core
        return self.peer is not None and core.now - self.peer.heard <= core.config.peer_timeout_s

    def in_sync(self) -> bool:
        """On the active: whether the passive confirms; on the passive: whether the active says so."""
        if self._core.active:
            return self.follower is not None and self.follower.in_sync
        return self._core.bstate is State.PASSIVE and self.peer is not None and self.peer.in_sync and self.alive()

    @property
    def handing_over(self) -> bool:
        """Whether the passive has everything, and is asked to take over."""
        if self.handover_until is None or self.follower is None:
            return False
        return self.follower.confirmed == self._core.state.number

    @property
    def ready(self) -> bool:
        """Whether more of a snapshot could be sent to the passive now."""
        return self.follower is not None and self.follower.pump_ready

    def reset(self) -> None:
        """Our state changed: whatever was under way is over."""
        self.follower = self.loader = None
        self.handover_until = None
        self._wanted_at = LONG_AGO
        self._confirmed = 0

    def state_message(self) -> list[bytes]:
        """STATE, as it is sent each heartbeat."""
        core = self._core
        said = {
            "state": int(core.bstate), "number": core.state.number, "epoch": core.state.epoch, "server": core.server,
            "name": core.config.name, "primary": core.config.primary, "in_sync": core.active and self.in_sync(),
            "follows": self.follower is not None,
        }  # fmt: skip
        return [follow.STATE, packb(said)]

    # -- what comes in

    def message(self, frames: list[bytes]) -> None:
        """A message of the peer's, without the identity; `BadFrame` if it makes no sense."""
        handler = self._HANDLERS.get(frames[0] if frames else b"")
        if handler is None or len(frames) != 2:
            raise BadFrame(f"peer message {frames[:1]!r:.40} with {len(frames)} frames is not known")
        try:
            handler(self, frames[1])
        except BadInput:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise BadFrame(f"a peer message {frames[0]!r} is ill-formed: {error!r}") from None

    def _on_state(self, body: bytes) -> None:
        core, said = self._core, unpackb(body, "the peer's STATE", QUESTION)
        state, server = State(said["state"]), said["server"]
        number, epoch, follows = said["number"], said["epoch"], said["follows"]
        peer = Peer(state, number, epoch, server, core.now, said["name"], said["in_sync"], follows)
        if [type(said[name]) for name in STATE_TYPES] != list(STATE_TYPES.values()) or peer.number < 0:
            raise BadFrame("a peer's STATE has a field of another type; both servers have to be of the same version")
        _check_epoch(max(epoch, epoch_of(number)))
        if server == core.server:
            raise BadFrame("--peer leads back to this server; name the other one's address")
        if said["primary"] == core.config.primary:
            role = "--primary" if said["primary"] else "--backup"
            raise BadFrame(f"both servers are {role}; start one of them as the other")
        if self.peer is None or self.peer.server != server:
            core.turn.fact("peer", state=state.name.lower(), number=describe(peer.number), name=peer.name)
            self.follower = None  # it has restarted: what it had confirmed may be gone
            self._wanted_at, self.loader = LONG_AGO, None  # and what we had asked of it is not under way any more
        self.peer = peer
        self.seen_epoch = max(self.seen_epoch, peer.epoch)
        ours = core.state
        event = peer_event(
            peer_state=state,
            peer_number=peer.number,
            peer_epoch=peer.epoch,
            number=ours.number,
            epoch=ours.epoch,
            primary=core.config.primary,
        )
        core.step(event)
        if state is not State.ACTIVE:
            core.rise_above(peer.epoch)
        self._want_if_behind()

    def leave_message(self) -> list[bytes]:
        """LEAVE, for the end of a server that was told to end, after all else."""
        return [follow.LEAVE, self._core.server]

    def _on_leave(self, body: bytes) -> None:
        core, peer = self._core, self.peer
        if peer is not None and peer.server == body:  # else of one that has been started again
            peer.heard = min(peer.heard, core.now - core.config.peer_timeout_s - 0.001)
            core.turn.fact("peer left", name=peer.name)

    # -- the passive's side

    def _want_if_behind(self) -> None:
        core, peer = self._core, self.peer
        if core.bstate is not State.PASSIVE or peer is None or peer.state is not State.ACTIVE:
            return
        behind = peer.number != core.state.number or not peer.in_sync
        wait = core.config.peer_timeout_s if peer.follows else core.config.heartbeat_s
        # a question makes the active begin anew: one on its way must not be followed by others for ever
        if behind and core.now - self._wanted_at > wait * 2 ** max(0, self._unanswered - 1):
            self._want()

    def _want(self) -> None:
        core = self._core
        self._wanted_at, self.loader = core.now, None
        self._unanswered = min(self._unanswered + 1, ASKED_MAX)
        self._confirmed = 0  # the active may have given us up since: say again what we have
        core.drop_held()
        core.turn.to_peer.append(self.state_message())  # who asks: it may not have heard of this run of ours
        core.turn.to_peer.append([follow.WANT, packb({"from": core.state.number})])

    def _on_record(self, body: bytes) -> None:
        core = self._core
        if core.bstate is not State.PASSIVE or self.loader is not None:
            return
        header = unpackb(body, "RECORD")[0]
        prev, last = header[1], header[3]
        if last <= core.commits.followed:
            return
        if prev != core.commits.followed:
            if core.now - self._wanted_at > core.config.heartbeat_s:
                self._want()
            return
        self._wanted_at, self._unanswered = core.now, 0
        core.commits.keep(core.commits.follow(body, core.now), core.turn)
        self._seen(header)

    def _seen(self, header: list[Any]) -> None:
        core = self._core
        if header[0] != EPOCH:
            for session_id, no in header[5]:
                core.pending.seen_up_to(session_id, no)
        for uuid in core.commits.followed_uuids():
            core.pending.seen(uuid)

    def _on_sync(self, body: bytes) -> None:
        core = self._core
        if core.bstate is not State.PASSIVE:
            return
        self._wanted_at = core.now
        if begins_snapshot(body):
            self.loader = Loader(core.limits)
        if self.loader is None:
            return  # of the answer to an earlier question; the one to the last begins with its first chunk
        self._unanswered = 0
        try:
            self.loader.add(body, core.now)
        except BadFrame:
            self._want()
            raise
        core.turn.to_peer.append([follow.MORE, pack(1)])

    def _on_end(self, body: bytes) -> None:
        core, commits = self._core, self._core.commits
        if core.bstate is not State.PASSIVE:
            return
        if self.loader is None and not self._unanswered:
            return  # nobody asked for it, and it would be read whole
        earlier = self.loader is None  # as in _on_sync; or of a state without a key
        loader, self.loader = self.loader or Loader(core.limits), None
        try:
            after = loader.finish(body, core.now)
        except BadFrame:
            if earlier:
                return
            self._want()
            raise
        self._wanted_at, self._unanswered = core.now, 0
        before, commits.state = commits.state, after
        common = commits.state.common_number(before.history)
        if before.number > common:
            self.replay.part_with(common, before)
        commits.log.clear()
        commits.channels.reset(commits.state)
        core.turn.journal.append(Replace(commits.state.number))
        self._confirmed = 0
        core.turn.fact("caught_up", number=describe(core.state.number), keys=len(core.state.map), by="snapshot")

    def _on_handover(self, body: bytes) -> None:
        if unpack(body) == self._core.state.number:
            self._core.step(Event.HANDOVER)

    # -- the active's side

    def _on_want(self, body: bytes) -> None:
        core = self._core
        if not core.active:
            return
        after = unpackb(body, "WANT", QUESTION)["from"]
        _check_epoch(epoch_of(after))
        core.commit()
        core.rise_above(epoch_of(after))
        state, log = core.state, core.commits.log
        if state.in_history(after) and (log.reaches(after) or after == state.number):
            self.follower = Follower(core.limits, after, state.number)
        else:
            image = state.image("")
            segments = (segment.encode() for segment in image.chunks(core.limits, lambda: core.now))
            chunks = chain(image.waiting(), segments, state.staging.segments())
            self.follower = Follower(core.limits, state.number, state.number, chunks)
            self.follower.with_state(state.encode_rest(core.now))
        core.turn.fact("catching_up", peer_number=describe(after), number=describe(state.number))

    def _on_more(self, body: bytes) -> None:
        if self.follower is not None:
            self.follower.credit = min(self.follower.credit + unpack(body), follow.CREDIT)

    def _on_confirm(self, body: bytes) -> None:
        core = self._core
        if self.follower is None or not core.active:
            return
        number = unpack(body)
        if not core.state.in_history(number):
            return  # of a suffix it has to part with
        was = self.follower.in_sync
        self.follower.confirm(number, core.now, core.config.replica_timeout_s)
        if self.follower.in_sync and not was:
            core.turn.fact("in_sync", number=describe(self.follower.confirmed))
            core.beat_now()

    def switch(self) -> dict[str, Any]:
        """`chp switch`: let the passive take over; takes no sets until it has, or until it has not in time."""
        core = self._core
        if not core.active:
            raise BadInput("this server is not active; ask the other one to switch")
        if not self.in_sync():
            raise BadInput("the passive is not in sync, so a switch would lose sets; wait until `chp status` says so")
        core.commit()
        self.handover_until = core.now + core.config.peer_timeout_s
        core.turn.fact("handover", number=describe(core.state.number))
        return {"switching": True, "number": describe(core.state.number)}

    # -- the end of a turn

    def end_turn(self) -> None:
        """Send what there is to send; give up on a passive that does not confirm."""
        core = self._core
        self._confirm()
        self.replay.hand_over()
        self._note_sync()
        if core.active and self.follower is not None:
            self._serve(self.follower)
        core.commits.log.pin = None if self.follower is None else self.follower.position

    def _note_sync(self) -> None:
        core = self._core
        if self.in_sync() != self._was_in_sync:
            self._was_in_sync, self.in_sync_since = not self._was_in_sync, core.now
            if self._was_in_sync and core.bstate is State.PASSIVE:
                core.turn.fact("in_sync", number=describe(core.state.number))

    def _serve(self, follower: Follower) -> None:
        core = self._core
        core.turn.to_peer += follower.pump(core.commits.log, core.now)
        overdue = follower.in_sync and follower.overdue(core.now, core.config.replica_timeout_s)
        if follower.lost or overdue or not self.alive():
            self._degrade(follower)
        elif self.handing_over:
            core.turn.to_peer.append([follow.HANDOVER, pack(core.state.number)])

    def _confirm(self) -> None:
        core = self._core
        if core.bstate is State.PASSIVE and self.loader is None and core.state.number != self._confirmed:
            self._confirmed = core.state.number
            core.turn.confirm.append(follow.confirm(core.state.number))

    def _degrade(self, follower: Follower) -> None:
        core = self._core
        if follower.in_sync:
            numbers = {"number": describe(core.state.number), "confirmed": describe(follower.confirmed)}
            core.turn.fact("degraded", "warning", **numbers)
            core.counts["degraded"] += 1
        self.follower = None
        core.beat_now()

    _HANDLERS: ClassVar[dict[bytes, Callable[[PeerLink, bytes], None]]] = {
        follow.STATE: _on_state, follow.WANT: _on_want, follow.RECORD: _on_record, follow.SYNC_CHUNK: _on_sync,
        follow.END: _on_end, follow.MORE: _on_more, follow.CONFIRM: _on_confirm, follow.HANDOVER: _on_handover,
        follow.REPLAY: lambda self, body: self.replay.on_replay(body),
        follow.REPLAYED: lambda self, body: self.replay.on_replayed(body), follow.LEAVE: _on_leave,
    }  # fmt: skip
