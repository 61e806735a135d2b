"""Tests of how a passive gets in sync: its first messages, its repeated question, and the active that gives it up."""

from dataclasses import replace

import pytest

from chp.batch import BATCH, Segment, join, packb, unpackb
from chp.headers import State
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp_server.core.asks import RiseAbove, Vote
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair import follow
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.pair.follow import Follower
from chp_server.core.state.record_log import Record, RecordLog
from chp_server.core.updates.turn import Turn
from chp_server.testing import Cores

HEARTBEAT_S, TIMEOUT_S = 0.25, 30.0


def server(name: str, limits: Limits = DEFAULT) -> ServerCore:
    config = CoreConfig(
        primary=name == "P", has_peer=True, name=name,
        heartbeat_s=HEARTBEAT_S, peer_timeout_s=TIMEOUT_S, solo_wait_s=None,
    )  # fmt: skip
    return ServerCore(config, name.encode() * 16, 0.0, limits)


def turn(core: ServerCore, now: float, heard: list[list[bytes]] | None = None) -> Turn:
    core.begin_turn(now, now)
    for frames in heard or []:
        core.peer_message(frames)
    return core.end_turn()


def kinds(messages: list[list[bytes]]) -> list[bytes]:
    return [frames[0] for frames in messages]


def active_that_was_left() -> ServerCore:
    """Return an active P whose passive B said that it leaves."""
    active, gone = server("P"), server("B")
    gone.pair.server = b"b" * 16
    turn(active, 0.0, turn(gone, 0.0).to_peer)
    turn(active, 0.1, [gone.link.leave_message()])
    assert active.active
    assert not active.pair.peer_lives()
    return active


def test_a_returning_server_is_sent_records_in_the_turn_of_its_request() -> None:
    active, back = active_that_was_left(), server("B")
    asks = turn(back, 1.0, [active.link.state_message()])
    # The message that names the sender comes first.
    assert kinds(asks.to_peer)[:2] == [follow.STATE, follow.WANT]
    answer = turn(active, 1.0, asks.to_peer)
    assert follow.RECORD in kinds(answer.to_peer)
    assert active.pair.follower is not None


def test_a_passive_that_is_not_served_asks_again_after_a_heartbeat() -> None:
    active, back = active_that_was_left(), server("B")
    # Its WANT is lost.
    turn(back, 1.0, [active.link.state_message()])
    assert unpackb(active.link.state_message()[1], "STATE")["follows"] == 0
    again = turn(back, 1.0 + HEARTBEAT_S * 1.1, [active.link.state_message()])
    assert follow.WANT in kinds(again.to_peer)


def test_a_passive_that_is_being_served_does_not_ask_again_before_the_timeout() -> None:
    active, back = active_that_was_left(), server("B")
    # The records are still on their way.
    turn(active, 1.0, turn(back, 1.0, [active.link.state_message()]).to_peer)
    assert unpackb(active.link.state_message()[1], "STATE")["follows"] == 1
    again = turn(back, 1.0 + HEARTBEAT_S * 1.1, [active.link.state_message()])
    assert follow.WANT not in kinds(again.to_peer)


def test_an_active_waits_for_a_passive_that_is_slow_to_confirm() -> None:
    active, back = active_that_was_left(), server("B")
    turn(active, 1.0, turn(back, 1.0, [active.link.state_message()]).to_peer)
    # The passive takes longer than replica_timeout_s (1 s), since it has a lot to write.
    turn(active, 9.0, [back.link.state_message()])
    assert active.pair.follower is not None


class Wire:
    """A link with a delay between an active with a large state and a passive without one."""

    def __init__(self, later_s: float, n: int) -> None:
        limits = replace(DEFAULT, sync_chunk_bytes=100)
        self.active, self.passive = server("P", limits), server("B", limits)
        self.later_s, self.now, self.asked = later_s, 0.0, 0
        self._way: list[tuple[float, ServerCore, list[bytes]]] = []
        turn(self.active, 0.0, [server("B").link.state_message()])
        keys = [f"/{i:03}" for i in range(n)]
        self.active.state.map.apply(Segment(keys, [b"x" * 50] * len(keys)), self.active.state.number, 0.0)
        number, log = self.active.state.number, self.active.committer.committed.log
        # The passive needs a snapshot now.
        log.clear()
        log.append(Record(number - 1, number, number, b""))

    def step(self) -> None:
        self.now += 0.05
        due = [(to, frames) for when, to, frames in self._way if when <= self.now]
        self._way = [late for late in self._way if late[0] > self.now]
        for core, other in ((self.active, self.passive), (self.passive, self.active)):
            done = turn(core, self.now, [frames for to, frames in due if to is core])
            said = done.to_peer + done.opened + done.confirm
            self.asked += kinds(said).count(follow.WANT)
            self._way += [(self.now + self.later_s, other, frames) for frames in said]


@pytest.mark.parametrize("n", [0, 1, 300])
@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.4, 1.0, 3.0])
def test_a_passive_that_is_far_away_asks_a_few_times_and_gets_the_state(later_s: float, n: int) -> None:
    """The question and the first chunk take longer than the passive waits before it asks again."""
    wire = Wire(later_s, n)
    while not wire.passive.pair.in_sync() and wire.now < 300:
        wire.step()
    assert wire.passive.state.map.fingerprint() == wire.active.state.map.fingerprint()
    assert wire.passive.pair.in_sync()
    assert wire.asked <= 8, wire.asked
    assert not wire.passive.committer.counts["garbage_peer"]


def log_of(n: int) -> RecordLog:
    log = RecordLog(DEFAULT)
    for i in range(n):
        log.append(Record(i, i + 1, i + 1, join([BATCH, i, i + 1, i + 1, 0, [], False], [Segment([], []).encode()])))
    return log


