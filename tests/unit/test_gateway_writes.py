"""covers: gateway/shared/writes.py: writes travel together, a key belongs to one write, and each is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import Request

from chp_client.agent.tickets import Ticket
from chp_client.core.events import Ack
from chp_client.errors import Full, Refused
from chp_client.gateway.problems import Problem
from chp_client.gateway.shared import writes
from chp_client.gateway.shared.rows import BatchRows
from chp_client.gateway.shared.writes import UNDER_WAY, WriteResult, Writes, marker_of


class FakeClone:
    """The inside of a clone, its writer and its waits, that keeps batches until a test answers them."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.tickets: list[Ticket] = []
        self.full = False
        self.writer = self

    def waits(self, timeout: float | None) -> Any:
        """Return the waits of one call."""
        return self

    def put_columns(self, keys: list[str], *_: Any, extras: Any = None) -> Any:
        """Take a batch."""
        if self.full:
            raise Full("the window is full")
        self.batches.append(keys)
        self.tickets.append(Ticket(lambda: "described"))
        return self.tickets[-1]

    async def done(self, act: Callable[[], Ticket]) -> Ack:
        """Wait for room, and answer at once."""
        while self.full:
            await asyncio.sleep(0)
        act()
        return Ack(1, 9, "applied")

    def answer(self, i: int, done: Ack | Exception) -> None:
        """Settle the i-th batch."""
        self.tickets[i].settle(done)


def run(act: Callable[[FakeClone, Writes, list[int]], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        clone, noted = FakeClone(), list[int]()
        made: Any = clone
        await act(clone, Writes(made, made, noted.append), noted)

    asyncio.run(begin())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def rows(*keys: str, condition: int | None = None) -> BatchRows:
    made = BatchRows(("",))
    for key in keys:
        made.append(key, b"1", None, condition)
    return made


def test_plain_sets_share_a_batch_and_its_answer() -> None:
    async def act(clone: FakeClone, made: Writes, noted: list[int]) -> None:
        told = list[WriteResult | Exception]()
        task = asyncio.create_task(made.write(rows("/w")))
        await asyncio.sleep(0)
        assert all(made.begin(f"/{i}", b"1", told.append) for i in range(3))
        await turns()
        assert clone.batches == [["/w", "/0", "/1", "/2"]]
        clone.answer(0, Ack(1, 2, "applied"))
        result = await task
        assert told == [result] * 3 and str(result.revision) == "1.2" and noted == [result.revision]

    run(act)


def test_no_more_than_two_batches_are_under_way() -> None:
    async def act(clone: FakeClone, made: Writes, _: list[int]) -> None:
        for i in range(UNDER_WAY + 2):
            assert made.begin(f"/{i}", b"1", lambda done: None)
            await turns()
        assert clone.batches == [["/0"], ["/1"]]
        clone.answer(1, Ack(1, 2, "applied"))
        await turns()
        assert clone.batches == [["/0"], ["/1"], ["/2", "/3"]]

    run(act)


def test_a_key_belongs_to_one_write_at_a_time() -> None:
    async def act(clone: FakeClone, made: Writes, _: list[int]) -> None:
        assert made.begin("/a", b"1", lambda done: None)
        assert not made.begin("/a", b"2", lambda done: None)
        task = asyncio.create_task(made.write(rows("/a", condition=0)))
        await turns()
        assert clone.batches == [["/a"]]
        clone.answer(0, Refused("no"))
        await turns()
        assert clone.batches == [["/a"], ["/a"]]
        clone.answer(1, Ack(1, 3, "applied"))
        assert str((await task).revision) == "1.3"
        assert made.begin("/a", b"3", lambda done: None), "the key is free again"

    run(act)


def test_an_overdue_write_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(clone: FakeClone, made: Writes, noted: list[int]) -> None:
        told = list[WriteResult | Exception]()
        assert made.begin("/a", b"1", told.append)
        while not told:
            await asyncio.sleep(0.005)
        assert isinstance(told[0], TimeoutError)
        assert made.begin("/a", b"1", lambda done: None), "the key is free again"
        clone.answer(0, Ack(1, 2, "applied"))
        await turns()
        assert len(told) == 1 and noted == []

    monkeypatch.setattr(writes, "ACK_S", 0.02)
    run(act)


def test_a_batch_without_room_is_sent_when_there_is_room() -> None:
    async def act(clone: FakeClone, made: Writes, noted: list[int]) -> None:
        told = list[WriteResult | Exception]()
        clone.full = True
        assert made.begin("/a", b"1", told.append)
        await turns()
        assert clone.batches == [] and told == []
        clone.full = False
        await turns()
        assert clone.batches == [["/a"]] and told == [WriteResult(Ack(1, 9, "applied").revision, "applied")] and noted

    run(act)


def test_a_callback_that_fails_does_not_stop_the_others() -> None:
    async def act(clone: FakeClone, made: Writes, _: list[int]) -> None:
        told = list[WriteResult | Exception]()

        def fails(done: WriteResult | Exception) -> None:
            raise ValueError("planted")

        assert made.begin("/a", b"1", fails) and made.begin("/b", b"1", told.append)
        await turns()
        clone.answer(0, Ack(1, 2, "applied"))
        await turns()
        assert len(told) == 1

    run(act)


def test_a_cancelled_write_releases_its_keys() -> None:
    async def act(clone: FakeClone, made: Writes, _: list[int]) -> None:
        task = asyncio.create_task(made.write(rows("/a")))
        await turns()
        task.cancel()
        await turns()
        assert task.cancelled() and made.begin("/a", b"2", lambda done: None)
        clone.answer(0, Ack(1, 2, "applied"))
        await turns()

    run(act)


def test_no_more_writes_wait_for_a_pair_than_its_share() -> None:
    async def act() -> None:
        clone, told, most = FakeClone(), list[WriteResult | Exception](), [2]
        pair: Any = clone
        made = Writes(pair, pair, lambda revision: None, lambda: most[0])
        task = asyncio.create_task(made.write(rows("/a")))
        await turns()
        assert made.begin("/b", b"1", told.append) and not made.begin("/c", b"1", told.append)
        with pytest.raises(Problem, match="2 writes wait for the pair of this mount") as found:
            await made.write(rows("/d"))
        assert found.value.status == 429
        with pytest.raises(Problem), made.waiting():
            pass
        await turns()
        clone.answer(1, Ack(1, 2, "applied"))
        await turns()
        assert len(told) == 1 and made.begin("/c", b"1", told.append)
        clone.answer(0, Refused("no"))
        with pytest.raises(Refused):
            await task
        with made.waiting():
            pass

    asyncio.run(act())


def test_a_space_in_a_user_name_makes_no_marker_of_another_user() -> None:
    def marker(user: str, name: str) -> str:
        headers = [(b"idempotency-key", name.encode())]
        asked = Request({"type": "http", "method": "PUT", "path": "/", "query_string": b"", "headers": headers})
        found = asyncio.run(marker_of(asked, user, b""))
        assert found is not None
        return found.key

    owners = [("a b", "c"), ("a", "b c"), ("", "a b c"), ("a", "b"), ("", "1:ab"), ("1", ":ab")]
    assert len({marker(*each) for each in owners}) == len(owners)
    assert marker("a", "b") == marker("a", "b")
