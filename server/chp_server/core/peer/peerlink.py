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
from typing import Any, ClassVar

from chp.batch import decode, packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import Access, Batch, Commit, Epoch, State, name_of
from chp.limits import DEFAULT
from chp.numbers import describe, epoch_of, pack, unpack
from chp.unpacking import QUESTION
from chp.versions import COMMIT_SINCE, VERSION

from ..asks import Ask, Asking, RiseAbove
from ..deadlines import HANDOVER, LINK, Deadlines
from ..pair import follow
from ..pair.beat import BEAT, BeatMessage, BeatTimer
from ..pair.binary_star import PairEvent, peer_event
from ..pair.follow import Follower, Loader, begins_snapshot
from ..pair.pair_state import ACTIVE, PASSIVE, IncompatiblePeer, PairState, Peer
from ..pair.pending import PendingList
from ..pair.set_shares import SetShares
from ..pair.throttle import Throttle
from ..state.history import Position, common, from_list, to_list
from ..state.missing_messages import FILL, LACK, Spans
from ..state.record_log import LoggedMessages
from ..state.state import ReplicatedState
from ..updates.commit import Committer
from ..updates.turn import CurrentTurn, DropAfter, ReadSpans, Remember, Replace
from . import handshake
from .backfill import Backfill
from .handshake import Handshake
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
# These messages may come by any connection.
OF_ANYBODY = (follow.STATE, BEAT)
# The errors of a handler that finds other things in a message than it expects.
ILL_FORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError)


def _ill_formed(kind: bytes, error: Exception) -> BadInput:
    """Return the exception to raise for a handler's error: `BadInput` as it is, any other error as `BadFrame`."""
    return error if isinstance(error, BadInput) else BadFrame(f"a peer message {kind!r} is ill-formed: {error!r}")


def _checked(kind: bytes, asking: Asking) -> Asking:
    """Do the work for a message, and raise `BadFrame` if the message is ill-formed."""
    try:
        yield from asking
    except ILL_FORMED as error:
        raise _ill_formed(kind, error) from None


