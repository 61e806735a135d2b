"""The hashmap against the plainest model of it: one item after the other, one dict a column."""

from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.batch import Segment, runs_of, select
from chp.hashmap import Hashmap, sync_segment

KEYS = st.sampled_from([f"/{i}" for i in range(8)])


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    keys = draw(st.lists(KEYS, max_size=12))
    places: st.SearchStrategy[list[int]] = st.lists(
        st.integers(0, max(0, len(keys) - 1)), unique=True, max_size=len(keys)
    ).map(sorted)
    extras: dict[str, object] = {}
    if keys and bool(draw(st.booleans())):
        extras["d"] = draw(places)
    match draw(st.integers(0, 2)) if keys else 0:
        case 1:
            extras["t"] = draw(st.integers(1, 50)) * 100
        case 2:
            chosen = draw(places)
            extras["t"] = [chosen, [draw(st.integers(1, 50)) * 100 for _ in chosen]]
    return Segment(keys, [b"%d" % i for i in range(len(keys))], extras or None)


class Model:
    """key -> value, revision, deadline."""

    def __init__(self) -> None:
        self.items: dict[str, tuple[bytes, int, float | None]] = {}

    def apply(self, segment: Segment, revision: int, now: float) -> None:
        extras = segment.extras or {}
        ttl = extras.get("t")
        for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
            if i in extras.get("d", ()):
                self.items.pop(key, None)
                continue
            ms = ttl if type(ttl) is int else dict(zip(*ttl, strict=True)).get(i) if ttl else None
            self.items[key] = value, revision, None if ms is None else now + ms / 1000


def check(hashmap: Hashmap, model: Model) -> None:
    hashmap.check()
    assert hashmap.values == {k: v for k, (v, _, _) in model.items.items()}
    assert hashmap.revisions == {k: r for k, (_, r, _) in model.items.items()}
    assert hashmap.deadlines == {k: d for k, (_, _, d) in model.items.items() if d is not None}
    assert hashmap.fingerprint() == (len(model.items), sum(r for _, r, _ in model.items.values()))


@given(st.lists(st.tuples(segments(), st.integers(0, 40), st.booleans()), max_size=20))
def test_applying_columns_equals_applying_item_by_item(steps: list[tuple[Segment, int, bool]]) -> None:
    hashmap, model, now = Hashmap(), Model(), 0.0
    for n, (segment, tenths, look) in enumerate(steps):
        now += tenths / 10
        hashmap.apply(segment, 10 * n + 1, now)
        model.apply(segment, 10 * n + 1, now)
        if look:
            check(hashmap, model)
        due = {k for k, (_, _, d) in model.items.items() if d is not None and d <= now}
        first = hashmap.next_deadline()
        assert first is None or not due or first <= now, "never late"
        expired = list(dict.fromkeys(hashmap.expired(now, 3)[0] + hashmap.expired(now, 1000)[0]))
        assert sorted(expired) == sorted(due)
        gone = Segment(expired, [b""] * len(expired), {"d": list(range(len(expired)))})
        hashmap.apply(gone, 10 * n + 2, now)
        model.apply(gone, 10 * n + 2, now)
    check(hashmap, model)


@given(st.lists(segments(), max_size=8), st.integers(1, 5))
def test_a_snapshot_loaded_in_chunks_makes_an_equal_map(steps: list[Segment], size: int) -> None:
    one, two = Hashmap(), Hashmap()
    for n, segment in enumerate(steps):
        one.apply(segment, n // 2 + 1, 0.0)
    keys = list(one.values)
    for start in range(0, len(keys), size):
        part = keys[start : start + size]
        places = [i for i, key in enumerate(part) if key in one.deadlines]
        left = [one.remaining_ms(part[i], 0.0) or 1 for i in places]
        runs = runs_of(one.revisions[key] for key in part)
        two.load(sync_segment(part, [one.values[k] for k in part], runs, (places, left)), 0.0)
    two.check()
    assert (two.values, two.revisions, two.deadlines) == (one.values, one.revisions, one.deadlines)
    assert two.fingerprint() == one.fingerprint()


@given(segments(), st.lists(st.booleans(), min_size=12, max_size=12))
def test_selected_items_keep_their_columns(segment: Segment, mask: list[bool]) -> None:
    mask = mask[: len(segment.keys)]
    kept = select(segment, mask)
    model, whole = Model(), Model()
    if kept is not None:
        model.apply(kept, 1, 0.0)
    extras = segment.extras or {}
    for i, key in enumerate(segment.keys):
        if mask[i]:
            ttl = extras.get("t")
            ms = ttl if type(ttl) is int else dict(zip(*ttl, strict=True)).get(i) if ttl else None
            deleted = {"d": [0]} if i in extras.get("d", ()) else {}
            whole.apply(Segment([key], [segment.values[i]], {**deleted, **({"t": ms} if ms else {})}), 1, 0.0)
    assert model.items == whole.items


def test_thousands_of_replaced_ttls_do_not_pile_up() -> None:
    hashmap = Hashmap()
    hashmap.apply(Segment(["/once"], [b"v"], {"t": 80_000}), 1, 0.0)
    for n in range(30_000):
        hashmap.apply(Segment(["/k"], [b"v"], {"t": 60_000}), n + 1, n / 1000)
    assert hashmap._due is not None and len(hashmap._due) < 25_000
    hashmap.check()
    assert [hashmap.expired(now, 50_000)[0] for now in (79.9, 80.1, 89.9, 90.0)] == [[], ["/once"], [], ["/k"]]


def test_an_unordered_map_keeps_deadlines_but_expires_no_key() -> None:
    hashmap = Hashmap(ordered=False)
    hashmap.apply(Segment(["/a", "/b"], [b"", b""], {"t": [[1], [5000]]}), 1, 1.0)
    hashmap.check()
    assert hashmap.deadlines == {"/b": 6.0} and hashmap.remaining_ms("/b", 2.0) == 4000
    assert hashmap.next_deadline() is None and hashmap.expired(9.0, 10) == ([], 0)
    hashmap.clear()
    assert hashmap.deadlines == {} and hashmap.next_deadline() is None


class Unread(dict[str, int]):
    """Revisions that must not be added up."""

    def values(self) -> NoReturn:
        raise AssertionError("all revisions are added up in one turn")


def test_the_fingerprint_of_a_large_map_is_not_added_up_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is added up once when a map reaches the bound, so a status of millions of keys is fast."""
    monkeypatch.setattr("chp.hashmap.SUM_KEYS_MAX", 100)
    hashmap = Hashmap()
    for i in range(20):
        hashmap.apply(Segment([f"/{i}/{k}" for k in range(10)], [b""] * 10), i + 1, 0.0)
    wanted = sum(hashmap.revisions.values())
    hashmap.revisions = Unread(hashmap.revisions)
    assert hashmap.fingerprint() == (200, wanted)
