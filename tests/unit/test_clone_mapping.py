"""A Clone is a mapping by the standard's rules; no server is there, so what it shows are own sets.

A Clone of several mounts is the same mapping, so most tests run twice.
The cases are those of the standard library's own mapping tests (`test.mapping_tests`), for text keys and bytes.
"""

from __future__ import annotations

import contextlib
import gc
from collections import UserDict
from collections.abc import Callable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any

import pytest

from chp.batch import Segment
from chp.errors import BadKey, BadTtl, BadValue
from chp.numbers import UNKNOWN, number
from chp_client import BadInput, BadSubtree, Clone, Closed, State, Ticket
from chp_client.clone import clone as clone_module
from chp_client.clone.base import internals
from tests.talk import NO_SERVER

INITIAL = {"/a": b"1", "/b": b"2", "/c": b""}
OTHER = {"/d": b"4", "/e": b"5"}


# Pairs that nobody runs; some of the keys below are of the one mount, and some of another.
MOUNTS = "/=127.0.0.1:9 /a/=127.0.0.1:13 /x/=127.0.0.1:17 /by/=127.0.0.1:21"


@pytest.fixture(params=[NO_SERVER, MOUNTS], ids=["one pair", "mounts"])
def empty(request: pytest.FixtureRequest) -> Iterator[Clone]:
    made = Clone(request.param)
    try:
        yield made
    finally:
        made.close(0.0)


@pytest.fixture
def clone(empty: Clone) -> Clone:
    empty.update(INITIAL)
    return empty


class TestReading:
    def test_a_clone_is_a_mutable_mapping(self, clone: Clone) -> None:
        assert isinstance(clone, MutableMapping)
        assert isinstance(clone.keys(), KeysView)
        assert isinstance(clone.values(), ValuesView)
        assert isinstance(clone.items(), ItemsView)

    def test_values_by_key(self, clone: Clone) -> None:
        for key, value in INITIAL.items():
            assert clone[key] == value == clone.get(key) == clone.get(key, b"other")
            assert key in clone
        with pytest.raises(KeyError):
            clone["/none"]
        assert clone.get("/none") is None and clone.get("/none", b"x") == b"x" and "/none" not in clone

    def test_length_and_truth(self, clone: Clone) -> None:
        assert len(clone) == 3 and bool(clone)
        clone.clear()
        assert len(clone) == 0 and not clone

    def test_views(self, clone: Clone) -> None:
        assert sorted(clone) == sorted(clone.keys()) == sorted(INITIAL)
        assert sorted(clone.values()) == sorted(INITIAL.values())
        assert sorted(clone.items()) == sorted(INITIAL.items())
        assert len(clone.keys()) == len(clone.values()) == len(clone.items()) == 3
        assert "/a" in clone.keys() and b"1" in clone.values() and ("/a", b"1") in clone.items()  # noqa: SIM118
        assert clone.keys() & {"/a", "/x"} == {"/a"} and clone.keys() == set(INITIAL)

    def test_equality_with_any_mapping(self, clone: Clone) -> None:
        assert clone == INITIAL and clone == UserDict(INITIAL) and clone not in (OTHER, 3)
        with pytest.raises(TypeError):
            hash(clone)

    def test_iteration_goes_over_the_items_present_at_its_start(self, clone: Clone) -> None:
        for key in clone:
            clone[key + "/more"] = b""
            del clone[key]
        assert sorted(clone) == ["/a/more", "/b/more", "/c/more"]
        for key, _ in clone.items():
            del clone[key]
        clone.update(INITIAL)
        for value in clone.values():
            clone[f"/by/{value!r}"] = value
        assert len(clone) == 6

    def test_a_snapshot_is_a_dict_of_its_own(self, clone: Clone) -> None:
        copy = clone.snapshot()
        clone["/a"] = b"changed"
        assert copy == INITIAL and type(copy) is dict and dict(clone) == {**INITIAL, "/a": b"changed"}

    def test_an_object_that_cannot_be_a_key_is_absent(self, clone: Clone) -> None:
        assert 7 not in clone and None not in clone
        with pytest.raises(KeyError):
            clone[7]  # type: ignore[index]


