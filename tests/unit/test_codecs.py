"""covers: codecs.Decoding and agent/changes.py: values that the codec can't decode, and deletes that are expiries."""

from collections.abc import Iterator
from typing import Any

import pytest

from chp.errors import BadValue
from chp_client import BadInput, Clone
from chp_client.agent.watch import Watch, WatchQueue
from chp_client.clone.base import internals
from chp_client.codecs import Decoding, Json, OnBad
from chp_client.core.events import Changed
from tests.talk import unconnected


def told(key: str, data: bytes, error: Exception) -> Any:
    """Return the arguments of an `on_bad` call."""
    return (key, data, type(error))


def queue_of(*found: Changed, conflate: bool = False) -> WatchQueue:
    queue = WatchQueue("", conflate, 100)
    queue.offer(*found)
    queue.close()
    return queue


def watch_of(on_bad: OnBad, *found: Changed) -> Watch:
    return Watch(queue_of(*found), Decoding(Json().decode, on_bad), lambda: None, None)


def test_text_refuses_bytes_that_are_not_utf_8() -> None:
    with unconnected(codec="text") as clone:
        internals(clone).mailbox.core.shown["/a"] = b"\xff"
        for read in (lambda: clone["/a"], lambda: clone.get("/a"), lambda: clone.entry("/a")):
            with pytest.raises(BadValue, match=r"the value b'\\xff' is not UTF-8 .*; read it with codec='raw'"):
                read()
        assert list(clone.items(on_bad="skip")) == []


MIXED = Changed(["/a", "/b", "/c", "/d", "/e"], [b"1", None, b"{", b"null", b"]"], 7, expiries=[1])


def test_a_watch_with_on_bad_skip_skips_changes_with_bad_values() -> None:
    assert [(c.key, c.value, c.operation) for c in watch_of("skip", MIXED)] == [
        ("/a", 1, "set"), ("/b", None, "delete"), ("/d", None, "set")
    ]  # fmt: skip
    [changes] = watch_of("skip", MIXED).batches()
    assert (changes.keys, changes.values, changes.deletes, changes.expiries) == (
        ["/a", "/b", "/d"], [1, None, None], [1], [1]
    )  # fmt: skip


def test_an_on_bad_callable_gives_the_replacement_of_a_bad_value() -> None:
    bad = [("/c", b"{", BadValue), ("/e", b"]", BadValue)]
    assert [c.value for c in watch_of(told, MIXED)] == [1, None, bad[0], None, bad[1]]
    [changes] = watch_of(told, MIXED).batches()
    assert changes.values == [1, None, bad[0], None, bad[1]]


def test_a_watch_can_be_read_on_after_its_on_bad_callable_raised() -> None:
    def refuse(key: str, data: bytes, error: Exception) -> Any:
        raise LookupError(key)

    watch = watch_of(refuse, Changed(["/a", "/b"], [b"{", b"2"], 1))
    with pytest.raises(LookupError, match="/a"):
        watch.get(1)
    assert watch.get(1).value == 2


def test_a_custom_codec_may_raise_any_error() -> None:
    values = [b"1", b"x"]
    assert Decoding(int, "skip").column(["/a", "/b"], values)[0] == 1
    assert Decoding(int, told).column(["/a", "/b"], values) == [1, ("/b", b"x", ValueError)]
    with pytest.raises(ValueError, match="invalid literal"):
        Decoding(int).column(["/a", "/b"], values)


@pytest.mark.parametrize("wrong", ["ignore", "", None, 3])
def test_an_invalid_on_bad_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="is not 'raise', 'skip' or a callable"):
        Decoding(Json().decode, wrong)


@pytest.fixture
def clone() -> Iterator[Clone]:
    with unconnected(codec="json") as made:
        internals(made).mailbox.core.shown.update({"/a/1": b"1", "/a/2": b"{", "/b": b"2"})
        yield made


def test_items_of_a_clone_follow_on_bad(clone: Clone) -> None:
    with pytest.raises(BadValue, match="key '/a/2'"):
        list(clone.items())
    assert dict(clone.items(on_bad="skip")) == {"/a/1": 1, "/b": 2}
    assert dict(clone.items(on_bad=told))["/a/2"] == ("/a/2", b"{", BadValue)
    with pytest.raises(BadInput, match="on_bad"):
        clone.items(on_bad="drop")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="on_bad"):
        clone.watch(on_bad="drop")  # type: ignore[arg-type]


def test_items_of_a_prefix_view_follow_on_bad(clone: Clone) -> None:
    assert dict(clone.prefix("/a/").items(on_bad="skip")) == {"/a/1": 1}
    with pytest.raises(BadValue, match="key '/a/2'"):
        list(clone.prefix("/a/").items())


def test_a_watch_tells_an_expiry_from_a_delete() -> None:
    found = Changed(["/a", "/b", "/c"], [None, None, b"1"], 3, expiries=[1])
    watch = Watch(queue_of(found, found), None, lambda: None, None)
    assert [(c.operation, c.expired) for c in [next(watch) for _ in range(3)]] == [
        ("delete", False), ("delete", True), ("set", False)
    ]  # fmt: skip
    next(watch)
    # The batch begins in the middle of changes that came together.
    [rest] = watch.batches()
    assert (rest.keys, rest.deletes, rest.expiries) == (["/b", "/c"], [0], [0])


def test_a_conflating_watch_tells_if_the_latest_change_is_an_expiry() -> None:
    first = Changed(["/a", "/b", "/c"], [None, None, b"1"], 3, expiries=[0, 1])
    then = Changed(["/b", "/c"], [b"2", None], 4, expiries=[1])
    watch = Watch(queue_of(first, then, conflate=True), None, lambda: None, None)
    assert [(c.key, c.value, c.expired) for c in watch] == [("/a", None, True), ("/b", b"2", False), ("/c", None, True)]
