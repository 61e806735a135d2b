"""covers: expiry by ttls and leases: a server that was stopped listens first, and a suffix has no expiries."""

from typing import Any

from chp.batch import Segment, split
from chp.hashmap import ms_until
from chp_server.core.updates.turn import Append
from chp_server.testing import Cores

X, LEASE = b"x" * 16, b"L" * 16


def deleted(pair: Cores, name: str, since: int) -> list[str]:
    """Return the keys that a server's records delete in its turns from `since` on."""
    gone: list[str] = []
    for turn in pair.turns[name][since:]:
        for op in (op for op in turn.journal if isinstance(op, Append)):
            for keys, _, extras in split(op.body)[1:]:
                gone += [keys[i] for i in (extras or {}).get("d", ())]
    return gone


def held_pair(**extras: Any) -> Cores:
    """Return a pair in sync with a key that would expire 1.5 s from now."""
    pair = Cores()
    pair.put("P", X, 1, {"/k": b"1"}, **extras)
    pair.run(0.2)
    assert pair.answers(X)[-1][1] == "ack"
    return pair


def test_a_server_that_was_stopped_expires_nothing_before_it_hears_its_peer() -> None:
    for extras, longer in (
        ({"t": 1500}, {"t": 9000}),
        ({"lease": [LEASE, 1500], "l": LEASE}, {"lease": [LEASE, 9000], "l": LEASE}),
    ):
        pair = held_pair(**extras)
        pair.stopped = "P"
        pair.run(1.2)
        pair.vote("B")
        # The key lives on at the successor.
        pair.put("B", X, 2, {"/k": b"2"}, **longer)
        pair.run(1.0)
        since = len(pair.turns["P"])
        pair.late("P")
        pair.stopped = ""
        pair.run(0.3)
        assert not pair.p.active and deleted(pair, "P", since) == [], extras
        pair.run(0.7)
        assert pair.b.state.map.values == {"/k": b"2"} == pair.p.state.map.values
        assert not pair.saves, "and nothing was to be accounted for"


def test_a_pair_that_was_stopped_expires_keys_after_a_wait() -> None:
    pair = held_pair(t=1500)
    pair.stopped = "PB"
    pair.run(2.0)
    pair.stopped = ""
    pair.turn("P")
    assert pair.p.next_deadline() > pair.now, "it does not spin meanwhile"
    assert "/k" in pair.p.state.map.values
    pair.run(2.0)
    assert "/k" not in pair.p.state.map.values and "/k" not in pair.b.state.map.values


def test_a_ttl_counts_from_the_arrival_of_its_set() -> None:
    """A turn may take some time before it reads the collector, so a ttl of 2.0 s once expired after 1.979 s."""
    pair = Cores()
    pair.p.begin_turn(pair.now, pair.now)
    pair.p.turn.arrived(pair.now + 0.3)
    pair.put("P", X, 1, {"/k": b"1"}, t=2000)
    record = next(frames for frames in pair.p.end_turn().to_peer if frames[0] == b"RECORD")
    assert pair.p.state.map.deadlines["/k"] == pair.now + 2.3
    pair.b.begin_turn(pair.now, pair.now)
    pair.b.turn.arrived(pair.now + 0.4)
    pair.b.peer_message(record)
    assert pair.b.state.map.deadlines["/k"] == pair.now + 2.4


def test_the_remaining_time_of_a_ttl_is_rounded_up() -> None:
    assert ms_until(10.0, 8.0004) == 2000 and ms_until(10.0, 8.0) == 2000 and ms_until(1.0, 8.0) == 1


def test_an_expiry_by_time_is_not_part_of_the_suffix() -> None:
    """A lease that expired on the losing side lives on the other side, where its holder refreshed it."""
    for extras in ({"t": 900}, {"lease": [LEASE, 900], "l": LEASE}):
        pair = held_pair(**extras)
        pair.linked = False
        pair.run(1.2)
        pair.vote("B")
        pair.put("B", X, 2, {"/k": b"1"}, **extras)
        pair.run(0.1)
        assert "/k" not in pair.p.state.map.values, "it ended here"
        pair.linked = True
        pair.run(0.5)
        assert pair.b.state.map.values == {"/k": b"1"} == pair.p.state.map.values
        assert "/k" not in pair.outcomes()


def test_a_lease_end_by_its_holder_is_part_of_the_suffix() -> None:
    pair = held_pair(lease=[LEASE, 60_000], l=LEASE)
    pair.linked = False
    pair.run(1.2)
    pair.cores["P"].collect([b"\x02\x03", (2).to_bytes(8, "big"), X, b"", Segment([], [], {"unlease": LEASE}).encode()])
    pair.run(0.1)
    pair.vote("B")
    pair.run(0.1)
    pair.linked = True
    pair.run(1.0)
    assert pair.b.state.map.values == {} == pair.p.state.map.values
    assert not pair.b.state.leases and pair.outcomes() == {"/k": "replayed"}
