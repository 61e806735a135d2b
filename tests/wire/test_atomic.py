"""covers: clone/atomic.py: if programs take or put a key at the same time, exactly one succeeds and learns that."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from time import monotonic

import pytest

from chp_client import AsyncClone, Clone, State
from chp_client.errors import Closed, Conflict, Refused
from chp_server.testing import Pair, TestServer
from tests.process.linearizable import CAS, READ, Call, wrong
from tests.talk import WAIT_S, join_all, synced, until

KEYS = {f"/{i}": b"%d" % i for i in range(40)}


def together(*acts: Callable[[], object]) -> None:
    """Run acts at the same time, and raise the first error of any of them."""
    failed: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    join_all(*threads)
    if failed:
        raise failed[0]


def test_two_programs_that_drain_keys_by_popitem_take_each_once(clones: list[Clone]) -> None:
    clones[0].set_many(KEYS).wait(WAIT_S)
    until(lambda: len(clones[1]) == len(KEYS))
    taken: list[tuple[str, bytes]] = []

    def drain(clone: Clone) -> None:
        try:
            while True:
                taken.append(clone.popitem(timeout=WAIT_S))
        except KeyError:
            return

    together(*(lambda clone=clone: drain(clone) for clone in clones))
    assert Counter(taken) == Counter(KEYS.items())


def test_two_programs_that_pop_the_same_keys_take_each_once(clones: list[Clone]) -> None:
    clones[0].set_many(KEYS).wait(WAIT_S)
    until(lambda: len(clones[1]) == len(KEYS))
    taken: list[bytes] = []

    def drain(clone: Clone) -> None:
        for key in KEYS:
            value = clone.pop(key, None, timeout=WAIT_S)
            if value is not None:
                taken.append(value)

    together(*(lambda clone=clone: drain(clone) for clone in clones))
    assert Counter(taken) == Counter(KEYS.values())


def test_a_touch_changes_the_ttl_of_a_key_but_not_its_value(clones: list[Clone], server: TestServer) -> None:
    one, other = clones[:2]

    def left(clone: Clone) -> float | None:
        entry = clone.entry("/a")
        assert entry is not None and entry.value == b"1"
        return entry.ttl

    one.set("/a", b"1", ttl=50).wait(WAIT_S)
    ack = one.touch("/a", timedelta(seconds=500), timeout=WAIT_S)
    until(lambda: other.revision >= ack.revision)
    assert 50 < (left(other) or 0) <= 500
    one.sync(WAIT_S)
    other.touch("/a", None, timeout=WAIT_S)
    one.sync(WAIT_S)
    assert left(one) is None
    with pytest.raises(KeyError, match="/absent"):
        one.touch("/absent", 5, timeout=WAIT_S)

    async def main() -> None:
        async with AsyncClone(server.address, codec="json") as clone:
            await clone.wait_until_synced(WAIT_S)
            await clone.touch("/a", 70, WAIT_S)
            one.sync(WAIT_S)
            assert 0 < (left(one) or 0) <= 70
            with pytest.raises(KeyError, match="/absent"):
                await clone.touch("/absent", 5, WAIT_S)

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))


def test_programs_that_set_a_key_while_others_touch_it_lose_no_value(clones: list[Clone]) -> None:
    clones[0].set("/a", b"0").wait(WAIT_S)
    for clone in clones:
        clone.sync(WAIT_S)

    stop, seen = threading.Event(), clones[2].watch("/a")

    def touch(clone: Clone) -> None:
        while not stop.is_set():
            with suppress(Conflict):
                clone.touch("/a", 60, WAIT_S)

    def count_up() -> None:
        for i in range(1, 200):
            clones[0].set("/a", b"%d" % i).wait(WAIT_S)
        stop.set()

    together(count_up, lambda: touch(clones[1]), lambda: touch(clones[2]))
    for clone in clones:
        clone.sync(WAIT_S)
        assert clone["/a"] == b"199"
    seen.close()
    values = [int(change.value) for change in seen]
    assert len(values) > 199 and values == sorted(values)


def test_setdefault_by_two_programs_agrees_on_one_value_per_key(clones: list[Clone]) -> None:
    got: list[list[bytes]] = [[], []]

    def put(i: int) -> None:
        got[i] += [clones[i].setdefault(key, b"%d" % i, timeout=WAIT_S) for key in KEYS]

    together(lambda: put(0), lambda: put(1))
    assert got[0] == got[1] and [clones[0][key] for key in KEYS] == got[0]


def test_pop_and_setdefault_see_an_own_unconfirmed_set(clones: list[Clone]) -> None:
    clone, other, _ = clones
    for i in range(50):
        clone["/k"] = b"%d" % i
        assert clone.pop("/k", timeout=WAIT_S) == b"%d" % i and "/k" not in clone
        clone["/k"] = b"again"
        del clone["/k"]
        assert clone.setdefault("/k", b"%d" % i, timeout=WAIT_S) == b"%d" % i == clone["/k"]
    until(lambda: other.get("/k") == b"49")


@pytest.mark.parametrize("in_turns", [True, False])
def test_pop_and_setdefault_of_one_key_are_linearizable(clones: list[Clone], in_turns: bool) -> None:
    """Each call has its effect at one moment between its beginning and its answer, also where it changes nothing."""
    calls: list[Call] = []

    def act(whose: list[int]) -> None:
        rng = random.Random(len(whose) + whose[0])
        for n, i in enumerate(whose):
            called, drawn = monotonic(), f"{i}.{n}"
            if rng.random() < 0.5:
                taken = clones[i].pop("/k", None, timeout=WAIT_S)
                said = (READ, None, None) if taken is None else (CAS, None, taken.decode())
            else:
                seen = clones[i].setdefault("/k", drawn.encode(), timeout=WAIT_S).decode()
                said = (CAS, seen, None) if seen == drawn else (READ, seen, None)
            kind, value, expected = said
            calls.append(Call(f"{i}", kind, value, called, monotonic(), expected))

    if in_turns:
        act([0, 1] * 40)
    else:
        together(lambda: act([0] * 60), lambda: act([1] * 60))
    assert {call.kind for call in calls} == {CAS, READ} and not wrong(calls)


def test_pop_and_setdefault_time_out_without_a_server(server: TestServer) -> None:
    with synced(server.address) as clone:
        clone.set("/k", b"1").wait(WAIT_S)
        server.kill()
        until(lambda: clone.state is State.STALE)
        for act in (clone.setdefault, clone.pop):
            with pytest.raises(TimeoutError, match="no acknowledgement within"):
                act("/k" if act == clone.setdefault else "/none", b"", 0.05)
        clone.close(0.0)
        with pytest.raises(Closed):
            clone.pop("/none", None)


def test_pop_and_setdefault_see_acknowledged_sets_of_another_program(clones: list[Clone]) -> None:
    one, other, _ = clones
    for i in range(20):
        value = b"%d" % i
        one.set("/k", value).wait(WAIT_S)
        assert other.setdefault("/k", b"other", timeout=WAIT_S) == value
        one.delete("/k").wait(WAIT_S)
        assert other.pop("/k", None, timeout=WAIT_S) is None
        one.set("/k", value).wait(WAIT_S)
        assert other.pop("/k", None, timeout=WAIT_S) == value
        with pytest.raises(KeyError):
            other.popitem(timeout=WAIT_S)


def test_a_delete_on_condition(clones: list[Clone]) -> None:
    clone = clones[0]
    first = clone.set("/k", b"1").wait(WAIT_S).revision
    second = clone.set("/k", b"2").wait(WAIT_S).revision
    with pytest.raises(Conflict, match=f"'/k' is at {second}"):
        clone.delete("/k", if_revision=first).wait(WAIT_S)
    assert clone["/k"] == b"2"
    clone.delete("/k", if_revision=str(second)).wait(WAIT_S)
    assert "/k" not in clone


def test_the_cost_of_popitem_does_not_grow_with_the_map(server: TestServer) -> None:
    """`popitem` copies the keys once for many calls, and not once for each."""
    copies = count()

    class Counting(dict[str, bytes]):
        def __iter__(self) -> Iterator[str]:
            next(copies)
            return super().__iter__()

    with synced(server.address) as clone:
        clone.set_many({f"/{i}": b"" for i in range(300)}).wait(WAIT_S)
        clone._shown = Counting(clone._shown)
        taken = {clone.popitem(timeout=WAIT_S)[0] for _ in range(300)}
    assert len(taken) == 300 and next(copies) <= 2


def test_pop_goes_on_over_a_failover() -> None:
    with Pair() as pair, Clone(pair.servers) as clone:
        clone.wait_until_synced(WAIT_S)
        clone.set_many(KEYS).wait(WAIT_S)
        until(lambda: clone.set("/last", b"").wait(WAIT_S).durability == "replicated")
        taken = [clone.pop(key, timeout=WAIT_S) for key in list(KEYS)[:20]]
        pair.primary.kill()
        taken += [clone.pop(key, timeout=WAIT_S) for key in list(KEYS)[20:]]
        assert taken == list(KEYS.values()) and list(clone) == ["/last"]


def test_pop_popitem_and_setdefault_of_an_async_clone(server: TestServer) -> None:
    async def main() -> None:
        async with AsyncClone(server.address) as one, AsyncClone(server.address) as two:
            await one.wait_until_synced(WAIT_S)
            await two.wait_until_synced(WAIT_S)
            await one.set_many(KEYS, timeout=WAIT_S)
            while len(two) < len(KEYS):
                await asyncio.sleep(0.01)
            # Nothing waits for this set, so it may be unconfirmed when `drain` begins.
            one.submit("/0", b"own")

            async def drain(clone: AsyncClone) -> list[str]:
                taken = []
                while True:
                    try:
                        taken.append((await clone.popitem(WAIT_S))[0])
                    except KeyError:
                        return taken

            taken = await asyncio.gather(drain(one), drain(two), drain(one))
            assert Counter(key for each in taken for key in each) == Counter(list(KEYS))
            values = await asyncio.gather(*(c.setdefault("/d", v, WAIT_S) for c, v in ((one, b"1"), (two, b"2"))))
            assert values[0] == values[1]
            assert await one.pop("/d", timeout=WAIT_S) == values[0]
            assert await one.pop("/d", b"none") == b"none"
            with pytest.raises(KeyError):
                await two.pop("/never", timeout=WAIT_S)
            entry = one.entry("/d")
            assert entry is None
            with pytest.raises(Conflict):
                await one.delete("/d", if_revision="1.1", timeout=WAIT_S)

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))


def test_a_clone_that_only_writes_refuses_pop_and_setdefault(server: TestServer) -> None:
    with Clone(server.address, subtree=None) as writer:
        with pytest.raises(ValueError, match=r"only writes.*if_revision=0"):
            writer.setdefault("/a", b"")
        with pytest.raises(ValueError, match="only writes"):
            writer.pop("/a", None)
        with pytest.raises(ValueError, match="only writes"):
            writer.popitem()
        assert writer.state in (State.CONNECTING, State.SYNCED)
    assert issubclass(Conflict, Refused)
