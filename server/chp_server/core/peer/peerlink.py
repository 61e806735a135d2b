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

from collections.abc import Callable, Generator
from itertools import chain
from typing import Any, ClassVar

from chp.batch import decode, packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import Access, Batch, Epoch, State, name_of
from chp.limits import DEFAULT
from chp.numbers import describe, epoch_of, pack, unpack
from chp.unpacking import QUESTION
from chp.versions import VERSION

from ..pair import follow
from ..pair.binary_star import Event, peer_event
from ..pair.follow import Follower, Loader, begins_snapshot
from ..pair.pulse import BEAT, Beat
from ..standing import Ask, Asking, Misfit, Peer, RiseAbove, Standing
from ..state.filling import FILL, LACK
from ..state.history import Proof, common, from_list, to_list
from ..updates.turn import Remember, Replace
from . import meeting
from .filler import Filler
from .replay import Replay
from .resting import Resting
from .scrub import SCRUB, SCRUBBED, Scrubber

LONG_AGO = -1e9
ENDS_AFTER_BEATS = 4
ASKED_MAX = 6  # doublings of the wait before a passive asks again
WANT_WEIGHT = QUESTION + 32 * DEFAULT.history_epochs_max  # its history: some numbers and words an epoch
SAY_AGAIN_S = 60.0  # what stays wrong is logged so often


