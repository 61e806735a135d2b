"""Large values that are not needed any more are freed a slice a turn. covers: incremental_free.py, images"""

import weakref
from collections.abc import Sized
from dataclasses import replace

import pytest

from chp.batch import Segment
from chp.hashmap import Hashmap
from chp.limits import DEFAULT
from chp_server.core.state import incremental_free as leaving_module
from chp_server.core.state.incremental_free import SLICES, IncrementalFree
from chp_server.core.state.state import ReplicatedState

KEYS = [f"/k/{i}" for i in range(100)]


class Slice:
    """An object that is freed."""


def test_lists_are_freed_some_slices_at_each_step() -> None:
    leaving = IncrementalFree()
    slices = [Slice() for _ in range(3 * SLICES + 1)]
    alive = weakref.WeakSet(slices)
    leaving.add(slices)
    del slices
    counts = []
    while leaving:
        leaving.step()
        counts.append(len(alive))
    assert counts == [2 * SLICES + 1, SLICES + 1, 1, 0]


def test_a_small_list_is_freed_at_once() -> None:
    leaving = IncrementalFree()
    leaving.add([Slice()] * SLICES)
    assert not leaving


def test_a_map_is_freed_some_items_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving_module, "ITEMS", 30)
    leaving, hashmap = IncrementalFree(), Hashmap()
    hashmap.apply(Segment(KEYS, [b"v"] * 100, {"t": 1000}), 1, 0.0)
    leaving.add_map(hashmap)
    columns: list[Sized] = [hashmap.values, hashmap.revisions, hashmap.deadlines]
    left = []
    while leaving:
        leaving.step()
        left.append(sum(len(column) for column in columns))
    assert left[0] == 270 and left[-1] == 0 and all(a - b <= 30 for a, b in zip([300, *left], left, strict=False))


def test_an_unused_image_is_freed_in_slices() -> None:
    state = ReplicatedState(replace(DEFAULT, gather_items_max=5))
    state.apply(Segment(KEYS, [b"v"] * 100), 1, 0.0)
    image = state.image("")
    state.gather_all()
    assert not state.leaving and [key for key, _, _ in image.items()] == KEYS
    del image
    steps = 0
    while state.leaving:
        state.leaving.step()
        steps += 1
    assert steps == 3, "20 slices, 8 a turn"
