"""covers: topics/consumed.py: a publisher waits until a group has consumed its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from chp.errors import BadInput
from chp.limits import DEFAULT
from chp_client import AsyncClone, Clone, Closed, Full, NoSuchGroup, NoSuchTopic, Refused, Ticket, Topic
from chp_client.agent.tickets import PublishedMessages
from chp_client.core.events import Ack
from chp_client.port.ask import QuestionPort
from chp_client.topics import group_watch
from chp_client.topics.consumed import Consumption
from chp_client.topics.topic import requests_of
from chp_server.testing import Pair, TestServer
from tests.talk import join_all, until

WAIT_S = 60.0
OVER_S = 0.3


@pytest.fixture
def orders(clone: Clone) -> Topic:
    """Return a topic with a group."""
    topic = clone.topic("orders")
    topic.subscribe("billing", start="begin")
    return topic


def test_a_message_is_consumed_only_when_it_is_acknowledged(orders: Topic) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    with pytest.raises(TimeoutError, match=r"within 0.3 s no acknowledgement .*; the group is at offset 0"):
        ticket.consumed("billing").wait(OVER_S)
    with orders.consumer("billing") as consumer:
        batch = next(consumer)
        with pytest.raises(TimeoutError):
            ticket.consumed("billing").wait(0)
        batch.done().wait(WAIT_S)
        assert ticket.consumed("billing").wait(WAIT_S) == ticket.ack


def test_a_message_is_not_consumed_by_acknowledgements_of_other_slots(orders: Topic) -> None:
    with orders.consumer("billing"), orders.consumer("billing") as quick:
        until(lambda: [n for _, n in orders.groups()[0]["members"]] == [128, 128])
        # Publish each key separately, so that each has its own ticket.
        tickets = {key: orders.publish_many([b"m"], [key]) for key in map("k{}".format, range(16))}
        done: set[str | None] = set()
        while (batch := quick.take(1.0)) is not None:
            batch.done().wait(WAIT_S)
            done |= set(batch.keys)
        assert done and done < set(tickets)
        assert all(_is_consumed(ticket, WAIT_S) for key, ticket in tickets.items() if key in done)
        assert not any(_is_consumed(ticket) for key, ticket in tickets.items() if key not in done)


def _is_consumed(ticket: Ticket, timeout: float = 0) -> bool:
    try:
        ticket.consumed("billing").wait(timeout)
    except TimeoutError:
        return False
    return True


def test_a_batch_among_many_is_consumed_with_and_without_keys(orders: Topic) -> None:
    for n in range(30):
        orders.publish_many([b"x"] * 7).wait(WAIT_S)
        if n == 11:
            ticket = orders.publish_many([b"a", b"b"], ["alice", "carol"])
            unkeyed = orders.publish_many([b"c"] * 5)
    with orders.consumer("billing") as consumer:
        taken = 0
        while taken < 12 * 7 + 7:
            batch = next(consumer)
            taken += len(batch)
        batch.done().wait(WAIT_S)
        for each in (ticket, unkeyed):
            each.consumed("billing").wait(WAIT_S)


def test_a_rejected_message_counts_as_consumed(orders: Topic) -> None:
    ticket = orders.publish(b"bad", key="alice")
    with orders.consumer("billing") as consumer:
        batch = next(consumer)
        batch.reject(next(iter(batch)), "no such fruit")
        batch.done().wait(WAIT_S)
    ticket.consumed("billing").wait(WAIT_S)


def test_a_message_that_its_topic_removed_counts_as_consumed(clone: Clone) -> None:
    topic = clone.topic("jobs")
    topic.create(keep="acknowledged")
    topic.subscribe("workers", start="begin")
    first = topic.publish_many([b"1", b"2"])
    with topic.consumer("workers") as consumer:
        next(consumer).done().wait(WAIT_S)
        until(lambda: topic.facts()["first"] == 2)
        first.consumed("workers").wait(WAIT_S)
        topic.publish(b"3").wait(WAIT_S)
        # The later message is not acknowledged, but `first` does not include it.
        first.consumed("workers").wait(WAIT_S)


def test_a_wait_names_a_missing_group_or_topic(orders: Topic, clone: Clone) -> None:
    ticket = orders.publish(b"3 apples")
    with pytest.raises(NoSuchGroup, match="'shipping' of topic 'orders'"):
        ticket.consumed("shipping").wait(WAIT_S)
    with pytest.raises(BadInput):
        ticket.consumed("no group!")
    with pytest.raises(BadInput, match="only a ticket of `publish`"):
        clone.set("/a", b"1").consumed("billing")
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            ticket.consumed("billing").wait(WAIT_S)
        except NoSuchTopic as error:
            waiting.append(error)

    thread = Thread(target=wait)
    thread.start()
    orders.remove()
    join_all(thread)
    assert len(waiting) == 1


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_a_wait_fails_if_the_topic_was_removed_and_made_again(orders: Topic, others: int, *, waits: bool) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    ticket.wait(WAIT_S)

    def make_again() -> None:
        orders.remove()
        orders.subscribe("billing", start="begin")
        for _ in range(others):
            orders.publish(b"2 pears", key="alice").wait(WAIT_S)

    found = _ends_after(ticket, "billing", make_again) if waits else None
    if not waits:
        make_again()
        with pytest.raises(NoSuchTopic) as raised:
            ticket.consumed("billing").wait(WAIT_S)
        found = raised.value
    # The waiting client may ask after the topic is made again and before its group is.
    assert isinstance(found, NoSuchTopic) or (waits and isinstance(found, NoSuchGroup))
    assert waits or "was removed after the messages were published" in found.text


def _ends_after(ticket: Ticket, group: str, act: Callable[[], object]) -> BaseException | None:
    """Return the error of a wait that began before `act`, or None if the wait succeeded."""
    ended: list[BaseException | None] = []

    def wait() -> None:
        try:
            ticket.consumed(group).wait(WAIT_S)
            ended.append(None)
        except Exception as error:
            ended.append(error)

    with pytest.raises(TimeoutError):
        ticket.consumed(group).wait(0)
    thread = Thread(target=wait)
    thread.start()
    act()
    join_all(thread)
    return ended[0]


def test_a_group_that_began_behind_the_message_never_consumes_it(orders: Topic) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    ticket.wait(WAIT_S)
    orders.subscribe("late")
    with pytest.raises(NoSuchGroup, match="'late' of topic 'orders' began at offset 1, behind the message at offset 0"):
        ticket.consumed("late").wait(WAIT_S)
    # A group that begins before the message has to consume it, even if the group was made later.
    orders.subscribe("thorough", start="begin")
    with pytest.raises(TimeoutError):
        ticket.consumed("thorough").wait(0)
    with orders.consumer("thorough") as consumer:
        next(consumer).done().wait(WAIT_S)
    ticket.consumed("thorough").wait(WAIT_S)


@pytest.mark.parametrize("removed", [False, True])
def test_a_group_that_begins_behind_the_message_ends_the_wait(orders: Topic, *, removed: bool) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    ticket.wait(WAIT_S)

    def begin_behind() -> None:
        if removed:
            orders.unsubscribe("billing")
            orders.subscribe("billing")
        else:
            orders.reset("billing", "end")

    assert isinstance(_ends_after(ticket, "billing", begin_behind), NoSuchGroup)
    # If the group begins before the message again, the message is not consumed yet.
    orders.reset("billing", "begin")
    with pytest.raises(TimeoutError):
        ticket.consumed("billing").wait(0)


def test_a_refused_message_and_a_closed_clone_end_the_wait() -> None:
    with TestServer() as server, Clone([server.address]) as clone:
        topic = clone.topic("small")
        topic.create(max_messages=1)
        topic.subscribe("billing")
        ticket = topic.publish(b"1")
        ticket.wait(WAIT_S)
        with pytest.raises(Refused) as refused:
            topic.publish(b"2").consumed("billing").wait(WAIT_S)
        assert refused.value.code == "full"
        clone.close()
        with pytest.raises(Closed):
            ticket.consumed("billing").wait(WAIT_S)


def test_a_message_without_a_revision_is_consumed_with_all_present_messages(orders: Topic, server: TestServer) -> None:
    orders.publish(b"3 apples").wait(WAIT_S)
    ticket = Ticket(lambda: "")
    ticket.published = PublishedMessages("orders", None, 1)
    ticket.settle(Ack(0, 1, "replicated"))
    promise = Consumption(ticket, "billing", requests_of(orders).writer, lambda: [server.address])
    with pytest.raises(TimeoutError):
        promise.wait(0)
    with orders.consumer("billing") as consumer:
        next(consumer).done().wait(WAIT_S)
    promise.wait(WAIT_S)


def test_a_wait_goes_on_over_a_failover(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # The short `LOOK_S` lets a question end before the other server serves.
    monkeypatch.setattr(group_watch, "LOOK_S", 0.1)
    with Clone(pair.servers) as clone:
        topic = clone.topic("orders")
        topic.subscribe("billing", start="begin")
        ticket = topic.publish(b"3 apples", key="alice")
        ticket.wait(WAIT_S)
        done: list[object] = []
        thread = Thread(target=lambda: done.append(ticket.consumed("billing").wait(WAIT_S)))
        thread.start()
        pair.kill()
        with topic.consumer("billing") as consumer:
            batch = next(consumer)
            assert not done
            batch.done().wait(WAIT_S)
        join_all(thread)
        assert done == [ticket.ack]


def test_an_async_task_waits_until_a_message_is_consumed(server: TestServer) -> None:
    async def publish() -> None:
        async with AsyncClone([server.address]) as clone:
            topic = clone.topic("orders")
            await topic.subscribe("billing", start="begin")
            ticket = topic.submit(b"3 apples", key="alice")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ticket.consumed("billing"), OVER_S)
            async with await topic.consumer("billing") as consumer:
                batch = await anext(aiter(consumer))
                await batch.done()
                assert await asyncio.wait_for(ticket.consumed("billing"), WAIT_S) == ticket.ack

    asyncio.run(publish())


def test_a_blocking_wait_in_the_event_loop_is_refused(server: TestServer) -> None:
    async def publish() -> None:
        async with AsyncClone([server.address]) as clone:
            ticket = clone.topic("orders").submit(b"3 apples")
            with pytest.raises(BadInput, match=r"would block the event loop.*await asyncio\.wait_for"):
                ticket.consumed("billing").wait(1)
            # Another thread may block.
            with pytest.raises(NoSuchGroup):
                await asyncio.to_thread(ticket.consumed("billing").wait, WAIT_S)

    asyncio.run(publish())


def test_one_question_at_a_time_settles_all_waits(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    ask = QuestionPort.ask

    def counted(self: QuestionPort, subtree: str, **options: Any) -> dict[str, Any]:
        asked.append(monotonic())
        return ask(self, subtree, **options)

    monkeypatch.setattr(QuestionPort, "ask", counted)

    async def publish() -> None:
        async with AsyncClone([server.address]) as clone:
            topic = clone.topic("orders")
            await topic.subscribe("billing", start="begin")
            tickets = []
            for n in range(300):
                tickets.append(topic.submit(b"3 apples", key=f"k{n % 50}"))
                if n % 10 == 0:
                    await tickets[-1]
            waits = [asyncio.ensure_future(asyncio.wait_for(each.consumed("billing"), WAIT_S)) for each in tickets]
            async with await topic.consumer("billing") as consumer:
                while not all(wait.done() for wait in waits):
                    if (batch := await consumer.take(0.1)) is not None:
                        await batch.done()
            assert [await wait for wait in waits] == [each.ack for each in tickets]

    asyncio.run(publish())
    assert all(after - before >= group_watch.PAUSE_S / 2 for before, after in pairwise(asked))


def test_the_waits_of_a_clone_are_bounded(orders: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    monkeypatch.setattr(group_watch, "DEFAULT", replace(DEFAULT, group_waits_max=0))
    with pytest.raises(Full, match="0 waits for group 'billing' of topic 'orders' go on already"):
        ticket.consumed("billing").wait(WAIT_S)
    monkeypatch.setattr(group_watch, "DEFAULT", replace(DEFAULT, watched_groups_max=0))
    with pytest.raises(Full, match="waits for 0 groups already"):
        ticket.consumed("billing").wait(WAIT_S)


def test_a_wait_works_with_an_older_server(orders: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = orders.publish(b"3 apples", key="alice")
    ask = QuestionPort.ask

    def older(self: QuestionPort, subtree: str, **options: Any) -> dict[str, Any]:
        options.pop("group", None)
        return ask(self, subtree, **options)

    monkeypatch.setattr(QuestionPort, "ask", older)
    with orders.consumer("billing") as consumer:
        batch = next(consumer)
        with pytest.raises(TimeoutError):
            ticket.consumed("billing").wait(0)
        with pytest.raises(NoSuchGroup):
            ticket.consumed("shipping").wait(WAIT_S)
        batch.done().wait(WAIT_S)
        ticket.consumed("billing").wait(WAIT_S)
