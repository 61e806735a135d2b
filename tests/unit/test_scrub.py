"""covers: core/peer/scrub.py: contents that differ while their fingerprints are equal are found and healed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chp.batch import packb, unpackb
from chp.errors import BadFrame
from chp.limits import DEFAULT
from chp_server.core.peer.scrub import SCRUB, SCRUBBED, SLICE_KEYS, Scrub, sums
from chp_server.core.state.state import ReplicatedState
from chp_server.testing import Cores

CLIENT = b"c" * 16


def filled(keys: int = 300, **config: Any) -> Cores:
    """Return a pair that holds so many keys, some with a ttl and some with a lease."""
    pair = Cores(**{"scrub_s": 2.0, **config})
    lease = b"l" * 16
    pair.put("PB", CLIENT, 1, {f"/k/{i:05}": b"%d" % i for i in range(keys)})
    pair.put("PB", CLIENT, 2, {"/t/1": b"ttl", "/t/2": b"ttl"}, t=60_000)
    pair.put("PB", CLIENT, 3, {"/l/1": b"leased"}, lease=[lease, 60_000], l=lease)
    pair.run(1.0)
    return pair


def facts(pair: Cores, event: str) -> list[tuple[str, dict[str, Any]]]:
    return [(name, f.fields) for name, turns in pair.turns.items() for t in turns for f in t.facts if f.event == event]


def status(pair: Cores, name: str) -> dict[str, Any]:
    found: dict[str, Any] = pair.cores[name].status()["scrub"]
    return found


def value(state: ReplicatedState) -> None:
    state.map.values["/k/00007"] = b"x"


def swapped_revisions(state: ReplicatedState) -> None:
    held = state.map.revisions
    held["/k/00007"] += 1
    held["/k/00008"] -= 1


def no_ttl(state: ReplicatedState) -> None:
    del state.map.deadlines["/t/1"]


def no_lease(state: ReplicatedState) -> None:
    state.leases[state.lease_of.pop("/l/1")].keys.clear()


def renamed(state: ReplicatedState) -> None:
    """Rename a key, which keeps the count and the sum of revisions."""
    held = state.map
    held.values["/other"], held.revisions["/other"] = held.values.pop("/k/00007"), held.revisions.pop("/k/00007")


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (value, "/k/00007"),
        (swapped_revisions, "/k/00007"),
        (no_ttl, "/t/1"),
        (no_lease, "/l/1"),
        (renamed, "/k/00007"),
    ],
)
@pytest.mark.parametrize("where", ["P", "B"])
def test_a_difference_is_reported_by_both_servers_and_healed(
    tamper: Callable[[ReplicatedState], None], named: str, where: str
) -> None:
    pair = filled()
    before = pair.p.state.map.fingerprint()
    tamper(pair.cores[where].state)
    assert pair.p.state.map.fingerprint() == pair.b.state.map.fingerprint() == before
    pair.run(4.0)
    told = facts(pair, "contents differ")
    assert {name for name, _ in told} == {"P", "B"} and (where == "P" or all(named in f["keys"] for _, f in told))
    assert pair.p.committer.counts["scrub_differences"] >= 1 and pair.b.committer.counts["scrub_differences"] >= 1
    a, b = pair.p.state, pair.b.state
    assert (a.map.values, a.map.revisions, a.lease_of) == (b.map.values, b.map.revisions, b.lease_of)
    assert a.map.deadlines.keys() == b.map.deadlines.keys() and pair.p.pair.in_sync()


def test_a_key_that_only_the_passive_has_is_found_and_removed() -> None:
    pair = filled()
    pair.b.state.map.values["/more"], pair.b.state.map.revisions["/more"] = b"", 1
    pair.run(4.0)
    assert facts(pair, "contents differ") and "/more" not in pair.b.state.map.values


def test_repeated_passes_under_load_find_no_difference_in_equal_contents() -> None:
    pair = filled(keys=1000)
    for no in range(4, 104):
        pair.put("PB", CLIENT, no, {f"/k/{no * 7 % 1000:05}": b"x%d" % no, f"/k/{no * 3 % 1000:05}": None})
        pair.run(0.1)
    assert not facts(pair, "contents differ")
    for name in "PB":
        said = status(pair, name)
        assert said["passes"] > 2 and said["keys"] > 500 and said["differences"] == 0
        assert 0 <= said["ended_s_ago"] < 5.0


def test_a_passive_with_a_difference_gets_a_snapshot_instead_of_records() -> None:
    pair = filled()
    assert pair.p.committer.committed.log.reaches(0), "it could be given records only"
    pair.b.state.map.values["/k/00007"] = b"x"
    pair.run(4.0)
    assert [f for name, f in facts(pair, "caught_up") if name == "B" and f["by"] == "snapshot"]


def test_a_scrub_time_of_zero_turns_the_scrub_off() -> None:
    pair = filled(scrub_s=0.0)
    pair.b.state.map.values["/k/00007"] = b"x"
    pair.run(4.0)
    assert not facts(pair, "contents differ") and not status(pair, "P")["on"] and status(pair, "P")["passes"] == 0


def test_nothing_is_compared_while_the_passive_is_not_in_sync() -> None:
    pair = filled()
    pair.linked = False
    pair.run(3.0)
    passes = status(pair, "P")["passes"]
    pair.run(2.0)
    assert status(pair, "P")["passes"] == passes


def state_of(keys: int, size: int = 3) -> ReplicatedState:
    state = ReplicatedState(DEFAULT)
    state.number = 1 << 48 | keys
    for i in range(keys):
        state.map.values[f"/{i}"], state.map.revisions[f"/{i}"] = b"v" * size, i
    return state


def slices(scrub: Scrub, state: ReplicatedState) -> list[list[str]]:
    """Return the keys of each slice of one pass."""
    out: list[list[str]] = []
    for i in range(100_000):
        keys = unpackb((scrub.next(state, float(i)) or [])[1], "")[2]
        if not keys:
            return out
        out.append(keys)
    raise AssertionError("a pass has no end")


@pytest.mark.parametrize(
    ("keys", "scrub_s", "most"), [(1000, 600.0, 64), (100_000, 60.0, 417), (20_000, 0.5, SLICE_KEYS[1])]
)
def test_the_size_of_a_slice_follows_from_the_scrub_time(keys: int, scrub_s: float, most: int) -> None:
    found = slices(Scrub(scrub_s, 0.25), state_of(keys))
    assert max(map(len, found)) == most and sorted(k for part in found for k in part) == sorted(
        f"/{i}" for i in range(keys)
    )


def test_a_slice_of_large_values_is_short() -> None:
    found = slices(Scrub(600.0, 0.25), state_of(20, 300_000))
    assert max(map(len, found)) == 4


def test_a_slice_or_an_answer_that_does_not_match_is_ignored() -> None:
    scrub, state = Scrub(600.0, 0.25), state_of(3)
    body = (scrub.next(state, 0.0) or [])[1]
    state.number += 1
    assert Scrub(600.0, 0.25).compare(state, body, 0.0) == (None, None)
    assert scrub.answered(packb([7, 3, ["/1"], 1, False]), 0.0) is None and scrub.last.differences == 0


def test_malformed_scrub_messages_are_refused() -> None:
    scrub = Scrub(600.0, 0.25)
    scrub.next(state_of(3), 0.0)
    with pytest.raises(BadFrame):
        scrub.answered(packb([1, "x", [], 0, False]), 0.0)
    pair = filled()
    for frames in ([SCRUB, packb([1])], [SCRUBBED, packb(7)], [SCRUB, packb([1, pair.b.state.number, 7, []])]):
        for core in (pair.p, pair.b):
            core.peer_message(frames)
            core.peer_message([frames[0], b"\xc1"])
    assert pair.b.committer.counts["garbage_peer"] and not facts(pair, "contents differ")


def test_the_sum_of_a_key_covers_value_revision_deadline_and_lease() -> None:
    state = state_of(1)
    seen = {tuple(sums(state, ["/0"]))}
    for change in (
        lambda: state.map.values.update({"/0": b"w"}),
        lambda: state.map.revisions.update({"/0": 9}),
        lambda: state.map.deadlines.update({"/0": 5.0}),
        lambda: state.lease_of.update({"/0": b"l" * 16}),
        lambda: state.map.values.pop("/0"),
    ):
        change()
        seen.add(tuple(sums(state, ["/0"])))
    assert len(seen) == 6
