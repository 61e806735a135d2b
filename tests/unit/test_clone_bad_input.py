"""Tests of an application's mistakes: it is told at once, by an error that names the mistake and the remedy.

There is no server. A refused call is not shown, not queued and not half done.
"""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chp.errors import BadKey, BadTtl, BadValue
from chp_client import BadInput, Clone, Closed
from tests.talk import NOBODY, unconnected


@pytest.fixture
def clone() -> Iterator[Clone]:
    with unconnected(subtree="/a/") as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"servers": []}, "no server is given"),
        ({"servers": [NOBODY, NOBODY]}, "server tcp://127.0.0.1:9 is given twice"),
        ({"servers": [NOBODY, "tcp://a:1", "tcp://b:2"]}, "3 servers are given; name one, or the two of a pair"),
        ({"servers": 5556}, "server 5556 is not tcp://host:port"),
        ({"servers": "tcp://::1:5556"}, "is not tcp://host:port"),
        ({"subtrees": 5}, "subtrees is a list of texts, not int"),
        ({"subtree": "/a/", "subtrees": ["/b/"]}, "both subtree and subtrees"),
        ({"stale_s": 2}, "the argument stale_s is gone; use silence_s"),
        ({"on_state": 5}, "on_state=5 can't be called"),
        ({"codec": object}, "values can't be of object: it is no dataclass, no pydantic model and no codec"),
    ],
)
def test_settings(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Clone(**({"servers": NOBODY} | settings))


WRONG: list[tuple[str, Callable[[Clone], object], type[Exception], str]] = [
    ("a list of pairs", lambda c: c.set_many([("/a/1", b"")]), BadInput, "a mapping, or (keys, values)"),  # type: ignore[arg-type]
    ("nothing", lambda c: c.set_many(None), BadInput, "a mapping, or (keys, values)"),  # type: ignore[arg-type]
    ("three columns", lambda c: c.set_many((["/a/"], [b""], [1])), BadInput, "not a tuple of 3"),  # type: ignore[arg-type]
    ("a text as keys", lambda c: c.set_many(("/a", [b"", b""])), BadInput, "keys is a list of texts, not str"),
    ("bytes as values", lambda c: c.set_many((["/a/"], b"1")), BadInput, "values is a list"),
    ("numbers as columns", lambda c: c.set_many((1, 2)), BadInput, "keys is a list of texts, not int"),  # type: ignore[arg-type]
    ("delete one by delete_many", lambda c: c.delete_many("/a/1"), BadInput, "use delete('/a/1') for one"),
    ("delete nothing", lambda c: c.delete_many(None), BadInput, "keys is a list of texts, not NoneType"),  # type: ignore[arg-type]
    ("a lease without ttl", lambda c: c.lease(None), BadTtl, "a lease needs a ttl"),  # type: ignore[arg-type]
    ("a ttl that is none", lambda c: c.set("/a/1", b"", ttl=math.nan), BadTtl, "or None for a key that stays"),
    ("a ttl below 0", lambda c: c.set("/a/1", b"", ttl=-1), BadTtl, "or None for a key that stays"),
    ("a wait of text", lambda c: c.set("/a/1", b"").wait("5"), BadInput, "timeout='5' is not a number of seconds"),  # type: ignore[arg-type]
    ("a wait of no number", lambda c: c.set("/a/1", b"").wait(math.nan), BadInput, "timeout=nan is not a number"),
    ("a flush of text", lambda c: c.flush("5"), BadInput, "timeout='5' is not a number of seconds"),  # type: ignore[arg-type]
    ("synced by text", lambda c: c.wait_until_synced("5"), BadInput, "timeout='5' is not"),  # type: ignore[arg-type]
    ("a change by text", lambda c: c.watch().get("5"), BadInput, "timeout='5' is not"),  # type: ignore[arg-type]
    ("close by text", lambda c: c.close("5"), BadInput, "timeout='5' is not"),  # type: ignore[arg-type]
    ("a queue of text", lambda c: c.watch(queue_max="9"), BadInput, "queue_max='9' is not a number of at least 1"),  # type: ignore[arg-type]
    ("no queue", lambda c: c.watch(queue_max=0), BadInput, "queue_max=0 is not a number of at least 1"),
    ("a start below 0", lambda c: c.watch(start=-1), BadInput, "start=-1 is not"),
    ("a watch of what is elsewhere", lambda c: c.watch("/b/"), BadInput, "nothing under '/b/' is held here ('/a/')"),
    ("a listener", lambda c: c.on_state(5), BadInput, "5 can't be called"),  # type: ignore[arg-type]
    ("a callback", lambda c: c.set("/a/1", b"").add_done_callback(5), BadInput, "not 5"),  # type: ignore[arg-type]
    ("a copy", copy.copy, TypeError, "snapshot()"),
    ("a pickle", pickle.dumps, TypeError, "snapshot()"),
]


@pytest.mark.parametrize(("act", "kind", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_mistakes(clone: Clone, act: Callable[[Clone], object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        act(clone)


def test_a_clone_that_only_writes_has_nothing_to_watch() -> None:
    with Clone(NOBODY, subtree=None) as clone, pytest.raises(BadInput, match="only writes"):
        clone.watch()


@pytest.mark.parametrize("prefix", ["", "/", "/a", "/a/", "/a/b"])
def test_prefixes_that_may_be_watched(clone: Clone, prefix: str) -> None:
    clone.watch(prefix).close()


def test_waits_without_end() -> None:
    for timeout in (math.inf, 1e300, 10**400, None):
        with Clone(NOBODY) as short:
            ticket = short.set("/a", b"")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(ticket.wait, timeout)
                short.close(0.0)
                with pytest.raises(Closed):
                    waiting.result(60)


@pytest.mark.parametrize(
    ("codec", "value"), [("text", "\ud800"), ("json", math.nan), ("json", {"a": [math.inf]}), ("json", "\ud800")]
)
def test_values_that_others_could_not_read(codec: str, value: object) -> None:
    with Clone(NOBODY, codec=codec) as clone, pytest.raises(BadValue, match=f"codec '{codec}'"):
        clone["/a"] = value


def test_what_is_nested_too_deeply_is_no_value() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for codec in ("json", "msgpack"):
        with Clone(NOBODY, codec=codec) as clone:
            with pytest.raises(BadValue, match=f"codec '{codec}'"):
                clone["/a"] = deep
            # Another client has set this value.
            clone.mailbox.core.shown["/a"] = (b"[" if codec == "json" else b"\x91") * 100_000
            with pytest.raises(BadValue, match=f"(?i)is not {codec}"):
                clone.snapshot()


def test_msgpack_reads_what_it_wrote() -> None:
    clone = Clone(NOBODY, codec="msgpack")
    clone["/a"] = {1: 2, None: b"x"}
    assert clone["/a"] == {1: 2, None: b"x"}
    clone.close(0.0)


def test_what_can_not_be_decoded_is_named() -> None:
    clone = Clone(NOBODY, codec="json")
    clone.mailbox.core.shown.update({"/good": b"1", "/bad": b"{"})
    for read in (clone.snapshot, lambda: list(clone.items()), lambda: list(clone.values())):
        with pytest.raises(BadValue, match=r"key '/bad': the value b'\{' is not JSON"):
            read()
    assert clone["/good"] == 1
    clone.close(0.0)


def test_a_key_outside_is_refused_by_update_too(clone: Clone) -> None:
    with pytest.raises(BadKey, match="outside what this Clone holds"):
        clone.update(a=b"1")
    assert not clone
