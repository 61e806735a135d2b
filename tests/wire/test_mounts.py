"""Tests of one Clone over four real pairs: a mapping of all of them, whose order and atomicity hold within a mount.

covers: chp_client/mounted, and what works within one mount: transactions, leases, recipes, topics
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from chp.errors import BadInput, BadKey
from chp_client import AsyncClone, Change, Clone, State
from chp_client.clone.base import internals
from chp_client.mount_table import Mounts
from chp_client.mounted.aio import MountedAsyncClone
from chp_client.mounted.base import MountedBase
from chp_client.mounted.clone import MountedClone
from chp_client.recipes import AsyncLock, Counter, Lock, Party
from chp_server.testing import Pair
from tests.talk import NO_SERVER, PATIENT, WAIT_S, join_all, run, until

PREFIXES = ("/", "/rates/", "/rates/EUR/", "/stock/")
TOPICS = {"ticks.*": "/rates/", "orders": "/stock/"}
# Keys of each mount, in order.
KEYS = ("/a", "/rates/CHF", "/rates/EUR/CHF", "/rates/EUR/USD", "/rates/GBP", "/stock/7", "/z")


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Pair]]:
    """Start four pairs."""
    with contextlib.ExitStack() as stack:
        yield {prefix: stack.enter_context(Pair(**PATIENT)) for prefix in PREFIXES}


@pytest.fixture
def table(pairs: dict[str, Pair]) -> Iterator[Mounts]:
    """Return the mounts of the four pairs, which are empty again afterwards."""
    yield Mounts({prefix: pair.servers for prefix, pair in pairs.items()}, TOPICS)
    for pair in pairs.values():
        with Clone(pair.servers) as clone:
            clone.wait_until_synced(WAIT_S)
            clone.clear()
            clone.flush(WAIT_S)


@pytest.fixture
def clone(table: Mounts) -> Iterator[Clone]:
    """Open a Clone of all that the four pairs hold."""
    with Clone(table) as made:
        made.wait_until_synced(WAIT_S)
        yield made


def fill(clone: Clone) -> dict[str, bytes]:
    """Set each of `KEYS`, and wait until all of them are confirmed."""
    for key in KEYS:
        clone[key] = key.encode()
    clone.flush(WAIT_S)
    return {key: key.encode() for key in KEYS}


def test_a_view_shows_the_keys_of_all_mounts_as_one_mapping(clone: Clone, table: Mounts) -> None:
    held = fill(clone)
    assert dict(clone.items()) == held == clone.snapshot() and len(clone) == 7
    assert clone["/rates/EUR/USD"] == b"/rates/EUR/USD" and clone.get("/none") is None and "/rates/GBP" in clone
    assert list(clone.mounts) == list(PREFIXES)
    for prefix, servers in table.servers.items():
        with Clone(servers) as one:
            one.wait_until_synced(WAIT_S)
            assert sorted(one) == [key for key in KEYS if table.of_key(key) == prefix]
            one.close(0.0)
    entry = clone.entry("/stock/7")
    until(lambda: not clone.entry("/stock/7").pending)  # type: ignore[union-attr]
    assert entry is not None and entry.value == b"/stock/7"
    assert clone.history("/rates/CHF")[-1].value == b"/rates/CHF" and clone.verify(WAIT_S).ok


def test_prefix_views_are_in_key_order_across_mounts(clone: Clone) -> None:
    held = fill(clone)
    assert list(clone.prefix("")) == list(KEYS) and list(clone.prefix("").items()) == list(held.items())
    assert list(clone.prefix("/rates/")) == list(KEYS[1:5]) and list(clone.prefix("/ra")) == list(KEYS[1:5])
    assert list(clone.prefix("/rates/", after="/rates/CHF", until="/rates/EUR/USD")) == ["/rates/EUR/CHF"]
    assert list(clone.prefix("").page(3, after="/rates/CHF")) == list(KEYS[2:5])
    assert len(clone.prefix("/rates/EUR/")) == 2


def test_a_view_hides_keys_that_a_pair_holds_of_another_mount(clone: Clone, pairs: dict[str, Pair]) -> None:
    held = fill(clone)
    changes, everything = clone.watch("/rates/"), clone.watch("")
    with Clone(pairs["/"].servers, None) as before, Clone(pairs["/rates/"].servers, None) as after:
        before.set("/rates/old", b"moved").wait(WAIT_S)
        before["/b"] = b"new"
        after["/rates/new"] = b"here"
    until(lambda: "/b" in clone and "/rates/new" in clone)
    here = {**held, "/b": b"new", "/rates/new": b"here"}
    assert clone == here and len(clone) == len(here) == len(list(clone.prefix(""))) and "/rates/old" not in clone
    assert clone.entry("/rates/old") is None
    assert changes.get(WAIT_S).key == "/rates/new"
    assert {everything.get(WAIT_S).key for _ in range(2)} == {"/b", "/rates/new"}
    assert clone.delete_prefix("/rates/", WAIT_S) == 5
    until(lambda: sorted(clone) == ["/a", "/b", "/stock/7", "/z"])


def test_a_watch_tells_changes_of_all_mounts_and_the_mount_of_each(clone: Clone, table: Mounts) -> None:
    fill(clone)
    with clone.watch("", "snapshot") as held, clone.watch("/rates/") as rates:
        first = [held.get(WAIT_S) for _ in KEYS]
        assert sorted(change.key for change in first) == list(KEYS)
        assert all(change.mount == table.of_key(change.key) for change in first)
        for number in range(20):
            clone["/rates/EUR/USD"] = b"%d" % number
            clone["/stock/7"] = b"%d" % number
        del clone["/rates/GBP"]
        clone.flush(WAIT_S)
        seen: list[Change] = [rates.get(WAIT_S) for _ in range(21)]
        assert [change.value for change in seen if change.mount == "/rates/EUR/"] == [b"%d" % n for n in range(20)]
        assert [change.operation for change in seen if change.mount == "/rates/"] == ["delete"]
        for changes in held.batches(WAIT_S):
            assert changes.mount in PREFIXES and {table.of_key(key) for key in changes.keys} == {changes.mount}
            assert {change.mount for change in changes} == {changes.mount}
            if "/rates/GBP" in changes.keys:
                break
    with pytest.raises(StopIteration):
        rates.get(WAIT_S)


def test_a_change_wakes_a_watch_and_a_revision_start_needs_one_mount(clone: Clone) -> None:
    fill(clone)
    with clone.watch("/") as waiting:
        with pytest.raises(TimeoutError, match="no change under '/'"):
            waiting.get(0.01)
        seen: list[Change] = []
        thread = threading.Thread(target=lambda: seen.append(waiting.get()), daemon=True)
        thread.start()
        clone["/stock/8"] = b"x"
        # The thread ends only if the change wakes it.
        join_all(thread)
        assert seen[0][:2] == ("/stock/8", b"x")
    at = clone.mounts["/stock/"].revision
    clone.set("/stock/9", b"x").wait(WAIT_S)
    assert clone.watch("/stock/", at).get(WAIT_S).key == "/stock/9"
    with pytest.raises(BadInput, match=r"start=.* is a revision of one mount, and '/' has '/', '/rates/'"):
        clone.watch("/", at)


def test_callbacks_run_on_one_thread(clone: Clone) -> None:
    told: list[tuple[str, str, int]] = []

    @clone.on("")
    def note(change: Change) -> None:
        told.append((change.key, change.mount, threading.get_ident()))

    fill(clone)
    until(lambda: len(told) == len(KEYS))
    assert {key for key, _, _ in told} == set(KEYS) and len({thread for _, _, thread in told}) == 1
    assert {key: mount for key, mount, _ in told}["/rates/EUR/USD"] == "/rates/EUR/"
    assert clone.off(note)


def test_a_batch_or_transaction_over_two_mounts_is_refused_whole(clone: Clone) -> None:
    both = {"/a": b"1", "/rates/CHF": b"2"}
    acts: tuple[Callable[[], object], ...] = (
        lambda: clone.set_many(both), lambda: clone.update(both), lambda: clone.delete_many(list(both)),
        lambda: clone.lease(10).set_many(both),
    )  # fmt: skip
    for act in acts:
        with pytest.raises(BadInput, match=r"spans two mounts: '/a' is of '/', and '/rates/CHF' is of '/rates/'"):
            act()
    for name, other in (("set", ("/rates/CHF", b"")), ("expect", ("/rates/CHF", 0)), ("publish", ("orders", b""))):
        refused = pytest.raises(BadInput, match=r"the transaction spans two mounts: '/a' is of '/', and")
        with refused, clone.transaction() as transaction:
            transaction.set("/a", b"1")
            getattr(transaction, name)(*other)
    clone.flush(WAIT_S)
    assert len(clone) == 0


def test_batches_transactions_and_leases_work_within_one_mount(clone: Clone) -> None:
    clone.set_many({"/rates/a": b"1", "/rates/b": b"2"}).wait(WAIT_S)
    with clone.transaction(WAIT_S) as transaction:
        transaction.set("/stock/7", b"41", if_revision=0)
        transaction.expect("/stock/8", 0)
        transaction.publish("orders", b"bought", key="alice")
    assert transaction.done.revision > 0 and clone["/rates/b"] == b"2"
    until(lambda: clone.get("/stock/7") == b"41")
    assert [message.value for message in next(iter(clone.topic("orders").read(wait=False)))] == [b"bought"]
    with clone.lease(10) as lease:
        lease.set("/rates/EUR/live", b"1").wait(WAIT_S)
        with pytest.raises(BadInput, match="the lease spans two mounts"):
            lease.set("/a", b"1")
    until(lambda: "/rates/EUR/live" not in clone)
    assert clone.lease(10).close() is None
    with clone.transaction() as nothing:
        pass
    assert nothing.done


def test_pop_setdefault_touch_and_popitem_work_over_mounts(clone: Clone) -> None:
    held = fill(clone)
    assert clone.pop("/stock/7", timeout=WAIT_S) == b"/stock/7" and clone.pop("/stock/7", None, WAIT_S) is None
    assert clone.setdefault("/rates/EUR/new", b"x", WAIT_S) == b"x" == clone.setdefault("/rates/EUR/new", b"y", WAIT_S)
    clone.touch("/rates/CHF", 100, WAIT_S)
    clone.sync(WAIT_S)
    assert clone.entry("/rates/CHF").ttl is not None  # type: ignore[union-attr]
    taken = dict(clone.popitem(WAIT_S) for _ in range(len(clone)))
    assert taken == {**{key: value for key, value in held.items() if key != "/stock/7"}, "/rates/EUR/new": b"x"}
    with pytest.raises(KeyError, match="holds no keys"):
        clone.popitem(WAIT_S)


def test_sync_shows_sets_of_another_client_in_all_mounts(clone: Clone, table: Mounts) -> None:
    with Clone(table, None) as other:
        tickets = [other.set(key, b"new") for key in KEYS]
        acks = [ticket.wait(WAIT_S) for ticket in tickets]
        assert len(other) == 0
    assert clone.sync(WAIT_S).durability == min(ack.durability for ack in acks)
    assert dict(clone) == dict.fromkeys(KEYS, b"new")


def test_each_topic_is_at_the_mount_that_the_table_names(clone: Clone, table: Mounts) -> None:
    for name in ("ticks.a", "orders", "elsewhere"):
        clone.topic(name).publish(b"1").wait(WAIT_S)
    with Clone(table, "/rates/EUR/") as narrow:
        narrow.topic("orders").publish(b"2").wait(WAIT_S)
        assert list(narrow.mounts) == ["/rates/EUR/"]
    for mount, name in (("/rates/", "ticks.a"), ("/stock/", "orders"), ("/", "elsewhere")):
        assert name in {facts["name"] for facts in clone.mounts[mount].topics()}
    assert [name for name in (facts["name"] for facts in clone.topics()) if name in ("ticks.a", "elsewhere")] == [
        "elsewhere", "ticks.a"
    ]  # fmt: skip
    with clone.topic("ticks.a").consumer("group") as consumer:
        batch = consumer.take(WAIT_S)
        assert batch is not None
        with clone.transaction(WAIT_S) as transaction:
            transaction.set("/rates/seen", b"1")
            transaction.ack(batch)
    assert clone.topic("ticks.a").groups()[0]["name"] == "group"


def test_recipes_work_within_one_mount(clone: Clone) -> None:
    with Lock(clone, "/stock/lock", ttl=5) as lock:
        assert lock.held and lock.token is not None and "/stock/lock/" in next(iter(clone.prefix("/stock/lock")))
    assert Counter(clone, "/rates/EUR/count").add(3, WAIT_S) == 3
    with Party(clone, "/workers", "host-1") as party:
        assert list(party) == ["host-1"]
    for path in ("/rates", "/"):
        with pytest.raises(BadInput, match="a recipe needs a path within one mount"):
            Lock(clone, path)


def test_a_view_has_a_revision_only_if_it_has_one_mount(clone: Clone, table: Mounts) -> None:
    for act in (lambda: clone.revision, lambda: clone.position, lambda: clone.active, clone.pin):
        with pytest.raises(BadInput, match=r"is of one mount, and this Clone has '/', .*ask clone\.mounts\[PREFIX\]"):
            act()
    with pytest.raises(BadInput, match="this needs a Clone of one pair"):
        internals(clone)
    assert clone.state is State.SYNCED and clone.staleness_s < WAIT_S and clone.lag_s >= 0
    assert clone.window == (0, 0) and clone.stats and "mount /stock/: SYNCED" in clone.describe() and not clone.refused
    assert repr(clone) == "<Clone '' over /, /rates/, /rates/EUR/, /stock/: 0 keys, SYNCED>"
    with Clone(table, "/stock/") as one:
        one.wait_until_synced(WAIT_S)
        assert one.revision == one.mounts["/stock/"].revision == one.pin().revision
        assert one.active in table.servers["/stock/"]
        with pytest.raises(BadKey, match=r"outside what this Clone holds \('/stock/'\)"):
            one.set("/a", b"")
    with pytest.raises(BadKey, match="no mount has the key"), Clone({"/a/": table.servers["/"]}) as narrow:
        narrow.set("/b", b"")


def test_a_failover_in_one_mount_leaves_the_others_alone(pairs: dict[str, Pair], table: Mounts) -> None:
    states: list[State] = []
    with Clone(table, on_state=states.append) as clone:
        clone.wait_until_synced(WAIT_S)
        until(lambda: states[-1:] == [State.SYNCED])
        killed = pairs["/stock/"].kill()
        try:
            waiting = clone.set("/stock/7", b"x")
            for number in range(50):
                assert clone.set("/a", b"%d" % number).wait(WAIT_S)
                assert clone.set("/rates/CHF", b"%d" % number).wait(WAIT_S)
            assert waiting.wait(WAIT_S) and clone.mounts["/"].state is State.SYNCED
            clone.wait_until_synced(WAIT_S)
        finally:
            killed.start()
        until(lambda: clone.state is State.SYNCED)
    assert clone.state is State.CLOSED and clone.closed and clone["/a"] == b"49"
    until(lambda: states[-1:] == [State.CLOSED])


def test_the_agents_of_a_forgotten_clone_end(table: Mounts) -> None:
    clone: Any = Clone(table, name="forgotten")
    clone.wait_until_synced(WAIT_S)
    watch = clone.watch("")
    clone.on_state(lambda state: None)

    def agents() -> int:
        return sum("forgotten" in thread.name for thread in threading.enumerate())

    assert agents() == len(PREFIXES)
    del clone, watch
    until(lambda: gc.collect() >= 0 and not agents())


# -- the command line


@pytest.fixture
def chp(table: Mounts) -> Callable[..., Result]:
    """Return a function that runs commands of `chp` at the four pairs."""
    text = " ".join(f"{prefix}={','.join(servers)}" for prefix, servers in table.servers.items())
    return partial(run, env={"CHP_SERVERS": text, "CHP_CLIENT_FILE": None, "CHP_CLIENT": None})


def test_commands_work_over_all_mounts(chp: Callable[..., Result], clone: Clone, tmp_path: Path) -> None:
    for key in KEYS:
        assert chp("set", key, key[1:]).exit_code == 0
    assert chp("get", "/rates/EUR/USD").stdout == "rates/EUR/USD"
    assert chp("ls", "/rates/").stdout.split() == list(KEYS[1:5])
    dump = tmp_path / "all.jsonl"
    assert chp("dump", "-o", str(dump)).exit_code == 0 and len(dump.read_text().splitlines()) == 7
    assert chp("del", "/a", "/rates/CHF", "/stock/7").exit_code == 0
    assert chp("del", "--prefix", "/rates/", "--yes").exit_code == 0
    assert chp("ls").stdout.split() == ["/z"]
    assert chp("load", str(dump)).exit_code == 0 and chp("ls").stdout.split() == list(KEYS)
    seen = chp("watch", "--from", "snapshot", "--count", "7", "--json").stdout.splitlines()
    watched = [json.loads(line) for line in seen]
    assert {each["key"]: each["mount"] for each in watched}["/rates/EUR/USD"] == "/rates/EUR/"
    assert chp("pub", "elsewhere", "hello").exit_code == 0 and "elsewhere" in chp("topic", "ls").stdout.split()
    until(lambda: len(clone) == 7)


def test_commands_of_an_operator_show_each_mount(chp: Callable[..., Result]) -> None:
    status = chp("status", "--no-rates")
    assert status.exit_code == 0, status.output
    assert [line.split()[0] for line in status.stdout.splitlines()] == [
        "MOUNT", *(prefix for prefix in PREFIXES for _ in range(2)), *["mount"] * 4
    ]  # fmt: skip
    told = [json.loads(line) for line in chp("status", "--no-rates", "--json").stdout.splitlines()]
    assert [each["mount"] for each in told if "verdict" in each] == list(PREFIXES)
    one = chp("status", "--mount", "/stock/", "--no-rates")
    assert one.exit_code == 0 and "mount" not in one.stdout.lower()
    epochs = chp("status", "--epochs")
    assert {line.split()[0] for line in epochs.stdout.splitlines()} == {"MOUNT", *PREFIXES}
    top = [json.loads(line) for line in chp("top", "--count", "1", "--json").stdout.splitlines()]
    assert [each["mount"] for each in top if "verdict" in each] == list(PREFIXES)
    doctor = [json.loads(line) for line in chp("doctor", "--json").stdout.splitlines()]
    assert [each["mount"] for each in doctor if each["what"].startswith("the pair is healthy")] == list(PREFIXES)
    assert "/rates/EUR/  the pair is healthy" in chp("doctor").stdout
    refused = chp("leases")
    assert refused.exit_code == 2 and "add --mount with one of /, /rates/, /rates/EUR/, /stock/" in refused.output
    assert "--mount /x/ is no mount; the mounts are /, /rates/" in chp("status", "--mount", "/x/").output
    assert "are one pair; leave --mount out" in chp("--servers", NO_SERVER, "status", "--mount", "/x/").output


def test_commands_show_clients_of_all_mounts_and_name_an_unreachable_mount(
    chp: Callable[..., Result], clone: Clone, table: Mounts
) -> None:
    def mounts(done: Result) -> set[str]:
        return {json.loads(line)["mount"] for line in done.stdout.splitlines()}

    until(lambda: mounts(chp("clients", "--json")) == set(PREFIXES))
    assert chp("clients").stdout.split()[:2] == ["MOUNT", "NAME"]
    assert chp("clients", "--mount", "/rates/").stdout.split()[0] == "NAME"
    away = "--servers", f"/={','.join(table.servers['/'])} /gone/={NO_SERVER}"
    clients = run(*away, "clients", "--json", "--timeout", "300ms")
    assert clients.exit_code == 3 and mounts(clients) == {"/"} and "mount /gone/: no active server" in clients.output
    status = run(*away, "status", "--no-rates", "--timeout", "300ms")
    assert status.exit_code == 3 and "mount /: healthy" in status.stdout and "mount /gone/: no server" in status.stdout
    doctor = run(*away, "doctor", "--timeout", "300ms")
    assert doctor.exit_code == 1 and "bad   /gone/  the pair is no server" in doctor.stdout


def test_a_command_names_the_mount_that_does_not_answer(table: Mounts) -> None:
    text = f"/={','.join(table.servers['/'])} /gone/={NO_SERVER}"
    done = run("--servers", text, "ls", "/", "--timeout", "300ms")
    assert done.exit_code == 3 and "mount /gone/: no server within" in done.output and "mount /:" not in done.output
    assert run("--servers", text, "set", "/a", "1").exit_code == 0
    for bad, words in (("/=a:1 x", "'x' without a mount"), ("/a=b:1", "try '/a/'")):
        refused = run("--servers", bad, "get", "/a")
        assert refused.exit_code == 2 and words in refused.output, refused.output


# The methods that a view inherits from its Clone. Each uses only the map, what the view reads, or other methods.
INHERITED = {
    "close", "codec", "entry", "get", "items", "keys", "off", "on", "position", "snapshot", "values", "verify", "watch",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "more"), [(MountedClone, {"update"}), (MountedAsyncClone, set())])
def test_a_view_inherits_only_the_listed_methods_of_a_clone(kind: type[MountedBase[Any]], more: set[str]) -> None:
    verbs = {name for name in dir(kind._kind) if not name.startswith("_")}
    own = {name for each in (kind, MountedBase) for name in vars(each) if not name.startswith("_")}
    assert verbs - own == INHERITED | more


# -- an AsyncClone


def test_an_async_clone_works_over_several_mounts(table: Mounts) -> None:
    asyncio.run(_async_view(table))


async def _async_view(table: Mounts) -> None:
    async with AsyncClone(table) as clone:
        await clone.wait_until_synced(WAIT_S)
        watch = clone.watch("")
        told: list[Change] = []
        clone.on("/rates/")(told.append)
        await asyncio.gather(*(clone.set(key, key.encode()) for key in KEYS))
        await clone.sync(WAIT_S)
        assert dict(clone) == {key: key.encode() for key in KEYS} and list(clone.prefix("")) == list(KEYS)
        async with asyncio.timeout(WAIT_S):
            seen = [await anext(watch) for _ in KEYS]
        assert {change.key: change.mount for change in seen} == {key: table.of_key(key) for key in KEYS}
        acts: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: clone.set_many({"/a": b"", "/stock/7": b""}), lambda: clone.delete_many(KEYS),
        )  # fmt: skip
        for act in acts:
            with pytest.raises(BadInput, match="spans two mounts"):
                await act()
        assert await clone.pop("/stock/7", timeout=WAIT_S) == b"/stock/7"
        assert await clone.setdefault("/stock/8", b"x", WAIT_S) == b"x" and (await clone.verify(WAIT_S)).ok
        async with clone.lease(10) as lease:
            await lease.set("/rates/live", b"1")
            with pytest.raises(BadInput, match="the lease spans two mounts"):
                await lease.set("/a", b"1")
            assert "/rates/live" in clone
        async with clone.transaction() as transaction:
            transaction.set("/stock/9", b"1")
            transaction.publish("orders", b"async")
        async with AsyncLock(clone, "/stock/lock") as lock:
            assert lock.held
        assert (await clone.settled(clone.submit("/a", b"2"), WAIT_S)).revision
        assert "orders" in {facts["name"] for facts in await clone.topics()}
        assert await clone.delete_prefix("/rates/", WAIT_S) >= 4
        assert {key for key, _ in [await clone.popitem(WAIT_S) for _ in range(len(clone))]} >= {"/a", "/z", "/stock/8"}
        await clone.flush(WAIT_S)
        with pytest.raises(BadInput, match="a revision is of one mount"):
            _ = clone.revision
        async with asyncio.timeout(WAIT_S):
            while not any(change.key == "/rates/live" for change in told):
                await asyncio.sleep(0.01)
        assert clone.lease(5).lost is False and await clone.lease(5).close() is None
    assert clone.closed and clone.state is State.CLOSED
    with pytest.raises(StopAsyncIteration):
        while True:
            await anext(watch)
