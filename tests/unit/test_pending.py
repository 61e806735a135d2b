"""Tests of the pending list: bounds, order, and each entry once (G-04, G-07 and G-24 of docs/sources.md)."""

from dataclasses import replace

from chp.limits import DEFAULT
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.pair.pending import PendingList, batch_identity
from chp_server.testing import Cores

LIMITS = replace(DEFAULT, pending_batches_max=5, pending_bytes_max=100, pending_age_s_max=10.0)


def all_of(pending: PendingList) -> list[list[bytes]]:
    """Return the pending sets that are taken over, in order."""
    pending.take(0.0)
    taken = list(pending.taken)
    pending.taken.clear()
    return taken


def test_pending_sets_are_taken_in_order_and_once() -> None:
    pending = PendingList(LIMITS)
    for i in (3, 1, 3, 2):
        pending.add(b"%016d" % i, [b"%d" % i], 0.0)
    assert all_of(pending) == [[b"3"], [b"1"], [b"2"]]
    assert all_of(pending) == [] and pending.bytes == 0


def test_a_full_pending_list_drops_and_counts_the_oldest_sets() -> None:
    pending = PendingList(LIMITS)
    for i in range(8):
        pending.add(b"%016d" % i, [b"x"], 0.0)
    assert len(pending) == 5 and pending.dropped == 3
    pending.add(b"large", [b"x" * 98], 0.0)
    assert pending.bytes <= 100 and len(pending) == 3
    pending.add(b"too large", [b"x" * 101], 0.0)
    assert len(pending) == 0 and pending.bytes == 0


def test_old_pending_sets_expire() -> None:
    pending = PendingList(LIMITS)
    pending.add(b"a" * 16, [b"x"], 0.0)
    pending.add(b"b" * 16, [b"y"], 5.0)
    pending.expire(10.1)
    assert all_of(pending) == [[b"y"]]


def test_seen_up_to_removes_the_pending_sets_of_one_session() -> None:
    pending = PendingList(LIMITS)
    one, two = b"1" * 16, b"2" * 16
    for session, no in ((one, 1), (two, 1), (one, 2), (one, 3)):
        pending.add(batch_identity(session, no.to_bytes(8)), [b"%d" % no], 0.0)
    pending.seen_up_to(one, 2)
    pending.seen_up_to(one, 1)
    assert all_of(pending) == [[b"1"], [b"3"]]
    assert not pending._sessions


def test_expired_and_seen_sets_leave_nothing_in_the_pending_list() -> None:
    pending = PendingList(LIMITS)
    for no in range(1, 1000):
        pending.add(batch_identity(b"s" * 16, no.to_bytes(8)), [b"x"], no / 10)
        pending.expire(no / 10)
    pending.seen_up_to(b"s" * 16, 2000)
    assert len(pending) == 0 and pending.bytes == 0 and not pending._sessions


def test_a_new_active_applies_pending_sets_in_slices_and_in_order() -> None:
    """The oldest pending set is answered in the first turn, and later sets wait."""
    pair = Cores(replace(DEFAULT, pending_slice_bytes=1))
    pair.stopped = "P"
    session = b"s" * 16
    for no in (1, 2, 3):
        pair.put("B", session, no, {"/k": b"%d" % no})
    pair.run(2.0)
    pair.vote("B")
    pair.turn("B")
    assert pair.b.active and [no for no, *_ in pair.answers(session)] in ([1], [1, 2])
    pair.put("B", session, 4, {"/k": b"4"})
    assert pair.b.next_deadline() == pair.b.turn.now, "there is more to be done"
    pair.run(0.5)
    assert [no for no, *_ in pair.answers(session)] == [1, 2, 3, 4]
    assert pair.b.state.map.values["/k"] == b"4"


def test_a_repeated_set_is_answered_before_the_pending_sets() -> None:
    """A client whose answer died with the active is answered before the successor applies a second of pending sets."""
    pair = Cores(replace(DEFAULT, pending_slice_bytes=1))
    done, waiting = b"d" * 16, b"w" * 16
    pair.put("PB", done, 1, {"/done": b"1"})
    pair.run(0.5)
    told = len(pair.answers(done, "B"))
    pair.stopped = "P"
    for no in range(1, 9):
        pair.put("B", waiting, no, {"/k": b"%d" % no})
    pair.run(2.0)
    pair.vote("B")
    pair.put("B", done, 1, {"/done": b"1"})
    pair.put("B", done, 2, {"/done": b"2"})
    pair.turn("B")
    assert pair.b.link.pending.taken, "there is more to be done"
    assert [no for no, *_ in pair.answers(done, "B")][told:] == [1] and pair.b.state.map.values["/done"] == b"1"
    pair.run(0.5)
    assert [no for no, *_ in pair.answers(done, "B")][told:] == [1, 2], "what is new waits its turn"


def test_unapplied_sets_are_pending_again_when_a_new_active_yields() -> None:
    pair = Cores(replace(DEFAULT, pending_slice_bytes=1))
    pair.stopped = "P"
    for no in range(1, 6):
        pair.put("B", b"s" * 16, no, {"/k": b"%d" % no})
    pair.run(2.0)
    pair.vote("B")
    pair.b.do(PairEvent.PEER_ACTIVE_HIGHER)
    assert len(pair.b.link.pending) == 4 and not pair.b.link.pending.taken
