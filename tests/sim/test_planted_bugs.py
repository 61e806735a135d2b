"""Each checker catches a bug that is planted for it: a checker that never fires proves nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp.access import Rules, Sides
from chp.batch import Segment, decode, decode_options, decode_segment
from chp.errors import BadFrame
from chp.fair import FairTable
from chp.hashmap import Hashmap
from chp.headers import Batch
from chp.unpacking import Load
from chp_client.core import outbox, question
from chp_client.core import session as sending
from chp_client.core.copy.channel import CopyChannel
from chp_client.core.copy.subscriptions import Subscriptions
from chp_client.core.core import ClientCore
from chp_client.core.leadership import Leadership
from chp_server.access.keyring import Keyring
from chp_server.access.subscription_authorizer import SubscriptionAuthorizer
from chp_server.core import core as server_core
from chp_server.core import performing
from chp_server.core.core import ServerCore
from chp_server.core.pair import pending
from chp_server.core.pair.arbitration import Arbitration
from chp_server.core.pair.beat import BeatTimer
from chp_server.core.pair.follow import Follower, Loader
from chp_server.core.pair.liveness import Liveness
from chp_server.core.pair.pair_state import PairState
from chp_server.core.peer.handshake import Handshake
from chp_server.core.peer.peerlink import PeerLink
from chp_server.core.peer.replay import Replay
from chp_server.core.peer.suffix import Ledger, SuffixPart
from chp_server.core.performing import Step
from chp_server.core.questions import requests, syncs
from chp_server.core.questions.access_changes import AccessChanges
from chp_server.core.questions.feeds import Feeds
from chp_server.core.questions.replicas import Replicas
from chp_server.core.questions.requests import Requests
from chp_server.core.release import AckRelease
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.access_state import AccessState
from chp_server.core.state.deferred import DeferredCommit
from chp_server.core.state.groups import without_positions
from chp_server.core.state.history import EpochEntry
from chp_server.core.state.image import Gathering
from chp_server.core.state.leases import LeaseOwner, LeaseTable
from chp_server.core.state.missing_messages import MissingMessages
from chp_server.core.state.staging import Staging
from chp_server.core.state.state import ReplicatedState
from chp_server.core.state.verdicts import Accept, Duplicate, Refuse, Unrecorded
from chp_server.core.updates import commit, intake
from chp_server.core.updates.acks import Acks
from chp_server.core.updates.authorizer import Authorizer
from chp_server.core.updates.channels import PublishedChannel as ServedChannel
from chp_server.core.updates.commit import Committer
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.listeners import Listeners
from chp_server.core.updates.open_record import OpenRecord
from chp_server.core.updates.refusals import UnloggedRefusals
from chp_server.core.updates.turn import Turn
from chp_server.store.memory_store import MessageShelf
from tests.scenarios.test_scenarios import HERE as SCENARIOS
from tests.scenarios.test_scenarios import play
from tests.sim import bursts, model_client, servers
from tests.sim.access import Manual
from tests.sim.arbiter import SESSION_S, Line
from tests.sim.checks import Checks
from tests.sim.disk import Disk
from tests.sim.network import Conn
from tests.sim.oracle import Wrong
from tests.sim.run import run_plan
from tests.sim.schedule import (
    Plan,
    plan,
    with_arbiter,
    with_bursts,
    with_copies,
    with_feed,
    with_full_disks,
    with_mistakes,
    with_rules,
    with_slow_machines,
    with_splits,
)
from tests.sim.servers import ServerNode
from tests.sim.world import World

# The rarest bug shows in one of about 120 seeds, and any change of the code moves it to another seed.
SEEDS_TO_TRY = 1000
# The weight of the records that a body may carry with `light_bodies`, the weight of the body's head, and a seed whose
# reader of the feed gets some records.
RECORDS_WEIGHT, HEAD_WEIGHT, LIGHT_SEED = 2000, 1024, 3
# The error of a planted function that is called with arguments which it does not take.
MISFIT = re.compile(r"TypeError: .* argument")
Plant = Callable[[pytest.MonkeyPatch], None]


# This file has the seed in which each bug was seen last. That seed is tried first, to save minutes, and the others only
# if the bug has moved. `pytest --rewrite tests/sim/test_planted_bugs.py` in one process tries all seeds in order, and
# notes the first one that shows each bug.
SEEN_IN = Path(__file__).with_name("seen_in.json")
Found = Callable[..., str]


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Found:
    """The search for a planted bug. It notes the seed if `--rewrite` is given."""
    rewrites = bool(request.config.getoption("--rewrite"))
    seen = json.loads(SEEN_IN.read_text())

    def look(plant: Plant, word: str, *, way: Callable[[Plan], Plan] = lambda made: made) -> str:
        seed, error = search(word, None if rewrites else seen.get(plant.__name__), way)
        if rewrites:
            SEEN_IN.write_text(json.dumps({**seen, plant.__name__: seed}, indent=1, sort_keys=True) + "\n")
        return error

    return look


def search(word: str, first: int | None, way: Callable[[Plan], Plan]) -> tuple[int, str]:
    """Return the first seed, among many, whose error says `word`, and the error. `way` adds faults to each plan."""
    said = []
    for seed in (*([] if first is None else [first]), *range(SEEDS_TO_TRY)):
        error = run_plan(way(plan(seed))).error
        if word in error:
            return seed, error
        assert not MISFIT.search(error), f"the planted bug does not fit the code that it replaces: {error}"
        said.append(error)
    raise AssertionError(f"no checker said {word!r}; they said {set(filter(None, said))}")


def wrap(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put `around(original, *args)` in the place of a method."""
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: around(original, *args, **more))


