"""Tests that leases and ttls end in slices: the keys that each turn deletes, and the rest after a failover.

covers: core/expiry.py; the end of a lease in leases.py and commit.py
"""

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import split
from chp.limits import DEFAULT
from chp_server.core.updates.turn import Append, Turn
from chp_server.testing import Cores

S, T, LEASE = b"s" * 16, b"t" * 16, b"L" * 16
SLICE = 10
KEYS = [f"/l/{i:03d}" for i in range(95)]


def pair_with_a_lease(keys: list[str] = KEYS, **limits: int) -> Cores:
    pair = Cores(replace(DEFAULT, ending_keys_max=SLICE, **limits))
    pair.put("PB", S, 1, dict.fromkeys(keys, b"v"), lease=[LEASE, 60_000], l=LEASE)
    pair.run(0.3)
    return pair


def deleted_by(turn: Turn) -> list[str]:
    """Return the keys that a turn's records delete."""
    gone: list[str] = []
    for op in (op for op in turn.journal if isinstance(op, Append)):
        for keys, _, extras in split(op.body)[1:]:
            gone += [keys[i] for i in (extras or {}).get("d", ())]
    return gone


def deleted(pair: Cores, name: str, since: int) -> list[str]:
    """Return the keys that a server deletes in its turns from `since` on."""
    return [key for turn in pair.turns[name][since:] for key in deleted_by(turn)]


def most_deleted(turns: list[Turn]) -> int:
    """Return the largest number of keys that one turn deletes."""
    return max(len(deleted_by(turn)) for turn in turns)


def test_a_lease_of_many_keys_ends_in_slices_and_both_servers_agree() -> None:
    pair = pair_with_a_lease()
    before = len(pair.turns["P"])
    pair.put("PB", S, 2, {}, unlease=LEASE)
    pair.turn("P")
    assert pair.p.state.leases.ending and pair.p.next_deadline() <= pair.now, "the next slice is due at once"
    pair.run(2.0)
    assert most_deleted(pair.turns["P"][before:]) == SLICE and sorted(deleted(pair, "P", before)) == KEYS
    for core in pair.cores.values():
        core.state.check()
        assert not core.state.leases and not core.state.leases.ending and not core.state.map.values
    assert pair.answers(S)[-1][:2] == (2, "ack")
    assert pair.p.next_deadline() > pair.now, "and then there is nothing to do"


def test_leases_that_end_in_one_turn_share_its_slice() -> None:
    pair = Cores(replace(DEFAULT, ending_keys_max=SLICE))
    sessions = [bytes([i]) * 16 for i in range(1, 7)]
    for session in sessions:
        keys = {f"/{session[0]}/{i}": b"" for i in range(8)}
        pair.put("PB", session, 1, keys, lease=[session, 60_000], l=session)
    pair.run(0.3)
    before = len(pair.turns["P"])
    for session in sessions:
        pair.put("PB", session, 2, {}, unlease=session)
    pair.run(2.0)
    assert most_deleted(pair.turns["P"][before:]) == SLICE
    assert not pair.p.state.map.values and not pair.b.state.map.values and not pair.b.state.leases


def test_an_expired_lease_ends_in_slices() -> None:
    pair = pair_with_a_lease()
    before = len(pair.turns["P"])
    pair.run(70.0)
    assert most_deleted(pair.turns["P"][before:]) == SLICE and len(deleted(pair, "P", before)) == len(KEYS)
    assert not pair.p.state.leases and not pair.b.state.leases and pair.p.committer.counts["expired_leases"] == 1


def test_a_key_that_is_set_anew_while_its_lease_ends_stays() -> None:
    pair = pair_with_a_lease()
    pair.put("PB", S, 2, {}, unlease=LEASE)
    pair.turn("P")
    pair.put("PB", T, 1, {KEYS[-1]: b"anew"})
    pair.run(2.0)
    assert pair.p.state.map.values == pair.b.state.map.values == {KEYS[-1]: b"anew"}
    assert not pair.p.state.leases