class PeerLink:
    """This server's end of the link."""

    def __init__(self, here: Standing, resting: Resting) -> None:
        self._here, self._resting = here, resting
        self.line = self._speaks = b""  # the connection by which the peer speaks, and that of the message in hand
        self.loader: Loader | None = None
        self.misfit: Misfit | None = None
        self.foreign = b""  # the store of a misfit that was met before we began: silence is no reason to begin then
        self._said_at = LONG_AGO
        self.handed_over_at = LONG_AGO  # when we were asked to take over
        self.replay = Replay(here)
        self.scrubber = Scrubber(here)
        self._whole = False  # what we have is not to be built on: the whole state is asked for
        self._wanted_at = LONG_AGO
        self._unanswered = 0  # times that we asked since anything of an answer came
        self._was_in_sync = False
        self._ends_at: float | None = None  # of the same role as the peer: when we end ...
        self.ends = ""  # ... and why
        self.in_sync_since = here.now  # when that last changed
        self.filler = Filler(here)
        self._messages = b""  # the frame of a RECORD that has its messages
        self._opened = 0  # the epoch of the last turn, which is in our journal
        self.opens = False  # whether this turn opened an epoch
        self._held_back = False

    # -- what others ask

    @property
    def ready(self) -> bool:
        """Whether the passive could be sent more now."""
        return self._held_back or (self._here.follower is not None and self._here.follower.pump_ready)

    def reset(self) -> None:
        """Our state changed: whatever was under way is over."""
        self._here.follower = self.loader = self._ends_at = None
        self._here.handover_until, self._here.confirmed = None, 0
        self._wanted_at, self._whole = LONG_AGO, False

    def excuse(self) -> None:
        """We took no turn for a while: the passive is not to be blamed for what was not read meanwhile."""
        if self._here.follower is not None:
            self._here.follower.excuse(self._here.now)

    def state_message(self) -> list[bytes]:
        """STATE, as it is sent each heartbeat."""
        return meeting.tell(self._here, room=not self._resting.why)

    def bars(self, timeout_s: float) -> bool:
        """Whether somebody who can't be our peer was heard so recently that we are not to begin."""
        return self.misfit is not None and self._here.now - self.misfit.heard <= timeout_s

    @property
    def outdone(self) -> int:
        """The epoch above this server's that a client has seen: who opened it may serve yet. 0 if there is none."""
        here = self._here
        return 0 if here.arbitration.enabled else here.epochs.seen_above(here.state.epoch)

    @property
    def waits_for(self) -> str:
        """What a server that does not serve waits for, and what a person can do; nothing if all is well."""
        here, config = self._here, self._here.config
        if here.active or not config.has_peer:
            return ""
        if self.foreign and not self.bars(config.peer_timeout_s):
            return meeting.FOREIGN_MET.format(theirs=self.foreign.hex(), ours=here.state.store.hex())
        if self.misfit is not None and not here.alive():
            return f"the server at --peer can't be its peer: {self.misfit.text}"
        if not here.alive() and here.bstate is not State.PASSIVE and (epoch := self.outdone):
            return meeting.OUTDONE.format(seen=epoch, ours=here.state.epoch)
        return "" if here.state.number or here.alive() else meeting.EMPTY

    # -- what comes in

    def message(self, frames: list[bytes], line: bytes) -> Asking:
        """A message that came by a connection; `BadFrame` if it makes no sense.

        Anybody may connect. So only who told a STATE that was believed is heard otherwise.
        """
        handler = self._HANDLERS.get(frames[0] if frames else b"")
        if handler is None or not 2 <= len(frames) <= 2 + (frames[0] == follow.RECORD):
            raise BadFrame(f"peer message {frames[:1]!r:.40} with {len(frames)} frames is not known")
        self._speaks = line
        if frames[0] not in (follow.STATE, BEAT):
            if line != self.line:  # a BEAT comes by a connection of its own
                self._here.counts["strangers"] += 1
                return
            self._hear()
        self._messages = frames[2] if len(frames) > 2 else b""
        try:
            yield from handler(self, frames[1]) or ()
        except BadInput:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise BadFrame(f"a peer message {frames[0]!r} is ill-formed: {error!r}") from None

    def _hear(self) -> None:
        """Note that something came from the peer: a record, or a confirmation, shows that it lives."""
        here, peer = self._here, self._here.peer
        if peer is not None and not peer.left:
            peer.heard = here.now
            here.liveness.word(here.now)

    def _on_state(self, body: bytes) -> Asking:
        here, who = self._here, meeting.heard(body, self._here)
        here.liveness.word(here.now)
        if self._is_stranger(who):
            here.counts["strangers"] += 1
            here.may_follow(who)
            here.turn.fact("a stranger on the peer's port", "warning", name=who.name)
            return
        if isinstance(who, Misfit):
            self._on_misfit(who)
            return
        self.line = self._speaks
        before, here.peer, self.misfit, self._ends_at = here.peer, who, None, None
        self.remember_foreign(b"")
        if before is None or before.server != who.server:
            self._on_new_peer(who)
        here.committer.view.version = min(VERSION, who.version)
        if who.at.store == here.state.store:
            here.epochs.hear(who.epoch)
        event = peer_event(
            peer_state=who.state,
            peer_number=who.number,
            peer_epoch=who.epoch,
            number=here.state.number,
            epoch=here.state.epoch,
            primary=here.config.primary,
        )
        if here.active and who.state is State.ACTIVE:
            here.await_suffix()
        first = here.arbitration.before() if who.state is not State.ACTIVE else None
        if first and not here.state.number and who.number:
            first = None  # our disk is new: what the set names is lost
        if first is not None:  # the arbiter's set has one of us: whatever our numbers, that one has all that counts
            event = Event.PEER_BEHIND if first else Event.PEER_AHEAD
        yield event
        if who.state is not State.ACTIVE and who.at.store == here.state.store:
            yield RiseAbove(who.epoch)
        self._want_if_behind()

    def _on_beat(self, body: bytes) -> None:
        beat, here = Beat.of(body), self._here
        peer = here.peer
        if peer is None:  # one that was busy since before this server started: its STATE comes when its turn is done
            here.liveness.word(here.now)
        elif (peer.secret or peer.server) == beat.server and not peer.left:  # what it was then, STATE has told
            peer.turn_ms = beat.turn_ms
            self._hear()

    def _is_stranger(self, who: Peer | Misfit) -> bool:
        """Whether another has the peer's place, and was heard just now.

        A peer whose connection broke, or that was started again, proves that it is the peer: it says the secret that
        only the server at --peer is told, or a place of our history with the digest there.
        """
        if not self._here.alive() or self._speaks == self.line:
            return False
        if isinstance(who, Misfit):
            return True
        return who.echo != self._here.config.secret and not self._here.commits.proves(who.at)

    def _on_new_peer(self, peer: Peer) -> None:
        """The first word of a peer's run: what an earlier one had confirmed, or was asked for, may be gone."""
        here = self._here
        here.turn.fact("peer", state=peer.state.name.lower(), number=describe(peer.number), name=peer.name)
        here.follower = self.loader = None
        self._wanted_at = LONG_AGO
        if different := meeting.differences(here, peer):
            text = {name: f"{ours} here, {theirs} there" for name, (ours, theirs) in different.items()}
            here.turn.fact("settings differ", "warning", peer=peer.name, **text)

    def _on_misfit(self, misfit: Misfit) -> None:
        here, before = self._here, self.misfit
        self.misfit = misfit
        again = before is not None and before.kind == misfit.kind and here.now - self._said_at < SAY_AGAIN_S
        if not again:
            self._said_at = here.now
            here.turn.fact(meeting.EVENTS[misfit.kind], "warning", peer=misfit.name, why=misfit.text)
        begins = here.bstate in (State.PRIMARY, State.BACKUP)
        if misfit.kind == "foreign" and begins:
            self.remember_foreign(misfit.store)
        if misfit.kind != "role" or not begins:
            self._ends_at = None
        elif self._ends_at is None:  # not at once: the other one is to hear of it too
            self._ends_at = here.now + ENDS_AFTER_BEATS * here.config.heartbeat_s

    def remember_foreign(self, store: bytes) -> None:
        """Of the next start too: the server that has the right data may be gone by then."""
        if store != self.foreign:
            self.foreign = store
            self._here.turn.journal.append(Remember(meeting.FOREIGN_STORE, store))

    def leave_message(self) -> list[bytes]:
        """LEAVE, for the end of a server that was told to end, after all else."""
        return [follow.LEAVE, self._here.server]

    def _on_leave(self, body: bytes) -> None:
        here, peer = self._here, self._here.peer
        if peer is not None and peer.server == body:  # else of one that has been started again
            peer.left = True
            here.liveness.left()
            here.turn.fact("peer left", name=peer.name)

    # -- the passive's side

    def _want_if_behind(self) -> None:
        here, peer = self._here, self._here.peer
        if here.bstate is not State.PASSIVE or peer is None or peer.state is not State.ACTIVE:
            return
        behind = here.replacing is None and (peer.at != here.state.proof() or not peer.in_sync or self._whole)
        wait = here.config.peer_timeout_s if peer.follows else here.config.heartbeat_s
        # a question makes the active begin anew: one on its way must not be followed by others for ever
        if behind and here.now - self._wanted_at > wait * 2 ** max(0, self._unanswered - 1):
            self._want()

    def want_whole(self) -> None:
        """Our contents are not the active's: take over its whole state, whatever our number."""
        self._whole = True
        self._want()

    def _on_scrub(self, body: bytes) -> None:
        if self.loader is None and self.scrubber.on_scrub(body):
            self.want_whole()

    def _want(self) -> None:
        here = self._here
        self._wanted_at, self.loader = here.now, None
        self._unanswered = min(self._unanswered + 1, ASKED_MAX)
        here.confirmed = 0  # the active may have given us up since: say again what we have
        here.drop_partial()
        here.turn.to_peer.append(self.state_message())  # who asks: it may not have heard of this run of ours
        said = {"at": here.state.proof(), "history": to_list(here.state.history), "whole": self._whole}
        here.turn.to_peer.append([follow.WANT, packb(said)])

    def _on_record(self, body: bytes) -> None:
        here = self._here
        if here.bstate is not State.PASSIVE or self.loader is not None:
            return
        header, items = decode(body)
        if not isinstance(header, Batch | Epoch | Access):
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        if header.last <= here.commits.followed:
            return
        if header.prev != here.commits.followed:
            if here.now - self._wanted_at > here.config.heartbeat_s:
                self._want()
            return
        self._wanted_at, self._unanswered = here.now, 0
        if isinstance(header, Access) and header.rules is not None:
            here.pending.end_rules(here.state)
        record = here.commits.follow_decoded(header, items, body, here.arrival)
        record.messages = self.filler.came(self._messages)
        here.commits.keep(record, here.turn)
        here.pending.published(header.origins if isinstance(header, Batch) else [], here.commits.followed_uuids())

    def _on_sync(self, body: bytes) -> None:
        here = self._here
        if here.bstate is not State.PASSIVE:
            return
        self._wanted_at = here.now
        if begins_snapshot(body):
            self.loader = Loader(here.limits)
        if self.loader is None:
            return  # of the answer to an earlier question; the one to the last begins with its first chunk
        self._unanswered = 0
        try:
            self.loader.add(body, here.arrival)
        except BadFrame:
            self._want()
            raise
        here.turn.to_peer.append([follow.MORE, pack(1)])

    def _on_end(self, body: bytes) -> None:
        here, commits = self._here, self._here.commits
        if here.bstate is not State.PASSIVE:
            return
        if self.loader is None and not self._unanswered:
            return  # nobody asked for it, and it would be read whole
        earlier = self.loader is None  # as in _on_sync; or of a state without a key
        loader, self.loader = self.loader or Loader(here.limits), None
        try:
            after = loader.finish(body, here.arrival)
        except BadFrame:
            if earlier:
                return
            self._want()
            raise
        if commits.state.store not in (b"", after.store):
            raise BadFrame(f"a snapshot of store {after.store.hex()} came; this server has {commits.state.store.hex()}")
        if here.outruns(after.number):
            self._want()  # it answers what we asked before we served
            return
        self._wanted_at, self._unanswered, self._whole = here.now, 0, False
        before, commits.state = commits.state, after
        common = after.common_number(before.history)
        if before.number > common:
            self.replay.part_with(common, before)
        commits.begin_anew(before)
        here.pending.skip_rules(before, after)
        shared = common if here.replacing is None else min(common, here.replacing)
        here.turn.journal.append(Replace(commits.state.number, shared))
        self.filler.replaced(shared)
        here.confirmed = 0
        here.turn.fact("caught_up", number=describe(here.state.number), keys=len(here.state.map), by="snapshot")

    def _on_handover(self, body: bytes) -> Asking:
        if unpack(body) == self._here.state.number:
            yield Event.HANDOVER
            self.handed_over_at = self._here.now

    # -- the active's side

    def _on_want(self, body: bytes) -> Asking:
        here = self._here
        if not here.active:
            return
        said = unpackb(body, "WANT", WANT_WEIGHT)
        at, history = Proof.of(said["at"]), from_list(said["history"])
        if at.store not in (b"", here.state.store):
            return  # its STATE said so too
        after = at.number
        here.commit()
        yield RiseAbove(epoch_of(after))
        state, log, ours = here.state, here.commits.log, here.commits.holds(at)
        if not ours:
            shared = describe(common(state.history, history))
            number = describe(state.number)
            here.turn.fact("histories parted", "warning", common=shared, peer=at.describe(), number=number)
            here.counts["parted"] += 1
            here.await_suffix()
        begun = after > 0 or len(log) <= 1  # an empty server gets all at once: it is not to serve a part of it
        if ours and begun and not said.get("whole") and (log.reaches(after) or after == state.number):
            here.follower = Follower(here.limits, after, state.number)
        else:
            image = state.image("")
            segments = (segment.encode() for segment in image.chunks(here.limits, lambda: here.now))
            chunks = chain(image.waiting(), segments, state.staging.segments())
            here.follower = Follower(here.limits, state.number, state.number, chunks)
            here.follower.with_state(state.rest(here.now))
        here.turn.fact("catching_up", peer_number=describe(after), number=describe(state.number))

    def _on_more(self, body: bytes) -> None:
        if self._here.follower is not None:
            self._here.follower.credit = min(self._here.follower.credit + unpack(body), follow.CREDIT)

    def _on_confirm(self, body: bytes) -> None:
        here = self._here
        if here.follower is None or not here.active:
            return
        at = Proof.of(unpackb(body, "CONFIRM", QUESTION))
        number = at.number
        if not here.commits.holds(at):  # of a suffix it has to part with, or it is not what it was
            if here.follower.in_sync:
                here.counts["diverged"] += 1
                here.turn.fact("the passive differs", "warning", peer=at.describe(), number=describe(here.state.number))
                self._degrade(here.follower)
            return
        was = here.follower.in_sync
        here.follower.confirm(number, here.now, here.config.replica_timeout_s)
        if here.follower.in_sync and not was:
            here.turn.fact("in_sync", number=describe(here.follower.confirmed))
            here.beat_now()

    def force(self) -> Generator[Ask, None, dict[str, Any]]:
        """`chp switch --force`: serve, though the arbiter's set does not name it, or it met a foreign store."""
        here = self._here
        if here.active:
            raise BadInput("this server is active already")
        if self.foreign and not here.arbitration.enabled:
            return (yield from self._force_beside_a_foreign_store())
        if not here.arbitration.enabled:
            return (yield from self._force_below_an_epoch())
        if here.alive() and here.peer is not None and here.peer.state is State.ACTIVE:
            raise BadInput("the other server is active; switch without --force")
        lost = here.arbitration.lost(here.state.number)
        here.arbitration.force(here.now)
        here.turn.fact("forced", "warning", number=describe(here.state.number), lost=lost)
        return {"forced": True, "number": describe(here.state.number), "lost": lost}

    def _force_below_an_epoch(self) -> Generator[Ask, None, dict[str, Any]]:
        here, epoch = self._here, self.outdone
        if here.bstate is State.PASSIVE or not epoch:
            raise BadInput("there is no arbiter to overrule; a passive takes over when its peer is silent")
        if here.liveness.may_be_there(here.now):
            raise BadInput("the server at --peer runs; stop it first, or let the two go on together")
        lost = f"what epoch {epoch} did that this server does not have; it is accounted for if the other one returns"
        here.turn.fact("forced", "warning", number=describe(here.state.number), lost=lost)
        yield Event.FORCED
        return {"forced": True, "number": describe(here.state.number), "lost": lost}

    def _force_beside_a_foreign_store(self) -> Generator[Ask, None, dict[str, Any]]:
        here, foreign = self._here, self.foreign.hex()
        if self.bars(here.config.peer_timeout_s):
            raise BadInput(f"the server at --peer runs, and holds the store {foreign}; stop it first")
        lost = f"nothing of this store ({here.state.store.hex()}); what {foreign} holds is not taken over"
        here.turn.fact("forced", "warning", number=describe(here.state.number), lost=lost)
        yield Event.FORCED
        return {"forced": True, "number": describe(here.state.number), "lost": lost}

    def switch(self) -> dict[str, Any]:
        """`chp switch`: let the passive take over; takes no sets until it has, or until it has not in time."""
        here = self._here
        if not here.active:
            raise BadInput("this server is not active; ask the other one to switch")
        if not here.in_sync():
            raise BadInput("the passive is not in sync, so a switch would lose sets; wait until `chp status` says so")
        if not here.arbitration.both:
            raise BadInput("the arbiter's set does not name the passive yet; try again in a moment")
        here.committer.write_refusals(here.arrival)
        here.commit()
        here.handover_until = here.now + here.config.peer_timeout_s
        here.turn.fact("handover", number=describe(here.state.number))
        return {"switching": True, "number": describe(here.state.number)}

    # -- the end of a turn

    def end_turn(self) -> None:
        """Send what there is to send; give up on a passive that does not confirm."""
        here = self._here
        if self._ends_at is not None and here.now >= self._ends_at and self.misfit is not None:
            self.ends = self.misfit.text
        self._confirm()
        self.replay.hand_over()
        self.filler.end_turn(asks=self.loader is None and here.replacing is None)
        self._record_sync()
        self._hold_back()
        if here.active and here.follower is not None and not self._held_back:
            self._serve(here.follower)
        here.commits.log.pin = None if here.follower is None else here.follower.position

    def _hold_back(self) -> None:
        """Records leave while we write them, but for those of a turn that opens an epoch, and the word of it.

        If we died before it is in our journal we would open it again, while the passive has another of that number; if
        there is no room for it we don't serve, and the peer, had it been told, would have given way to nobody.
        """
        here = self._here
        self.opens = here.active and here.state.epoch != self._opened
        self._held_back = self.opens and here.follower is not None
        self._opened = here.state.epoch

    def _record_sync(self) -> None:
        here = self._here
        if here.in_sync() != self._was_in_sync:
            self._was_in_sync, self.in_sync_since = not self._was_in_sync, here.now
            if self._was_in_sync and here.bstate is State.PASSIVE:
                here.turn.fact("in_sync", number=describe(here.state.number))

    def _serve(self, follower: Follower) -> None:
        here = self._here
        here.turn.to_peer += follower.pump(here.commits.log, here.now)
        overdue = follower.in_sync and follower.overdue(here.now, here.config.replica_timeout_s)
        if follower.lost or overdue or not here.is_prompt():
            self._degrade(follower)
        elif here.handing_over:
            here.turn.to_peer.append([follow.HANDOVER, pack(here.state.number)])
        else:
            self.scrubber.go_on(follower)

    def _confirm(self) -> None:
        here = self._here
        whole = self.loader is None and here.replacing is None
        if whole and here.bstate is State.PASSIVE and here.state.number != here.confirmed:
            here.confirmed = here.state.number
            here.turn.confirm.append(follow.confirm(here.state.proof()))

    def _degrade(self, follower: Follower) -> None:
        here = self._here
        if follower.in_sync:
            numbers = {"number": describe(here.state.number), "confirmed": describe(follower.confirmed)}
            here.turn.fact("degraded", "warning", **numbers)
            here.counts["degraded"] += 1
        here.follower = None
        here.beat_now()

    _HANDLERS: ClassVar[dict[bytes, Callable[[PeerLink, bytes], Asking | None]]] = {
        follow.STATE: _on_state, follow.WANT: _on_want, follow.RECORD: _on_record, follow.SYNC_CHUNK: _on_sync,
        follow.END: _on_end, follow.MORE: _on_more, follow.CONFIRM: _on_confirm, follow.HANDOVER: _on_handover,
        follow.REPLAY: lambda self, body: self.replay.on_replay(body),
        follow.REPLAYED: lambda self, body: self.replay.on_replayed(body), follow.LEAVE: _on_leave, BEAT: _on_beat,
        SCRUB: _on_scrub, SCRUBBED: lambda self, body: self.scrubber.on_scrubbed(body),
        LACK: lambda self, body: self.filler.on_lack(body), FILL: lambda self, body: self.filler.on_fill(body),
    }  # fmt: skip