class TestWriting:
    def test_set_and_delete(self, clone: Clone) -> None:
        clone["/a"] = b"new"
        assert clone["/a"] == b"new"
        del clone["/a"]
        assert "/a" not in clone
        with pytest.raises(KeyError):
            del clone["/a"]

    def test_setdefault_pop_and_popitem_wait_for_the_servers(self, clone: Clone) -> None:
        for act in (
            lambda: clone.setdefault("/a", b"x", timeout=0.01),
            lambda: clone.pop("/none", b"default", timeout=0.01),
            lambda: clone.pop("/a", timeout=0.01),
            lambda: clone.popitem(timeout=0.01),
            lambda: clone.setdefault("/new", b"x", timeout=0.01),
        ):
            with pytest.raises(TimeoutError, match="not heard from"):
                act()
        assert clone == INITIAL, "nothing is shown before it is so"
        clone.clear()
        with pytest.raises(TimeoutError, match="not heard from"):
            clone.popitem(timeout=0.01)

    def test_update(self, empty: Clone) -> None:
        empty.update(INITIAL)
        empty.update(list(OTHER.items()))
        empty.update({"/f": b"6"}.items(), plain=b"7")
        empty.update()
        empty.update({})
        assert empty == {**INITIAL, **OTHER, "/f": b"6", "plain": b"7"}
        with pytest.raises((TypeError, ValueError)):
            empty.update(7)

    def test_set_many_takes_columns_and_keeps_the_last_value_of_a_key(self, empty: Clone) -> None:
        empty.set_many((["/a", "/b", "/a"], [b"1", b"2", b"3"]))
        assert empty == {"/a": b"3", "/b": b"2"}
        with pytest.raises(BadInput, match="2 keys came with 1 values"):
            empty.set_many((["/a", "/b"], [b"1"]))

    def test_clear(self, clone: Clone) -> None:
        clone.clear()
        clone.clear()
        assert dict(clone) == {}

    def test_clear_sends_some_thousands_a_batch(self, clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clone_module, "CLEARED_ITEMS", 10)
        sizes: list[int] = []
        delete_many = Clone.delete_many

        def counted(self: Clone, keys: list[str], timeout: float | None = None) -> Ticket:
            sizes.append(len(keys))
            return delete_many(self, keys, timeout)

        monkeypatch.setattr(Clone, "delete_many", counted)
        clone.set_many({f"/x/{i}": b"" for i in range(95)})
        held = len(clone)
        clone.clear()
        assert max(sizes) == 10 and sum(sizes) == held == 98 and not clone

    def test_a_clone_can_be_unpacked_into_a_dict(self, clone: Clone) -> None:
        assert {**clone, **OTHER} == {**INITIAL, **OTHER}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "key", ["", "\x02x", "\n", "HUGZ", "KTHXBAI", "ICANHAZ?", "x" * 1025, "é" * 513, "\ud800", 7, b"/a"]
    )
    def test_bad_keys_are_refused(self, empty: Clone, key: object) -> None:
        acts: tuple[Callable[[], object], ...] = (
            lambda: empty.set(key, b""),  # type: ignore[arg-type]
            lambda: empty.set_many({key: b""}),  # type: ignore[dict-item]
            lambda: empty.set_many({"/good": b"", key: b""}),  # type: ignore[dict-item]
            lambda: empty.delete(key),  # type: ignore[arg-type]
            lambda: empty.delete_many([key]),  # type: ignore[list-item]
        )
        for act in acts:
            with pytest.raises(BadKey):
                act()
        assert len(empty) == 0, "nothing of a refused call is shown"

    @pytest.mark.parametrize("value", [7, "text", None, [b"x"], b"x" * (16 * 1024 * 1024 + 1)])
    def test_bad_values_are_refused(self, empty: Clone, value: Any) -> None:
        acts: tuple[Callable[[], object], ...] = (
            lambda: empty.set("/a", value), lambda: empty.set_many({"/a": b"", "/b": value}),
        )  # fmt: skip
        for act in acts:
            with pytest.raises(BadValue):
                act()
        assert len(empty) == 0

    def test_bytearray_and_memoryview_values_are_taken(self, empty: Clone) -> None:
        empty.update({"/a": bytearray(b"1"), "/b": memoryview(b"2")})
        empty["/c"] = bytearray(b"3")
        assert dict(empty) == {"/a": b"1", "/b": b"2", "/c": b"3"} and type(empty["/a"]) is bytes

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12, "5", True])
    def test_bad_ttls_are_refused(self, empty: Clone, ttl: Any) -> None:
        acts: tuple[Callable[[], object], ...] = (
            lambda: empty.set("/a", b"", ttl=ttl), lambda: empty.set_many({"/a": b""}, ttl=ttl),
        )  # fmt: skip
        for act in acts:
            with pytest.raises(BadTtl):
                act()
        with pytest.raises(BadTtl):
            empty.lease(ttl)
        assert len(empty) == 0

    @pytest.mark.parametrize("subtree", ["a", "/a", "a/", "//\x01/", 7])
    def test_bad_subtrees_are_refused(self, subtree: object) -> None:
        with pytest.raises(BadSubtree):
            Clone(NO_SERVER, subtree=subtree)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "settings",
        [
            {"codec": "pickle"}, {"codec": 7}, {"on_full": "drop"}, {"on_lag": "ignore"}, {"window_bytes": 0},
            {"max_lag_s": -1}, {"silence_s": float("nan")}, {"subtrees": "/a/"}, {"subtrees": ["/a"]},
        ],
    )  # fmt: skip
    def test_bad_settings_are_refused(self, settings: dict[str, object]) -> None:
        with pytest.raises(BadInput):
            Clone(NO_SERVER, **settings)  # type: ignore[arg-type]

    def test_a_negative_if_revision_is_refused(self, empty: Clone) -> None:
        with pytest.raises(BadInput, match="if_revision"):
            empty.set("/a", b"", if_revision=-1)


