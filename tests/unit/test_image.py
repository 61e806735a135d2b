"""Tests that an image is of one number, whatever is written meanwhile. covers: image.py and its waiting readers."""

import random
from dataclasses import replace
from itertools import count
from typing import Any

import msgpack
import pytest

from chp.batch import Segment
from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.performing import ServerPort, take_inputs
from chp_server.core.state import image as image_module
from chp_server.core.state import incremental_free
from chp_server.core.state.image import Image
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates import channels as channels_module

SLICE = 50
SMALL = replace(DEFAULT, gather_items_max=SLICE, gather_quiet_times=1)


def filled(keys: int) -> ReplicatedState:
    state = ReplicatedState(SMALL)
    for i in range(keys):
        state.apply(Segment([f"/{'ab'[i % 2]}/{i}"], [b"%d" % i], None), i + 1, 0.0)
        state.number = i + 1
    return state


def content(state: ReplicatedState, subtree: str) -> list[tuple[str, bytes, int]]:
    items = [(key, value, state.map.revisions[key]) for key, value in state.map.values.items()]
    return sorted(item for item in items if item[0].startswith(subtree))


def held(image: Image) -> list[tuple[str, bytes, int]]:
    return sorted(image.items())


@pytest.mark.parametrize("subtree", ["", "/a/", "/none/"])
def test_an_image_of_a_one_slice_map_is_ready_at_once(subtree: str) -> None:
    state = filled(SLICE)
    image = state.image(subtree)
    assert image.ready and not state.gathering
    assert held(image) == content(state, subtree)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("subtree", ["", "/a/"])
def test_writes_during_the_gathering_do_not_change_an_image(seed: int, subtree: str) -> None:
    chance, state, revision = random.Random(seed), filled(6 * SLICE + 7), count(10_000)
    image, was = state.image(subtree), content(state, subtree)
    # Without deletes the map's own order can be walked to the end.
    only_values = seed % 3 == 0
    while not image.ready:
        for _ in range(chance.randrange(4)):
            i, n = chance.randrange(400), chance.randrange(1, 5)
            keys = [f"/{'ab'[j % 2]}/{j}" for j in range(i, i + n)]
            keys = [key for key in keys if not only_values or key in state.map.values]
            deletes = {"d": list(range(len(keys)))} if not only_values and keys and chance.random() < 0.4 else None
            state.apply(Segment(keys, [b"new"] * len(keys), deletes), next(revision), 0.0)
        state.gather()
    assert held(image) == was
    assert image.fingerprint() == (len(was), sum(r for _, _, r in was) & (1 << 64) - 1)
    assert not state.gathering


def test_a_delete_and_a_new_key_do_not_shift_the_image_columns() -> None:
    """Iteration over a dict notices a changed size, but not a size that has changed twice."""
    state = filled(4 * SLICE)
    image, was = state.image(""), content(state, "")
    state.apply(Segment(["/a/0"], [b""], {"d": [0]}), 1000, 0.0)
    state.apply(Segment(["/a/new"], [b"x"], None), 1001, 0.0)
    while not image.ready:
        state.gather()
    assert held(image) == was


class Visits(dict[str, Any]):
    """A column of a map that notes each key that is looked up."""

    def __init__(self, column: dict[str, Any]) -> None:
        super().__init__(column)
        self.keys_in_order: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_in_order.append(key)
        return super().get(key, default)


def test_a_gathering_looks_up_an_overwritten_key_once_in_batch_order() -> None:
    state = filled(6 * SLICE)
    state.map.values, state.map.revisions = values, revisions = Visits(state.map.values), Visits(state.map.revisions)
    image, was = state.image(""), content(state, "")
    gathering = state._gathering[0]
    order = [f"/{'ab'[i % 2]}/{i}" for i in range(6 * SLICE)]
    for _ in range(2):
        for at in range(0, len(order), SLICE):
            gathering.before(Segment(order[at : at + SLICE], [b"again"] * SLICE))
    assert values.keys_in_order == revisions.keys_in_order == order
    while not image.ready:
        state.gather()
    assert len(values.keys_in_order) == len(order), "the gathering goes along the map, and looks nothing up"
    assert held(image) == was


def test_entries_kept_for_an_image_are_freed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental_free, "ITEMS", SLICE)
    state = filled(4 * SLICE)
    state.image("")
    state.apply(Segment(list(state.map.values), [b"again"] * (4 * SLICE)), 1000, 0.0)
    state.gather_all()
    assert sum(map(len, state.leaving.dicts)) == 2 * 4 * SLICE
    state.leaving.step()
    assert sum(map(len, state.leaving.dicts)) == 7 * SLICE


def test_a_deferred_update_does_not_reach_an_earlier_image() -> None:
    state = filled(4 * SLICE)
    image, was = state.image(""), content(state, "")
    state.apply(Segment(["/b/199"], [b"late"], None), 1000, 0.0, deferred=True)
    while not image.ready:
        state.gather()
    assert held(image) == was
    assert state.map.values["/b/199"] == b"late"


