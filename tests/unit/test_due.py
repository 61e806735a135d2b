"""Tests that keys fall due never early, are never forgotten, go in slices, and cost one reference each.

covers: chp/due.py
"""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from chp import due as module
from chp.batch import Segment
from chp.due import Due
from chp.hashmap import Hashmap
from tests.talk import LARGER

TTLS = st.sampled_from([1, 40, 63_900, 64_100, 5_000_000, 300_000_000]) | st.integers(1, 10_000_000)
KEYS = [f"/{i}" for i in range(12)]


@given(st.lists(st.tuples(st.sampled_from(KEYS), TTLS, st.floats(0.0, 5000.0)), max_size=60))
def test_each_key_is_due_exactly_at_its_deadline(steps: list[tuple[str, int, float]]) -> None:
    hashmap, now = Hashmap(), 0.0
    for n, (key, ms, wait) in enumerate(steps):
        hashmap.apply(Segment([key], [b"v"], {"t": [[0], [ms]]}), n + 1, now)
        hashmap.check()
        now += wait
        wanted = {k for k, deadline in hashmap.deadlines.items() if deadline <= now}
        assert set(hashmap.expired(now, 1000)[0]) == wanted
        gone = sorted(wanted)
        hashmap.apply(Segment(gone, [b""] * len(gone), {"d": list(range(len(gone)))}), n + 1, now)


def test_the_keys_of_an_opened_time_slot_are_looked_at_in_slices() -> None:
    hashmap = Hashmap()
    keys = [f"/k/{i}" for i in range(1000)]
    hashmap.apply(Segment(keys, [b"v"] * 1000, {"t": 100_500}), 1, 0.0)
    looked = []
    while (at := hashmap.next_deadline()) is not None and at <= 101.0:
        found, n = hashmap.expired(100.0, 64)
        looked.append(n)
        assert not found, "it is not due yet"
        if hashmap.next_deadline() == 100.5:
            break
    assert max(looked) == 64 and sum(looked) >= 1000
    parts = [hashmap.expired(100.5, 64)[0] for _ in range(16)]
    assert max(map(len, parts)) == 64 and sorted(key for some in parts for key in some) == sorted(keys)


def test_keys_with_new_deadlines_are_filed_again_in_slices() -> None:
    deadlines: dict[str, float] = {}
    due = Due(deadlines.get)
    keys = [f"/k/{i}" for i in range(500)]
    looked: list[int] = []
    original = Due._file_again

    def counted(self: Due, most: int) -> None:
        before = sum(map(len, self._again))
        original(self, most)
        looked.append(before - sum(map(len, self._again)))

    Due._file_again = counted  # type: ignore[method-assign]
    try:
        for n in range(60):
            for at in range(0, 500, 10):
                some = keys[at : at + 10]
                deadlines.update(dict.fromkeys(some, n + 300.0))
                due.add(some, n + 300.0, float(n), 500)
                due.check(deadlines)
    finally:
        Due._file_again = original  # type: ignore[method-assign]
    assert 0 < max(looked) <= 10 * module.AGAIN, "none of them looks at more than some keys"
    assert len(due) <= 2 * 500 + module.MORE + 500
    assert sum(looked) > 500


def test_a_ttl_costs_under_60_bytes_shared_and_under_80_unshared() -> None:
    each = []
    for ttls in ([600_000] * 500, [600_000 + 37 * i for i in range(500)]):
        held = []
        for extras in (None, {"t": [list(range(500)), ttls]}):
            hashmap = Hashmap()
            tracemalloc.start()
            for at in range(0, 100_000, 500):
                keys = [f"/k/{i:08d}" for i in range(at, at + 500)]
                hashmap.apply(Segment(keys, [b""] * 500, extras), at + 1, at / 1000)
            held.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
        each.append((held[1] - held[0]) / 100_000)
    assert each[0] < 60 * LARGER and each[1] < 80 * LARGER, each