def test_a_clone_that_only_writes_holds_nothing() -> None:
    clone = Clone(NO_SERVER, subtree=None)
    clone["/a"] = b"1"
    clone.set_many({"/b": b"2"})
    assert len(clone) == 0 and clone.state is State.CONNECTING and "write-only" in repr(clone)
    clone.close(0.0)


def test_a_clone_tells_its_state_before_any_server_is_heard() -> None:
    clone = Clone(NO_SERVER, subtree="/x/", name="me")
    assert clone.state == "CONNECTING" and clone.staleness_s == float("inf") and clone.revision == 0
    assert clone.active is None and clone.stats == {} and clone.verify(contents=False).ok and clone.name == "me"
    assert "127.0.0.1:9 not heard from" in clone.describe()
    clone.close(0.0)
    assert clone.state is State.CLOSED


def test_an_overridden_set_is_used_by_item_assignment_too() -> None:
    class Shouting(Clone):
        def set(self, key: str, value: bytes, *rest: object, **more: object) -> Ticket:
            return super().set(key, value.upper())

    with contextlib.closing(Shouting(NO_SERVER)) as clone:
        clone.set("/a", b"a")
        clone["/b"] = b"b"
        assert dict(clone) == {"/a": b"A", "/b": b"B"}
        clone.close(0.0)


def test_a_kept_set_method_keeps_its_clone_open() -> None:
    put = Clone(NO_SERVER).set
    gc.collect()
    ticket = put("/a", b"1")
    assert not ticket.done and put("/a", b"2") is not None
    del put
    gc.collect()
    assert isinstance(ticket.error, Closed)


def test_a_pin_has_the_values_with_their_revision() -> None:
    with contextlib.closing(Clone(NO_SERVER, codec="json")) as clone:
        clone["/a"] = [1]
        assert clone.pin() == ({"/a": [1]}, 0, 0)
        clone.close(0.0)


class TestEntry:
    """Value and revision belong together, wherever an own set is on its way."""

    @pytest.fixture
    def held(self, empty: Clone) -> Clone:
        """Return a Clone with keys that a server confirmed."""
        internals(empty.mounts["/"]).mailbox.core.channels[0].replica.apply(
            [Segment(["/a", "/b"], [b"1", b"2"])], number(1, 7), 0, False, 0.0
        )
        return empty

    def test_a_confirmed_value_has_its_revision(self, held: Clone) -> None:
        entry = held.entry("/a")
        assert entry is not None and not entry.pending and str(entry.revision) == "1.7"
        assert entry == ("/a", b"1", number(1, 7), None)
        assert held.entry("/none") is None

    @pytest.mark.parametrize("many", [1, 3000])
    def test_an_unconfirmed_own_set_is_pending_without_a_revision(self, held: Clone, many: int) -> None:
        held.set_many({"/a": b"mine", **{f"/{i}": b"" for i in range(many)}})
        entry = held.entry("/a")
        assert entry is not None and entry.pending and (entry.value, entry.revision) == (b"mine", UNKNOWN)
        assert held.entry("/new") is None and held.entry("/0").revision == UNKNOWN  # type: ignore[union-attr]
        assert not held.entry("/b").pending  # type: ignore[union-attr]

    def test_a_refused_own_set_that_is_still_shown_is_pending(self, held: Clone) -> None:
        internals(held.mounts["/"]).mailbox.core.channels[0].replica.orphans.add("/a")
        assert held.entry("/a").pending  # type: ignore[union-attr]

    def test_a_conditional_set_on_its_way_changes_nothing_yet(self, held: Clone) -> None:
        held.set("/a", b"mine", if_revision="1.7")
        assert held.entry("/a") == ("/a", b"1", number(1, 7), None)

    @pytest.mark.parametrize("wrong", [True, -1, 1.5, "1.2.3", "x", 1 << 63])
    def test_an_invalid_if_revision_is_refused(self, held: Clone, wrong: object) -> None:
        with pytest.raises(BadInput, match="not a revision"):
            held.set("/a", b"", if_revision=wrong)  # type: ignore[arg-type]
