"""covers: chp_client.recipes: what several programs do together, each recipe for threads and for tasks."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from chp.errors import BadInput, BadTtl, BadValue
from chp_client import AsyncClone, Clone, Closed
from chp_client.clone.base import internals
from chp_client.recipes import (
    AsyncCounter,
    AsyncElection,
    AsyncLock,
    AsyncParty,
    AsyncSemaphore,
    Counter,
    Election,
    Lock,
    Lost,
    Party,
    Semaphore,
)
from chp_client.recipes import lock as lock_module
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, join_all, until
from tests.wire.still import stand_still

PATH = "/locks/nightly"


class Worker(threading.Thread):
    """A thread that takes a lock once, sets `has`, and releases the lock once `give` is set."""

    def __init__(self, lock: Any) -> None:
        super().__init__(daemon=True)
        self.lock, self.has, self.give = lock, threading.Event(), threading.Event()
        self.result: list[Any] = []
        self.start()

    def run(self) -> None:
        try:
            with self.lock:
                self.result.append(self.lock.token)
                self.has.set()
                self.give.wait(WAIT_S)
        except Exception as error:
            self.result.append(error)
            self.has.set()

    def end(self) -> None:
        self.give.set()
        join_all(self)


class TestLock:
    def test_contenders_get_the_lock_in_order_with_rising_tokens(self, clones: list[Clone]) -> None:
        first, second, third = (Lock(clone, PATH, f"w{i}") for i, clone in enumerate(clones))
        assert first.acquire(WAIT_S) and first.held
        workers = []
        for lock, n in ((second, 2), (third, 3)):
            workers.append(Worker(lock))
            until(lambda n=n: len(first.contenders()) == n)  # type: ignore[misc]
        assert first.contenders() == ["w0", "w1", "w2"]
        tokens = [first.token]
        first.release()
        assert not first.held and first.token is None
        for worker in workers:
            assert worker.has.wait(WAIT_S)
            tokens += worker.result
            worker.end()
        assert tokens == sorted(set(tokens))

    def test_a_contender_that_times_out_leaves_the_line(self, clones: list[Clone]) -> None:
        with Lock(clones[0], PATH, "holder") as held:
            assert not Lock(clones[1], PATH, "late").acquire(0.2)
            until(lambda: held.contenders() == ["holder"])

    def test_a_waiter_is_not_woken_by_changes_elsewhere_in_the_line(self, clones: list[Clone]) -> None:
        held, second, third = (Lock(clone, PATH, f"w{i}") for i, clone in enumerate(clones))
        held.acquire(WAIT_S)
        looked: list[int] = []
        place, contenders = third._place, third._place.contenders

        def noted() -> Any:
            looked.append(1)
            return contenders()

        place.contenders = noted  # type: ignore[method-assign]
        waiting = Worker(second)
        until(lambda: len(held.contenders()) == 2)
        last = Worker(third)
        until(lambda: len(looked) == 2)
        for _ in range(20):
            assert not Lock(clones[0], PATH, "passes-by").acquire(0.01)
        held.release()
        assert waiting.has.wait(WAIT_S)
        # `third` may have looked again because `second`, the contender in front of it, has the lock now.
        assert len(looked) <= 4
        waiting.end()
        assert last.has.wait(WAIT_S)
        last.end()

    def test_a_lock_is_lost_when_its_lease_ends(self, clones: list[Clone]) -> None:
        lock, lost = Lock(clones[0], PATH, ttl=0.5), threading.Event()
        lock.acquire(WAIT_S)
        with pytest.raises(BadInput, match="listener=None can't be called"):
            lock.on_lost(None)  # type: ignore[arg-type]
        lock.on_lost(lost.set)
        stand_still(clones[0])
        until(lambda: not lock.held)
        assert Lock(clones[1], PATH).acquire(WAIT_S)

    def test_a_lock_object_cannot_be_acquired_twice(self, clones: list[Clone]) -> None:
        with Lock(clones[0], PATH) as lock, pytest.raises(BadInput, match="by this object"):
            lock.acquire()

    def test_bad_paths_names_and_holder_counts_are_refused(self, clones: list[Clone]) -> None:
        for path, name in (("locks", "a"), (PATH, "a/b"), (PATH, ""), (PATH, "a:b"), ("/" + "x" * 1024, "a")):
            with pytest.raises(BadInput):
                Lock(clones[0], path, name or "") if name else Lock(clones[0], path, ":")
        with pytest.raises(BadInput, match="at least 1"):
            Semaphore(clones[0], PATH, 0)

    def test_a_semaphore_has_as_many_holders_as_it_says(self, clones: list[Clone]) -> None:
        places = [Semaphore(clone, "/locks/two", 2, f"w{i}") for i, clone in enumerate(clones)]
        assert places[0].acquire(WAIT_S) and places[1].acquire(WAIT_S)
        assert not places[2].acquire(0.2)
        third = Worker(places[2])
        until(lambda: len(places[0].contenders()) == 3)
        # The oldest holder leaves. The waiting contender looks at all contenders, and gets the place.
        places[0].release()
        assert third.has.wait(WAIT_S)
        third.end()
        places[1].release()

    def test_a_failover_keeps_the_holder(self) -> None:
        with Pair() as pair, Clone(pair.servers) as one, Clone(pair.servers) as two:
            for clone in (one, two):
                clone.wait_until_synced(WAIT_S)
            with Lock(one, PATH, "one") as lock:
                waiting = Worker(Lock(two, PATH, "two"))
                until(lambda: len(lock.contenders()) == 2)
                pair.primary.kill()
                until(lambda: one.active == pair.servers[1])
                assert lock.held and not waiting.has.is_set()
                before = lock.token
            assert waiting.has.wait(WAIT_S)
            assert waiting.result[0] > before
            waiting.end()


def test_an_election_has_one_leader_at_a_time(clones: list[Clone]) -> None:
    leading, most, led = 0, 0, []

    def lead() -> None:
        nonlocal leading, most
        leading += 1
        most = max(most, leading)
        led.append(1)
        threading.Event().wait(0.02)
        leading -= 1

    threads = [
        threading.Thread(target=Election(clone, "/leader", f"w{i}").run, args=(lead, WAIT_S), daemon=True)
        for i, clone in enumerate(clones)
    ]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert (most, len(led)) == (1, 3)
    # Another Clone may have made the last release. Then this Clone sees the release a moment later.
    until(lambda: Election(clones[0], "/leader").leader is None)


def test_an_election_timeout_names_the_leader(clones: list[Clone]) -> None:
    with Election(clones[0], "/leader", "boss"):
        until(lambda: Election(clones[1], "/leader").leader == "boss")
        with pytest.raises(TimeoutError, match="boss leads"):
            Election(clones[1], "/leader", "other").run(lambda: None, timeout=0.3)


def test_each_addition_to_a_counter_counts_once(clones: list[Clone]) -> None:
    def add(clone: Clone) -> None:
        counter = Counter(clone, "/visits")
        for _ in range(50):
            counter.add(2, WAIT_S)

    threads = [threading.Thread(target=add, args=(clone,), daemon=True) for clone in clones]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert Counter(clones[0], "/visits").add(0, WAIT_S) == 300
    until(lambda: all(Counter(clone, "/visits").value == 300 for clone in clones))
    clones[0].set("/words", b"many").wait(WAIT_S)
    with pytest.raises(BadValue, match="no counter"):
        Counter(clones[0], "/words").add()
    with pytest.raises(BadInput, match="whole numbers"):
        Counter(clones[0], "/visits").add(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("codec", "value"), [("text", "1"), ("json", 1), ("msgpack", 1)])
def test_a_counter_is_stored_in_the_codec_of_its_clone(server: TestServer, codec: str, value: object) -> None:
    with Clone(server.address, codec=codec) as clone:
        clone.wait_until_synced(WAIT_S)
        assert Counter(clone, f"/{codec}").add() == 1
        assert clone[f"/{codec}"] == value


def test_a_party_lists_its_present_members(clones: list[Clone]) -> None:
    with Party(clones[0], "/workers", "a", value=b"10.0.0.1") as one:
        with Party(clones[1], "/workers", "b", value=b"10.0.0.2") as two:
            until(lambda: one.members() == {"a": b"10.0.0.1", "b": b"10.0.0.2"})
            assert list(two) == ["a", "b"] and len(two) == 2 and "a" in two
        until(lambda: list(one) == ["a"])


def test_of_two_members_of_one_name_a_party_shows_the_later_one(
    clones: list[Clone], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter(["f" * 16, "0" * 16])
    monkeypatch.setattr(secrets, "token_hex", lambda n: next(tokens))
    with Party(clones[0], "/twins", "a", value=b"first") as one, Party(clones[1], "/twins", "a", value=b"later") as two:
        assert one.key > two.key
        until(lambda: len(one) == len(two) == 2)
        assert one.members() == two.members() == {"a": b"later"}
        one.join(WAIT_S)
        until(lambda: one.members() == two.members() == {"a": b"first"})


def test_async_recipes_work_with_await(server: TestServer) -> None:
    async def work() -> None:
        async with AsyncClone(server.address) as one, AsyncClone(server.address) as two:
            await one.wait_until_synced(WAIT_S)
            await two.wait_until_synced(WAIT_S)
            async with AsyncLock(one, PATH, "one") as lock:
                assert not await AsyncLock(two, PATH, "two").acquire(0.2)
                waiting = asyncio.create_task(AsyncLock(two, PATH, "three").acquire(WAIT_S))
                cancelled = asyncio.create_task(AsyncLock(two, PATH, "four").acquire(WAIT_S))
                while len(lock.contenders()) < 3:
                    await asyncio.sleep(0.01)
                cancelled.cancel()
                while "four" in lock.contenders():
                    await asyncio.sleep(0.01)
            assert await waiting
            assert await AsyncElection(one, "/leader").run(answer, WAIT_S) == 42
            counters = [AsyncCounter(clone, "/visits") for clone in (one, two)]
            await asyncio.gather(*(counter.add() for counter in counters for _ in range(20)))
            assert await counters[0].add() == 41
            async with AsyncSemaphore(one, "/locks/two", 2, "a"), AsyncSemaphore(two, "/locks/two", 2, "b") as place:
                assert place.held and not await AsyncSemaphore(one, "/locks/two", 2, "c").acquire(0.2)
            async with AsyncParty(one, "/workers", "me") as party:
                assert list(party) == ["me"]

    async def answer() -> int:
        return 42

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_waiter_that_loses_its_place_raises_lost(clones: list[Clone]) -> None:
    holder = Lock(clones[0], PATH)
    holder.acquire(WAIT_S)
    waiting = Worker(Lock(clones[1], PATH, "waits", ttl=0.6))
    until(lambda: len(holder.contenders()) == 2)
    stand_still(clones[1])
    assert waiting.has.wait(WAIT_S)
    assert isinstance(waiting.result[0], Lost)
    holder.release()


class TestWhatIsInTheWay:
    """Tests of timeouts with a full window, of cancelled and closed waiters, and of keys that are no contenders."""

    def test_a_timeout_holds_while_there_is_no_room_for_sets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock_module, "GIVE_BACK_S", 0.1)
        with TestServer() as server:
            clone = Clone(server.address, window_bytes=4096)
            clone.wait_until_synced(WAIT_S)
            held = Lock(clone, PATH)
            assert held.acquire(WAIT_S)
            server.kill()
            with pytest.raises(TimeoutError):
                for number in itertools.count():
                    clone.set(f"/filling/{number}", b"x" * 5000, timeout=0.5)
            for act in (
                lambda: Counter(clone, "/visits").add(timeout=0.1),
                lambda: Party(clone, "/party").join(timeout=0.1),
                lambda: clone.pop("/filling/0", timeout=0.1),
                lambda: clone.setdefault("/other", b"1", timeout=0.1),
                lambda: clone.sync(timeout=0.1),
                lambda: clone.lease(10, timeout=0.1),
            ):
                with pytest.raises(TimeoutError):
                    within(act)
            assert within(lambda: Lock(clone, PATH).acquire(timeout=0.1)) is False
            assert within(held.release) is None, "what ends a lease waits for no room"
            clone.close(0.0)

    def test_waiters_that_are_cancelled_leave_the_line_at_once(self, server: TestServer) -> None:
        async def main() -> list[str]:
            async with AsyncClone(server.address) as clone:
                await clone.wait_until_synced(WAIT_S)
                async with AsyncLock(clone, PATH):
                    waiting = [asyncio.create_task(AsyncLock(clone, PATH, f"n{n}").acquire()) for n in range(20)]
                    while len(AsyncLock(clone, PATH).contenders()) < 21:
                        await asyncio.sleep(0.01)
                    for task in waiting:
                        task.cancel()
                    await asyncio.gather(*waiting, return_exceptions=True)
                    await clone.sync(WAIT_S)
                    return AsyncLock(clone, PATH).contenders()

        assert len(asyncio.run(main())) == 1

    def test_a_waiter_raises_closed_when_its_clone_is_closed(self, clones: list[Clone]) -> None:
        with Lock(clones[0], PATH):
            worker = Worker(Lock(clones[1], PATH))
            # The worker's lock watches the contender in front of it once it waits.
            while not internals(clones[1]).mailbox.watches:
                time.sleep(0.01)
            clones[1].close(0.0)
            join_all(worker)
            assert [type(each) for each in worker.result] == [Closed]

    def test_an_async_waiter_raises_closed_when_its_clone_is_closed(self, server: TestServer) -> None:
        async def main() -> None:
            other, clone = AsyncClone(server.address), AsyncClone(server.address)
            await other.wait_until_synced(WAIT_S)
            await clone.wait_until_synced(WAIT_S)
            async with other, AsyncLock(other, PATH):
                waiting = asyncio.create_task(AsyncLock(clone, PATH).acquire())
                while len(AsyncLock(other, PATH).contenders()) < 2:
                    await asyncio.sleep(0.01)
                await clone.close(0.0)
                with pytest.raises(Closed):
                    await waiting

        asyncio.run(main())

    def test_other_keys_below_the_path_do_not_block_a_lock(self, clones: list[Clone]) -> None:
        clones[0].set_many({"/locks/note": b"1", f"{PATH}/note:1": b"2"}).wait(WAIT_S)
        with Lock(clones[0], PATH), Party(clones[0], f"{PATH}/watchmen", "w"):
            assert within(lambda: Lock(clones[1], "/locks").acquire(WAIT_S)) is True
            holder = Lock(clones[1], "/locks")._place.name
            until(lambda: Lock(clones[0], "/locks").contenders() == [holder])
        with Party(clones[0], "/locks", "w") as party:
            assert len(party) == 2, "a contender of that path is one"

    def test_a_recipe_for_the_other_kind_of_clone_is_refused(self, clones: list[Clone]) -> None:
        for make in (AsyncLock, AsyncElection, AsyncParty, AsyncCounter):
            with pytest.raises(BadInput, match="AsyncClone"):
                make(clones[0], PATH)
        with pytest.raises(BadInput, match="takes Clone, not None"):
            Counter(None, PATH)

    @pytest.mark.parametrize(
        ("options", "kind", "says"),
        [
            ({"ttl": 0}, BadTtl, "ttl=0 is no time to live; give seconds above 0"),
            ({"ttl": "5"}, BadTtl, "ttl='5' is no number of seconds"),
            ({"ttl": None}, BadTtl, "a lease needs a ttl"),
            ({"value": 5}, BadValue, "a value is bytes, not int; encode it"),
        ],
    )
    def test_a_recipe_checks_its_ttl_and_value_when_it_is_made(
        self, clones: list[Clone], server: TestServer, options: dict[str, Any], kind: type[BadInput], says: str
    ) -> None:
        def make_all(clone: Any, *recipes: Any) -> None:
            lock, semaphore, election, party = recipes
            for make in (lock, election, party, lambda *given, **some: semaphore(*given, 2, **some)):
                with pytest.raises(kind, match=says):
                    make(clone, PATH, **options)

        async def make_async() -> None:
            async with AsyncClone(server.address) as clone:
                make_all(clone, AsyncLock, AsyncSemaphore, AsyncElection, AsyncParty)

        make_all(clones[0], Lock, Semaphore, Election, Party)
        asyncio.run(make_async())

    def test_a_recipe_checks_its_value_with_the_codec(self, server: TestServer) -> None:
        with Clone(server.address, codec="json") as clone:
            clone.wait_until_synced(WAIT_S)
            for make in (Lock, Election, Party):
                with pytest.raises(BadValue, match="codec 'json' can't take this value"):
                    make(clone, PATH, value=object())

    def test_an_election_checks_what_leads_before_it_is_elected(self, clones: list[Clone], server: TestServer) -> None:
        async def run_async() -> None:
            async with AsyncClone(server.address) as clone:
                with pytest.raises(BadInput, match="lead=None can't be called; give a function"):
                    await AsyncElection(clone, "/leader", "late").run(None, 0.1)  # type: ignore[arg-type]

        with Election(clones[0], "/leader", "boss"):
            with pytest.raises(BadInput, match="lead=None can't be called; give a function"):
                Election(clones[1], "/leader", "late").run(None, 0.1)  # type: ignore[arg-type]
            asyncio.run(run_async())

    @pytest.mark.parametrize("value", [1.5, True, None])
    def test_a_counter_refuses_a_value_that_is_no_whole_number(self, server: TestServer, value: object) -> None:
        with Clone(server.address, codec="json") as clone:
            clone.wait_until_synced(WAIT_S)
            clone.set("/visits", value).wait(WAIT_S)
            counter = Counter(clone, "/visits")
            wrong = r"'/visits' is no counter: it holds .*; set it to a whole number"
            with pytest.raises(BadValue, match=wrong):
                counter.add()
            with pytest.raises(BadValue, match=wrong):
                _ = counter.value
            assert clone["/visits"] == value and Counter(clone, "/absent").value == 0

    def test_a_forked_child_does_not_hold_the_lock(self, clones: list[Clone]) -> None:
        with Lock(clones[0], PATH) as lock:
            child = os.fork()
            if child == 0:
                os._exit(3 if lock.held else 4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
            assert lock.held


def within(act: Any) -> Any:
    """Return the result of `act`, which runs on a thread that is given up if it hangs."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return found.result(WAIT_S)
    except TimeoutError:
        assert found.done(), "it hangs"
        raise
