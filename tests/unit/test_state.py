"""Tests of the state beside the map: leases live as long as their last refresh said, and memory is bounded."""

import tracemalloc
from dataclasses import replace

from chp.batch import ACK, REFUSED, Segment
from chp.limits import DEFAULT
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.open_record import HEADER_BYTES_MAX

from .server_talk import Talk

LEASE = b"L" * 16


def test_a_lease_ends_its_ttl_after_it_was_opened_or_refreshed() -> None:
    state = ReplicatedState(DEFAULT)
    state.apply(Segment([], [], {"lease": [LEASE, 5000]}), 1, 0.0)
    assert state.leases.expired(4.999, 9) == [] and state.leases.expired(5.0, 9) == [LEASE]
    state.apply(Segment([], [], {"lease": [LEASE, 4000]}), 2, 3.0)
    assert state.leases.expired(6.999, 9) == [] and state.leases.expired(7.0, 9) == [LEASE]
    state.renew_leases(6.0)
    assert state.leases.expired(9.999, 9) == [] and state.leases.expired(10.0, 9) == [LEASE]


def test_no_more_uuids_are_remembered_than_may_be() -> None:
    state = ReplicatedState(replace(DEFAULT, pending_batches_max=3))
    for i in range(5):
        state.apply(Segment(["/a"], [b""], {"u": [b"%016d" % i]}), i + 1, 0.0)
    assert list(state.uuids) == [b"%016d" % i for i in (2, 3, 4)]


def test_runs_of_sessions_that_were_forgotten_are_in_nobodys_way() -> None:
    """A session that was forgotten and comes again begins without runs."""
    state = ReplicatedState(replace(DEFAULT, sessions_max=2, runs_max=4))
    x, y, z = (letter * 16 for letter in (b"x", b"y", b"z"))
    for revision, session in enumerate([x, x, y, z, x, y, z, y, z, y], 1):
        state.record_batch(session, revision, revision, 0.0)
    assert list(state.sessions) == [z, y]
    assert [state.sessions[session].runs for session in (y, z)] == [[(7, 8, 8), (9, 10, 10)], [(1, 7, 7), (8, 9, 9)]]


def test_a_session_of_one_batch_takes_little() -> None:
    """Servers remember 100,000 sessions for a day, and a deque for each would take 1.2 KB."""
    state, n = ReplicatedState(DEFAULT), 5000
    tracemalloc.start()
    try:
        for i in range(n):
            state.record_batch(b"%016d" % i, 1, i, 0.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / n < 800


def test_a_batch_that_would_not_fit_a_frame_beside_its_header_is_refused() -> None:
    talk = Talk(replace(DEFAULT, frame_bytes_max=HEADER_BYTES_MAX + 5000))
    around = len(Segment(["/k"], [bytes(4000)]).encode()) - 4000
    for size, kind in [(5000, ACK), (5001, REFUSED)]:
        segment = Segment(["/k"], [bytes(size - around)])
        assert len(segment.encode()) == size
        (header,) = talk.do(segment)
        assert header[0] == kind and (kind == ACK or header[2] == "size")
