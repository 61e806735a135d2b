"""This server's end of the link between the peers (P+3): it hears the peer, follows it, or lets it follow.

    STATE               each heartbeat: the state in Binary Star, and the position in the history (handshake.py)
    BEAT                in a long turn: the server lives (beat.py)
    WANT, RECORD, ...   a passive catches up with the active, and stays in sync (follow.py)
    HANDOVER            the active, which takes no more sets, asks a passive that has everything to take over
    LEAVE               the server ends on purpose, so the peer need not wait for its silence
    SCRUB, SCRUBBED     the servers compare their contents (scrub.py)
    REPLAY, REPLAYED    a server that was active alone hands over its suffix (replay.py)
    LACK, FILL          a server asks for messages that its journal lacks (backfill.py)

Any process may connect to P+3. So a server takes messages only from the connection whose STATE proved to be the peer's.
BEAT alone has a connection of its own.
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

from ..context import PASSIVE, Ask, Asking, IncompatiblePeer, Peer, RiseAbove, ServerContext
from ..deadlines import HANDOVER, LINK
from ..pair import follow
from ..pair.beat import BEAT, BeatMessage
from ..pair.binary_star import PairEvent, peer_event
from ..pair.follow import Follower, Loader, begins_snapshot
from ..pair.throttle import Throttle
from ..state.history import Position, common, from_list, to_list
from ..state.missing_messages import FILL, LACK, Spans
from ..state.record_log import LoggedMessages
from ..state.state import ReplicatedState
from ..updates.turn import ReadSpans, Remember, Replace
from . import handshake
from .backfill import Backfill
from .health import HealthCheck
from .replay import Replay
from .scrub import SCRUB, SCRUBBED, Scrubber

LONG_AGO = -1e9
# A server that finds a peer of its own role ends after this many heartbeats.
ENDS_AFTER_BEATS = 4
# The wait before a passive asks again doubles with each unanswered WANT, up to this many WANTs.
ASKED_MAX = 6
# WANT carries a history, with a few values for each epoch.
WANT_WEIGHT = QUESTION + 32 * DEFAULT.history_epochs_max
# A lasting problem is logged again after this many seconds.
SAY_AGAIN_S = 60.0
# These messages change nothing about the peer but how far records have come.
QUIET = (follow.RECORD, follow.CONFIRM, BEAT)


class PeerLink:
    """The state of this server's end of the link."""

    def __init__(self, ctx: ServerContext, resting: HealthCheck) -> None:
        self._ctx, self._resting = ctx, resting
        # The connection by which the peer speaks, and the connection of the message in hand.
        self.line = self._speaks = b""
        self.loader: Loader | None = None
        self.misfit: IncompatiblePeer | None = None
        # The other store that the server at --peer had before this server began to serve or to follow. After that, its
        # silence is no reason to begin.
        self.foreign = b""
        self._said_at = LONG_AGO
        # The time when this server last took over by a hand-over.
        self.handed_over_at = LONG_AGO
        self.replay = Replay(ctx)
        self.scrubber = Scrubber(ctx.commits, ctx.counts, ctx.config.scrub_s, ctx.config.heartbeat_s)
        # True if this server's contents are wrong, so that it asks for the whole state.
        self._whole = False
        self._wanted_at = LONG_AGO
        # The number of WANTs since a part of an answer came.
        self._unanswered = 0
        self._was_in_sync = False
        # If both servers have one role: the time when this one ends, and the reason once it does.
        self._ends_at: float | None = None
        self.ends = ""
        # The time when the pair last came in sync, or fell out of it.
        self.in_sync_since = ctx.now
        self.filler = Backfill(ctx.commits, ctx.config.peer_timeout_s)
        # The frame with the messages of the RECORD in hand.
        self._messages = b""
        # True if this turn opens an epoch.
        self.opens = False
        # Before this time the passive need not be checked for lateness. No turn is taken only for the check.
        self._late_at = ctx.now
        # True if records of this turn wait until its epoch is in the journal.
        self._held_back = False

    # -- what other parts ask

    @property
    def ready(self) -> bool:
        """True if more could be sent to the passive at once."""
        return self._held_back or (self._ctx.follower is not None and self._ctx.follower.pump_ready)

    def reset(self) -> None:
        """Drop all work under way with the peer, because the state of this server has changed."""
        self._ctx.follower = self.loader = self._ends_at = None
        self._ctx.handover_until, self._ctx.confirmed = None, 0
        self._wanted_at, self._whole = LONG_AGO, False

    def excuse(self) -> None:
        """Give the passive its full time again: this server took no turn for a while, and read no confirmations."""
        if self._ctx.follower is not None:
            self._ctx.follower.excuse(self._ctx.now)

    def state_message(self) -> list[bytes]:
        """Return STATE, as it is sent each heartbeat."""
        return handshake.tell(self._ctx, room=not self._resting.why)

    def bars(self, timeout_s: float) -> bool:
        """Return True if an incompatible peer was heard within `timeout_s`, so that this server must not begin."""
        return self.misfit is not None and self._ctx.now - self.misfit.heard <= timeout_s

    @property
    def outdone(self) -> int:
        """The epoch above ours that a client has seen, or 0; the server that opened it may still serve."""
        ctx = self._ctx
        return 0 if ctx.arbitration.enabled else ctx.epochs.seen_above(ctx.state.epoch)

    @property
    def waits_for(self) -> str:
        """The reason why an inactive server waits, with the remedy; "" if all is well."""
        ctx, config = self._ctx, self._ctx.config
        if ctx.active or not config.has_peer:
            return ""
        if self.foreign and not self.bars(config.peer_timeout_s):
            return handshake.FOREIGN_MET.format(theirs=self.foreign.hex(), ours=ctx.state.store.hex())
        if self.misfit is not None and not ctx.alive():
            return f"the server at --peer can't be its peer: {self.misfit.text}"
        if not ctx.alive() and ctx.bstate is not State.PASSIVE and (epoch := self.outdone):
            return handshake.OUTDONE.format(seen=epoch, ours=ctx.state.epoch)
        return "" if ctx.state.number or ctx.alive() else handshake.EMPTY

    # -- what comes in

    def message(self, frames: list[bytes], line: bytes) -> Asking:
        """Handle a message that came by a connection; raise `BadFrame` if it is malformed.

        Any process may connect. So all messages but STATE and BEAT are taken from the peer's connection only.
        """
        handler = self._HANDLERS.get(frames[0] if frames else b"")
        if handler is None or not 2 <= len(frames) <= 2 + (frames[0] == follow.RECORD):
            raise BadFrame(f"peer message {frames[:1]!r:.40} with {len(frames)} frames is not known")
        self._speaks = line
        if frames[0] not in QUIET:
            self._ctx.deadlines.set(LINK, self._ctx.now)
        # A BEAT comes by a connection of its own, so `_on_beat` checks its server id instead.
        if frames[0] not in (follow.STATE, BEAT):
            if line != self.line:
                self._ctx.counts["strangers"] += 1
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
        """Note that a message came from the peer: any of them shows that it lives."""
        ctx, peer = self._ctx, self._ctx.peer
        if peer is not None and not peer.left:
            peer.heard = ctx.now
            ctx.liveness.word(ctx.now)

    def _on_state(self, body: bytes) -> Asking:
        ctx, who = self._ctx, handshake.heard(body, self._ctx)
        ctx.liveness.word(ctx.now)
        if self._is_stranger(who):
            ctx.counts["strangers"] += 1
            ctx.may_follow(who)
            ctx.turn.fact("a stranger on the peer's port", "warning", name=who.name)
            return
        if isinstance(who, IncompatiblePeer):
            self._on_misfit(who)
            return
        self.line = self._speaks
        before, ctx.peer, self.misfit, self._ends_at = ctx.peer, who, None, None
        self.remember_foreign(b"")
        if before is None or before.server != who.server:
            self._on_new_peer(who)
        ctx.committer.view.version = min(VERSION, who.version)
        if who.at.store == ctx.state.store:
            ctx.epochs.hear(who.epoch)
        event = peer_event(
            peer_state=who.state,
            peer_number=who.number,
            peer_epoch=who.epoch,
            number=ctx.state.number,
            epoch=ctx.state.epoch,
            primary=ctx.config.primary,
        )
        if ctx.active and who.state is State.ACTIVE:
            ctx.await_suffix()
        first = ctx.arbitration.before() if who.state is not State.ACTIVE else None
        if first and not ctx.state.number and who.number:
            # Our disk is new, so what this server had when the set was written is lost.
            first = None
        if first is not None:
            # The arbiter's set names one server alone. It has all that counts, whatever the numbers are.
            event = PairEvent.PEER_BEHIND if first else PairEvent.PEER_AHEAD
        yield event
        if who.state is not State.ACTIVE and who.at.store == ctx.state.store:
            yield RiseAbove(who.epoch)
        self._want_if_behind()

    def _on_beat(self, body: bytes) -> None:
        beat, ctx = BeatMessage.of(body), self._ctx
        peer = ctx.peer
        if peer is None:
            # The peer was in a long turn when this server started. Its STATE comes when that turn is done.
            ctx.liveness.word(ctx.now)
        elif (peer.secret or peer.server) == beat.server and not peer.left:
            peer.turn_ms = beat.turn_ms
            self._hear()

    def _is_stranger(self, who: Peer | IncompatiblePeer) -> bool:
        """Return True if the peer is alive, and `who` speaks by another connection without a proof to be the peer.

        A peer whose connection broke, or that was started again, has a proof. It repeats the secret that only the
        server at --peer is told, or it names a position of our history with the right digest.
        """
        if not self._ctx.alive() or self._speaks == self.line:
            return False
        if isinstance(who, IncompatiblePeer):
            return True
        return who.echo != self._ctx.config.secret and not self._ctx.commits.proves(who.at)

    def _on_new_peer(self, peer: Peer) -> None:
        """Begin with a new run of the peer: what its earlier run had confirmed, or was asked for, may be gone."""
        ctx = self._ctx
        ctx.turn.fact("peer", state=peer.state.name.lower(), number=describe(peer.number), name=peer.name)
        ctx.follower = self.loader = None
        self._wanted_at = LONG_AGO
        if different := handshake.differences(ctx, peer):
            text = {name: f"{ours} here, {theirs} there" for name, (ours, theirs) in different.items()}
            ctx.turn.fact("settings differ", "warning", peer=peer.name, **text)

    def _on_misfit(self, misfit: IncompatiblePeer) -> None:
        ctx, before = self._ctx, self.misfit
        self.misfit = misfit
        again = before is not None and before.kind == misfit.kind and ctx.now - self._said_at < SAY_AGAIN_S
        if not again:
            self._said_at = ctx.now
            ctx.turn.fact(handshake.EVENTS[misfit.kind], "warning", peer=misfit.name, why=misfit.text)
        begins = ctx.bstate in (State.PRIMARY, State.BACKUP)
        if misfit.kind == "foreign" and begins:
            self.remember_foreign(misfit.store)
        if misfit.kind != "role" or not begins:
            self._ends_at = None
        elif self._ends_at is None:
            # This server does not end at once, so that the other one hears of it too.
            self._ends_at = ctx.now + ENDS_AFTER_BEATS * ctx.config.heartbeat_s

    def remember_foreign(self, store: bytes) -> None:
        """Remember the store of an incompatible peer, also for the next start: that server may be silent then."""
        if store != self.foreign:
            self.foreign = store
            self._ctx.turn.journal.append(Remember(handshake.FOREIGN_STORE, store))

    def leave_message(self) -> list[bytes]:
        """Return LEAVE, the last message of a server that ends on purpose."""
        return [follow.LEAVE, self._ctx.server]

    def _on_leave(self, body: bytes) -> None:
        ctx, peer = self._ctx, self._ctx.peer
        # Any other id is of an earlier run of the peer, which was started again since.
        if peer is not None and peer.server == body:
            peer.left = True
            ctx.liveness.left()
            ctx.turn.fact("peer left", name=peer.name)

    # -- the passive's side

    def _want_if_behind(self) -> None:
        ctx, peer = self._ctx, self._ctx.peer
        if ctx.bstate is not State.PASSIVE or peer is None or peer.state is not State.ACTIVE:
            return
        behind = ctx.replacing is None and (peer.at != ctx.state.proof() or not peer.in_sync or self._whole)
        wait = ctx.config.peer_timeout_s if peer.follows else ctx.config.heartbeat_s
        # Each WANT makes the active begin its answer anew. So the wait doubles, or no answer would ever be complete.
        if behind and ctx.now - self._wanted_at > wait * 2 ** max(0, self._unanswered - 1):
            self._want()

    def want_whole(self) -> None:
        """Ask for the active's whole state, whatever our number, because our contents differ from it."""
        self._whole = True
        self._want()

    def _on_scrub(self, body: bytes) -> None:
        ctx = self._ctx
        if self.loader is None and ctx.bstate is PASSIVE and self.scrubber.on_scrub(body, ctx.turn, ctx.now):
            self.want_whole()

    def _on_scrubbed(self, body: bytes) -> None:
        if self._ctx.active:
            self.scrubber.on_scrubbed(body, self._ctx.turn, self._ctx.now)

    def _want(self) -> None:
        ctx = self._ctx
        self._wanted_at, self.loader = ctx.now, None
        self._unanswered = min(self._unanswered + 1, ASKED_MAX)
        # The active may have given this server up since, so it confirms again what it has.
        ctx.confirmed = 0
        ctx.drop_partial()
        # STATE goes first, because the active may not have heard from this server since it started.
        ctx.turn.to_peer.append(self.state_message())
        said = {"at": ctx.state.proof(), "history": to_list(ctx.state.history), "whole": self._whole}
        ctx.turn.to_peer.append([follow.WANT, packb(said)])

    def _on_record(self, body: bytes) -> None:
        ctx = self._ctx
        if ctx.bstate is not State.PASSIVE or self.loader is not None:
            return
        header, items = decode(body)
        if not isinstance(header, Batch | Epoch | Access):
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        if header.last <= ctx.commits.followed:
            return
        if header.prev != ctx.commits.followed:
            if ctx.now - self._wanted_at > ctx.config.heartbeat_s:
                self._want()
            return
        self._wanted_at, self._unanswered = ctx.now, 0
        if isinstance(header, Access) and header.rules is not None:
            ctx.pending.end_rules(ctx.state)
        record = ctx.commits.follow_decoded(header, items, body, ctx.arrival)
        record.messages = self.filler.came(self._messages)
        ctx.commits.keep(record, ctx.turn)
        ctx.pending.published(header.origins if isinstance(header, Batch) else [], ctx.commits.followed_uuids())

    def _on_sync(self, body: bytes) -> None:
        ctx = self._ctx
        if ctx.bstate is not State.PASSIVE:
            return
        self._wanted_at = ctx.now
        if begins_snapshot(body):
            self.loader = Loader(ctx.limits)
        if self.loader is None:
            # It belongs to the answer to an earlier WANT. The answer to the last WANT begins with a first chunk.
            return
        self._unanswered = 0
        try:
            self.loader.add(body, ctx.arrival)
        except BadFrame:
            self._want()
            raise
        ctx.turn.to_peer.append([follow.MORE, pack(1)])

    def _on_end(self, body: bytes) -> Asking:
        """Take over the active's state, after the journal was read for messages that are shared, or in our suffix."""
        ctx, commits = self._ctx, self._ctx.commits
        if ctx.bstate is not PASSIVE:
            return
        if self.loader is None and not self._unanswered:
            # This server has not asked for it, and reading it would take long.
            return
        # An END without chunks answers an earlier WANT, as in `_on_sync`, or is of a state without keys.
        earlier = self.loader is None
        loader = self.loader = self.loader or Loader(ctx.limits)
        try:
            after = loader.finish(body, ctx.arrival)
        except BadFrame:
            self.loader = None
            if earlier:
                return
            self._want()
            raise
        if commits.state.store not in (b"", after.store):
            self.loader = None
            raise BadFrame(f"a snapshot of store {after.store.hex()} came; this server has {commits.state.store.hex()}")
        if ctx.outruns(after.number):
            # This state answers a WANT of a time before this server was active.
            self._want()
            return
        common = after.common_number(commits.state.history)
        shared = common if ctx.replacing is None else min(common, ctx.replacing)
        spans = (yield ReadSpans(shared)) if commits.state.topics.by_name else {}
        messages = (yield from self.replay.read_suffix(common)) if commits.state.number > common else []
        if self.loader is loader:
            self._take_over(after, common, shared, spans, messages)

    def _take_over(
        self, after: ReplicatedState, common: int, shared: int, spans: Spans, messages: list[LoggedMessages]
    ) -> None:
        """Replace our state by the active's, whose history is the same up to `common`.

        Our journal has messages of this history up to `shared`; `spans` are their offsets. `messages` are those of our
        suffix that were read from the journal.
        """
        ctx, commits = self._ctx, self._ctx.commits
        self.loader = None
        self._wanted_at, self._unanswered, self._whole = ctx.now, 0, False
        before, commits.state = commits.state, after
        if before.number > common:
            self.replay.part_with(common, before, messages)
        commits.begin_anew(before)
        ctx.pending.skip_rules(before, after)
        ctx.turn.journal.append(Replace(commits.state.number, shared))
        self.filler.replaced(spans)
        ctx.confirmed = 0
        ctx.turn.fact("caught_up", number=describe(ctx.state.number), keys=len(ctx.state.map), by="snapshot")

    @property
    def _are_two(self) -> bool:
        """True if one of the two servers follows the other."""
        return self._ctx.bstate is PASSIVE or self._ctx.in_sync()

    def _on_lack(self, body: bytes) -> None:
        if self._ctx.active or self._ctx.in_sync():
            self.filler.on_lack(body, self._ctx.turn)

    def _on_fill(self, body: bytes) -> None:
        if self._are_two:
            self.filler.on_fill(body, self._ctx.turn)

    def _on_handover(self, body: bytes) -> Asking:
        if unpack(body) == self._ctx.state.number:
            yield PairEvent.HANDOVER
            self.handed_over_at = self._ctx.now

    # -- the active's side

    def _on_want(self, body: bytes) -> Asking:
        ctx = self._ctx
        if not ctx.active:
            return
        said = unpackb(body, "WANT", WANT_WEIGHT)
        at, history = Position.of(said["at"]), from_list(said["history"])
        if at.store not in (b"", ctx.state.store):
            # The servers have different stores, as its STATE has told.
            return
        after = at.number
        ctx.commit()
        yield RiseAbove(epoch_of(after))
        state, log, ours = ctx.state, ctx.commits.log, ctx.commits.holds(at)
        if not ours:
            shared = describe(common(state.history, history))
            number = describe(state.number)
            ctx.turn.fact("histories parted", "warning", common=shared, peer=at.describe(), number=number)
            ctx.counts["parted"] += 1
            ctx.await_suffix()
        # An empty server gets the state as a whole, so that it never serves a part of it.
        begun = after > 0 or len(log) <= 1
        if ours and begun and not said.get("whole") and (log.reaches(after) or after == state.number):
            ctx.follower = Follower(ctx.limits, after, state.number, throttle=self._throttle())
        else:
            image = state.image("")
            segments = (segment.encode() for segment in image.chunks(ctx.limits, lambda: ctx.now))
            chunks = chain(image.waiting(), segments, state.staging.segments())
            ctx.follower = Follower(ctx.limits, state.number, state.number, chunks, self._throttle())
            ctx.follower.with_state(state.rest(ctx.now))
        ctx.turn.fact("catching_up", peer_number=describe(after), number=describe(state.number))

    def _throttle(self) -> Throttle:
        return Throttle(self._ctx.sets.pace, self._ctx.config.slow_peer_s)

    def _on_more(self, body: bytes) -> None:
        if self._ctx.follower is not None:
            self._ctx.follower.credit = min(self._ctx.follower.credit + unpack(body), follow.CREDIT)

    def _on_confirm(self, body: bytes) -> None:
        ctx = self._ctx
        if ctx.follower is None or not ctx.active:
            return
        at = Position.of(unpackb(body, "CONFIRM", QUESTION))
        number = at.number
        if not ctx.commits.holds(at):
            # The passive has a suffix that it must give up, or its contents are damaged.
            if ctx.follower.in_sync:
                ctx.counts["diverged"] += 1
                ctx.turn.fact("the passive differs", "warning", peer=at.describe(), number=describe(ctx.state.number))
                self._degrade(ctx.follower)
            return
        was = ctx.follower.in_sync
        ctx.follower.confirm(number, ctx.now, ctx.config.replica_timeout_s)
        if ctx.follower.in_sync and not was:
            ctx.turn.fact("in_sync", number=describe(ctx.follower.confirmed))
            ctx.beat_now()
            ctx.deadlines.set(LINK, ctx.now)

    def force(self) -> Generator[Ask, None, dict[str, Any]]:
        """Do `chp switch --force`: serve although the arbiter's set, a foreign store or a later epoch forbids it."""
        ctx = self._ctx
        if ctx.active:
            raise BadInput("this server is active already")
        if self.foreign and not ctx.arbitration.enabled:
            return (yield from self._force_beside_a_foreign_store())
        if not ctx.arbitration.enabled:
            return (yield from self._force_below_an_epoch())
        if ctx.alive() and ctx.peer is not None and ctx.peer.state is State.ACTIVE:
            raise BadInput("the other server is active; switch without --force")
        lost = ctx.arbitration.lost(ctx.state.number)
        ctx.arbitration.force(ctx.now)
        ctx.turn.fact("forced", "warning", number=describe(ctx.state.number), lost=lost)
        return {"forced": True, "number": describe(ctx.state.number), "lost": lost}

    def _force_below_an_epoch(self) -> Generator[Ask, None, dict[str, Any]]:
        ctx, epoch = self._ctx, self.outdone
        if ctx.bstate is State.PASSIVE or not epoch:
            raise BadInput("there is no arbiter to overrule; a passive takes over when its peer is silent")
        if ctx.liveness.may_be_there(ctx.now):
            raise BadInput("the server at --peer runs; stop it first, or let the two go on together")
        lost = (
            f"the updates of epoch {epoch} that this server lacks; they are accounted for if the other server returns"
        )
        ctx.turn.fact("forced", "warning", number=describe(ctx.state.number), lost=lost)
        yield PairEvent.FORCED
        return {"forced": True, "number": describe(ctx.state.number), "lost": lost}

    def _force_beside_a_foreign_store(self) -> Generator[Ask, None, dict[str, Any]]:
        ctx, foreign = self._ctx, self.foreign.hex()
        if self.bars(ctx.config.peer_timeout_s):
            raise BadInput(f"the server at --peer runs, and holds the store {foreign}; stop it first")
        lost = f"nothing of this store ({ctx.state.store.hex()}); what {foreign} holds is not taken over"
        ctx.turn.fact("forced", "warning", number=describe(ctx.state.number), lost=lost)
        yield PairEvent.FORCED
        return {"forced": True, "number": describe(ctx.state.number), "lost": lost}

    def switch(self) -> dict[str, Any]:
        """Do `chp switch`: ask the passive to take over, and take no sets until it has, or until its time is over."""
        ctx = self._ctx
        if not ctx.active:
            raise BadInput("this server is not active; ask the other one to switch")
        if not ctx.in_sync():
            raise BadInput(
                "the passive is not in sync, so a switch would lose sets; wait until `chp status` shows that it is"
            )
        if not ctx.arbitration.both:
            raise BadInput("the arbiter's set does not name the passive yet; try again in a moment")
        ctx.committer.write_refusals(ctx.arrival)
        ctx.commit()
        ctx.handover_until = ctx.now + ctx.config.peer_timeout_s
        ctx.deadlines.set(HANDOVER, ctx.handover_until)
        ctx.turn.fact("handover", number=describe(ctx.state.number))
        return {"switching": True, "number": describe(ctx.state.number)}

    # -- the end of a turn

    def end_turn(self, *, look: bool) -> None:
        """Send what this turn made; `look` says that the peer may have changed, or that a heartbeat is due.

        Records are sent while the journal writes them. Only a turn that opens an epoch first writes its records to the
        journal, and then tells the peer. Otherwise a server that died in between would open an epoch of the same
        number again, and the passive would have another one. And if the disk is full, this server does not become
        active. Then a peer that knew of the epoch would have given way for nothing.
        """
        ctx, state, follower = self._ctx, self._ctx.commits.state, self._ctx.follower
        if state.number != ctx.confirmed and ctx.bstate is PASSIVE:
            self._confirm()
        if look:
            self._look()
        if look or state.topics.changed:
            whole = self.loader is None and ctx.replacing is None
            self.filler.end_turn(ctx.turn, ctx.now, asks=whole and ctx.alive() and self._are_two)
        self._held_back = self.opens and follower is not None
        if follower is not None and not self._held_back:
            if follower.position != state.number or follower.pump_ready:
                ctx.turn.to_peer += follower.pump(ctx.commits.log, ctx.now)
            if look or ctx.now >= self._late_at or follower.lost or ctx.handover_until is not None:
                self._watch(follower)
        ctx.commits.log.pin = None if ctx.follower is None else ctx.follower.position

    def _look(self) -> None:
        """Do what is due: end a server of the wrong role, hand over a suffix, note whether the pair is in sync."""
        ctx = self._ctx
        if self._ends_at is not None and ctx.now >= self._ends_at and self.misfit is not None:
            self.ends = self.misfit.text
        self.replay.hand_over()
        self._note_sync()

    def _note_sync(self) -> None:
        ctx = self._ctx
        if ctx.in_sync() != self._was_in_sync:
            self._was_in_sync, self.in_sync_since = not self._was_in_sync, ctx.now
            if self._was_in_sync and ctx.bstate is PASSIVE:
                ctx.turn.fact("in_sync", number=describe(ctx.state.number))

    def _watch(self, follower: Follower) -> None:
        """Give up a passive that is lost or late. Otherwise go on with a hand-over, or with the scrub."""
        ctx, timeout_s = self._ctx, self._ctx.config.replica_timeout_s
        overdue = follower.in_sync and follower.overdue(ctx.now, timeout_s)
        slow = follower.is_slow(ctx.now, waits=bool(ctx.sets.queue.sessions))
        if follower.lost or overdue or slow or not ctx.is_prompt():
            self._degrade(follower)
            return
        if ctx.handing_over:
            ctx.turn.to_peer.append([follow.HANDOVER, pack(ctx.state.number)])
        else:
            self.scrubber.go_on(follower, ctx.turn, ctx.now)
        silent_at = ctx.peer.heard + ctx.config.peer_timeout_s if ctx.peer is not None else ctx.now
        self._late_at = min(silent_at, follower.overdue_at(timeout_s) if follower.in_sync else silent_at)

    def _confirm(self) -> None:
        """Confirm to the active what our journal has, unless a new state is on its way."""
        ctx = self._ctx
        if self.loader is None and ctx.replacing is None:
            ctx.confirmed = ctx.state.number
            ctx.turn.confirm.append(follow.confirm(ctx.state.proof()))

    def _degrade(self, follower: Follower) -> None:
        ctx = self._ctx
        if follower.in_sync:
            numbers = {"number": describe(ctx.state.number), "confirmed": describe(follower.confirmed)}
            ctx.turn.fact("degraded", "warning", **numbers)
            ctx.counts["degraded"] += 1
        ctx.follower = None
        self._note_sync()
        ctx.beat_now()

    _HANDLERS: ClassVar[dict[bytes, Callable[[PeerLink, bytes], Asking | None]]] = {
        follow.STATE: _on_state, follow.WANT: _on_want, follow.RECORD: _on_record, follow.SYNC_CHUNK: _on_sync,
        follow.END: _on_end, follow.MORE: _on_more, follow.CONFIRM: _on_confirm, follow.HANDOVER: _on_handover,
        follow.REPLAY: lambda self, body: self.replay.on_replay(body),
        follow.REPLAYED: lambda self, body: self.replay.on_replayed(body), follow.LEAVE: _on_leave, BEAT: _on_beat,
        SCRUB: _on_scrub, SCRUBBED: _on_scrubbed,
        LACK: _on_lack, FILL: _on_fill,
    }  # fmt: skip
