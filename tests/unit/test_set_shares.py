"""Tests that each session has its share of the active's turns, whatever the others write.

covers: set_shares.py, the sets that wait in the core, the throttle of the pair
"""

from dataclasses import replace
from typing import Any

import pytest

from chp import columns
from chp.batch import Segment, decode
from chp.keys import RESERVED_KEY, public_session, session_topic
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.pair.set_shares import OTHERS_S
from chp_server.core.updates.turn import Frames, Turn
from chp_server.cores import Cores

WRITER, OTHER = b"w" * 16, b"o" * 16
LIMITS = replace(DEFAULT, small_set_bytes=200)
# A batch of the writer takes a server ten milliseconds, which is more than one turn.
BYTE_S = 2e-5


def paced(cores: Cores) -> Cores:
    for core in cores.cores.values():
        core.link.sets.pace.byte_s = BYTE_S
    return cores


@pytest.fixture
def pair() -> Cores:
    cores = Cores(LIMITS, scrub_s=0.0)
    # The latency of the pair is measured.
    cores.put("PB", OTHER, 1, {"/other": b"0"})
    for _ in range(2):
        for name in "PB":
            cores.turn(name)
    return paced(cores)


def write(cores: Cores, *numbers: int) -> None:
    for no in numbers:
        cores.put("PB", WRITER, no, {f"/{no}/{i}": b"x" * 40 for i in range(10)})


def done(cores: Cores, session: bytes) -> int:
    """Return the number of a session's last batch in the active's state."""
    record = cores.p.state.sessions.get(public_session(session))
    return record.no if record else 0


def test_the_active_takes_no_more_large_sets_than_the_passive_confirms(pair: Cores) -> None:
    write(pair, *range(1, 9))
    taken = []
    for _ in range(4):
        pair.turn("P")
        taken.append(done(pair, WRITER))
    assert taken == [1, 1, 1, 1], "one batch is under way, and enough"
    assert pair.p.status()["throttled"] and pair.p.status()["waiting_sets"] == 7
    assert pair.p.next_deadline() > pair.now, "it waits for the passive, and not in a circle"
    for _ in range(20):
        pair.turn("B")
        pair.turn("P")
    assert done(pair, WRITER) == 8 and not pair.p.link.sets.queue.sessions
    assert [no for no, kind, *_ in pair.answers(WRITER) if kind == "ack"] == list(range(1, 9))


def test_small_sets_of_others_go_on_while_the_writer_waits(pair: Cores) -> None:
    write(pair, 1, 2, 3)
    pair.turn("P")
    pair.put("PB", OTHER, 2, {"/other": b"1"})
    pair.turn("P")
    assert (done(pair, WRITER), done(pair, OTHER)) == (1, 2)


def test_a_small_set_behind_large_ones_of_its_session_keeps_its_place(pair: Cores) -> None:
    write(pair, 1, 2)
    pair.put("PB", WRITER, 3, {"/1/0": b"last"})
    for _ in range(10):
        pair.turn("P")
        pair.turn("B")
    assert pair.p.state.map.values["/1/0"] == pair.b.state.map.values["/1/0"] == b"last"


def test_confirmed_acknowledgements_of_others_leave_before_the_next_large_set(pair: Cores) -> None:
    write(pair, 1)
    pair.turn("P")
    pair.put("PB", OTHER, 2, {"/other": b"1"})
    write(pair, 2)
    pair.turn("P")
    pair.turn("B")
    acks = pair.turn("P").acks
    assert session_topic(public_session(OTHER)) in [frames[0] for frames in acks]
    assert done(pair, WRITER) == 1, "the turn that answers is a short one"
    pair.turn("P")
    assert done(pair, WRITER) == 2


def test_a_passive_that_confirms_too_little_for_long_is_given_up() -> None:
    cores = paced(Cores(LIMITS, scrub_s=0.0, slow_peer_s=2.0, replica_timeout_s=60.0))
    # A batch is worth two milliseconds, and a turn of this pair comes every 50.
    cores.p.link.sets.pace.byte_s = BYTE_S / 5
    for no in range(1, 200):
        write(cores, no)
    seconds = 0.0
    while cores.p.pair.in_sync() and seconds < 10.0:
        cores.put("PB", OTHER, round(seconds * 2) + 1, {"/other": b"1"})
        cores.run(0.5)
        seconds += 0.5
    assert 2.0 <= seconds <= 4.0
    assert cores.p.committer.counts["degraded"] == 1


def test_a_passive_that_goes_on_confirming_stays_in_sync() -> None:
    cores = paced(Cores(LIMITS, scrub_s=0.0, replica_timeout_s=1.0))
    for no in range(1, 100):
        write(cores, no)
    cores.run(6.0)
    assert cores.p.pair.in_sync() and not cores.p.committer.counts["degraded"]
    assert done(cores, WRITER) == 99


def test_waiting_sets_are_not_lost_when_the_active_becomes_passive(pair: Cores) -> None:
    write(pair, 1, 2, 3)
    pair.turn("P")
    pair.p.link.switch()
    pair.run(2.0)
    assert pair.b.active and not pair.p.link.sets.queue.sessions
    assert pair.b.state.sessions[public_session(WRITER)].no == 3


