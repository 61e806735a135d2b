"""Tests of changes that come in the middle of an application's use of a Clone's map, without a server.

A codec that acts while it decodes stands for another program, whose change may come between any two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chp.batch import Segment
from chp.numbers import number
from chp_client import AsyncClone, Clone, State
from chp_client.agent import dispatch
from chp_client.agent.aioparts import AsyncWatch
from chp_client.agent.watch import Watch, WatchQueue
from chp_client.clone.base import internals
from chp_client.core.events import Changed
from tests.talk import NO_SERVER, unconnected

INITIAL = {"/a": b"1", "/b": b"2", "/c": b"3"}


class Meddler:
    """Lets something happen whenever a value is read."""

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        self.act()
        return data


@pytest.fixture
def meddler() -> Meddler:
    return Meddler()


@pytest.fixture
def clone(meddler: Meddler) -> Iterator[Clone]:
    with unconnected(codec=meddler) as made:
        made.update(INITIAL)
        yield made


GROUP = [f"/group/{i:04}" for i in range(10_000)]


class Changing:
    """A Clone of which another program sets and deletes many keys together, for so many rounds."""

    def __init__(self, rounds: int = 30) -> None:
        self.clone = Clone(NO_SERVER)
        self.clone.set_many(INITIAL)
        self._rounds, self._thread = rounds, threading.Thread(target=self._change)

    def _change(self) -> None:
        replica, everything = internals(self.clone).mailbox.core.channels[0].replica, [*range(len(GROUP))]
        there, gone = Segment(GROUP, [b"1"] * len(GROUP)), Segment(GROUP, [b""] * len(GROUP), {"d": everything})
        for at in range(1, 2 * self._rounds, 2):
            for i, segment in enumerate((there, gone)):
                with internals(self.clone).mailbox.lock:
                    replica.apply([segment], number(1, at + i), 0, False, 0.0)

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Changing:
        self._switching = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join()
        sys.setswitchinterval(self._switching)
        self.clone.close(0.0)


@pytest.mark.parametrize("copy", [Clone.snapshot, lambda clone: dict(clone.items())])
def test_a_copy_is_of_one_moment_while_many_keys_come_and_go(copy: Callable[[Clone], Any]) -> None:
    sizes: Counter[int] = Counter()
    with Changing() as changing:
        while changing.goes_on:
            sizes[len(copy(changing.clone))] += 1
    assert sizes and sizes.keys() <= {len(INITIAL), len(INITIAL) + len(GROUP)}


def test_dict_of_a_changing_clone_raises_an_error_that_names_snapshot() -> None:
    missed = []
    with Changing() as changing:
        while changing.goes_on:
            try:
                dict(changing.clone)
            except KeyError as error:
                missed.append(str(error))
    assert missed
    assert all(re.fullmatch(r"'/group/\d+' .* went while you iterated, use clone\.snapshot\(\)", m) for m in missed)


def test_a_key_deleted_during_iteration_raises_an_error_that_names_snapshot(clone: Clone) -> None:
    with pytest.raises(KeyError) as plain:
        clone["/none"]
    assert str(plain.value) == "'/none'" and plain.value.args == ("/none",)
    for key in clone.keys():  # noqa: SIM118
        del clone[key]
        with pytest.raises(KeyError, match=r"use clone\.snapshot") as missed:
            clone[key]
        assert missed.value.args == (key,) and str(pickle.loads(pickle.dumps(missed.value))) == str(missed.value)
    clone.update(INITIAL)
    with pytest.raises(KeyError, match=r"use clone\.snapshot"):
        for key in clone.prefix("/"):
            del clone[key]
            clone.prefix("/")[key]


def test_an_async_clone_names_snapshot_for_a_key_deleted_after_iteration() -> None:
    async def run() -> None:
        async with AsyncClone(NO_SERVER) as made:
            made.submit("/a", b"1")
            keys = list(made)
            internals(made).mailbox.core.shown.clear()
            with pytest.raises(KeyError, match=r"'/a'.*use clone\.snapshot"):
                made[keys[0]]
            await made.close(0.0)

    asyncio.run(run())


def test_a_search_in_values_survives_a_clear_during_the_search(clone: Clone, meddler: Meddler) -> None:
    meddler.act = clone.clear
    assert b"none" not in clone.values()


def test_an_update_from_another_clone_is_of_one_moment(clone: Clone, meddler: Meddler) -> None:
    meddler.act = clone.clear
    other = Clone(NO_SERVER)
    other.update(clone)
    assert other == INITIAL and not clone
    other.close(0.0)


def test_an_async_clone_iterates_over_the_items_present_at_the_start() -> None:
    async def use() -> None:
        clone = AsyncClone(NO_SERVER)
        for view in (clone.items, clone.values, clone.keys):
            for key, value in INITIAL.items():
                clone.submit(key, value)
            seen = []
            for each in view():
                seen.append(each)
                # Another program deletes keys while this one awaits.
                internals(clone).writer.delete_many(list(clone))
                await asyncio.sleep(0)
            assert len(seen) == 3
        await clone.close(0.0)

    asyncio.run(use())


def test_flush_takes_tickets_that_are_settled_meanwhile(clone: Clone) -> None:
    mailbox = internals(clone).mailbox

    class Settled:
        """A ticket that the agent settles just when `flush` looks at it."""

        @property
        def done(self) -> bool:
            mailbox.batch.outstanding.popitem()
            return True

        @property
        def told(self) -> bool:
            mailbox.refused.popleft()
            return True

    clone.set("/a", b"1", ttl=5)
    mailbox.batch.outstanding = {Settled(): None, Settled(): None}  # type: ignore[dict-item]
    mailbox.refused.extend([Settled(), Settled()])  # type: ignore[list-item]
    clone["/b"] = b"2"
    try:
        # The last set has no answer.
        with pytest.raises(TimeoutError):
            clone.flush(0.0)
    finally:
        mailbox.batch.outstanding.clear()
        mailbox.refused.clear()


def test_a_watch_that_is_garbage_is_removed_from_the_clone(clone: Clone) -> None:
    kept = clone.watch()
    for _ in range(10):
        # The watch is garbage at once.
        assert isinstance(clone.watch(), Watch)
    gc.collect()
    internals(clone).mailbox.command(lambda now: None)
    until_done(clone)
    assert internals(clone).mailbox.watches == [kept.queue]


def test_an_async_watch_gives_changes_that_came_just_before_its_end() -> None:
    class Late(WatchQueue):
        """Changes come, and the watch ends, right after it was found empty."""

        def poll(self) -> Changed | None:
            found = super().poll()
            if found is None and not self.closed:
                self.offer(Changed(["/a"], [b"1"], 1))
                self.close()
            return found

    async def use() -> list[str]:
        queue = Late("", False, 10)
        changes = AsyncWatch(Watch(queue, None, lambda: None, None), asyncio.get_running_loop())
        return [change.key async for change in changes]

    assert asyncio.run(use()) == ["/a"]


def test_two_concurrent_first_callbacks_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    both, made, called = threading.Barrier(2), [], threading.Semaphore(0)

    class Slow(threading.Thread):
        """A thread that two callers would make at the same time, if they could."""

        def __init__(self, **options: Any) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1.0)
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(dispatch, "Thread", Slow)
    dispatcher = dispatch.Dispatcher()
    first = threading.Thread(target=dispatcher.put, args=(called.release,))
    first.start()
    dispatcher.put(called.release)
    first.join()
    assert called.acquire(timeout=60) and called.acquire(timeout=60) and len(made) == 1
    dispatcher.state(State.CLOSED)


def until_done(clone: Clone) -> None:
    """Wait until the agent has done all its commands so far."""
    mailbox = internals(clone).mailbox
    with mailbox.lock:
        mailbox.wait_for(lambda: not mailbox.commands, 60.0, lambda: "the agent")
