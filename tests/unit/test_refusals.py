"""covers: refusals.py, resource_limits.py: sets that are refused without a row; a disk that is not written to."""

from typing import Any

import pytest

from chp.batch import ACK, REFUSED, Segment, split
from chp.headers import APPLIED, JOURNALED
from chp.keys import public_session, session_topic
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.updates.refusals import UnloggedRefusals
from chp_server.core.updates.resource_limits import MIB, ResourceUsage
from chp_server.core.updates.turn import Turn
from chp_server.testing import Cores

from .server_talk import ONE, Talk

KEPT = 64 * MIB
GARBAGE = b"\xc1 no segment"
TOO_LARGE = Segment(["/a"], [bytes((16 << 20) + 1)]).encode()
LITTLE, NOTHING, ROOM = (ResourceUsage(disk_free=n * MIB) for n in (20, 0, 1000))


def turn_of(talk: Talk, *batches: tuple[bytes, int, bytes], seen: ResourceUsage = ROOM) -> Turn:
    """Take a turn with some batches: (session, number, body)."""
    talk.core.measured(seen)
    for batch in batches:
        talk.send(*batch)
    return talk.turn()


def told(turn: Turn, session: bytes = ONE) -> list[Any]:
    """Return the answers to a session: (batch, code) of each refusal, and (first, last) of each run that was done."""
    answers = [split(m[4])[0] for m in turn.acks if m[0] == session_topic(public_session(session))]
    return [h[1:3] if h[0] == REFUSED else [run[:2] for run in h[1]] for h in answers if h[0] in (ACK, REFUSED)]


def a_set(key: str = "/a") -> bytes:
    return Segment([key], [b"1"]).encode()


@pytest.mark.parametrize(("body", "code"), [(GARBAGE, "bad"), (TOO_LARGE, "size")])
def test_a_bad_batch_of_a_new_session_leaves_no_row(body: bytes, code: str) -> None:
    server = Talk(disk_free_min=KEPT)
    sessions = [b"%016d" % i for i in range(100)]
    turn = turn_of(server, *((session, 1, body) for session in sessions))
    assert [told(turn, session) for session in sessions] == [[[1, code]]] * 100
    assert not turn.journal and not server.core.state.sessions
    again = turn_of(server, (sessions[0], 1, body), (sessions[0], 2, body))
    assert told(again, sessions[0]) == [[1, code], [2, code]] and not again.journal


def test_refusals_are_journaled_with_the_next_set_of_the_session() -> None:
    server = Talk(disk_free_min=KEPT)
    turn_of(server, (ONE, 1, GARBAGE), (ONE, 2, GARBAGE))
    turn = turn_of(server, (ONE, 3, a_set()), (ONE, 4, GARBAGE))
    assert told(turn) == [[[3, 3]], [4, "bad"]], "a session that is known has a row for each"
    assert [no for _, no in server.core.state.refusals] == [1, 2, 4] and len(turn.journal) == 1
    assert told(turn_of(server, (ONE, 2, GARBAGE), (ONE, 3, a_set()))) == [[[3, 3]], [2, "bad"]]


def test_refused_sets_leave_the_disk_reserve_alone() -> None:
    server = Talk(disk_free_min=KEPT)
    assert turn_of(server, (ONE, 1, a_set())).journal
    full = [turn_of(server, (ONE, no, a_set("/b")), seen=LITTLE) for no in range(2, 12)]
    assert [told(turn) for turn in full] == [[[no, "full"]] for no in range(2, 12)]
    assert not any(turn.journal for turn in full)
    gone = turn_of(server, (ONE, 12, Segment(["/a"], [b""], {"d": [0]}).encode()), seen=LITTLE)
    assert told(gone) == [[[12, 12]]] and gone.journal, "a delete has room"
    later = turn_of(server, (ONE, 2, a_set("/b")), (ONE, 11, a_set("/b")), (ONE, 13, a_set("/c")))
    assert told(later)[1:] == [[2, "full"], [11, "full"]], "a copy of what was refused is not done"
    assert list(server.core.state.map.values) == ["/c"]


def test_nothing_is_written_to_a_disk_without_room() -> None:
    server = Talk(disk_free_min=KEPT)
    turn_of(server, (ONE, 1, Segment(["/a", "/b"], [b"1", b"1"], {"t": [[0], [1500]]}).encode()))
    delete = Segment(["/b"], [b""], {"d": [0]}).encode()
    turns = [turn_of(server, (ONE, 2 + i, [a_set(), delete][i % 2]), seen=NOTHING) for i in range(6)]
    assert [told(turn) for turn in turns] == [[[2 + i, "full"]] for i in range(6)]
    assert not any(turn.journal for turn in turns) and all(turn.publish for turn in turns), "it is heard"
    status = server.core.status()["room"]
    assert status["read_only"] and status["why"].startswith("read-only: disk full (0 MiB are free); free some")
    ended_at = server.now - 1.0
    assert set(server.map) == {"/a", "/b"} and server.core.next_deadline() > ended_at, (
        "it is not busy with what it can't do"
    )
    turn_of(server)
    assert set(server.core.state.map.values) == {"/b"}, "its time is over"
    assert told(turn_of(server, (ONE, 8, delete))) == [[[8, 8]]]


SYNC = Segment([], []).encode()


