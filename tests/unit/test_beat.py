"""A server sends BEAT in the middle of a long turn, and knows its own silence. covers: pair/beat.py, peerlink.py"""

import pytest

from chp.batch import decode, packb
from chp.errors import BadFrame
from chp.headers import Header, Refused, State
from chp_server.core.asks import Vote
from chp_server.core.pair.beat import BEAT, STUCK_S, BeatMessage, BeatTimer
from chp_server.core.state.history import Position
from chp_server.testing import Cores

AT = Position(b"s" * 16, 7, b"o" * 16, 9)


def timer() -> BeatTimer:
    made = BeatTimer(b"p" * 16, 100.0, 0.25)
    made.done(State.ACTIVE, AT)
    made.begins(101.0)
    return made


def test_no_beat_is_due_during_a_short_turn() -> None:
    assert timer().due(101.25, 101.25) is None


def test_beats_are_due_during_a_long_turn_until_it_is_stuck() -> None:
    beats = timer()
    frames = beats.due(104.0, 104.0)
    assert frames is not None
    assert BeatMessage.of(frames[1]) == BeatMessage(b"p" * 16, 3000, State.ACTIVE, AT)
    assert beats.due(101.0 + STUCK_S, 101.0 + STUCK_S) is not None and not beats.stuck(101.0 + STUCK_S)
    assert beats.due(101.1 + STUCK_S, 101.1 + STUCK_S) is None and beats.stuck(101.1 + STUCK_S)


def test_no_beat_is_due_while_the_turn_takes_no_processor_time() -> None:
    """Such a server waits for a disk or a database."""
    beats = timer()
    assert beats.due(102.0, 5.0) is not None
    assert beats.due(102.1, 5.0005) is None
    assert beats.due(102.2, 5.01) is not None


def test_hush_stops_beats_until_the_turn_is_done() -> None:
    beats = timer()
    beats.hush()
    assert beats.due(102.0, 102.0) is None
    beats.done(State.ACTIVE, AT)
    assert beats.due(102.1, 102.1) is not None


def test_silence_is_the_longest_gap_between_beats_of_one_turn() -> None:
    beats = timer()
    for now in (101.5, 102.0, 103.5, 104.0):
        beats.due(now, now)
    assert beats.silent_s(104.25) == 1.5
    beats.begins(104.25)
    assert beats.silent_s(104.5) == 0.25, "what was said in the turn before is of no account"


@pytest.mark.parametrize("said", [7, [], [b"s", 1, 3], ["s", 1, 3, list(AT)], [b"s", 1, 99, list(AT)], [b"s", 1, 3, 7]])
def test_a_beat_that_makes_no_sense_is_refused(said: object) -> None:
    with pytest.raises((BadFrame, ValueError)):
        BeatMessage.of(packb(said))


def long_turn(pair: Cores, seconds: float, *, beating: bool) -> None:
    """Let P take no turn for so long, while B goes on and hears the BEATs of P's thread."""
    end = pair.now + seconds
    pair.p.link.beat_timer.done(pair.p.pair.bstate, pair.p.state.proof())
    pair.stopped = "P"
    while pair.now < end:
        pair.run(0.1)
        frames = pair.p.link.beat_timer.due(pair.now, pair.now) if beating else None
        if frames is not None:
            pair.b.peer_message(frames)
    pair.stopped = ""


@pytest.mark.parametrize("beating", [True, False])
def test_only_a_stopped_server_holds_back_after_a_long_turn(beating: bool) -> None:
    pair = Cores()
    long_turn(pair, 3.0, beating=beating)
    assert pair.b.pair.peer_lives() is beating
    turn = pair.turn("P")
    assert any(fact.event == "paused" for fact in turn.facts) is not beating
    assert (pair.p.turn.now < pair.p.pair.hold_until) is not beating


def test_a_server_that_was_stopped_first_refuses_topic_questions_as_busy() -> None:
    pair = Cores()
    long_turn(pair, 3.0, beating=False)

    def asked() -> Header:
        pair.p.begin_turn(pair.now, 0.0)
        pair.p.requests.readers.ask(b"reader", {"id": 1, "topic": "t", "facts": True})
        ((_, (answer,)),) = pair.p.end_turn().replies
        return decode(answer[-1])[0]

    told = asked()
    assert isinstance(told, Refused) and told.code == "busy", told
    pair.now += 0.4
    asked()
    pair.now += 0.4
    asked()
    pair.now += 0.4
    told = asked()
    assert isinstance(told, Refused) and told.code == "topic", told


def test_a_beat_counts_only_from_the_known_run_before_it_leaves() -> None:
    pair = Cores()
    peer = pair.b.pair.peer
    assert peer is not None
    heard = peer.heard
    pair.now += 0.5
    pair.b.begin_turn(pair.now, 0.0)
    pair.b.peer_message(BeatMessage(b"another run" * 2, 1, State.ACTIVE, AT).frames())
    assert peer.heard == heard
    pair.b.peer_message(BeatMessage(pair.p.pair.server, 1, State.ACTIVE, AT).frames())
    assert peer.heard == pair.now
    pair.b.peer_message(pair.p.link.leave_message())
    pair.b.peer_message(BeatMessage(pair.p.pair.server, 2, State.ACTIVE, AT).frames())
    assert not pair.b.pair.peer_lives(), "what it said before it left came by another connection"
    assert BEAT == b"BEAT"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_beat_of_another_run_with_our_store_puts_a_vote_off(own: bool, known: bool) -> None:
    """It may be of the peer's next run, which is in a long turn and has not said STATE here yet."""
    pair = Cores()
    pair.now += 5
    pair.b.begin_turn(pair.now, 0.0)
    assert not pair.b.pair.peer_lives()
    if not known:
        pair.b.pair.peer = None
    at = AT._replace(store=pair.b.state.store if own else b"another store...")
    pair.b.peer_message(BeatMessage(b"next run" * 2, 1, State.ACTIVE, at).frames())
    assert pair.b.do(Vote()) is not own
    pair.now += 5
    pair.b.begin_turn(pair.now, 0.0)
    assert pair.b.do(Vote()), "that run is silent too"
