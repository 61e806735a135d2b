"""covers: clone/atomic.py without servers: an answer from the copy alone is looked at again after a `sync`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from chp.numbers import UNKNOWN, Revision
from chp_client import BadInput, Conflict
from chp_client.agent.waiting import at_once
from chp_client.clone.atomic import NOTHING, AtomicOperations
from chp_client.clone.mapping import Entry


class Late:
    """A stand-in for all that `AtomicOperations` uses.

    It has a late copy, its servers, and a `Waits` whose steps bring the copy up to date.
    """

    def __init__(self, copy: dict[str, bytes], servers: dict[str, bytes], subtrees: tuple[str, ...] = ("",)) -> None:
        self.copy, self.servers, self.subtrees = copy, servers, subtrees
        self.pending: set[str] = set()
        self.asked: list[str] = []

    # -- the copy

    def entry(self, key: str) -> Entry | None:
        value = self.copy.get(key)
        revision = UNKNOWN if key in self.pending else Revision(7)
        return None if value is None else Entry(key, value, revision, None)

    def stored(self, key: str) -> tuple[bytes, Revision] | None:
        entry = self.entry(key)
        return None if entry is None else (entry.value, entry.revision)

    def some_key(self) -> str | None:
        return next(iter(self.copy), None)

    # -- the writer

    def sync(self) -> None:
        self.asked.append("sync")

    def delete(self, key: str, revision: int) -> None:
        self.asked.append(f"delete {key}")
        self._as_seen(key)
        del self.servers[key]

    def set(self, key: str, value: bytes, ttl: None, revision: int) -> None:
        self.asked.append(f"set {key}")
        self._as_seen(key)
        self.servers[key] = value

    def touch(self, key: str, ttl: float | None, held: bytes, revision: int) -> None:
        self.asked.append(f"touch {key} {held!r} for {ttl}")
        self._as_seen(key)

    def _as_seen(self, key: str) -> None:
        if self.copy.get(key) != self.servers.get(key):
            raise Conflict("", "revision", {key: 8})

    # -- what is waited for

    async def done(self, act: Callable[[], Any]) -> None:
        try:
            act()
        finally:
            self.copy = dict(self.servers)

    async def confirmed(self, key: str) -> None:
        if key in self.pending:
            self.pending.discard(key)
            self.copy = dict(self.servers)


def taking(late: Any) -> AtomicOperations:
    return AtomicOperations(late, Mock(), late, late)


def test_pop_looks_again_after_a_sync_if_the_copy_lacks_the_key() -> None:
    late = Late({}, {"/a": b"1"})
    assert at_once(taking(late).pop("/a", NOTHING)) == b"1"
    assert late.asked == ["sync", "delete /a"] and not late.servers


def test_pop_finds_no_key_if_the_servers_lack_the_key() -> None:
    late = Late({}, {})
    assert at_once(taking(late).pop("/a", b"none")) == b"none"
    with pytest.raises(KeyError, match="/a"):
        at_once(taking(late).pop("/a", NOTHING))
    assert late.asked == ["sync", "sync"]


def test_pop_needs_no_sync_after_a_conflict() -> None:
    late = Late({"/a": b"1"}, {})
    assert at_once(taking(late).pop("/a", None)) is None
    assert late.asked == ["delete /a"]


def test_setdefault_returns_the_value_of_the_servers_after_a_sync() -> None:
    late = Late({"/a": b"old"}, {"/a": b"new"})
    assert at_once(taking(late).setdefault("/a", b"mine")) == b"new"
    assert late.asked == ["sync"]


def test_setdefault_sets_the_key_if_only_a_late_copy_has_it() -> None:
    late = Late({"/a": b"old"}, {})
    assert at_once(taking(late).setdefault("/a", b"mine")) == b"mine" == late.servers["/a"]
    assert late.asked == ["sync", "set /a"]


def test_setdefault_needs_no_sync_after_a_conflict() -> None:
    late = Late({}, {"/a": b"theirs"})
    assert at_once(taking(late).setdefault("/a", b"mine")) == b"theirs"
    assert late.asked == ["set /a"]


def test_setdefault_does_not_return_an_unconfirmed_own_set() -> None:
    late = Late({"/a": b"refused"}, {"/a": b"theirs"})
    late.pending.add("/a")
    assert at_once(taking(late).setdefault("/a", b"mine")) == b"theirs"
    assert late.asked == ["sync"]


def test_touch_syncs_first_if_the_copy_lacks_the_key() -> None:
    late = Late({}, {"/a": b"1"})
    at_once(taking(late).touch("/a", 30))
    with pytest.raises(KeyError, match="/b"):
        at_once(taking(late).touch("/b", 30))
    assert late.asked == ["sync", "touch /a b'1' for 30", "sync"]


def test_touch_sends_the_current_value_after_a_conflict_or_an_own_set() -> None:
    late = Late({"/a": b"old"}, {"/a": b"new"})
    at_once(taking(late).touch("/a", None))
    late.pending.add("/a")
    at_once(taking(late).touch("/a", None))
    assert late.asked == ["touch /a b'old' for None", "touch /a b'new' for None", "touch /a b'new' for None"]


def test_a_touch_gives_up_after_three_more_conflicts() -> None:
    class Contended(Late):
        def _as_seen(self, key: str) -> None:
            raise Conflict("", "revision", {key: 8})

    late = Contended({"/a": b"1"}, {"/a": b"1"})
    with pytest.raises(Conflict):
        at_once(taking(late).touch("/a", 30))
    assert len(late.asked) == 4


def test_popitem_looks_again_after_a_sync_if_the_copy_is_empty() -> None:
    late = Late({}, {"/a": b"1"})
    assert at_once(taking(late).popitem()) == ("/a", b"1")
    with pytest.raises(KeyError, match="holds no keys"):
        at_once(taking(late).popitem())
    assert late.asked == ["sync", "delete /a", "sync"]


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t.pop("/a", None),
        lambda t: t.popitem(),
        lambda t: t.setdefault("/a", b""),
        lambda t: t.touch("/a", 5),
    ],
)
def test_a_write_only_clone_refuses_atomic_operations(act: Callable[[AtomicOperations], Any]) -> None:
    with pytest.raises(BadInput, match="only writes"):
        at_once(act(taking(Late({}, {}, subtrees=()))))
