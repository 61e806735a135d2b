"""Tests of the state beside the map: leases live as long as their last refresh said, and memory is bounded."""

import tracemalloc
from dataclasses import replace

import pytest

from chp.batch import ACK, REFUSED, Segment, split
from chp.keys import CLIENT_BYTES
from chp.limits import DEFAULT
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.open_record import HEADER_BYTES_MAX
from tests.talk import LARGER

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


def test_the_number_of_remembered_uuids_is_bounded() -> None:
    state = ReplicatedState(replace(DEFAULT, pending_batches_max=3))
    for i in range(5):
        state.apply(Segment(["/a"], [b""], {"u": [b"%016d" % i]}), i + 1, 0.0)
    assert list(state.uuids) == [b"%016d" % i for i in (2, 3, 4)]


def test_a_forgotten_session_that_returns_begins_without_old_runs() -> None:
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


def test_the_latest_refusals_are_remembered_in_few_bytes() -> None:
    """As objects they took 650 bytes each. A third of what is left is the user of each."""
    state, n = ReplicatedState(replace(DEFAULT, refusals_max=2000)), 3000
    session = b"s" * 16
    tracemalloc.start()
    try:
        for i in range(n):
            state.apply(Segment([], [], {"refused": [session, i, "conflict", {"revision": 1 << 48 | i}]}), i + 1, 0.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 2000 < 480 * LARGER
    assert list(state.refusals) == [(session, i) for i in range(1000, 3000)] and len(state.refusals) == 2000
    assert state.refusals.get(session, 999) is None
    assert state.refusals.get(session, 2999) == ("conflict", {"revision": 1 << 48 | 2999})


def test_refusals_of_one_user_push_out_no_refusals_of_other_users() -> None:
    """A batch whose refusal is forgotten is acknowledged if it comes again, so a user could have others' sets lost."""
    state = ReplicatedState(replace(DEFAULT, refusals_max=40))
    one, flood = b"a" * 16, [b"f" * 12 + i.to_bytes(4) for i in range(100)]
    state.access.owners |= {one[:CLIENT_BYTES]: "a", b"f" * CLIENT_BYTES: "f"}
    state.refusals.add(one, 1, "conflict", {"/a": 7})
    for session in flood:
        state.refusals.add(session, 2, "conflict", None)
    assert list(state.refusals) == [(one, 1), *((session, 2) for session in flood[-39:])]
    assert state.refusals.get(one, 1) == ("conflict", {"/a": 7})


@pytest.mark.parametrize("detail", [None, "a text " * 500, 3, {"a": 1 << 62}, [1, [2, b"x"]], (1 << 64) - 1])
def test_a_refusal_keeps_its_detail(detail: object) -> None:
    state = ReplicatedState(DEFAULT)
    state.refusals.add(b"s" * 16, (1 << 64) - 1, "code", detail)
    assert state.refusals.get(b"s" * 16, (1 << 64) - 1) == ("code", detail)
    loaded = ReplicatedState(DEFAULT)
    loaded.load_rest(split(list(state.rest(0.0))[-1])[1], 0.0)
    assert loaded.refusals.to_list() == state.refusals.to_list() == [[b"s" * 16, (1 << 64) - 1, "code", detail]]


def test_a_batch_that_would_not_fit_a_frame_beside_its_header_is_refused() -> None:
    talk = Talk(replace(DEFAULT, frame_bytes_max=HEADER_BYTES_MAX + 5000))
    around = len(Segment(["/k"], [bytes(4000)]).encode()) - 4000
    for size, kind in [(5000, ACK), (5001, REFUSED)]:
        segment = Segment(["/k"], [bytes(size - around)])
        assert len(segment.encode()) == size
        (header,) = talk.do(segment)
        assert header[0] == kind and (kind == ACK or header[2] == "size")
