"""The peers' link, as one server sees it: hearing the other, catching up with it, or letting it catch up.

STATE      each heartbeat: Binary Star's state, and how far it is in which history; see meeting.py
BEAT       in a long turn: it lives; see pulse.py
WANT ...   see follow.py for how a passive catches up and stays in sync
HANDOVER   the active, which takes no sets any more, asks the passive that has everything to take over
LEAVE      this server ends, on purpose: the other one need not wait for its silence
SCRUB      are the contents the same? see scrub.py; SCRUBBED answers
REPLAY     a server that was active alone hands over what it did, see replay.py; REPLAYED answers
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from chp.batch import decode, packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import Batch, Epoch, State, name_of
from chp.limits import DEFAULT
from chp.numbers import describe, epoch_of, pack, unpack
from chp.unpacking import QUESTION
from chp.versions import VERSION

from . import follow, meeting
from .binary_star import Event, peer_event
from .follow import Follower, Loader, begins_snapshot
from .history import Proof, common, from_list, to_list
from .meeting import Misfit, Peer
from .pulse import BEAT, Beat
from .replay import Replay
from .scrub import SCRUB, SCRUBBED
from .scrubber import Scrubber
from .turn import Remember, Replace

if TYPE_CHECKING:
    from .core import ServerCore

LONG_AGO = -1e9
SUFFIX_S = 2.0  # times peer_timeout_s, between two words of a peer that hands over its suffix
ENDS_AFTER_BEATS = 4
ASKED_MAX = 6  # doublings of the wait before a passive asks again
WANT_WEIGHT = QUESTION + 32 * DEFAULT.history_epochs_max  # its history: some numbers and words an epoch
SAY_AGAIN_S = 60.0  # what stays wrong is logged so often


class PeerLink:
    """This server's end of the link."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.peer: Peer | None = None
        self._line = self._speaks = b""  # the connection by which the peer speaks, and that of the message in hand
        self.follower: Follower | None = None
        self.loader: Loader | None = None
        self.misfit: Misfit | None = None
        self.foreign = b""  # the store of a misfit that was met before we began: silence is no reason to begin then
        self._said_at = LONG_AGO
        self.handover_until: float | None = None
        self.handed_over_at = LONG_AGO  # when we were asked to take over
        self.replay = Replay(core)
        self.scrubber = Scrubber(core)
        self._whole = False  # what we have is not to be built on: the whole state is asked for
        self._wanted_at = LONG_AGO
        self._unanswered = 0  # times that we asked since anything of an answer came
        self._confirmed = 0
        self._was_in_sync = False
        self._ends_at: float | None = None  # of the same role as the peer: when we end
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
        self._wanted_at, self._whole = LONG_AGO, False
        self._confirmed = 0

    def excuse(self) -> None:
        """We took no turn for a while: the passive is not to be blamed for what was not read meanwhile."""
        if self.follower is not None:
            self.follower.excuse(self._core.now)

    def state_message(self) -> list[bytes]:
        """STATE, as it is sent each heartbeat."""
        return meeting.tell(self._core)

    def bars(self, timeout_s: float) -> bool:
        """Whether somebody who can't be our peer was heard so recently that we are not to begin."""
        return self.misfit is not None and self._core.now - self.misfit.heard <= timeout_s

    # -- what comes in

    def message(self, frames: list[bytes], line: bytes) -> None:
        """A message that came by a connection; `BadFrame` if it makes no sense.

        Anybody may connect. So only who told a STATE that was believed is heard otherwise.
        """
        handler = self._HANDLERS.get(frames[0] if frames else b"")
        if handler is None or len(frames) != 2:
            raise BadFrame(f"peer message {frames[:1]!r:.40} with {len(frames)} frames is not known")
        self._speaks = line
        if line != self._line and frames[0] not in (follow.STATE, BEAT):  # a BEAT comes by a connection of its own
            self._core.counts["strangers"] += 1
            return
        try:
            handler(self, frames[1])
        except BadInput:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise BadFrame(f"a peer message {frames[0]!r} is ill-formed: {error!r}") from None

    def _on_state(self, body: bytes) -> None:
        core, who = self._core, meeting.heard(body, self._core)
        if self._is_stranger(who):
            core.counts["strangers"] += 1
            core.turn.fact("a stranger on the peer's port", "warning", name=who.name)
            return
        if isinstance(who, Misfit):
            self._on_misfit(who)
            return
        self._line = self._speaks
        before, self.peer, self.misfit = self.peer, who, None
        self.remember_foreign(b"")
        if before is None or before.server != who.server:
            self._on_new_peer(who)
        core.commits.version = min(VERSION, who.version)
        if who.at.store == core.state.store:
            core.epochs.hear(who.epoch)
        event = peer_event(
            peer_state=who.state,
            peer_number=who.number,
            peer_epoch=who.epoch,
            number=core.state.number,
            epoch=core.state.epoch,
            primary=core.config.primary,
        )
        if core.active and who.state is State.ACTIVE:
            self.await_suffix()
        first = core.arbitration.before() if who.state is not State.ACTIVE else None
        if first is not None:  # the arbiter's set has one of us: whatever our numbers, that one has all that counts
            event = Event.PEER_BEHIND if first else Event.PEER_AHEAD
        core.step(event)
        if who.state is not State.ACTIVE and who.at.store == core.state.store:
            core.rise_above(who.epoch)
        self._want_if_behind()

    def _on_beat(self, body: bytes) -> None:
        beat, peer = Beat.of(body), self.peer
        if (
            peer is not None and (peer.secret or peer.server) == beat.server and not peer.left
        ):  # what it was then, STATE has told
            peer.heard, peer.turn_ms = self._core.now, beat.turn_ms

    def _is_stranger(self, who: Peer | Misfit) -> bool:
        """Whether another has the peer's place, and was heard just now.

        A peer whose connection broke, or that was started again, proves that it is the peer: it says the secret that
        only the server at --peer is told, or a place of our history with the digest there.
        """
        if not self.alive() or self._speaks == self._line:
            return False
        if isinstance(who, Misfit):
            return True
        return who.echo != self._core.config.secret and not self._core.commits.proves(who.at)

    def await_suffix(self) -> None:
        """The peer was active too: it gives way, gets our state, and hands over what it did."""
        core = self._core
        core.commits.await_suffix(core.now + SUFFIX_S * core.config.peer_timeout_s)

    def _on_new_peer(self, peer: Peer) -> None:
        """The first word of a peer's run: what an earlier one had confirmed, or was asked for, may be gone."""
        core = self._core
        core.turn.fact("peer", state=peer.state.name.lower(), number=describe(peer.number), name=peer.name)
        self.follower = self.loader = None
        self._wanted_at = LONG_AGO
        if different := meeting.differences(core, peer):
            text = {name: f"{ours} here, {theirs} there" for name, (ours, theirs) in different.items()}
            core.turn.fact("settings differ", "warning", peer=peer.name, **text)

    def _on_misfit(self, misfit: Misfit) -> None:
        core, before = self._core, self.misfit
        self.misfit = misfit
        again = before is not None and before.kind == misfit.kind and core.now - self._said_at < SAY_AGAIN_S
        if not again:
            self._said_at = core.now
            core.turn.fact(meeting.EVENTS[misfit.kind], "warning", peer=misfit.name, why=misfit.text)
        begins = core.bstate in (State.PRIMARY, State.BACKUP)
        if misfit.kind == "foreign" and begins:
            self.remember_foreign(misfit.store)
        if misfit.kind == "role" and begins:
            # not at once: the other one is to hear of it too
            self._ends_at = self._ends_at or core.now + ENDS_AFTER_BEATS * core.config.heartbeat_s

    def remember_foreign(self, store: bytes) -> None:
        """Of the next start too: the server that has the right data may be gone by then."""
        if store != self.foreign:
            self.foreign = store
            self._core.turn.journal.append(Remember(meeting.FOREIGN_STORE, store))

    def leave_message(self) -> list[bytes]:
        """LEAVE, for the end of a server that was told to end, after all else."""
        return [follow.LEAVE, self._core.server]

    def _on_leave(self, body: bytes) -> None:
        core, peer = self._core, self.peer
        if peer is not None and peer.server == body:  # else of one that has been started again
            peer.heard, peer.left = min(peer.heard, core.now - core.config.peer_timeout_s - 0.001), True
            core.turn.fact("peer left", name=peer.name)

    # -- the passive's side

    def _want_if_behind(self) -> None:
        core, peer = self._core, self.peer
        if core.bstate is not State.PASSIVE or peer is None or peer.state is not State.ACTIVE:
            return
        behind = peer.at != core.state.proof() or not peer.in_sync or self._whole
        wait = core.config.peer_timeout_s if peer.follows else core.config.heartbeat_s
        # a question makes the active begin anew: one on its way must not be followed by others for ever
        if behind and core.now - self._wanted_at > wait * 2 ** max(0, self._unanswered - 1):
            self._want()

    def want_whole(self) -> None:
        """Our contents are not the active's: take over its whole state, whatever our number."""
        self._whole = True
        self._want()

    def _want(self) -> None:
        core = self._core
        self._wanted_at, self.loader = core.now, None
        self._unanswered = min(self._unanswered + 1, ASKED_MAX)
        self._confirmed = 0  # the active may have given us up since: say again what we have
        core.drop_held()
        core.turn.to_peer.append(self.state_message())  # who asks: it may not have heard of this run of ours
        said = {"at": core.state.proof(), "history": to_list(core.state.history), "whole": self._whole}
        core.turn.to_peer.append([follow.WANT, packb(said)])

    def _on_record(self, body: bytes) -> None:
        core = self._core
        if core.bstate is not State.PASSIVE or self.loader is not None:
            return
        header, items = decode(body)
        if not isinstance(header, Batch | Epoch):
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        if header.last <= core.commits.followed:
            return
        if header.prev != core.commits.followed:
            if core.now - self._wanted_at > core.config.heartbeat_s:
                self._want()
            return
        self._wanted_at, self._unanswered = core.now, 0
        core.commits.keep(core.commits.follow_decoded(header, items, body, core.arrival), core.turn)
        self._seen(header)

    def _seen(self, header: Batch | Epoch) -> None:
        core = self._core
        if isinstance(header, Batch):
            for session_id, no in header.origins:
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
            self.loader.add(body, core.arrival)
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
            after = loader.finish(body, core.arrival)
        except BadFrame:
            if earlier:
                return
            self._want()
            raise
        if commits.state.store not in (b"", after.store):
            raise BadFrame(f"a snapshot of store {after.store.hex()} came; this server has {commits.state.store.hex()}")
        self._wanted_at, self._unanswered, self._whole = core.now, 0, False
        before, commits.state = commits.state, after
        common = commits.state.common_number(before.history)
        if before.number > common:
            self.replay.part_with(common, before)
        after.leaving = before.leaving
        after.leaving.add_map(before.map)
        commits.log.clear()
        commits.channels.reset(commits.state)
        core.turn.journal.append(Replace(commits.state.number))
        self._confirmed = 0
        core.turn.fact("caught_up", number=describe(core.state.number), keys=len(core.state.map), by="snapshot")

    def _on_handover(self, body: bytes) -> None:
        if unpack(body) == self._core.state.number:
            self._core.step(Event.HANDOVER)
            self.handed_over_at = self._core.now

    # -- the active's side

    def _on_want(self, body: bytes) -> None:
        core = self._core
        if not core.active:
            return
        said = unpackb(body, "WANT", WANT_WEIGHT)
        at, history = Proof.of(said["at"]), from_list(said["history"])
        if at.store not in (b"", core.state.store):
            return  # its STATE said so too
        after = at.number
        core.commit()
        core.rise_above(epoch_of(after))
        state, log, ours = core.state, core.commits.log, core.commits.holds(at)
        if not ours:
            shared = describe(common(state.history, history))
            number = describe(state.number)
            core.turn.fact("histories parted", "warning", common=shared, peer=at.describe(), number=number)
            core.counts["parted"] += 1
            self.await_suffix()
        begun = after > 0 or len(log) <= 1  # an empty server gets all at once: it is not to serve a part of it
        if ours and begun and not said.get("whole") and (log.reaches(after) or after == state.number):
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
        at = Proof.of(unpackb(body, "CONFIRM", QUESTION))
        number = at.number
        if not core.commits.holds(at):  # of a suffix it has to part with, or it is not what it was
            if self.follower.in_sync:
                core.counts["diverged"] += 1
                core.turn.fact("the passive differs", "warning", peer=at.describe(), number=describe(core.state.number))
                self._degrade(self.follower)
            return
        was = self.follower.in_sync
        self.follower.confirm(number, core.now, core.config.replica_timeout_s)
        if self.follower.in_sync and not was:
            core.turn.fact("in_sync", number=describe(self.follower.confirmed))
            core.beat_now()

    def force(self) -> dict[str, Any]:
        """`chp switch --force`: serve, though the arbiter's set does not name it, or it met a foreign store."""
        core = self._core
        if core.active:
            raise BadInput("this server is active already")
        if self.foreign and not core.arbitration.enabled:
            return self._force_beside_a_foreign_store()
        if not core.arbitration.enabled:
            raise BadInput("there is no arbiter to overrule; a passive takes over when its peer is silent")
        if self.alive() and self.peer is not None and self.peer.state is State.ACTIVE:
            raise BadInput("the other server is active; switch without --force")
        lost = core.arbitration.lost(core.state.number)
        core.arbitration.force(core.now)
        core.turn.fact("forced", "warning", number=describe(core.state.number), lost=lost)
        return {"forced": True, "number": describe(core.state.number), "lost": lost}

    def _force_beside_a_foreign_store(self) -> dict[str, Any]:
        core, foreign = self._core, self.foreign.hex()
        if self.bars(core.config.peer_timeout_s):
            raise BadInput(f"the server at --peer runs, and holds the store {foreign}; stop it first")
        lost = f"nothing of this store ({core.state.store.hex()}); what {foreign} holds is not taken over"
        core.turn.fact("forced", "warning", number=describe(core.state.number), lost=lost)
        core.step(Event.FORCED)
        return {"forced": True, "number": describe(core.state.number), "lost": lost}

    def switch(self) -> dict[str, Any]:
        """`chp switch`: let the passive take over; takes no sets until it has, or until it has not in time."""
        core = self._core
        if not core.active:
            raise BadInput("this server is not active; ask the other one to switch")
        if not self.in_sync():
            raise BadInput("the passive is not in sync, so a switch would lose sets; wait until `chp status` says so")
        if not core.arbitration.both:
            raise BadInput("the arbiter's set does not name the passive yet; try again in a moment")
        core.commits.write_refusals(core.arrival)
        core.commit()
        self.handover_until = core.now + core.config.peer_timeout_s
        core.turn.fact("handover", number=describe(core.state.number))
        return {"switching": True, "number": describe(core.state.number)}

    # -- the end of a turn

    def end_turn(self) -> None:
        """Send what there is to send; give up on a passive that does not confirm."""
        if self._ends_at is not None and self._core.now >= self._ends_at and self.misfit is not None:
            self._core.ends = self.misfit.text
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
        else:
            self.scrubber.go_on(follower)

    def _confirm(self) -> None:
        core = self._core
        if core.bstate is State.PASSIVE and self.loader is None and core.state.number != self._confirmed:
            self._confirmed = core.state.number
            core.turn.confirm.append(follow.confirm(core.state.proof()))

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
        follow.REPLAYED: lambda self, body: self.replay.on_replayed(body), follow.LEAVE: _on_leave, BEAT: _on_beat,
        SCRUB: lambda self, body: self.scrubber.on_scrub(body),
        SCRUBBED: lambda self, body: self.scrubber.on_scrubbed(body),
    }  # fmt: skip
