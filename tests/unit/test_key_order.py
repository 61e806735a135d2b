"""covers: chp_client.core.copy.key_order: the order of a map's keys, whatever is set, deleted and loaded meanwhile."""

from __future__ import annotations

import random

import pytest

from chp.batch import Segment
from chp_client.core.copy.key_order import CHUNK, GONE_MIN, NOTED_MIN, KeyOrder, bounds
from tests.unit.client_frames import OTHER, SESSION, Talk, n, segment


def read(order: KeyOrder, low: str = "", high: str | None = None) -> list[str]:
    return [key for keys, _ in order.spans(low, high) for key in keys]


@pytest.mark.parametrize("size", [0, 1, 3, CHUNK, 20_000])
def test_make_sorts_keys_given_in_any_order(size: int) -> None:
    keys = [f"/k/{i:06d}" for i in range(size)]
    for arranged in (keys, keys[::-1], random.Random(1).sample(keys, size)):
        order = KeyOrder()
        order.make(list(arranged))
        order.check()
        assert read(order) == keys


def test_add_inserts_unsorted_keys_in_order_without_duplicates() -> None:
    order, chance = KeyOrder(), random.Random(2)
    order.make([])
    keys = [f"/{chance.randrange(30_000)}" for _ in range(20_000)]
    order.add(keys)
    order.check()
    assert read(order) == sorted(set(keys))
    assert read(order, "/1", "/2") == sorted({key for key in keys if "/1" <= key < "/2"})


def test_clean_removes_unknown_keys_from_a_chunk() -> None:
    order = KeyOrder()
    order.make(["/a", "/b", "/c"])
    order.clean(0, [{"/a"}, {"/c"}])
    order.check()
    assert read(order) == ["/a", "/c"]


def test_a_key_order_ends_if_too_many_keys_wait_or_are_gone() -> None:
    order = KeyOrder()
    order.begin(0)
    order.note([f"/{i}" for i in range(NOTED_MIN)])
    assert order.live
    order.note(["/one/more"])
    assert not order.live and order.take(0) == []
    order.begin(0)
    order.make([f"/{i}" for i in range(GONE_MIN + 3)])
    order.take(2)
    assert order.live
    order.take(1)
    assert not order.live


@pytest.mark.parametrize(
    ("prefix", "after", "until", "low", "high"),
    [
        ("", None, None, "", None),
        ("/a/", None, None, "/a/", "/a0"),
        ("/a/", "/a/b", None, "/a/b\0", "/a0"),
        ("/a/", "/", "/a/c", "/a/", "/a/c"),
        ("/a/", None, "/b", "/a/", "/a0"),
        ("\U0010ffff", None, None, "\U0010ffff", None),
    ],
)
def test_the_bounds_of_a_range(prefix: str, after: str | None, until: str | None, low: str, high: str | None) -> None:
    assert bounds(prefix, after, until) == (low, high)


def set_as_an_application_does(talk: Talk, items: dict[str, bytes | None]) -> None:
    """Show a set as the application's thread does. The core hears of it when the agent submits it."""
    for key, value in items.items():
        if value is None:
            talk.core.shown.pop(key, None)
        else:
            talk.core.shown[key] = value
    talk.core.submit(Segment(*segment(items)), next(talk.numbers), talk.now, shown=True)
    talk.take()


def test_a_snapshot_ends_the_key_order() -> None:
    talk = Talk()
    subscriptions = talk.core.subscriptions
    subscriptions.order.make(subscriptions.begin_order(set()))
    talk.greet(told=n(2))
    talk.snapshot(n(2), {"/a": (b"1", n(2))})
    assert talk.map == {"/a": b"1"} and not subscriptions.order.live


@pytest.mark.parametrize("seed", range(60))
def test_a_key_order_knows_every_key_of_the_copy_after_random_changes(seed: int) -> None:
    """Own sets and deletes, others' records, refusals of the order and snapshots, folded in at random moments."""
    chance, talk, at, own, waiting = random.Random(seed), Talk().joined(), 0, 0, []
    order, subscriptions = talk.core.subscriptions.order, talk.core.subscriptions
    if chance.random() < 0.8:
        order.make(subscriptions.begin_order(set()))
    for _ in range(200):
        act, items = chance.randrange(6), {f"/{chance.randrange(12)}": chance.choice([b"v", None]) for _ in range(3)}
        if act <= 1:
            own += 1
            set_as_an_application_does(talk, items)
            waiting.append((own, items))
        elif act == 2:
            talk.batch(n(at), n(at + 1), items, origins=[[OTHER, at + 1]])
            at += len(items)
        elif act == 3 and waiting:
            no, mine = waiting.pop(0)
            talk.batch(n(at), n(at + 1), mine, origins=[[SESSION, no]])
            at += len(mine)
        elif act == 4 and order.live:
            for noted in order.take(len(subscriptions.shown)):
                order.add(noted)
        elif act == 5 and not order.live:
            order.make(subscriptions.begin_order(set()))
        if order.live:
            known = {*read(order), *(key for noted in order._noted for key in noted)}
            assert known >= {*subscriptions.shown, *subscriptions.all[0].replica.map.revisions}, f"seed {seed}"
        if order.live and chance.random() < 0.2:
            order.clean(0, subscriptions.known())
    assert at > 20
