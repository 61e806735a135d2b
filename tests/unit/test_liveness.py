"""The rule by which a silent peer counts as gone, for a failover and for a start. covers: liveness.py, pair_state.py"""

from __future__ import annotations

import pytest

from chp.batch import packb
from chp.headers import State
from chp.numbers import epoch_of
from chp_server.core.asks import Vote
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.beat import BeatMessage
from chp_server.core.pair.liveness import Liveness
from chp_server.core.state.history import Position
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.turn import Append
from chp_server.cores import Cores

from .server_talk import forced

AT = Position(b"s" * 16, 7, b"o" * 16, 9)


def standing(heard: float = 100.0) -> Liveness:
    made = Liveness(1.0)
    made.connection(True, 99.0)
    made.word(heard)
    return made


def test_a_peer_without_a_connection_is_gone_after_one_timeout() -> None:
    made = Liveness(1.0)
    assert made.is_heard(100.0, 101.0) and not made.is_heard(100.0, 101.1)


def test_a_connected_peer_is_gone_after_three_timeouts() -> None:
    assert standing().is_heard(100.0, 103.0) and not standing().is_heard(100.0, 103.1)


def test_words_before_a_broken_connection_count_for_one_timeout() -> None:
    made = standing()
    made.connection(False, 100.5)
    assert made.is_heard(100.0, 101.0) and not made.is_heard(100.0, 101.1)
    made.connection(True, 100.7)
    assert not made.is_heard(100.0, 101.1), "nothing came by this one yet"
    assert made.is_heard(100.8, 103.7)


def test_a_word_in_the_turn_of_a_break_counts_for_one_timeout() -> None:
    """A later connection is that of another run, which is a stranger while its predecessor counts as alive."""
    made = standing()
    made.connection(False, 100.5)
    made.connection(True, 101.5)
    assert not made.is_heard(100.5, 101.6)


def test_a_word_in_the_turn_of_a_reconnection_counts_for_three_timeouts() -> None:
    made = standing()
    made.connection(False, 100.5)
    made.connection(True, 100.5)
    assert made.is_heard(100.5, 103.5) and not made.is_heard(100.0, 101.1)


def test_a_pause_of_this_server_excuses_the_peers_silence_once() -> None:
    made = standing()
    made.excuse(100.0, 110.0)
    assert made.is_heard(100.0, 113.0)
    made.excuse(100.0, 112.0)
    assert not made.is_heard(100.0, 113.1), "a slow server replaces a dead one in the end"
    made.connection(False, 112.0)
    assert not made.is_heard(100.0, 112.0)


def test_a_start_waits_three_timeouts_for_a_silent_connected_peer() -> None:
    made = Liveness(1.0)
    assert not made.may_be_there(100.0)
    made.connection(True, 100.0)
    assert made.may_be_there(103.0) and not made.may_be_there(103.1)
    made.connection(False, 104.0)
    made.connection(True, 105.0)
    assert not made.may_be_there(105.1), "a peer that ends at each start holds nobody up"
    made.word(106.0)
    assert made.may_be_there(109.0) and not made.may_be_there(109.1)


# -- a pair of cores


@pytest.fixture
def pair() -> Cores:
    made = Cores()
    made.connection(True)
    made.run(0.5)
    return made


def test_a_stopped_active_is_replaced_after_three_timeouts(pair: Cores) -> None:
    pair.stopped = "P"
    pair.run(2.5)
    assert not pair.b.do(Vote()) and pair.b.status()["peer"]["alive"]
    pair.run(0.7)
    assert pair.b.do(Vote()) and pair.b.active


def test_a_killed_active_is_replaced_after_one_timeout(pair: Cores) -> None:
    pair.stopped = "P"
    pair.connection(False)
    pair.run(0.9)
    assert not pair.b.do(Vote())
    pair.run(0.2)
    assert pair.b.do(Vote()) and pair.b.active


def test_an_active_that_left_is_replaced_at_once(pair: Cores) -> None:
    pair.stopped = "P"
    pair.b.peer_message(pair.p.link.leave_message())
    assert pair.b.do(Vote()) and pair.b.active


def test_an_active_does_not_wait_for_a_passive_that_is_slow(pair: Cores) -> None:
    pair.stopped = "B"
    pair.run(1.2)
    assert pair.p.pair.peer_lives() and not pair.p.pair.in_sync()