# -- a lone server


class Lone:
    """A server without a peer, for which each turn takes a while."""

    def __init__(self) -> None:
        self.now = 0.0
        self.core = ServerCore(CoreConfig(), b"s" * 16, 0.0, LIMITS)
        self.core.begin_turn(0.0, 1e9)
        self.core._step(PairEvent.ALONE)
        self.turn()
        self.core.link.sets.pace.byte_s = BYTE_S

    def put(self, session: bytes, no: int, n: int) -> None:
        keys = [f"/{session[:1].decode()}/{no}/{i}" for i in range(n)]
        self.send(session, no, Segment(keys, [b"x" * 40] * n))

    def send(self, session: bytes, no: int, segment: Segment) -> None:
        self.core.collect([RESERVED_KEY, pack(no), session, b"", segment.encode()])

    def turn(self) -> Turn:
        turn = self.core.end_turn()
        self.now += 0.001
        self.core.begin_turn(self.now, 1e9)
        return turn


def batches(turn: Turn) -> list[tuple[bytes, int]]:
    """Return the session and the last number of each acknowledgement of a turn."""

    def last(frames: Frames) -> Any:
        return decode(frames[-1])[0].runs[-1][1]  # type: ignore[union-attr]

    ours = {session_topic(public_session(session)): session[:1] for session in (WRITER, OTHER)}
    return [(ours[frames[0]], last(frames)) for frames in turn.acks]


def test_a_turn_does_small_sets_first_and_large_ones_in_the_turn_after() -> None:
    lone = Lone()
    for no in (1, 2, 3):
        lone.put(WRITER, no, 10)
    lone.put(OTHER, 1, 1)
    assert batches(lone.turn()) == [(b"o", 1)]
    assert lone.core.next_deadline() <= lone.now, "the next turn begins at once"
    lone.put(OTHER, 2, 1)
    assert batches(lone.turn()) == [(b"o", 2), (b"w", 1)], "large sets wait for one turn only"
    assert batches(lone.turn()) == [(b"w", 2)]
    assert batches(lone.turn()) == [(b"w", 3)]


def test_two_sessions_with_large_sets_are_served_in_turn() -> None:
    lone = Lone()
    for no in (1, 2, 3):
        lone.put(WRITER, no, 10)
    for no in (1, 2, 3):
        lone.put(OTHER, no, 10)
    assert [batches(lone.turn())[0][0] for _ in range(6)] == [b"w", b"o"] * 3


def test_a_lease_does_not_expire_while_sets_of_its_client_wait() -> None:
    """The refresh stands behind the sets, and a busy server comes to it too late."""
    lone, lease = Lone(), b"L" * 16
    lone.send(WRITER, 1, Segment([], [], {columns.LEASE: [lease, 1000]}))
    lone.send(OTHER, 1, Segment([], [], {columns.LEASE: [b"O" * 16, 1000]}))
    lone.turn()
    for no in (2, 3, 4):
        lone.put(WRITER, no, 10)
    lone.now += 1.5
    lone.turn()
    lone.turn()
    assert lone.core.link.sets.queue.sessions
    assert list(lone.core.state.leases) == [lease], "the lease of the other client is over"
    for _ in range(3):
        lone.turn()
    lone.now += 1.5
    lone.turn()
    lone.turn()
    assert not lone.core.state.leases, "nothing waits any more"


def test_a_client_whose_sets_wait_is_asked_for_small_batches_while_others_wait() -> None:
    lone = Lone()
    for no in range(1, 7):
        lone.put(WRITER, no, 10)
    told = []
    for _ in range(4):
        acks = {frames[0]: decode(frames[-1])[0] for frames in lone.turn().acks}
        told.append([acks[topic].items for topic in acks])  # type: ignore[union-attr]
        if len(told) == 2:
            lone.put(OTHER, 1, 1)
    assert told == [[None], [None], [None], [LIMITS.shared_batch_items]]


def test_turns_are_longer_while_no_other_client_writes() -> None:
    lone = Lone()
    # A batch takes a millisecond.
    lone.core.link.sets.pace.byte_s = BYTE_S / 10
    for no in range(1, 21):
        lone.put(WRITER, no, 10)
    alone = batches(lone.turn())[0][1]
    assert 4 <= alone <= 6
    lone.put(OTHER, 1, 1)
    assert batches(lone.turn()) == [(b"o", 1)]
    assert batches(lone.turn()) == [(b"w", alone + 1)], "the turns are short now"
    lone.now += OTHERS_S
    lone.turn()
    assert batches(lone.turn())[0][1] >= alone + 5


def test_sets_are_not_bounded_before_the_pace_is_measured() -> None:
    lone = Lone()
    lone.core.link.sets.pace.byte_s = 0.0
    for no in (1, 2, 3):
        lone.put(WRITER, no, 10)
    assert batches(lone.turn()) == [(b"w", 3)]