@pytest.mark.parametrize("said", [{"refresh": LEASE}, {"lease": [LEASE, 60_000]}, {"l": LEASE}])
def test_an_ending_lease_cannot_be_refreshed_used_or_opened(said: dict[str, Any]) -> None:
    pair = pair_with_a_lease()
    pair.put("PB", S, 2, {}, unlease=LEASE)
    pair.turn("P")
    pair.put("PB", S, 3, {"/l/more": b""} if "l" in said else {}, **said)
    pair.run(2.0)
    assert pair.answers(S)[-1][:2] == (3, "lease") and not pair.p.state.map.values and not pair.p.state.leases


def test_a_successor_finishes_an_ending_lease_without_a_suffix() -> None:
    pair = pair_with_a_lease()
    pair.put("PB", S, 2, {}, unlease=LEASE)
    pair.turn("P")
    pair.turn("B")
    left = len(pair.b.state.map.values)
    assert pair.b.state.leases.ending and 0 < left < len(KEYS)
    pair.linked = False
    pair.stopped = "B"
    # The old active goes on alone.
    pair.run(0.2)
    pair.stopped = "P"
    pair.run(1.5)
    pair.vote("B")
    before = len(pair.turns["B"])
    pair.run(2.0)
    assert pair.b.active and not pair.b.state.map.values and not pair.b.state.leases
    assert most_deleted(pair.turns["B"][before:]) == SLICE and len(deleted(pair, "B", before)) == left
    pair.linked, pair.stopped = True, ""
    pair.run(5.0)
    assert not pair.p.active and not pair.p.state.map.values and not pair.p.state.leases
    assert pair.outcomes() == {}


def test_a_whole_state_carries_the_end_of_an_ending_lease() -> None:
    pair = pair_with_a_lease()
    pair.put("P", S, 2, {}, unlease=LEASE)
    pair.turn("P")
    pair.stopped = "P"
    pair.b.link.want_whole()
    pair.stopped = ""
    pair.run(3.0)
    assert pair.b.state.map.values == {} and not pair.b.state.leases
    pair.b.state.check()


def test_a_crowd_of_ttls_ends_in_slices() -> None:
    pair = Cores(replace(DEFAULT, ending_keys_max=SLICE))
    pair.put("PB", S, 1, dict.fromkeys(KEYS, b"v"), t=1000)
    before = len(pair.turns["P"])
    pair.run(3.0)
    assert most_deleted(pair.turns["P"][before:]) == SLICE and len(deleted(pair, "P", before)) == len(KEYS)
    assert not pair.b.state.map.values


def test_ttls_that_were_refreshed_are_looked_at_in_slices_too() -> None:
    pair = Cores(replace(DEFAULT, ending_keys_max=SLICE))
    pair.put("PB", S, 1, dict.fromkeys(KEYS, b"v"), t=1000)
    pair.put("PB", S, 2, dict.fromkeys(KEYS, b"v"), t=60_000)
    looked: list[int] = []
    original = pair.p.state.map.expired

    class Counting(type(pair.p.state.map)):  # type: ignore[misc]
        __slots__ = ()

        def expired(self, now: float, most: int) -> tuple[list[str], int]:
            found = original(now, most)
            looked.append(found[1])
            return found

    pair.p.state.map.__class__ = Counting
    pair.run(2.5)
    assert max(looked) == SLICE and sum(looked) == len(KEYS) and len(pair.p.state.map.values) == len(KEYS)


def test_expiring_ttls_leave_room_for_ending_leases() -> None:
    pair = pair_with_a_lease()
    pair.put("PB", T, 1, {f"/t/{i}": b"" for i in range(95)}, t=1000)
    pair.run(0.95)
    pair.put("PB", S, 2, {}, unlease=LEASE)
    pair.run(0.3)
    gone = [key[:3] for turn in pair.turns["P"][-3:] for key in deleted_by(turn)]
    assert gone.count("/l/") and gone.count("/t/")