def order(mp: pytest.MonkeyPatch, first: Step, then: Step) -> None:
    """Do `first` just before `then`, in the order in which servers perform their turns."""
    moved = next(item for item in performing.ORDER if item[0] is first)
    rest = [item for item in performing.ORDER if item[0] is not first]
    at = next(i for i, (step, *_) in enumerate(rest) if step is then)
    mp.setattr(performing, "ORDER", (*rest[:at], moved, *rest[at:]))


def told_before_the_copy_holds_it(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Subscriptions, "lacking", lambda self, batch, upto: [])


def published_before_the_sync(mp: pytest.MonkeyPatch) -> None:
    order(mp, Step.PUBLISH, Step.SYNC)


def acknowledged_before_the_sync(mp: pytest.MonkeyPatch) -> None:
    order(mp, Step.ACKS, Step.SYNC)


def confirmed_before_the_sync(mp: pytest.MonkeyPatch) -> None:
    order(mp, Step.CONFIRM, Step.SYNC)


def goes_on_without_room(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(performing, "_when_there_is_room", lambda turn, ports: iter(()))


def snapshot_goes_on_after_an_error(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Snapshotter, "give_up", lambda self, until: None)


def sync_forgotten(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(performing, "ORDER", tuple(item for item in performing.ORDER if item[0] is not Step.SYNC))


def stopped_and_acknowledges_all_the_same(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(AckRelease, "may_leave", lambda self, acks, began, now: acks)


def beats_vouch_for_an_unfinished_turn(mp: pytest.MonkeyPatch) -> None:
    def end_turn(original: Any, self: ServerCore) -> Any:
        turn = original(self)
        self.link.beat_timer.done(self.pair.bstate, self.state.proof())
        return turn

    wrap(mp, ServerCore, "end_turn", end_turn)


def beats_go_on_while_stuck(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(BeatTimer, "stuck", lambda self, now: False)


def busy_and_silent(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(BeatTimer, "due", lambda self, now, used_s: None)


def recovery_forgets_the_last_row(mp: pytest.MonkeyPatch) -> None:
    def load(original: Any, self: Disk) -> Any:
        loaded = original(self)
        return replace(loaded, rows=iter(list(loaded.rows)[:-1]))

    wrap(mp, Disk, "load", load)


def reissued_epoch(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(server_core, "next_epoch", lambda seen, odd: 1 if odd else 2)


def duplicates_applied(mp: pytest.MonkeyPatch) -> None:
    def judge(original: Any, frames: list[bytes], view: intake.StateView, open_record: OpenRecord, now: float) -> Any:
        verdict = original(frames, view, open_record, now)
        if isinstance(verdict, Duplicate) and verdict.batch is not None:
            return intake._judge_next(verdict.batch, frames, view, open_record)
        return verdict

    wrap(mp, commit, "judge", judge)


def acknowledged_before_the_disk(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Disk, "sync", lambda self: None)


def replicated_without_confirmation(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, Acks, "release", lambda original, self, turn, confirmed, number: original(self, turn, 1 << 63, number))


def copies_are_not_waited_for(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Replicas, "confirmed_by", lambda self, n: 1 << 62)
    # The disks are not counted at the acknowledgement, so the loss of two of three has to show it.
    mp.setattr(Checks, "_copies_there", lambda *asked: None)


def passive_confirms_what_it_lacks(mp: pytest.MonkeyPatch) -> None:
    def confirm(self: Follower, *_: Any) -> None:
        self.confirmed, self.in_sync = 1 << 62, True

    mp.setattr(Follower, "confirm", confirm)


def passive_forgets_a_record(mp: pytest.MonkeyPatch) -> None:
    wrap(
        mp,
        Hashmap,
        "apply",
        lambda original, self, segment, revision, now: revision % 7 and original(self, segment, revision, now),
    )


def part_of_a_snapshot(mp: pytest.MonkeyPatch) -> None:
    def finish(original: Any, self: Loader, body: bytes, now: float) -> Any:
        if self.state.map.values:
            key = min(self.state.map.values)
            self.state.map.values[key] = b"planted"
        return original(self, body, now)

    wrap(mp, Loader, "finish", finish)


def journal_lacks_a_row(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, Disk, "append", lambda original, self, rows: original(self, [row for row in rows if row.last % 11]))


def client_ignores_holes(mp: pytest.MonkeyPatch) -> None:
    def on_batch(original: Any, self: CopyChannel, header: Batch, *args: Any, **named: Any) -> Any:
        return original(self, header.after(min(header.prev, self.at), header.origins), *args, **named)

    wrap(mp, CopyChannel, "on_batch", on_batch)


def channel_forgets_what_it_carried(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, ServedChannel, "carried", lambda original, self, crc: crc % 7 and original(self, crc))


def passive_differs_in_a_value(mp: pytest.MonkeyPatch) -> None:
    """Plant a wrong value with the right key and revision, and turn off the checker that would find the value.

    The pair has to find the value itself.
    """

    def follow(original: Any, self: Committed, *args: Any, **more: Any) -> Any:
        record = original(self, *args, **more)
        values = self.state.map.values
        if "/a/1" in values:
            values["/a/1"] = b"planted"
        return record

    wrap(mp, Committed, "follow_decoded", follow)
    mp.setattr(Checks, "_same_as_oracle", lambda *_: None)


def marks_not_looked_at(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ServerCore, "_miss", lambda self, event: setattr(self.pair, "high_water_mark", 0))


def client_keeps_deleted_keys(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, Hashmap, "deleted_by", lambda original, self, segment: ())


def client_never_votes(mp: pytest.MonkeyPatch) -> None:
    def later(self: Leadership, now: float) -> list[object]:
        self.vote_at = now + 0.2
        return []

    mp.setattr(Leadership, "electorate", later)


def passive_never_asks(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(PeerLink, "_want_if_behind", lambda self: None)


def stale_active_goes_on(mp: pytest.MonkeyPatch) -> None:
    wrap(
        mp,
        ServerCore,
        "_step",
        lambda original, self, event: (
            None if event.name == "PEER_ACTIVE_HIGHER" and self.active else original(self, event)
        ),
    )

    def release(self: AckRelease, turn: Turn, confirmed: int | None, number: int) -> None:
        self._acks.release_alone(turn, number)

    mp.setattr(AckRelease, "end_turn", release)


def ttl_too_short(mp: pytest.MonkeyPatch) -> None:
    def early(original: Any, self: Hashmap, keys: list[str], deadline: float, now: float) -> None:
        original(self, keys, deadline - 0.6, now)

    wrap(mp, Hashmap, "set_deadlines", early)


def rest_of_a_lease_forgotten(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: only the first slice of a lease's keys goes."""
    mp.setattr(Committer, "delete_ended", lambda self, lease_id, now: None)


def lets_a_key_go_that_was_set_anew(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: the keys of a lease are listed when it ends, and all of the list are deleted."""
    listed: dict[tuple[int, bytes], list[str]] = {}

    def some_keys(original: Any, self: LeaseTable, lease_id: bytes, most: int) -> list[str]:
        left = listed.setdefault((id(self), lease_id), original(self, lease_id, 1 << 30))
        some, left[:most] = left[:most], []
        return some or original(self, lease_id, most)

    wrap(mp, LeaseTable, "some_keys", some_keys)


def conditions_not_checked(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(intake, "_check_conditions", lambda segment, extras, state: None)


def refusals_forgotten(mp: pytest.MonkeyPatch) -> None:
    def judge_again(original: Any, *args: Any) -> Any:
        verdict = original(*args)
        return replace(verdict, refusal=None) if isinstance(verdict, Duplicate) else verdict

    wrap(mp, intake, "_judge_again", judge_again)


def goes_back(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ServerCore, "_rise_above", lambda self, epoch: None)


def replay_forgets_sessions(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, SuffixPart, "to_replay", lambda original, self: [[], *original(self)[1:]])


def heard_is_taken_for_done(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Ledger, "_refused", staticmethod(lambda origins, state: ""))


def replay_takes_nothing(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Replay, "_take", lambda self, takeover, pieces: [])


def lease_not_asked_for(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Arbitration, "leased", lambda self, now: True)


def lease_outlives_its_session(mp: pytest.MonkeyPatch) -> None:
    def answered(original: Any, self: Line, asked: float, *more: Any) -> None:
        original(self, asked + 10 * SESSION_S, *more)

    wrap(mp, Line, "_answered", answered)


def lease_not_looked_at_before_acknowledging(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(AckRelease, "may_leave", lambda self, acks, began, now: acks)


def sessions_are_told(mp: pytest.MonkeyPatch) -> None:
    for module, name in ((pending, "public_session"), (outbox, "public_session"), (model_client, "public")):
        mp.setattr(module, name, lambda session: session)


def spins(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ClientCore, "_put_off", lambda self, until: None)


def empty_server_serves(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ServerCore, "_may_begin", lambda self, event: True)


def history_compared_by_number(mp: pytest.MonkeyPatch) -> None:
    """Plant the behaviour of 0.1: histories are compared without their store and the openers of epochs."""
    wrap(
        mp,
        Handshake,
        "_incompatible",
        lambda original, self, peer: found if (found := original(self, peer)) and found.kind == "role" else None,
    )
    mp.setattr(
        Committed,
        "holds",
        lambda self, proof: proof.number <= self.state.history.get(proof.number >> 48, EpochEntry(-1)).last,
    )


def roles_not_compared(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Handshake, "_incompatible", lambda self, peer: None)


def being_alone_is_enough(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a server with another pair's disk begins once the right server is dead."""
    mp.setattr(PeerLink, "remember_foreign", lambda self, store: None)


def foreign_store_is_forgotten(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a server with another pair's disk forgets at its next start that it met the right server."""
    mp.setattr(Disk, "get_meta", lambda self, key: None)


def silence_counts_from_the_start(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: the time of a recovery or a stop, in which a server hears nothing, counts as silence of the peer."""
    begin_turn = ServerCore.begin_turn

    def begins(self: ServerCore, *args: Any) -> None:
        since = self.pair.listens_since
        begin_turn(self, *args)
        self.pair.listens_since = since

    mp.setattr(ServerCore, "begin_turn", begins)


def strangers_need_no_proof(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: any program that claims to be the peer is taken for it."""
    mp.setattr(PeerLink, "_is_stranger", lambda self, who: False)


def refusals_without_a_row_forgotten(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a batch that was refused for want of room, and comes again, is taken for done."""
    mp.setattr(UnloggedRefusals, "get", lambda self, session_id, no: None)


def a_sync_needs_room(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a read-only server refuses an empty batch too."""

    def judge(original: Any, batch: Any, *args: Any) -> Any:
        verdict = original(batch, *args)
        return Refuse(batch, "full", "read-only: disk full") if isinstance(verdict, Unrecorded) else verdict

    wrap(mp, intake, "_judge_next", judge)


def a_sync_waits_for_no_copy(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a client settles a `sync` before its copy has reached the acknowledged number."""

    def lacking(original: Any, self: Subscriptions, batch: Any, upto: int) -> Any:
        return original(self, batch, upto) if batch.keys or batch.extras else []

    wrap(mp, Subscriptions, "lacking", lacking)


def messages_are_not_filled_in(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a passive drops the messages that it has asked for."""
    wrap(mp, MissingMessages, "fill", lambda original, self, body: (original(self, body), [])[1])


def messages_of_another_history_stay(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a passive that takes over a state keeps messages of records that are no part of it."""
    mp.setattr(MessageShelf, "drop_after", lambda self, number: None)


def silence_alone_decides(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a passive takes over from a slow active after peer_timeout_s, though their connection stands."""
    mp.setattr(Liveness, "_stands_since", lambda self, heard: False)


def a_start_ignores_who_is_busy(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a server that starts ignores each BEAT that comes before the first STATE."""

    def on_beat(original: Any, self: PeerLink, body: bytes) -> None:
        if self._pair.peer is not None:
            original(self, body)

    wrap(mp, PeerLink, "_on_beat", on_beat)
    mp.setitem(PeerLink._HANDLERS, b"BEAT", PeerLink._on_beat)


def a_start_ignores_what_clients_have_seen(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a server begins alone although a client has told it of a higher epoch."""
    mp.setattr(PeerLink, "later_epoch", 0)


def a_session_is_opened_where_a_server_lacks_batches(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a client sends batches in a new session which the other server may have done and may replay."""
    mp.setattr(sending, "SKIPS_MAX", 0)
    mp.setattr(model_client, "SKIPS_MAX", 0)


def what_was_skipped_is_taken_for_done(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a server that did later batches of a session replays none of the skipped ones."""
    mp.setattr(ReplicatedState, "skipped", lambda self, session_id, no: False)


def skips_are_not_told(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: the record of a batch does not say which batches before it were skipped."""
    mp.setattr(Committer, "_note_skip", lambda self, batch, now: None)


def a_slice_of_a_commit_overwrites_a_later_set(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(DeferredCommit, "note", lambda self, keys: None)


def a_commit_is_read_before_its_last_slice(mp: pytest.MonkeyPatch) -> None:
    def begin(self: ReplicatedState, images: Any, undone: Any = ()) -> Gathering:
        gathering = Gathering(self.map_so_far, images, self.leaving, self.limits, undone)
        self._gathering += () if gathering.done else (gathering,)
        return gathering

    mp.setattr(ReplicatedState, "_begin", begin)


def versions_are_not_looked_at_in_a_suffix(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a version that a program counted at both servers counts twice."""
    mp.setattr(Ledger, "_counted", lambda self, piece, state, counted: "")


WAYS: dict[Plant, Callable[[Plan], Plan]] = {
    copies_are_not_waited_for: with_copies,
    **dict.fromkeys((lease_not_asked_for, lease_outlives_its_session), with_arbiter),
    lease_not_looked_at_before_acknowledging: lambda made: with_bursts(with_arbiter(made), bursts.late_answers),
    **dict.fromkeys((empty_server_serves, history_compared_by_number, roles_not_compared, being_alone_is_enough,
                     foreign_store_is_forgotten), with_mistakes),
    **dict.fromkeys((refusals_without_a_row_forgotten, a_sync_needs_room, a_sync_waits_for_no_copy), with_full_disks),
    **dict.fromkeys((silence_alone_decides, a_start_ignores_who_is_busy, a_start_ignores_what_clients_have_seen),
                    with_slow_machines),
    **dict.fromkeys((a_session_is_opened_where_a_server_lacks_batches, what_was_skipped_is_taken_for_done,
                     skips_are_not_told, versions_are_not_looked_at_in_a_suffix), with_splits),
}  # fmt: skip


def test_a_replay_that_forgets_the_sessions_of_its_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario shows this bug each time, while only one seed in thousands does."""
    replay_forgets_sessions(monkeypatch)
    with pytest.raises(Wrong, match="more than once"):
        play((SCENARIOS / "bug-replayed-and-sent-again.txt").read_text())


def a_version_is_replayed_in_part(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: if one key of a version has a conflict, its other keys are set again without the version."""

    def decide(original: Any, self: Ledger, piece: SuffixPart, *args: Any, **more: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SuffixPart, "version", None)
            original(self, piece, *args, **more)

    wrap(mp, Ledger, "_decide", decide)


def test_a_version_that_is_replayed_in_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario shows this bug each time, while only one seed in a thousand does."""
    a_version_is_replayed_in_part(monkeypatch)
    with pytest.raises(Wrong, match="more than once"):
        play((SCENARIOS / "bug-version-in-part.txt").read_text())


def a_possible_successor_is_not_waited_for(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a server that was stopped acknowledges beside a stranger that may be its successor."""

    def note(original: Any, self: PairState, who: Any) -> None:
        hold_until = self.hold_until
        original(self, who)
        self.hold_until = hold_until

    wrap(mp, PairState, "note_possible_successor", note)


def test_a_server_that_does_not_wait_for_a_possible_successor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario shows this bug each time. The bug needs lost messages just after a stop, which few seeds have."""
    a_possible_successor_is_not_waited_for(monkeypatch)
    with pytest.raises(Wrong, match="a possible successor told of epoch"):
        play((SCENARIOS / "bug-successor-is-a-stranger.txt").read_text())


PARTED = """client c1 model all | client c2 model all | start P | start B | start c1 | start c2 | tick 3
set c1 /a | tick 0.5 | cut P>B | cut B>P | cut c2>P | cut P>c2 | cut c1>B | cut B>c1 | tick 3 | set c1 /b | tick 0.5
crash P at saves | crash c1 | heal P>B | heal B>P | tick 2 | settle 15"""


def test_a_suffix_file_that_is_written_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's suffix must stay in its journal until the file is written, since the server may die just before."""
    commands = [command.strip() for line in PARTED.splitlines() for command in line.split("|")]

    def run() -> None:
        world = World()
        for command in commands:
            world.do(command)

    run()
    order(monkeypatch, Step.SAVES, Step.PUBLISH)
    with pytest.raises(Wrong, match="no account tells of /b"):
        run()


NO_ROOM = ["client c1 model all", "start P", "start B", "start c1", "tick 3",
           "set c1 " + " ".join(f"/k/{i}" for i in range(60)), "tick 0.5", "set c1 /a", "tick 0.04",
           "disk P none", "set c1 /b", "tick 0.3", "disk P room", "tick 3", "settle 15"]  # fmt: skip


def test_a_snapshot_that_goes_on_after_an_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk becomes full in the middle of a snapshot of sixty chunks. Few seeds have that."""

    def run() -> None:
        world = World(random_delays=True)
        world.limits = replace(world.limits, sync_chunk_items=1)
        for node in world.servers:
            node.disk.snapshot_every = 3
        for command in NO_ROOM:
            world.do(command)

    run()
    snapshot_goes_on_after_an_error(monkeypatch)
    with pytest.raises(Wrong, match="no snapshot is under way"):
        run()


DENIED = ["keyed", "client c1 model all", "start P", "start B", "start c1", "tick 3",
          # While B is down, its copy of the set's message is queued.
          "crash B", "tick 2", "access grant c2 write /", "tick 0.5", "set c1 /lin/x", "tick 0.5",
          "start B", "tick 2", "crash P", "start P", "tick 2", "access open", "tick 0.5",
          "crash P", "tick 4", "start P", "settle 15"]  # fmt: skip


def test_a_refused_set_that_is_done_under_later_rules_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that the rules refused stays refused, though the active died and the passive still has the set (seed
    51118).
    """

    def run() -> None:
        world = World()
        world.gentle = True
        world.queues_while_down.add("set")
        for command in DENIED:
            world.do(command)

    run()
    monkeypatch.setattr(pending.PendingList, "end_rules", lambda self, state: None)
    with pytest.raises(Wrong, match="was refused"):
        run()


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (published_before_the_sync, "publishes"),
        (acknowledged_before_the_sync, "does not hold it"),
        (confirmed_before_the_sync, "confirms"),
        (goes_on_without_room, "publishes"),
        (sync_forgotten, "its journal ends at"),
        (stopped_and_acknowledges_all_the_same, "acknowledges in epoch"),
        (beats_vouch_for_an_unfinished_turn, "vouches for"),
        (beats_go_on_while_stuck, "is stuck for"),
        (busy_and_silent, "takes over, and"),
        (silence_alone_decides, "by a connection that stands"),
        (a_start_ignores_who_is_busy, "begins alone, though"),
        (a_start_ignores_what_clients_have_seen, "though a client told it of epoch"),
        (recovery_forgets_the_last_row, "journal"),
        (empty_server_serves, "issued twice"),
        (history_compared_by_number, "foreign store"),
        (roles_not_compared, "role of the other"),
        (being_alone_is_enough, "foreign store"),
        (foreign_store_is_forgotten, "foreign store"),
        (silence_counts_from_the_start, "begins alone"),
        (reissued_epoch, "issued twice"),
        (duplicates_applied, "more than once"),
        (acknowledged_before_the_disk, "does not hold it"),
        (replicated_without_confirmation, "does not hold it"),
        (copies_are_not_waited_for, ", and is lost"),
        (passive_confirms_what_it_lacks, "does not hold it"),
        (passive_forgets_a_record, "was right"),
        (a_slice_of_a_commit_overwrites_a_later_set, "was right"),
        (a_commit_is_read_before_its_last_slice, "chunks of the snapshot"),
        (part_of_a_snapshot, "was right"),
        (journal_lacks_a_row, "journal"),
        (client_ignores_holes, "has other revisions"),
        (channel_forgets_what_it_carried, "other digests"),
        (passive_differs_in_a_value, "contents differ"),
        (marks_not_looked_at, "is lost"),
        (client_keeps_deleted_keys, "was right"),
        (client_never_votes, "was gone"),
        (passive_never_asks, "not in sync"),
        (stale_active_goes_on, "acknowledges in epoch"),
        (ttl_too_short, "expires"),
        (rest_of_a_lease_forgotten, "wakes again and again"),
        (lets_a_key_go_that_was_set_anew, "set anew"),
        (conditions_not_checked, "was to be set only at"),
        (refusals_forgotten, "acknowledged"),
        (goes_back, "goes back"),
        (replay_takes_nothing, "was to be replayed"),
        (heard_is_taken_for_done, "there already"),
        (lease_not_asked_for, "is active in epoch"),
        (lease_outlives_its_session, "is active in epoch"),
        (lease_not_looked_at_before_acknowledging, "acknowledges in epoch"),
        (spins, "spins"),
        (told_before_the_copy_holds_it, "its copy is older"),
        (sessions_are_told, "does not hold it"),
        (strangers_need_no_proof, "takes a stranger for its peer"),
        (refusals_without_a_row_forgotten, "a record that does not hold it"),
        (a_sync_needs_room, "is refused a sync"),
        (a_sync_waits_for_no_copy, "has synced, and is at"),
        (messages_are_not_filled_in, "has the offsets"),
        (messages_of_another_history_stay, "of topic"),
        (a_session_is_opened_where_a_server_lacks_batches, "more than once"),
        (what_was_skipped_is_taken_for_done, "there already"),
        (skips_are_not_told, "there already"),
        (versions_are_not_looked_at_in_a_suffix, "more than once"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str) -> None:
    plant(monkeypatch)
    found(plant, word, way=WAYS.get(plant, lambda made: made))


def who_is_denied_hears_on(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(SubscriptionAuthorizer, "look", lambda self, rules, removals, cut_off: None)


def cut_off_after_the_turn(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a turn that changes the rules publishes its records before it cuts connections."""

    def around(original: Any, core: Any, turn: Any, ports: Any) -> Any:
        cut, ports.cut_denied = ports.cut_denied, lambda: None
        try:
            yield from original(core, turn, ports)
        finally:
            ports.cut_denied = cut
            cut()

    wrap(mp, servers, "steps", around)


def refusals_are_heard_by_all(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a subscriber hears all topics that begin with its own, also the refusals of other clients."""

    def around(original: Any, self: Any, frames: Any, flags: int) -> None:
        self._last_only = False
        original(self, frames, flags)

    wrap(mp, Manual, "send_multipart", around)


def who_asks_for_everything_hears_it(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, Sides, "covers", lambda original, self, prefix: prefix.startswith(self.allow))


def a_copy_goes_on_when_it_is_denied(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Requests, "_while_allowed", lambda self, stream, parts, *asked: parts)


def sets_are_not_judged(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(intake, "check_batch", lambda *asked: "")


def told_before_the_passive_has_them(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, AccessChanges, "tell", lambda original, self, upto, answer: original(self, 1 << 63, answer))


def told_what_others_gave_since(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: the answer to one change tells the rules of the next one, which the passive lacks."""

    def around(original: Any, self: AccessChanges, upto: int, answer: Any) -> Any:
        return original(self, upto, lambda whom, which, _: answer(whom, which, self.told()))

    wrap(mp, AccessChanges, "tell", around)


def snapshots_have_no_rules(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ReplicatedState, "_owned", lambda self: [])


def snapshots_have_no_secret(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: gateways name members by another secret after a failover, so messages change their member."""
    wrap(mp, AccessState, "to_list", lambda original, self, others: original(self, others)[:3])


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (who_is_denied_hears_on, "deny to"),
        (cut_off_after_the_turn, "deny to"),
        (refusals_are_heard_by_all, "what somebody else is denied"),
        (who_asks_for_everything_hears_it, "deny to"),
        (a_copy_goes_on_when_it_is_denied, "deny to"),
        (sets_are_not_judged, "which the rules before it deny"),
        (told_before_the_passive_has_them, "root is told"),
        (told_what_others_gave_since, "root is told"),
        (snapshots_have_no_rules, "other rules"),
        (snapshots_have_no_secret, "another secret"),
    ],
)
def test_a_planted_bug_of_access_is_found(
    monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str
) -> None:
    plant(monkeypatch)
    found(plant, word, way=lambda made: made if made.commands[0] == "keyed" else with_rules(made))


def removed_keys_are_never_found(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Keyring, "look", lambda self, now: None)


def a_removed_key_goes_on(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a key that was removed counts until its connections end."""
    mp.setattr(Keyring, "admits", lambda self, key, user: True)


def a_removed_key_hears_on(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: only new rules cut the subscriptions of a key that was removed."""

    def look(original: Any, self: SubscriptionAuthorizer, rules: int, removals: int, cut_off: Any) -> None:
        original(self, rules, self._removals, cut_off)

    wrap(mp, SubscriptionAuthorizer, "look", look)


def a_removed_key_writes_on(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: the connections to P and P+1 are cut, and sets over connections to P+2 are still done."""

    def rejected(original: Any, self: ServerNode, conn: Conn, frames: list[bytes]) -> bool:
        return conn.kind != "set" and bool(original(self, conn, frames))

    wrap(mp, ServerNode, "_is_rejected", rejected)


def answers_to_a_removed_key_go_on(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(ServerNode, "_cut_readers", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (removed_keys_are_never_found, "was removed"),
        (a_removed_key_goes_on, "was removed"),
        (a_removed_key_hears_on, "whose key was removed"),
        (a_removed_key_writes_on, "by a key that was removed"),
        (answers_to_a_removed_key_go_on, "whose key was removed"),
    ],
)
def test_a_planted_bug_of_removed_keys_is_found(
    monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str
) -> None:
    plant(monkeypatch)
    found(plant, word, way=lambda made: with_bursts(made, bursts.key_removed))


def the_oldest_makes_room(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a full table forgets what was used longest ago, whichever user has most of the table."""
    mp.setattr(FairTable, "loser", lambda self, asker=None: next(iter(self)))


def a_version_is_forgotten_by_room(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: the versions of applications go when their table is full, and none is refused."""
    record_done = Staging.record_done

    def forgets(self: Staging, application: str, version: int, *more: Any) -> None:
        record_done(self, application, version, *more)
        while len(self.versions) >= self._limits.applications_max:
            del self.versions[next(iter(self.versions))]

    mp.setattr(Staging, "record_done", forgets)


def the_user_of_an_application_is_forgotten(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: sessions push out the users of applications, so that another user counts a version up."""
    owner_of = Staging.owner_of
    mp.setattr(Staging, "owner_of", lambda self, name: owner_of(self, name) if len(self.versions) < 10 else None)


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (the_oldest_makes_room, "more than once"),
        (a_version_is_forgotten_by_room, "more than once"),
        (the_user_of_an_application_is_forgotten, "does not hold it"),
    ],
)
def test_a_planted_bug_of_full_tables_is_found(
    monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str
) -> None:
    plant(monkeypatch)
    found(plant, word, way=lambda made: with_bursts(made, bursts.flooded))


def another_user_may_use_a_lease(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a user ends, refreshes and joins with another's lease whose name it has read."""
    mp.setattr(LeaseOwner, "may_use", lambda self, lease: True)


def another_user_gets_a_members_pages(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a user that may consume takes the pages of another user's member."""
    mp.setattr(Authorizer, "_may_use", lambda self, granted, owner: True)


def reading_is_the_right_to_consume(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a user that may read a topic makes, uses and resets its groups."""

    def unconsumed(self: Rules, user: str, topic: str, group: str, *, loses: bool = False) -> str:
        return "" if self.rights(user).read.covers(f"/.chp/topics/{topic}/") else "read it"

    mp.setattr(Rules, "unconsumed", unconsumed)


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (another_user_may_use_a_lease, "lets the intruder do"),
        (another_user_gets_a_members_pages, "to the intruder"),
        (reading_is_the_right_to_consume, "the intruder"),
    ],
)
def test_a_planted_bug_that_admits_an_intruder_is_found(
    monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str
) -> None:
    plant(monkeypatch)
    found(plant, word, way=lambda made: with_bursts(made, bursts.intruded))


def a_stop_counts_as_silence(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a server that was stopped does not give its peer the full time again."""
    mp.setattr(Liveness, "excuse", lambda self, heard, now: None)


def a_refused_acknowledgement_counts(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a full server acknowledges messages of a member, and publishes nothing that follows from them."""

    def judge(original: Any, batch: Any, frames: list[bytes], *args: Any) -> Any:
        verdict = original(batch, frames, *args)
        acks = (decode_segment(frames[4]).extras or {}).get("ack") if isinstance(verdict, Refuse) else None
        if not acks or verdict.code != "full":
            return verdict
        segment = Segment([], [], {"ack": without_positions(acks)})
        return Accept(batch, segment, segment.encode())

    wrap(mp, intake, "_judge_next", judge)


def a_refused_channel_is_told_once(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: the refusal of a channel is lost behind greetings, and is not said again."""
    mp.setattr(Listeners, "refused_again", lambda self: [])


def a_heavy_question_gets_no_answer(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a member with much in hand asks a question that is too heavy, and is not even refused."""

    def weighed(frame: bytes) -> Any:
        options = decode_options(frame)
        if isinstance(options, dict) and len(options.get("have", ())) > 2:
            raise BadFrame("it holds more things than any message may")
        return options

    mp.setattr(requests, "decode_options", weighed)
    mp.setattr(requests, "peek_id", lambda frame: None)


def versions_count_twice_in_any_order(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a version that a program counted at both servers counts twice."""
    versions_are_not_looked_at_in_a_suffix(mp)


@pytest.mark.parametrize(
    ("plant", "word", "burst"),
    [
        (a_stop_counts_as_silence, "takes over, though", bursts.both_stopped),
        (a_refused_acknowledgement_counts, "never did", bursts.full_disks),
        (versions_count_twice_in_any_order, "more than once", bursts.healed),
        (a_refused_channel_is_told_once, "is told nothing", bursts.crowded),
        (a_heavy_question_gets_no_answer, "has not answered", bursts.held),
    ],
)
def test_a_planted_bug_shows_in_bursts(
    monkeypatch: pytest.MonkeyPatch, found: Found, plant: Plant, word: str, burst: bursts.Burst
) -> None:
    plant(monkeypatch)
    found(plant, word, way=lambda made: with_bursts(made, burst))


def a_record_of_the_feed_is_left_out(mp: pytest.MonkeyPatch) -> None:
    def between(original: Any, self: Feeds, after: int, until: int, **more: Any) -> Any:
        return (each for each in original(self, after, until, **more) if each is None or each.last % 13)

    wrap(mp, Feeds, "_between", between)


def light_bodies(mp: pytest.MonkeyPatch) -> None:
    """Bound the weight of RECORDS at both sides so low that a few records reach the bound, as in a large log."""
    mp.setattr(Load.__init__, "__defaults__", (RECORDS_WEIGHT,))
    mp.setattr(syncs, "CARRIED", RECORDS_WEIGHT)
    mp.setattr(question, "decode", lambda body: decode(body, RECORDS_WEIGHT + HEAD_WEIGHT))


def pages_are_bounded_by_bytes_alone(mp: pytest.MonkeyPatch) -> None:
    """Plant an old bug: a server ends a page of the feed by its bytes, and the reader refuses it by its weight."""
    light_bodies(mp)

    def takes(original: Any, self: Load, size: int, weight: int) -> bool:
        return bool(original(self, size, 0))

    wrap(mp, Load, "takes", takes)


def with_a_feed(made: Plan) -> Plan:
    """Return a plan with a reader of the feed, which has no key."""
    return made if {"keyed", "feed f1"} & set(made.commands) else with_feed(made)


def test_a_feed_page_that_its_reader_refuses_is_found(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    with monkeypatch.context() as light:
        light_bodies(light)
        assert run_plan(with_a_feed(plan(LIGHT_SEED))).error == ""
    pages_are_bounded_by_bytes_alone(monkeypatch)
    found(pages_are_bounded_by_bytes_alone, "more things than any message may", way=with_a_feed)


def test_a_record_that_the_feed_leaves_out_is_found(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    a_record_of_the_feed_is_left_out(monkeypatch)
    found(a_record_of_the_feed_is_left_out, "lacks", way=with_a_feed)