class PeerLink:
    """The state of this server's end of the link."""

    def __init__(
        self,
        turn: CurrentTurn,
        pair: PairState,
        committer: Committer,
        deadlines: Deadlines,
        *,
        pending: PendingList,
        health: HealthCheck,
        sets: SetShares,
    ) -> None:
        self._turn, self._pair, self._deadlines = turn, pair, deadlines
        self._committer, self._committed = committer, committer.committed
        self.pending, self.health, self.sets, config = pending, health, sets, pair.config
        self._handshake = Handshake(turn, pair, self._committed)
        beat_s = min(config.heartbeat_s, config.peer_timeout_s / 4)
        self.beat_timer = BeatTimer(config.secret or pair.server, turn.now, beat_s)
        # The connection by which the peer speaks, and the connection of the message in hand.
        self.line = self._speaks = b""
        self.loader: Loader | None = None
        self.incompatible: IncompatiblePeer | None = None
        # The store of the server at --peer, if it was another one than ours before this server began to serve or to
        # follow. While this is set, the silence of that server is no reason to begin.
        self.foreign = b""
        self._said_at = LONG_AGO
        # The time when this server last took over by a hand-over.
        self.handed_over_at = LONG_AGO
        self.replay = Replay(turn, pair, committer)
        self.scrubber = Scrubber(self._committed, config.scrub_s, config.heartbeat_s)
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
        self.in_sync_since = turn.now
        self.backfill = Backfill(self._committed, config.peer_timeout_s)
        # The frame with the messages of the RECORD in hand.
        self._messages = b""
        # True if this turn opens an epoch.
        self.opens = False
        # Before this time the passive need not be checked for lateness. No turn is taken only for the check.
        self._late_at = turn.now
        # True if records of this turn wait until its epoch is in the journal.
        self._held_back = False

    # -- what other parts ask

    @property
    def ready(self) -> bool:
        """True if more could be sent to the passive at once."""
        return self._held_back or (self._pair.follower is not None and self._pair.follower.pump_ready)

    def reset(self) -> None:
        """Drop all work under way with the peer, because the state of this server has changed."""
        self._pair.follower = self.loader = self._ends_at = None
        self._pair.end_handover()
        self._pair.confirmed = 0
        self._wanted_at, self._whole = LONG_AGO, False

    def excuse(self) -> None:
        """Give the passive its full time again: this server took no turn for a while, and read no confirmations."""
        if self._pair.follower is not None:
            self._pair.follower.excuse(self._turn.now)

    def state_message(self) -> list[bytes]:
        """Return STATE, as it is sent each heartbeat."""
        return self._handshake.tell(room=not self.health.why)

    def bars(self, timeout_s: float) -> bool:
        """Return True if an incompatible peer was heard within `timeout_s`, so that this server must not begin."""
        return self.incompatible is not None and self._turn.now - self.incompatible.heard <= timeout_s

    @property
    def later_epoch(self) -> int:
        """The epoch above ours that a client has seen, or 0; the server that opened it may still serve."""
        pair = self._pair
        return 0 if pair.arbitration.enabled else pair.epochs.seen_above(self._committed.state.epoch)

    @property
    def waits_for(self) -> str:
        """The reason why an inactive server waits, with the remedy; "" if all is well."""
        pair, committed = self._pair, self._committed
        config = pair.config
        if pair.active or not config.has_peer:
            return ""
        if self.foreign and not self.bars(config.peer_timeout_s):
            return handshake.FOREIGN_MET.format(theirs=self.foreign.hex(), ours=committed.state.store.hex())
        if self.incompatible is not None and not pair.peer_lives():
            return f"the server at --peer can't be its peer: {self.incompatible.text}"
        if not pair.peer_lives() and pair.bstate is not PASSIVE and (epoch := self.later_epoch):
            return handshake.LATER_EPOCH.format(seen=epoch, ours=committed.state.epoch)
        return "" if committed.state.number or pair.peer_lives() else handshake.EMPTY

    # -- what comes in

    def message(self, frames: list[bytes], line: bytes) -> Asking | None:
        """Handle a message that came by a connection; raise `BadFrame` if it is malformed.

        Return None if the message is done; else return the work for it, a generator that asks for things in between.
        Any process may connect. So all messages but STATE and BEAT are taken from the peer's connection only.
        """
        kind = frames[0] if frames else b""
        handler = self._HANDLERS.get(kind)
        if handler is None or not 2 <= len(frames) <= 2 + (kind == follow.RECORD):
            raise BadFrame(f"peer message {frames[:1]!r:.40} with {len(frames)} frames is not known")
        self._speaks = line
        if kind not in QUIET:
            self._deadlines.set(LINK, self._turn.now)
        # A BEAT comes by a connection of its own, so `_on_beat` checks its server id instead.
        if kind not in OF_ANYBODY:
            if line != self.line:
                self._committer.counts["strangers"] += 1
                return None
            self._hear()
        self._messages = frames[2] if len(frames) > 2 else b""
        try:
            asking = handler(self, frames[1])
        except ILL_FORMED as error:
            raise _ill_formed(kind, error) from None
        return None if asking is None else _checked(kind, asking)

    def _hear(self) -> None:
        """Note that a message came from the peer: any of them shows that it lives."""
        turn, pair = self._turn, self._pair
        peer = pair.peer
        if peer is not None and not peer.left:
            peer.heard = turn.now
            pair.liveness.word(turn.now)

    def _on_state(self, body: bytes) -> Asking:
        turn, pair, committer, committed = self._turn, self._pair, self._committer, self._committed
        who = self._handshake.heard(body)
        pair.liveness.word(turn.now)
        if self._is_stranger(who):
            committer.counts["strangers"] += 1
            pair.note_possible_successor(who)
            turn.effects.fact("a stranger on the peer's port", "warning", name=who.name)
            return
        if isinstance(who, IncompatiblePeer):
            self._on_incompatible(who)
            return
        self.line = self._speaks
        before, pair.peer, self.incompatible, self._ends_at = pair.peer, who, None, None
        self.remember_foreign(b"")
        if before is None or before.server != who.server:
            self._on_new_peer(who)
        committer.view.version = min(VERSION, who.version)
        if who.at.store == committed.state.store:
            pair.epochs.hear(who.epoch)
        event = peer_event(
            peer_state=who.state,
            peer_number=who.number,
            peer_epoch=who.epoch,
            number=committed.state.number,
            epoch=committed.state.epoch,
            primary=pair.config.primary,
        )
        if pair.active and who.state is ACTIVE:
            self.replay.await_suffix()
        first = pair.arbitration.before() if who.state is not ACTIVE else None
        if first and not committed.state.number and who.number:
            # Our disk is new, so what this server had when the set was written is lost.
            first = None
        if first is not None:
            # The arbiter's set names one server alone. It has all that counts, whatever the numbers are.
            event = PairEvent.PEER_BEHIND if first else PairEvent.PEER_AHEAD
        yield event
        if who.state is not ACTIVE and who.at.store == committed.state.store:
            yield RiseAbove(who.epoch)
        self._want_if_behind()

    def _on_beat(self, body: bytes) -> None:
        beat, pair = BeatMessage.of(body), self._pair
        peer = pair.peer
        if peer is None:
            # The peer was in a long turn when this server started. Its STATE comes when that turn is done.
            pair.liveness.word(self._turn.now)
        if peer is None or (peer.secret or peer.server) != beat.server:
            # The BEAT may be of the peer's next run, which is in a long turn and whose first STATE has not come yet.
            if pair.note_possible_run(beat.at.store):
                pair.epochs.hear(epoch_of(beat.at.number))
        elif not peer.left:
            peer.turn_ms = beat.turn_ms
            self._hear()

    def _is_stranger(self, who: Peer | IncompatiblePeer) -> bool:
        """Return True if the peer is alive, and `who` speaks by another connection without a proof to be the peer.

        A peer whose connection broke repeats the secret that only the server at --peer is told. A peer that was started
        again names a position of our history with the right digest. A server on a copy of the peer's data directory can
        do so too. So a position is no proof while the peer's connection stands: a run that ends breaks its connection.
        """
        pair = self._pair
        if not pair.peer_lives() or self._speaks == self.line:
            return False
        if isinstance(who, IncompatiblePeer):
            return True
        if who.echo == pair.config.secret:
            return False
        return pair.peer_stands() or not self._committed.proves(who.at)

    def _on_new_peer(self, peer: Peer) -> None:
        """Begin with a new run of the peer: what its earlier run had confirmed, or was asked for, may be gone."""
        turn = self._turn
        turn.effects.fact("peer", state=peer.state.name.lower(), number=describe(peer.number), name=peer.name)
        self._pair.follower = self.loader = None
        self._wanted_at = LONG_AGO
        if different := self._handshake.differences(peer):
            text = {name: f"{ours} here, {theirs} there" for name, (ours, theirs) in different.items()}
            turn.effects.fact("settings differ", "warning", peer=peer.name, **text)

    def _on_incompatible(self, who: IncompatiblePeer) -> None:
        turn, pair = self._turn, self._pair
        before = self.incompatible
        self.incompatible = who
        again = before is not None and before.kind == who.kind and turn.now - self._said_at < SAY_AGAIN_S
        if not again:
            self._said_at = turn.now
            turn.effects.fact(handshake.EVENTS[who.kind], "warning", peer=who.name, why=who.text)
        begins = pair.bstate in (State.PRIMARY, State.BACKUP)
        if who.kind == "foreign" and begins:
            self.remember_foreign(who.store)
        if who.kind != "role" or not begins:
            self._ends_at = None
        elif self._ends_at is None:
            # This server does not end at once, so that the other one hears of it too.
            self._ends_at = turn.now + ENDS_AFTER_BEATS * pair.config.heartbeat_s

    def remember_foreign(self, store: bytes) -> None:
        """Remember the store of an incompatible peer, also for the next start: that server may be silent then."""
        if store != self.foreign:
            self.foreign = store
            self._turn.effects.journal.append(Remember(handshake.FOREIGN_STORE, store))

    def leave_message(self) -> list[bytes]:
        """Return LEAVE, the last message of a server that ends on purpose."""
        return [follow.LEAVE, self._pair.server]

    def _on_leave(self, body: bytes) -> None:
        pair = self._pair
        peer = pair.peer
        # Any other id is of an earlier run of the peer, which was started again since.
        if peer is not None and peer.server == body:
            peer.left = True
            pair.liveness.left()
            self._turn.effects.fact("peer left", name=peer.name)

    # -- the passive's side

    def _want_if_behind(self) -> None:
        pair = self._pair
        peer = pair.peer
        if pair.bstate is not PASSIVE or peer is None or peer.state is not ACTIVE:
            return
        behind = pair.replacing is None and (
            peer.at != self._committed.state.proof() or not peer.in_sync or self._whole
        )
        wait = pair.config.peer_timeout_s if peer.follows else pair.config.heartbeat_s
        # Each WANT makes the active begin its answer anew. So the wait doubles, or no answer would ever be complete.
        if behind and self._turn.now - self._wanted_at > wait * 2 ** max(0, self._unanswered - 1):
            self._want()

    def want_whole(self) -> None:
        """Ask for the active's whole state, whatever our number, because our contents differ from it."""
        self._whole = True
        self._want()

    def _on_scrub(self, body: bytes) -> None:
        turn = self._turn
        if (
            self.loader is None
            and self._pair.bstate is PASSIVE
            and self.scrubber.on_scrub(body, turn.effects, turn.now)
        ):
            self.want_whole()

    def _on_scrubbed(self, body: bytes) -> None:
        if self._pair.active:
            self.scrubber.on_scrubbed(body, self._turn.effects, self._turn.now)

    def drop_partial(self) -> None:
        """Forget the parts of a record that will never be complete, in the journal too."""
        if self._committed.drop_partial():
            self.backfill.dropped()
            self._turn.effects.journal.append(DropAfter(self._committed.state.number))

    def differences(self, peer: Peer) -> dict[str, list[Any]]:
        """Return the settings in which the two servers differ, each with our value and the peer's."""
        return self._handshake.differences(peer)

    def _want(self) -> None:
        turn, committed = self._turn, self._committed
        self._wanted_at, self.loader = turn.now, None
        self._unanswered = min(self._unanswered + 1, ASKED_MAX)
        # The active may have given this server up since, so it confirms again what it has.
        self._pair.confirmed = 0
        self.drop_partial()
        # STATE goes first, because the active may not have heard from this server since it started.
        turn.effects.to_peer.append(self.state_message())
        said = {"at": committed.state.proof(), "history": to_list(committed.state.history), "whole": self._whole}
        turn.effects.to_peer.append([follow.WANT, packb(said)])

    def _on_record(self, body: bytes) -> None:
        turn, pair, committed, pending = self._turn, self._pair, self._committed, self.pending
        if pair.bstate is not PASSIVE or self.loader is not None:
            return
        header, items = decode(body)
        if not isinstance(header, Batch | Epoch | Access | Commit):
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        if header.last <= committed.followed:
            return
        if header.prev != committed.followed:
            if turn.now - self._wanted_at > pair.config.heartbeat_s:
                self._want()
            return
        self._wanted_at, self._unanswered = turn.now, 0
        if isinstance(header, Access) and header.rules is not None:
            pending.end_rules(committed.state)
        try:
            record = committed.follow_decoded(header, items, body, turn.arrival)
        except BadFrame:
            # Other batches are staged here than the active has committed.
            self.want_whole()
            raise
        record.messages = self.backfill.came(self._messages)
        committed.keep(record, turn.effects)
        pending.published(header.origins if isinstance(header, Batch | Commit) else [], committed.followed_uuids())

    def _on_sync(self, body: bytes) -> None:
        turn = self._turn
        if self._pair.bstate is not PASSIVE:
            return
        self._wanted_at = turn.now
        if begins_snapshot(body):
            self.loader = Loader(self._committer.limits)
        if self.loader is None:
            # This chunk answers an earlier WANT. The answer to the last WANT begins with a first chunk.
            return
        self._unanswered = 0
        try:
            self.loader.add(body, turn.arrival)
        except BadFrame:
            self._want()
            raise
        turn.effects.to_peer.append([follow.MORE, pack(1)])

    def _on_end(self, body: bytes) -> Asking:
        """Take over the active's state. First read from the journal the shared messages, and those of our suffix."""
        pair = self._pair
        commits = self._committed
        if pair.bstate is not PASSIVE:
            return
        if self.loader is None and not self._unanswered:
            # This server has not asked for it, and reading it would take long.
            return
        # An END without chunks answers an earlier WANT, as in `_on_sync`, or is of a state without keys.
        earlier = self.loader is None
        loader = self.loader = self.loader or Loader(self._committer.limits)
        try:
            after = loader.finish(body, self._turn.arrival)
        except BadFrame:
            self.loader = None
            if earlier:
                return
            self._want()
            raise
        if commits.state.store not in (b"", after.store):
            self.loader = None
            raise BadFrame(f"a snapshot of store {after.store.hex()} came; this server has {commits.state.store.hex()}")
        if pair.is_stale(after.number):
            # This state answers a WANT of a time before this server was active.
            self._want()
            return
        common = after.common_number(commits.state.history)
        shared = common if pair.replacing is None else min(common, pair.replacing)
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
        turn, committed = self._turn, self._committed
        commits = committed
        self.loader = None
        self._wanted_at, self._unanswered, self._whole = turn.now, 0, False
        before, commits.state = commits.state, after
        if before.number > common:
            self.replay.part_with(common, before, messages)
        commits.begin_anew(before)
        self.pending.skip_rules(before, after)
        turn.effects.journal.append(Replace(commits.state.number, shared))
        # From now on the journal tells of the state before, until the shell has written this one.
        self._pair.replacing = shared
        self.backfill.replaced(spans)
        self._pair.confirmed = 0
        turn.effects.fact(
            "caught_up", number=describe(committed.state.number), keys=len(committed.state.map), by="snapshot"
        )

    @property
    def _are_two(self) -> bool:
        """True if one of the two servers follows the other."""
        return self._pair.bstate is PASSIVE or self._pair.in_sync()

    def _on_lack(self, body: bytes) -> None:
        if self._pair.active or self._pair.in_sync():
            self.backfill.on_lack(body, self._turn.effects)

    def _on_fill(self, body: bytes) -> None:
        if self._are_two:
            self.backfill.on_fill(body, self._turn.effects)

    def _on_handover(self, body: bytes) -> Asking:
        if unpack(body) == self._committed.state.number:
            yield PairEvent.HANDOVER
            self.handed_over_at = self._turn.now

    # -- the active's side

    def _on_want(self, body: bytes) -> Asking:
        turn, pair, committer, committed = self._turn, self._pair, self._committer, self._committed
        if not pair.active:
            return
        said = unpackb(body, "WANT", WANT_WEIGHT)
        at, history = Position.of(said["at"]), from_list(said["history"])
        if at.store not in (b"", committed.state.store):
            # The servers have different stores, as the peer's STATE has told.
            return
        after = at.number
        committer.commit(turn)
        yield RiseAbove(epoch_of(after))
        state, log, ours = committed.state, committed.log, committed.holds(at)
        if not ours:
            shared = describe(common(state.history, history))
            number = describe(state.number)
            turn.effects.fact("histories parted", "warning", common=shared, peer=at.describe(), number=number)
            committer.counts["parted"] += 1
            self.replay.await_suffix()
        throttle = Throttle(self.sets.pace, pair.config.slow_peer_s)
        # An empty server gets the state as a whole, so that it never serves a part of it.
        begun = after > 0 or len(log) <= 1
        known = log.reaches(after) and (committer.view.version >= COMMIT_SINCE or not log.has_commit_after(after))
        if ours and begun and not said.get("whole") and (known or after == state.number):
            pair.follower = Follower(committer.limits, after, state.number, throttle=throttle)
        else:
            # The journal of the passive begins after the records that staged these batches.
            state.staging.forget_numbers()
            chunks, rest = follow.whole_state(state, turn, committer.limits)
            pair.follower = Follower(committer.limits, state.number, state.number, chunks, throttle)
            pair.follower.with_state(rest)
        turn.effects.fact("catching_up", peer_number=describe(after), number=describe(state.number))

    def _on_more(self, body: bytes) -> None:
        if self._pair.follower is not None:
            self._pair.follower.credit = min(self._pair.follower.credit + unpack(body), follow.CREDIT)

    def _on_confirm(self, body: bytes) -> None:
        pair, follower = self._pair, self._pair.follower
        if follower is None or not pair.active:
            return
        turn, at = self._turn, Position.of(unpackb(body, "CONFIRM", QUESTION))
        if not self._committed.holds(at):
            # The passive has a suffix that it must give up, or its contents are damaged.
            if follower.in_sync:
                ours = describe(self._committed.state.number)
                self._committer.counts["diverged"] += 1
                turn.effects.fact("the passive differs", "warning", peer=at.describe(), number=ours)
                self._degrade(follower)
            return
        was = follower.in_sync
        follower.confirm(at.number, turn.now, pair.config.replica_timeout_s)
        if follower.in_sync and not was:
            turn.effects.fact("in_sync", number=describe(follower.confirmed))
            self._deadlines.beat_now(turn.now)
            self._deadlines.set(LINK, turn.now)

    def force(self) -> Generator[Ask, None, dict[str, Any]]:
        """Do `chp switch --force`: serve although the arbiter's set, a foreign store or a later epoch forbids it."""
        turn, pair, committed = self._turn, self._pair, self._committed
        if pair.active:
            raise BadInput("this server is active already")
        if self.foreign and not pair.arbitration.enabled:
            return (yield from self._force_beside_a_foreign_store())
        if not pair.arbitration.enabled:
            return (yield from self._force_below_an_epoch())
        if pair.peer_lives() and pair.peer is not None and pair.peer.state is ACTIVE:
            raise BadInput("the other server is active; switch without --force")
        lost = pair.arbitration.lost(committed.state.number)
        pair.arbitration.force(turn.now)
        turn.effects.fact("forced", "warning", number=describe(committed.state.number), lost=lost)
        return {"forced": True, "number": describe(committed.state.number), "lost": lost}

    def _force_below_an_epoch(self) -> Generator[Ask, None, dict[str, Any]]:
        turn, pair, committed = self._turn, self._pair, self._committed
        epoch = self.later_epoch
        if pair.bstate is PASSIVE or not epoch:
            raise BadInput("there is no arbiter to overrule; a passive takes over when its peer is silent")
        if pair.liveness.may_be_there(turn.now):
            raise BadInput("the server at --peer runs; stop it first, or let the two go on together")
        lost = (
            f"the updates of epoch {epoch} that this server lacks; they are accounted for if the other server returns"
        )
        turn.effects.fact("forced", "warning", number=describe(committed.state.number), lost=lost)
        yield PairEvent.FORCED
        return {"forced": True, "number": describe(committed.state.number), "lost": lost}

    def _force_beside_a_foreign_store(self) -> Generator[Ask, None, dict[str, Any]]:
        committed = self._committed
        foreign = self.foreign.hex()
        if self.bars(self._pair.config.peer_timeout_s):
            raise BadInput(f"the server at --peer runs, and holds the store {foreign}; stop it first")
        lost = f"nothing of this store ({committed.state.store.hex()}); what {foreign} holds is not taken over"
        self._turn.effects.fact("forced", "warning", number=describe(committed.state.number), lost=lost)
        yield PairEvent.FORCED
        return {"forced": True, "number": describe(committed.state.number), "lost": lost}

    def switch(self) -> dict[str, Any]:
        """Do `chp switch`: ask the passive to take over, and take no sets until it has, or until its time is over."""
        turn, pair, committer, committed = self._turn, self._pair, self._committer, self._committed
        if not pair.active:
            raise BadInput("this server is not active; ask the other one to switch")
        if not pair.in_sync():
            raise BadInput(
                "the passive is not in sync, so a switch would lose sets; wait until `chp status` shows that it is"
            )
        if not pair.arbitration.both:
            raise BadInput("the arbiter's set does not name the passive yet; try again in a moment")
        committer.write_refusals(turn.arrival)
        committer.commit(turn)
        until = turn.now + pair.config.peer_timeout_s
        pair.begin_handover(until)
        self._deadlines.set(HANDOVER, until)
        turn.effects.fact("handover", number=describe(committed.state.number))
        return {"switching": True, "number": describe(committed.state.number)}

    # -- the end of a turn

    def end_turn(self, *, look: bool) -> None:
        """Send what this turn made; `look` says that the peer may have changed, or that a heartbeat is due.

        Records are sent while the journal writes them. A turn that opens an epoch is the exception: its records are
        first written to the journal, and then sent to the peer. Otherwise a server that died in between could open
        another epoch of the same number, while the passive has the first one. And if the disk is full, this server does
        not become active: a peer that knew of the epoch would have given way for nothing.
        """
        turn, pair, committed = self._turn, self._pair, self._committed
        state = committed.state
        if state.number != pair.confirmed and pair.bstate is PASSIVE:
            self._confirm()
        if look:
            self._look()
        if look or state.topics.changed:
            whole = self.loader is None and pair.replacing is None
            self.backfill.end_turn(turn.effects, turn.now, asks=whole and pair.peer_lives() and self._are_two)
        follower, self._held_back = pair.follower, False
        if follower is None:
            committed.log.pin = None
            return
        if self.opens:
            self._held_back = True
        else:
            if follower.position != state.number or follower.pump_ready:
                turn.effects.to_peer += follower.pump(committed.log, turn.now)
            if look or turn.now >= self._late_at or follower.lost or pair.handover_until is not None:
                self._watch(follower)
        committed.log.pin = None if pair.follower is None else follower.position

    def _look(self) -> None:
        """Do what is due: end a server of the wrong role, hand over a suffix, note whether the pair is in sync."""
        if self._ends_at is not None and self._turn.now >= self._ends_at and self.incompatible is not None:
            self.ends = self.incompatible.text
        self.replay.hand_over()
        self._note_sync()

    def _note_sync(self) -> None:
        turn, pair = self._turn, self._pair
        if pair.in_sync() != self._was_in_sync:
            self._was_in_sync, self.in_sync_since = not self._was_in_sync, turn.now
            if self._was_in_sync and pair.bstate is PASSIVE:
                turn.effects.fact("in_sync", number=describe(self._committed.state.number))

    def _watch(self, follower: Follower) -> None:
        """Give up a passive that is lost or late. Otherwise go on with a hand-over, or with the scrub."""
        turn, pair = self._turn, self._pair
        timeout_s = pair.config.replica_timeout_s
        overdue = follower.in_sync and follower.overdue(turn.now, timeout_s)
        slow = follower.is_slow(turn.now, waits=bool(self.sets.queue.sessions))
        if follower.lost or overdue or slow or not pair.peer_is_prompt():
            self._degrade(follower)
            return
        if pair.is_handing_over():
            turn.effects.to_peer.append([follow.HANDOVER, pack(self._committed.state.number)])
        else:
            self.scrubber.go_on(follower, turn.effects, turn.now)
        silent_at = pair.peer.heard + pair.config.peer_timeout_s if pair.peer is not None else turn.now
        self._late_at = min(silent_at, follower.overdue_at(timeout_s) if follower.in_sync else silent_at)

    def _confirm(self) -> None:
        """Confirm to the active what our journal has, unless a new state is on its way.

        While the journal still tells of another state, the confirmation does not leave (performing.py).
        """
        pair, committed = self._pair, self._committed
        if self.loader is None:
            pair.confirmed = committed.state.number
            self._turn.effects.confirm.append(follow.confirm(committed.state.proof()))

    def _degrade(self, follower: Follower) -> None:
        turn = self._turn
        if follower.in_sync:
            numbers = {"number": describe(self._committed.state.number), "confirmed": describe(follower.confirmed)}
            turn.effects.fact("degraded", "warning", **numbers)
            self._committer.counts["degraded"] += 1
        self._pair.follower = None
        self._note_sync()
        self._deadlines.beat_now(turn.now)

    _HANDLERS: ClassVar[dict[bytes, Callable[[PeerLink, bytes], Asking | None]]] = {
        follow.STATE: _on_state, follow.WANT: _on_want, follow.RECORD: _on_record, follow.SYNC_CHUNK: _on_sync,
        follow.END: _on_end, follow.MORE: _on_more, follow.CONFIRM: _on_confirm, follow.HANDOVER: _on_handover,
        follow.REPLAY: lambda self, body: self.replay.on_replay(body),
        follow.REPLAYED: lambda self, body: self.replay.on_replayed(body), follow.LEAVE: _on_leave, BEAT: _on_beat,
        SCRUB: _on_scrub, SCRUBBED: _on_scrubbed,
        LACK: _on_lack, FILL: _on_fill,
    }  # fmt: skip