def test_a_passive_that_stood_still_refuses_a_vote_at_first(pair: Cores) -> None:
    """A vote may be read before the messages that the active sent meanwhile."""
    pair.stopped = "B"
    pair.run(5.0)
    pair.late("B")
    pair.stopped = ""
    pair.b.begin_turn(pair.now, pair.now)
    assert not pair.b.do(Vote())


@pytest.mark.parametrize("kind", ["RECORD", "CONFIRM"])
def test_a_record_or_a_confirm_shows_that_the_peer_lives(pair: Cores, kind: str) -> None:
    core, other = (pair.b, pair.p) if kind == "RECORD" else (pair.p, pair.b)
    pair.linked = False
    pair.run(0.6)
    before = core.pair.peer
    assert before is not None
    heard = before.heard
    pair.put("P", b"x" * 16, 1, {"/k": b"1"})
    pair.linked = True
    sent = pair.turn("P").to_peer if kind == "RECORD" else [[b"CONFIRM", packb(list(other.state.proof()))]]
    core.begin_turn(pair.now, pair.now)
    for frames in sent:
        if frames[0].decode() == kind:
            core.peer_message(frames)
    assert before.heard == pair.now > heard


# -- a start


def restarted(**config: object) -> ServerCore:
    """Return a primary that was active alone in epoch 1, and starts again at 100 s with its store."""
    server = ServerCore(CoreConfig(primary=True, name="P", bootstrap=True), b"P" * 16, 0.0)
    server.begin_turn(0.0, 0.0)
    rows = [op for op in server.end_turn().journal if isinstance(op, Append)]
    made = ServerCore(CoreConfig(primary=True, name="P", has_peer=True), b"Q" * 16, 100.0)
    for op in rows:
        row = LoggedRow(op.first, op.last, op.body)
        made.committer.committed.log.append(made.committer.committed.follow(row.body, 100.0, 0.0))
    return made


def waits(core: ServerCore, until: float, *, connected: bool | None = None) -> float:
    """Take a turn each 0.1 s, and return the time when the server became active, or infinity."""
    now = core.turn.now
    while now < until:
        now += 0.1
        core.begin_turn(now, now, None, () if connected is None else (connected,))
        connected = None
        core.end_turn()
        if core.active:
            return now
    return float("inf")


def test_a_starting_server_that_reaches_no_peer_serves_after_solo_wait() -> None:
    assert waits(restarted(), 110.0) == pytest.approx(103.0, abs=0.15)


def test_a_starting_server_waits_for_a_word_of_a_connected_peer() -> None:
    core = restarted()
    waits(core, 102.0)
    assert waits(core, 110.0, connected=True) == pytest.approx(105.2, abs=0.25)


def test_a_beat_delays_a_start_even_before_the_first_state_message() -> None:
    """The peer is busy with a turn that began before this server started, so it has sent no STATE."""
    core = restarted()
    waits(core, 100.2, connected=True)
    for _ in range(4):
        assert waits(core, core.turn.now + 2.0) == float("inf")
        core.peer_message(BeatMessage(b"P" * 16, 2000, State.ACTIVE, AT).frames())
    assert waits(core, 120.0) == pytest.approx(core.turn.now), "it fell silent"


def test_a_higher_epoch_from_a_client_holds_a_start_back_until_forced() -> None:
    core = restarted()
    ours, store = core.state.epoch, core.state.store
    waits(core, 100.2)
    core.pair.epochs.client_saw(ours + 1)
    assert waits(core, 120.0) == float("inf")
    assert f"epoch {ours + 1}" in core.link.waits_for and "chp switch --force" in core.link.waits_for
    assert not core.do(Vote()), "a vote does not begin it either"
    core.pair.liveness.word(core.turn.now)
    assert "runs" in forced(core)
    waits(core, 122.0)
    assert "'forced': True" in forced(core)
    core.end_turn()
    assert core.active and epoch_of(core.state.number) > ours + 1 and core.state.store == store
    assert not core.link.waits_for


def test_an_implausible_epoch_from_a_client_does_not_hold_a_start_back() -> None:
    core = restarted()
    core.pair.epochs.client_saw(core.state.epoch + 65)
    assert waits(core, 110.0) < 104.0
