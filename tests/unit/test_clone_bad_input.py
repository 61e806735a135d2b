"""Tests of an application's mistakes: it is told at once, by an error that names the mistake and the remedy.

There is no server. A refused call is not shown, not queued and not half done.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import pickle
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from chp.errors import BadKey, BadTtl, BadValue
from chp_client import AsyncClone, BadInput, Clone, Closed, recipes
from chp_client.clone.base import internals
from chp_client.port.admin import Admin
from tests.talk import NO_SERVER, unconnected

PAIRS_OF = [NO_SERVER, {"/": NO_SERVER, "/b/": "tcp://127.0.0.1:19"}]


@pytest.fixture
def clone() -> Iterator[Clone]:
    with unconnected(subtree="/a/") as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"servers": []}, "no server is given"),
        ({"servers": [NO_SERVER, NO_SERVER]}, "server tcp://127.0.0.1:9 is given twice"),
        (
            {"servers": [f"tcp://a:{port}" for port in range(1, 18)]},
            "17 servers are given, more than 16; name the two of a pair, and replicas of it",
        ),
        ({"servers": 5556}, "server 5556 is not text; give one such as tcp://a:5556"),
        ({"servers": [None]}, "server None is not text; give one such as tcp://a:5556"),
        ({"servers": {"/": [None]}}, "the server None in the mount '/', which is not text; give one such as c:5556"),
        ({"servers": None, "client_file": 5}, "client_file=5 is not the path of a file; give text, or a pathlib.Path"),
        ({"servers": "tcp://::1:5556"}, "is not tcp://host:port"),
        ({"subtrees": 5}, "subtrees is a list of texts, not int"),
        ({"subtree": "/a/", "subtrees": ["/b/"]}, "both subtree and subtrees"),
        ({"stale_s": 2}, "the argument stale_s is gone; use silence_s"),
        ({"on_state": 5}, "on_state=5 can't be called"),
        ({"codec": "jsno"}, r"codec 'jsno' is not known; did you mean 'json'\?"),
        ({"codec": "pickle"}, "codec 'pickle' is not known; use raw, text, json or msgpack, an object with encode and"),
        ({"codec": object}, "values can't be of object: it is no dataclass, no pydantic model and no codec"),
    ],
)
def test_bad_settings_of_a_clone_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Clone(**({"servers": NO_SERVER} | settings))


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
@pytest.mark.parametrize("kind", [Clone, AsyncClone])
def test_bad_settings_of_both_kinds_of_a_clone_are_refused(kind: Any, servers: Any) -> None:
    for settings, says in (
        ({"name": 5}, "name=5 is not text; give text, or leave it out"),
        ({"name": 0}, "name=0 is not text; give text, or leave it out"),
        ({"metrics": 5}, "metrics=5 lacks methods; give an object with acknowledged, refused, state and changes"),
    ):
        with pytest.raises(BadInput, match=says):
            kind(servers, **settings)


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_an_error_of_a_lease_does_not_advise_to_leave_the_ttl_out(servers: Any) -> None:
    with Clone(servers) as clone:
        for ttl, says in ((0, "ttl=0 is no time to live; give seconds above 0"), (1e12, "; give at most that")):
            for needs in (clone.lease, lambda ttl: clone.topic("orders").consumer("billing", ttl=ttl)):
                with pytest.raises(BadTtl, match=f"{says}$"):
                    needs(ttl)
        clone.close(0.0)


# Arguments of `publish_many`, and what the error says.
NO_MESSAGES: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, "values is a list, not NoneType; use publish for one"),
    (b"12", {}, "values is a list, not bytes; use publish for one"),
    ({b"1": 2}, {}, "values is a list, not dict; use publish for one"),
    ([b"1", b"2"], {"keys": "ab"}, "keys is a list, not str; give a key for each message, or none at all"),
    ([b"1"], {"keys": 5}, "keys is a list, not int; give a key for each message"),
    ([b"1", b"2"], {"keys": ["a"]}, "1 keys for 2 messages; give one for each, or none at all"),
    ([b"1"], {"headers": 5}, "headers is a list, not int; give headers or None for each message"),
    ([b"1"], {"headers": {"a": "b"}}, "headers is a list, not dict; give headers or None for each message"),
    ([b"1"], {"headers": [None, None]}, "2 headers for 1 messages; give some for each, or none at all"),
]


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
@pytest.mark.parametrize(("values", "more", "says"), NO_MESSAGES, ids=[each[2] for each in NO_MESSAGES])
def test_columns_that_are_not_messages_are_refused(servers: Any, values: Any, more: dict[str, Any], says: str) -> None:
    async def with_tasks() -> None:
        clone = AsyncClone(servers)
        with pytest.raises(BadInput, match=says):
            await clone.topic("t").publish_many(values, **more)
        assert clone.window == (0, 0)
        await clone.close(0.0)

    with Clone(servers) as clone:
        for publish in (clone.topic("t").publish_many, partial(clone.transaction().publish_many, "t")):
            with pytest.raises(BadInput, match=says):
                publish(values, **more)
        assert clone.window == (0, 0), "nothing was sent"
    asyncio.run(with_tasks())


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_a_flag_that_is_no_bool_is_refused(servers: Any) -> None:
    wrong = "conflate='x' is not True or False; give one of them"

    async def with_tasks() -> None:
        clone = AsyncClone(servers)
        for watch in (clone.watch, clone.on):
            with pytest.raises(BadInput, match=wrong):
                watch("/", conflate="x")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="create='x' is not True or False"):
            await clone.topic("t").consumer("g", create="x")
        await clone.close(0.0)

    with Clone(servers) as clone:
        for watch in (clone.watch, clone.on):
            with pytest.raises(BadInput, match=wrong):
                watch("/", conflate="x")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="create='x' is not True or False"):
            clone.topic("t").consumer("g", create="x")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="name=5 is not text; give text, or leave it out"):
            clone.topic("t").consumer("g", name=5)  # type: ignore[arg-type]
        assert clone.window == (0, 0), "nothing was sent"
    asyncio.run(with_tasks())


def as_redis(word: str, value: object) -> Callable[[Any], object]:
    """Return a `set` with an argument of Redis's."""
    return lambda clone: clone.set("/a/1", b"", **{word: value})