def test_sets_wait_while_the_names_of_keys_are_listed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "LISTED", 2)
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, SMALL)
    core.begin_turn(0.1, 1e9)
    core.state.apply(Segment([f"/k/{i}" for i in range(7 * SLICE)], [b"v"] * (7 * SLICE), None), 1, 0.0)
    core.request([b"reader", b"ICANHAZ?", b"", msgpack.packb({"chp": 3, "id": 1, "credit": 64})])
    asked: list[list[ServerPort]] = []

    class Ports:
        ready = frozenset(ServerPort)

        def take(self, port: ServerPort, handle: object) -> None:
            asked[-1].append(port)

    while not core.end_turn().replies:
        core.begin_turn(0.2 + len(asked) / 1000, 1e9)
        asked.append([])
        take_inputs(core, Ports())
    waited = [ServerPort.COLLECTOR not in ports for ports in asked]
    assert waited == [True] * 3 + [False] * 6, "eight slices of names in four turns, the last one empty; then seven"
    assert all(ServerPort.SNAPSHOT in ports for ports in asked)


@pytest.mark.parametrize("seed", range(10))
def test_key_changes_during_the_listing_do_not_change_the_image(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "LISTED", 1)
    chance, state = random.Random(seed), filled(6 * SLICE)
    names, image, was = state.names(), state.image(""), content(state, "")
    for _ in range(chance.randrange(1, 5)):
        state.gather()
    state.apply(Segment(["/a/0", "/a/new"], [b"", b"x"], {"d": [0]}), 1000, 0.0)
    assert not state.listing
    state.gather_all()
    assert held(image) == was
    assert sorted(key for piece in names.names for key in piece) == [key for key, _, _ in was]


def test_a_join_of_a_large_map_gathers_one_slice_each_turn() -> None:
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, SMALL)
    core.begin_turn(0.1, 1e9)
    core.state.apply(Segment([f"/k/{i}" for i in range(4 * SLICE)], [b"v"] * (4 * SLICE), None), 1, 0.0)
    core.request([b"reader", b"ICANHAZ?", b"/k/", msgpack.packb({"chp": 3, "id": 1, "credit": 64})])
    quiet = 0
    while not core.end_turn().replies:
        quiet += 1
        assert core.next_deadline() <= core.turn.now, "it goes on at once"
        core.begin_turn(0.2 + quiet / 1000, 1e9)
    assert quiet == 3, "one slice when it was asked for, one each turn: three to go"
    assert not core.state.gathering


def test_one_pass_over_the_map_serves_all_waiting_readers() -> None:
    """One pass serves many readers with one slice in each turn, and a second pass serves later readers."""
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, SMALL)
    core.begin_turn(0.1, 1e9)
    core.state.apply(Segment([f"/k/{i}" for i in range(3 * SLICE)], [b"v"] * (3 * SLICE), None), 1, 0.0)
    for reader, subtree in enumerate([b"/k/", b"/k/", b"", b"/x/"]):
        core.request([b"%d" % reader, b"ICANHAZ?", subtree, msgpack.packb({"chp": 3, "id": 1, "credit": 64})])
    answered: dict[bytes, int] = {}
    for at in range(20):
        assert len(core.state._gathering) <= 1
        for identity, _ in core.end_turn().replies:
            answered.setdefault(identity, at)
        core.begin_turn(0.2 + at / 1000, 1e9)
        if at == 0:
            core.request([b"late", b"ICANHAZ?", b"/k/", msgpack.packb({"chp": 3, "id": 1, "credit": 64})])
    assert len({answered[b"%d" % reader] for reader in range(4)}) == 1
    assert answered[b"late"] > answered[b"0"]


@pytest.mark.parametrize("seed", range(5))
def test_a_shared_pass_makes_a_correct_image_of_each_subtree(seed: int) -> None:
    chance, state = random.Random(seed), ReplicatedState(SMALL)
    for i in range(7 * SLICE):
        path = "".join(f"/{chance.choice('abc')}" for _ in range(chance.randrange(1, 4)))
        state.apply(Segment([f"{path}/{i}"], [b"%d" % i], None), i + 1, 0.0)
    prefixes = ["", "/a/", "/b/", "/a/b/", "/c/c/c/", "/none/", "/b/a/"]
    was = {prefix: content(state, prefix) for prefix in prefixes}
    images = state.images(prefixes)
    while state.gathering:
        state.apply(Segment([f"/a/{chance.randrange(400)}"], [b"x"], None), 10_000, 0.0)
        state.gather()
    assert {prefix: held(image) for prefix, image in images.items()} == was


def test_a_channel_fingerprint_comes_from_a_readers_image_and_later_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels_module, "LOOKED_AT_MAX", 0)
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, SMALL)
    core.begin_turn(0.1, 1e9)
    core.state.apply(Segment([f"/k/{i}" for i in range(4 * SLICE)], [b"v"] * (4 * SLICE), None), 1, 0.0)
    core.subscription([b"1", b"\1" + channel_topic("/k/")])
    core.request([b"r", b"ICANHAZ?", b"/k/", msgpack.packb({"chp": 3, "id": 1, "credit": 64})])
    (channel,) = core.committer.committed.channels.by_topic.values()
    for at in range(6):
        core.end_turn()
        assert channel.known or channel.measuring is not None
        core.begin_turn(0.2 + at / 1000, 1e9)
        segment = Segment([f"/k/{at}", f"/k/new{at}", f"/k/{100 + at}"], [b"", b"x", b"y"], {"d": [0]})
        core.committer.add_segment(segment, 0.2)
    core.end_turn()
    channel.look()
    revisions = [r for key, r in core.state.map.revisions.items() if key.startswith("/k/")]
    assert channel.known
    assert channel.fingerprint(core.state.map) == (len(revisions), sum(revisions) & (1 << 64) - 1)