def test_a_passive_is_in_sync_at_its_goal_unless_records_are_late() -> None:
    log = log_of(10)
    follower = Follower(DEFAULT, 0, 10, None)
    follower.pump(log, 0.0)
    log.append(Record(10, 11, 11, b"11"))
    follower.pump(log, 5.0)
    follower.confirm(10, 5.2, 1.0)
    assert follower.in_sync

    late = Follower(DEFAULT, 0, 10, None)
    # The records up to 11 leave at once.
    late.pump(log, 0.0)
    late.confirm(10, 5.2, 1.0)
    # Record 11 has waited for five seconds, so acknowledgements would wait too, and the passive would be given up.
    assert not late.in_sync
    late.confirm(11, 5.3, 1.0)
    assert late.in_sync


def test_a_passive_that_goes_on_confirming_is_not_given_up_however_late_it_is() -> None:
    log = log_of(10)
    follower = Follower(DEFAULT, 0, 0, None)
    follower.pump(log, 0.0)
    for number in range(1, 9):
        follower.confirm(number, float(number), 1000.0)
    assert not follower.overdue(9.9, 2.0), "records 9 and 10 have waited for ten seconds"
    follower.confirm(8, 10.0, 1000.0)
    assert follower.overdue(10.1, 2.0), "the same number again is no progress"


def test_an_empty_server_gets_a_whole_store_and_cannot_serve_a_part() -> None:
    """With single records it had a store after the first one, and could take over with only that."""
    active, back = active_that_was_left(), server("B")
    for no in (1, 2):
        active.begin_turn(0.2 * no, 0.0)
        active.collect([b"\x02\x03", no.to_bytes(8, "big"), b"c" * 16, b"", Segment([f"/{no}"], [b"v"]).encode()])
        active.end_turn()
    answer = turn(active, 1.0, turn(back, 1.0, [active.link.state_message()]).to_peer)
    said = kinds(answer.to_peer)
    assert follow.RECORD not in said and follow.SYNC_CHUNK in said
    first = [frames for frames in answer.to_peer if frames[0] == follow.SYNC_CHUNK]
    # After that nothing more comes.
    turn(back, 1.1, first)
    back.begin_turn(50.0, 50.0)
    assert not back.do(Vote()) and not back.active
    turn(back, 50.1, answer.to_peer)
    assert back.state.map.values == {"/1": b"v", "/2": b"v"}


def test_records_of_an_epoch_are_sent_only_after_it_is_journaled() -> None:
    """Else a server that dies in that turn opens the same epoch again, and the passive has other records of it."""
    pair = Cores()
    opened = pair.p.state.epoch
    pair.p.do(RiseAbove(opened + 1))
    pair.put("P", b"x" * 16, 1, {"/k": b"1"})
    turn_of_epoch = pair.turn("P")
    assert pair.p.state.epoch > opened
    # The journal gets the epoch and the set.
    assert len(turn_of_epoch.journal) == 2
    assert follow.RECORD not in kinds(turn_of_epoch.to_peer)
    # The records wait for nothing else.
    assert pair.p.next_deadline() == pair.now
    assert kinds(pair.turn("P").to_peer).count(follow.RECORD) == 2


def test_the_peer_is_told_of_an_epoch_only_after_it_is_journaled() -> None:
    """The peer hears of an epoch once it is in the journal, since a server may have no room for the epoch."""
    pair = Cores()
    pair.p.do(RiseAbove(pair.p.state.epoch + 1))
    pair.p.heartbeats.beat_now()
    turn_of_epoch = pair.turn("P")
    assert follow.STATE not in kinds(turn_of_epoch.to_peer) and kinds(turn_of_epoch.opened) == [follow.STATE]
    pair.p.heartbeats.beat_now()
    later = pair.turn("P")
    assert follow.STATE in kinds(later.to_peer) and not later.opened


def test_a_snapshot_of_an_epoch_is_sent_only_after_it_is_journaled() -> None:
    active, back = server("P"), server("B")
    turn(back, 0.0)
    asks = [back.link.state_message(), [follow.WANT, packb({"at": [b"", 0, b"", 0], "history": [], "whole": True})]]
    first = turn(active, 0.0, asks)
    assert active.active and active.pair.follower is not None
    assert follow.END not in kinds(first.to_peer)
    assert follow.END in kinds(turn(active, 0.0).to_peer)


def test_a_late_answer_to_an_old_request_does_not_undo_later_updates() -> None:
    """An answer to an old question may come just before the answer to the last one (seed 50957)."""
    active, back = active_that_was_left(), server("B")
    turn(back, 1.1, turn(active, 1.0, turn(back, 1.0, [active.link.state_message()]).to_peer).to_peer)
    back.link.want_whole()
    asks = turn(back, 1.2).to_peer
    old = [frames for frames in turn(active, 1.2, asks).to_peer if frames[0] != follow.STATE]
    back.do(PairEvent.VOTE_PEER_SILENT)
    back.collect([RESERVED_KEY, pack(1), b"c" * 16, b"", Segment(["/b"], [b"v"]).encode()])
    turn(back, 1.3)
    held = back.state.number
    active.do(RiseAbove(back.state.epoch))
    turn(active, 1.4)
    again = turn(back, 1.5, [active.link.state_message(), *old])
    assert kinds(old)[-1] == follow.END and back.pair.bstate is State.PASSIVE
    assert back.state.number == held and follow.WANT in kinds(again.to_peer) and not again.saves
    (saved,) = turn(back, 1.7, turn(active, 1.6, again.to_peer).to_peer).saves
    assert [update.key for update in saved.updates] == ["/b"] and back.state.proof() == active.state.proof()