def set_twice(clone: Clone) -> None:
    """Set a key, and set it again with a bad timeout."""
    clone.set("/a/1", b"")
    clone.set("/a/1", b"", timeout=-1)


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
    ("a ttl of text", lambda c: c.set("/a/1", b"", ttl="5"), BadTtl, "no number of seconds and no timedelta"),  # type: ignore[arg-type]
    ("a timedelta below 0", lambda c: c.set("/a/1", b"", ttl=timedelta(seconds=-1)), BadTtl, "is no time to live"),
    ("a ttl below 0", lambda c: c.set("/a/1", b"", ttl=-1), BadTtl, "or None for a key that stays"),
    ("a wait of text", lambda c: c.set("/a/1", b"").wait("5"), BadInput, "timeout='5' is not a number of seconds"),  # type: ignore[arg-type]
    ("a wait of no number", lambda c: c.set("/a/1", b"").wait(math.nan), BadInput, "timeout=nan is not a number"),
    ("a wait below 0", lambda c: c.set("/a/1", b"").wait(-1), BadInput, "timeout=-1 is below 0; give 0 not to wait"),
    ("a set below 0", lambda c: c.set("/a/1", b"", timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a set of a known key below 0", set_twice, BadInput, "timeout=-1 is below 0"),
    ("many below 0", lambda c: c.set_many({"/a/1": b""}, timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a delete below 0", lambda c: c.delete("/a/1", timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("many deletes below 0", lambda c: c.delete_many(["/a/1"], timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a lease below 0", lambda c: c.lease(5, timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a pop below 0", lambda c: c.pop("/a/1", timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a flush below 0", lambda c: c.flush(-1), BadInput, "timeout=-1 is below 0"),
    ("a sync below 0", lambda c: c.sync(-1), BadInput, "timeout=-1 is below 0"),
    ("synced below 0", lambda c: c.wait_until_synced(-1), BadInput, "timeout=-1 is below 0"),
    ("a change below 0", lambda c: c.watch().get(-1), BadInput, "timeout=-1 is below 0"),
    ("verified below 0", lambda c: c.verify(-1), BadInput, "timeout=-1 is below 0"),
    ("a history below 0", lambda c: c.history("/a/1", timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("topics below 0", lambda c: c.topics(-1), BadInput, "timeout=-1 is below 0"),
    ("facts below 0", lambda c: c.topic("t").facts(-1), BadInput, "timeout=-1 is below 0"),
    ("groups below 0", lambda c: c.topic("t").groups(-1), BadInput, "timeout=-1 is below 0"),
    ("a message below 0", lambda c: c.topic("t").publish(b"", timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("messages below 0", lambda c: c.topic("t").publish_many([b""], timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a creation below 0", lambda c: c.topic("t").create(timeout=-1), BadInput, "timeout=-1 is below 0"),
    ("a transaction below 0", lambda c: c.transaction(-1), BadInput, "timeout=-1 is below 0"),
    ("close below 0", lambda c: c.close(-1), BadInput, "timeout=-1 is below 0"),
    ("servers' answers below 0", lambda c: Admin([NO_SERVER], -1), BadInput, "timeout_s=-1 is below 0"),
    ("a lock below 0", lambda c: recipes.Lock(c, "/a/l").acquire(-1), BadInput, "timeout=-1 is below 0"),
    ("a pattern", lambda c: c.watch("/a/*"), BadInput, "no key here begins with '/a/*'; a watch is by prefix"),
    ("a pattern to call for", lambda c: c.on("/a/*")(print), BadInput, "a watch is by prefix; use '/a/'"),
    ("on without parentheses", lambda c: c.on(print), BadInput, 'write @clone.on("/config/") or @clone.on()'),  # type: ignore[arg-type]
    ("on a number, not decorated", lambda c: c.on(5), BadInput, "a prefix is text, not int"),  # type: ignore[arg-type]
    ("on a bad start, not decorated", lambda c: c.on("/a/", "now"), BadInput, "start='now' is gone; use 'end'"),
    ("a touch of what is elsewhere", lambda c: c.touch("/b/1", 5), BadKey, "outside what this Clone holds ('/a/')"),
    ("a touch elsewhere", lambda c: c.touch("/b/1", 5), BadKey, "('/a/'); use one that holds it"),
    ("a pop elsewhere", lambda c: c.pop("/b/1"), BadKey, "('/a/'); use one that holds it"),
    ("a pop elsewhere with a default", lambda c: c.pop("/b/1", b""), BadKey, "outside what this Clone holds"),
    ("a pop of a number", lambda c: c.pop(5), BadKey, "int"),  # type: ignore[arg-type]
    ("a default elsewhere", lambda c: c.setdefault("/b/1", b""), BadKey, "('/a/'); use one that holds it"),
    ("a lock elsewhere", lambda c: recipes.Lock(c, "/b/l").acquire(0), BadKey, "('/a/'); use one that holds it"),
    ("a touch of no time", lambda c: c.touch("/a/1", 0), BadTtl, "is no time to live"),
    ("set ex", as_redis("ex", 30), TypeError, "set() has no ex=; use ttl=, in seconds (docs/from/redis.md)"),
    ("set nx", as_redis("nx", True), TypeError, "set() has no nx=; use if_revision=0, or setdefault(key, value)"),
    ("keys of a pattern", lambda c: c.keys("/a/*"), TypeError, 'keys() takes no pattern; use prefix("/a/").keys()'),  # type: ignore[call-arg]
    ("a value outside", lambda c: c["/b/1"], BadKey, "key '/b/1' is outside what this Clone holds ('/a/'); read it"),
    ("a value outside, as a dict's", lambda c: c["/b/1"], KeyError, "key '/b/1' is outside what this Clone holds"),
    ("a delete outside", lambda c: c.__delitem__("/b/1"), BadKey, "key '/b/1' is outside what this Clone holds"),
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
def test_mistaken_calls(clone: Clone, act: Callable[[Clone], object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        act(clone)


def test_a_clone_that_only_writes_has_nothing_to_watch() -> None:
    with Clone(NO_SERVER, subtree=None) as clone, pytest.raises(BadInput, match="only writes"):
        clone.watch()


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_a_clone_that_only_writes_has_nothing_to_clear(servers: Any) -> None:
    with Clone(servers, subtree=None) as clone, pytest.raises(BadInput, match="only writes, and has nothing to clear"):
        clone.clear()


def test_a_key_outside_the_subtree_is_absent_for_get_and_in(clone: Clone) -> None:
    assert clone.get("/b/1") is None and clone.get("/b/1", b"x") == b"x" and "/b/1" not in clone
    with pytest.raises(KeyError) as missed:
        _ = clone["/a/1"]
    assert type(missed.value) is KeyError, "inside it is absent"
    with (
        Clone(NO_SERVER, None) as writer,
        pytest.raises(BadKey, match="'/a/1' is outside what this Clone holds: it only"),
    ):
        _ = writer["/a/1"]


def test_a_prefix_with_a_star_is_watched_if_a_key_has_it(clone: Clone) -> None:
    clone["/a/*x"] = b""
    clone.watch("/a/*").close()
    clone.on("/a/*")(print)


REDIS = ["decr", "exists", "expire", "incr", "mget", "mset"]
REDIS += ["persist", "pipeline", "scan", "scan_iter", "setex", "setnx"]


@pytest.mark.parametrize("word", REDIS)
def test_a_redis_method_name_raises_an_error_that_names_our_method(clone: Clone, word: str) -> None:
    for each in (Clone, AsyncClone, clone):
        with pytest.raises(AttributeError, match=rf"^{word} is a word of Redis; use .* \(docs/from/redis.md\)$"):
            getattr(each, word)
        assert word not in dir(each) and not hasattr(each, word)


def test_signatures_do_not_show_refused_arguments(clone: Clone) -> None:
    assert str(inspect.signature(clone.set)) == "(key, value, ttl=None, if_revision=None, timeout=None)"
    assert str(inspect.signature(Clone.keys)) == str(inspect.signature(AsyncClone.keys)) == "(self)"
    assert inspect.iscoroutinefunction(AsyncClone.set)


def test_mistaken_calls_of_an_async_clone() -> None:
    async def main() -> None:
        clone = AsyncClone(NO_SERVER, "/a/")
        acts: list[tuple[Callable[[Any], object], type[Exception], str]] = [
            (lambda c: c.__enter__(), TypeError, "use: async with AsyncClone(...)"),
            (lambda c: c.__setitem__("/a/1", b""), TypeError, "use: await clone.set(key, value)"),
            (lambda c: c.__delitem__("/a/1"), TypeError, "use: await clone.delete(key)"),
            (lambda c: c["/b/1"], BadKey, "key '/b/1' is outside what this Clone holds"),
            (lambda c: c.watch("/a/*"), BadInput, "a watch is by prefix; use '/a/'"),
            (lambda c: c.on("/a/*")(print), BadInput, "a watch is by prefix; use '/a/'"),
            (lambda c: c.keys("/a/*"), TypeError, "keys() takes no pattern"),
        ]
        for act, kind, says in acts:
            with pytest.raises(kind, match=re.escape(says)):
                act(clone)
        waits: list[tuple[Coroutine[Any, Any, object], type[Exception], str]] = [
            (clone.set("/a/1", b"", ex=30), TypeError, "set() has no ex=; use ttl=, in seconds (docs/from/redis.md)"),  # type: ignore[call-arg]
            (clone.set("/a/1", b"", px=30), TypeError, "set() has no px="),  # type: ignore[call-arg]
            (clone.set("/a/1", b"", timeout=-1), BadInput, "timeout=-1 is below 0"),
            (clone.flush(-1), BadInput, "timeout=-1 is below 0"),
            (clone.wait_until_synced(-1), BadInput, "timeout=-1 is below 0"),
            (clone.touch("/b/1", 5), BadKey, "outside what this Clone holds"),
            (clone.close(-1), BadInput, "timeout=-1 is below 0"),
        ]
        for wait, kind, says in waits:
            with pytest.raises(kind, match=re.escape(says)):
                await wait
        with pytest.raises(TypeError, match="use: async with AsyncClone"), clone:  # type: ignore[attr-defined]
            pass
        await clone.close(0.0)
        with pytest.raises(TypeError, match="use: with Clone"):
            async with Clone(NO_SERVER):  # type: ignore[attr-defined]
                pass

    asyncio.run(main())


@pytest.mark.parametrize("given", ["localhost", "tcp://localhost", "chp://localhost/a/", ["localhost"]])
def test_the_port_may_be_left_out(given: Any) -> None:
    with Clone(given) as clone:
        assert "tcp://localhost:5556" in clone.describe()
        clone.close(0.0)


ADDING: list[Callable[[Any], object]] = [
    lambda t: t.set("/a/2", b""),
    lambda t: t.set_many({"/a/2": b""}),
    lambda t: t.delete("/a/2"),
    lambda t: t.expect("/a/2", 0),
    lambda t: t.publish("orders", b""),
    lambda t: t.publish_many("orders", [b""]),
    lambda t: t.schedule("orders", b"", delay_s=5),
    lambda t: t.cancel("orders", "late"),
    lambda t: t.ack(SimpleNamespace(whose=("orders", "billing", b""))),
    lambda t: t.once("importer", 1),
    lambda t: t.send(),
    lambda t: t.__enter__(),
]


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_a_transaction_that_was_sent_takes_nothing_more(servers: Any) -> None:
    clone = Clone(servers)
    with clone.transaction() as t:
        t.set("/a/1", b"")
        t.send()
    for add in ADDING:
        with pytest.raises(BadInput, match="this was sent already; begin another transaction"):
            add(t)
    clone.close(0.0)


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_a_transaction_whose_block_raised_takes_nothing_more(servers: Any) -> None:
    clone = Clone(servers)
    with pytest.raises(ZeroDivisionError), clone.transaction() as t:
        t.set("/a/1", b"")
        _ = 1 / 0
    for add in ADDING:
        with pytest.raises(BadInput, match="ended with an error, and nothing was sent; begin another transaction"):
            add(t)
    clone.close(0.0)


def test_an_async_transaction_serves_once() -> None:
    async def main() -> None:
        clone = AsyncClone(NO_SERVER)
        sent, failed = clone.transaction(), clone.transaction()
        async with sent as t:
            t.set("/a/1", b"")
            t.send()
        with pytest.raises(ZeroDivisionError):
            async with failed as t:
                t.set("/a/1", b"")
                _ = 1 / 0
        for ended, says in ((sent, "was sent already"), (failed, "ended with an error, and nothing was sent")):
            with pytest.raises(BadInput, match=says):
                async with ended:
                    pass
        await clone.close(0.0)

    asyncio.run(main())


def test_a_timedelta_is_a_ttl() -> None:
    with Clone(NO_SERVER, "/a/") as clone:
        clone.set("/a/1", b"", ttl=timedelta(milliseconds=1500))
        assert internals(clone).mailbox.batch.pending.ttls[1] == [1500]
        assert clone.lease(timedelta(minutes=1)).ttl_s == 60.0
        assert recipes.Lock(clone, "/a/lock", ttl=timedelta(seconds=5)).held is False
        clone.close(0.0)


@pytest.mark.parametrize("prefix", ["", "/", "/a", "/a/", "/a/b"])
def test_prefixes_that_may_be_watched(clone: Clone, prefix: str) -> None:
    clone.watch(prefix).close()


def test_a_wait_with_a_huge_or_infinite_timeout_lasts_until_close() -> None:
    for timeout in (math.inf, 1e300, 10**400, None):
        with Clone(NO_SERVER) as short:
            ticket = short.set("/a", b"")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(ticket.wait, timeout)
                short.close(0.0)
                with pytest.raises(Closed):
                    waiting.result(60)


@pytest.mark.parametrize(
    ("codec", "value"), [("text", "\ud800"), ("json", math.nan), ("json", {"a": [math.inf]}), ("json", "\ud800")]
)
def test_values_that_other_clients_could_not_decode_are_refused(codec: str, value: object) -> None:
    with Clone(NO_SERVER, codec=codec) as clone, pytest.raises(BadValue, match=f"codec '{codec}'"):
        clone["/a"] = value


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for codec in ("json", "msgpack"):
        with Clone(NO_SERVER, codec=codec) as clone:
            with pytest.raises(BadValue, match=f"codec '{codec}'"):
                clone["/a"] = deep
            internals(clone).mailbox.core.shown["/a"] = (
                b"[" if codec == "json" else b"\x91"
                # Another client has set this value.
            ) * 100_000
            with pytest.raises(BadValue, match=f"(?i)is not {codec}"):
                clone.snapshot()


def test_msgpack_reads_what_it_wrote() -> None:
    clone = Clone(NO_SERVER, codec="msgpack")
    clone["/a"] = {1: 2, None: b"x"}
    assert clone["/a"] == {1: 2, None: b"x"}
    clone.close(0.0)


def test_a_read_names_the_key_whose_value_cannot_be_decoded() -> None:
    clone = Clone(NO_SERVER, codec="json")
    internals(clone).mailbox.core.shown.update({"/good": b"1", "/bad": b"{"})
    for read in (clone.snapshot, lambda: list(clone.items()), lambda: list(clone.values())):
        with pytest.raises(BadValue, match=r"key '/bad': the value b'\{' is not JSON"):
            read()
    assert clone["/good"] == 1
    clone.close(0.0)


READS: list[Callable[[Any], object]] = [
    lambda c: c["/bad"],
    lambda c: c.get("/bad"),
    lambda c: c.entry("/bad"),
    lambda c: c.prefix("/")["/bad"],
    lambda c: c.pop("/bad", timeout=1),
]


@pytest.mark.parametrize("servers", PAIRS_OF, ids=["one pair", "mounts"])
def test_a_read_of_one_key_names_it_if_its_value_cannot_be_decoded(servers: Any) -> None:
    async def with_tasks() -> None:
        clone = AsyncClone(servers, codec="json")
        internals(clone.mounts["/"]).mailbox.core.shown["/bad"] = b"{"
        for read in READS:
            with pytest.raises(BadValue, match=r"^key '/bad': the value b'\{' is not JSON"):
                found = read(clone)
                await found  # type: ignore[misc]
        await clone.close(0.0)

    with Clone(servers, codec="json") as clone:
        internals(clone.mounts["/"]).mailbox.core.shown["/bad"] = b"{"
        for read in READS:
            with pytest.raises(BadValue, match=r"^key '/bad': the value b'\{' is not JSON"):
                read(clone)
    asyncio.run(with_tasks())


def test_update_refuses_a_key_outside_the_subtree(clone: Clone) -> None:
    with pytest.raises(BadKey, match="outside what this Clone holds"):
        clone.update(a=b"1")
    assert not clone