def acks(turn: Turn) -> list[Any]:
    """Return the runs and durability of each acknowledgement."""
    return [[header[1], header[2]] for m in turn.acks if (header := split(m[4])[0])[0] == ACK]


def test_a_batch_that_changes_nothing_needs_no_room() -> None:
    server = Talk(disk_free_min=KEPT)
    turn_of(server, (ONE, 1, a_set()))
    at = server.core.state.number
    for session, no in ((ONE, 2), (ONE, 3), (b"reader", 1), (b"reader", 2)):
        turn = turn_of(server, (session.ljust(16, b"-"), no, SYNC), seen=NOTHING)
        assert acks(turn) == [[[[no, no, at]], APPLIED]] and not turn.journal
    again = turn_of(server, (ONE, 2, SYNC), (ONE, 4, SYNC), seen=NOTHING)
    assert acks(again) == [[[[no, no, at]], APPLIED] for no in (2, 4)]
    assert told(turn_of(server, (ONE, 5, a_set("/b")), seen=NOTHING)) == [[5, "full"]]
    later = turn_of(server, (ONE, 4, SYNC), (ONE, 5, a_set("/b")), (ONE, 6, a_set("/c")))
    assert told(later) == [[[6, 6]], [[4, 4]], [5, "full"]] and set(server.map) == {"/a", "/c"}
    assert told(turn_of(server, (ONE, 4, SYNC))) == [[[4, 4]]]


def test_a_batch_without_changes_does_not_undo_an_earlier_refusal() -> None:
    server = Talk(disk_free_min=KEPT)
    turn_of(server, (ONE, 1, a_set()))
    turn_of(server, (ONE, 2, a_set("/b")), (ONE, 3, SYNC), seen=NOTHING)
    assert told(turn_of(server, (ONE, 2, a_set("/b")), (ONE, 3, SYNC), seen=NOTHING)) == [[2, "full"], [[3, 3]]]
    assert told(turn_of(server, (ONE, 4, SYNC), (ONE, 2, a_set("/b")))) == [[[4, 4]], [2, "full"]]


def test_a_batch_between_two_refused_batches_is_answered_again() -> None:
    """The range of refused batches in memory has no holes (seed 2641)."""
    server = Talk(disk_free_min=KEPT)
    sets = [(ONE, 1, a_set("/b")), (ONE, 2, SYNC), (ONE, 3, a_set("/c"))]
    wanted = [[1, "full"], [[2, 2]], [3, "full"]]
    for seen in (NOTHING, NOTHING, ROOM):
        assert sorted(told(turn_of(server, *sets, seen=seen)), key=str) == sorted(wanted, key=str)
    assert told(turn_of(server, (ONE, 4, a_set("/d")))) == [[[4, 4]]]
    assert sorted(told(turn_of(server, *sets)), key=str) == sorted(wanted, key=str)


def test_a_pair_without_room_never_acknowledges_as_replicated() -> None:
    """The passive has confirmed nothing since, and behind a cut link it may serve and have more."""
    pair = Cores(disk_free_min=KEPT)
    pair.put("PB", ONE, 1, {"/a": b"1"})
    pair.run(0.2)
    # The server must not hand over by itself.
    pair.p.link.health.stepped(PairEvent.HANDOVER, pair.now)
    pair.p.committer.room.measured(NOTHING)
    pair.put("PB", ONE, 2, {})
    pair.run(0.2)
    assert pair.answers(ONE)[-1] == (2, "ack", pair.p.state.number, JOURNALED)


def test_a_lease_lives_on_if_refreshes_found_no_room() -> None:
    server = Talk(disk_free_min=KEPT)
    turn_of(server, (ONE, 1, Segment(["/l"], [b"1"], {"lease": [b"L" * 16, 1500], "l": b"L" * 16}).encode()))
    for no in range(2, 6):
        assert told(turn_of(server, (ONE, no, Segment([], [], {"refresh": b"L" * 16}).encode()), seen=NOTHING)) == [
            [no, "full"]
        ]
    turn_of(server)
    assert b"L" * 16 in server.core.state.leases


def test_the_passive_learns_of_a_refusal_before_a_switch() -> None:
    """The other server has room, and may hold a copy of the refused set."""
    pair = Cores(disk_free_min=KEPT)
    pair.put("PB", ONE, 1, {"/a": b"1"})
    pair.run(0.2)
    # The server must not hand over by itself.
    pair.p.link.health.stepped(PairEvent.HANDOVER, pair.now)
    pair.p.committer.room.measured(LITTLE)
    pair.put("PB", ONE, 2, {"/b": b"1"})
    pair.run(0.2)
    assert pair.answers(ONE)[-1][:2] == (2, "full") and not pair.p.state.refusals
    pair.p.link.switch()
    pair.run(1.0)
    assert pair.b.active and set(pair.b.state.map.values) == {"/a"}


def test_unlogged_refusals_forget_the_least_recent_session() -> None:
    kept = UnloggedRefusals(2)
    for session in (b"a", b"b", b"a", b"c"):
        kept.note(session, kept.last(session) + 1, "full", "why")
    assert [kept.last(session) for session in (b"a", b"b", b"c")] == [2, 0, 1]
    assert kept.take(b"a") == [(1, "full", "why"), (2, "full", "why")] and len(kept.kept) == 1
