"""Tests that the state except the map is packed in slices, one in each turn, as it was at one moment.

covers: `rest` and `load_rest` of core/state/state.py
"""

import pytest

from chp.batch import Segment, packb, split
from chp.limits import DEFAULT
from chp_server.core.state import state as module
from chp_server.core.state.image import NOT_YET
from chp_server.core.state.state import ReplicatedState

LEASES, EACH, SESSIONS = 3, 1000, 250


def full() -> ReplicatedState:
    state = ReplicatedState(DEFAULT)
    for n in range(LEASES):
        name, keys = bytes([n]) * 16, [f"/{n}/{i}" for i in range(EACH)]
        state.apply(Segment([], [], {"lease": [name, 60_000, b"owner"]}), 1, 0.0)
        state.apply(Segment(keys, [b"v"] * EACH, {"l": name}), n + 1, 0.0)
    for n in range(SESSIONS):
        state.record_batch(n.to_bytes(16), 1 + n % 3, 7 + n, 0.5)
    return state


def test_no_turn_packs_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 100)
    packed: list[int] = []

    def counted(thing: object) -> bytes:
        packed.append(len(thing) if isinstance(thing, tuple | list) else 1)
        return packb(thing)

    monkeypatch.setattr(module, "packb", counted)
    steps = []
    for body in full().rest(1.0):
        steps.append(sum(packed))
        packed.clear()
        last = body
    assert last is not NOT_YET and len(steps) >= (LEASES * EACH + SESSIONS) / 100
    assert max(steps) <= 100 + 60, "a slice, and the few words between two of them"


def test_changes_during_packing_do_not_enter_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 100)
    state = full()
    whole, begun = list(state.rest(1.0))[-1], state.rest(1.0)
    next(begun)
    for key in list(state.lease_of):
        state.apply(Segment([key], [b""], {"d": [0]}), 9, 2.0)
    state.record_batch(b"x" * 16, 1, 9, 2.0)
    state.record_batch((0).to_bytes(16), 2, 9, 2.0)
    assert list(begun)[-1] == whole


def test_a_state_packed_in_slices_equals_one_packed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    state = full()
    whole = list(state.rest(1.0))[-1]
    monkeypatch.setattr(module, "SLICE", 7)
    assert list(state.rest(1.0))[-1] == whole
    copy = ReplicatedState(DEFAULT)
    copy.load_rest(split(whole)[1], 1.0)
    assert copy.lease_of == state.lease_of and copy.sessions.keys() == state.sessions.keys()
    assert {name: lease.keys for name, lease in copy.leases.items()} == {
        name: lease.keys for name, lease in state.leases.items()
    }
