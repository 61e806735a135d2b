"""covers: topics/consumer.py and batch.py if the server refuses acknowledgements: a full disk, a fenced member."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import pytest

from chp_client import AsyncClone, AsyncConsumer, Clone, Consumer, Fenced, Refused, Ticket, Topic
from chp_client.topics.batch import Batch
from chp_client.topics.chunk import joined
from chp_server.core.updates.resource_limits import ResourceUsage
from chp_server.shell.resources import DiskMonitor
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until
from tests.wire.still import stand_still


class Disk:
    """A switch: while `full` is true, all servers measure their disk as full."""

    full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return the switch for the disks of all servers in this process."""
    disk = Disk()
    monkeypatch.setattr(DiskMonitor, "_measured", lambda space, now: ResourceUsage(read_only=disk.full))
    return disk


def fill(disk: Disk, clone: Clone) -> None:
    """Fill the disk, and wait until the server refuses sets."""
    disk.full = True

    def refused() -> bool:
        try:
            clone.set("/full", b"").wait(WAIT_S)
        except Refused as error:
            return error.code == "full"
        return False

    until(refused)


def settled(ticket: Ticket) -> None:
    """Wait until a ticket is answered, whether the server accepts or refuses."""
    until(lambda: ticket.done)


def lag(topic: Topic) -> int:
    """Return the number of messages of the group that are not acknowledged."""
    return int(topic.groups()[0]["lag"])


def drain(consumer: Consumer, topic: Topic) -> set[bytes]:
    """Handle messages without waiting for acknowledgements, until all are acknowledged."""
    done: set[bytes] = set()
    deadline = monotonic() + WAIT_S
    while lag(topic) and monotonic() < deadline:
        if (batch := consumer.take(0.2)) is not None:
            done.update(batch.values)
            batch.done()
    assert lag(topic) == 0
    return done


HUNDRED = [b"%d" % i for i in range(100)]
KEYS = [f"k{i % 20}" for i in range(100)]


def orders_of(clone: Clone) -> Topic:
    orders = clone.topic("orders")
    orders.subscribe("g", "begin")
    orders.publish_many(HUNDRED[:50], KEYS[:50]).wait(10)
    return orders


@pytest.mark.parametrize("how", ["done", "together", "committing", "asked for the next"])
def test_messages_of_a_refused_acknowledgement_are_given_again(disk: Disk, clone: Clone, how: str) -> None:
    orders = orders_of(clone)
    with orders.consumer("g") as consumer:
        batch = next(consumer)
        assert batch.values == HUNDRED[:50]
        fill(disk, clone)
        if how == "done":
            settled(batch.done())
        elif how == "together":
            t = clone.transaction()
            t.ack(batch)
            settled(t.send())
        elif how == "committing":
            settled(batch.committing({"/sum": b"1"}, deletes=(), publish=None))
        assert consumer.take(0.1) is None
        disk.full = False
        accepted(clone)
        orders.publish_many(HUNDRED[50:], KEYS[50:]).wait(10)
        assert drain(consumer, orders) == set(HUNDRED)
        assert consumer.fenced > 0


def test_get_gives_messages_of_refused_acknowledgements_again(disk: Disk, clone: Clone) -> None:
    orders = orders_of(clone)
    with orders.consumer("g") as consumer:
        assert consumer.get(10) is not None
        fill(disk, clone)
        # The server refuses the acknowledgements of these messages.
        while consumer.get(0.1) is not None:
            pass
        assert lag(orders) == 50
        disk.full = False
        accepted(clone)
        seen, deadline = list[bytes](), monotonic() + WAIT_S
        while lag(orders) and monotonic() < deadline:
            if (message := consumer.get(0.2)) is not None:
                seen.append(message.value)
        assert lag(orders) == 0 and set(seen) == set(HUNDRED[:50])


def accepted(clone: Clone) -> None:
    """Wait until the server takes sets again."""

    def taken() -> bool:
        try:
            clone.set("/room", b"").wait(WAIT_S)
        except Refused:
            return False
        return True

    until(taken)


def test_all_batches_behind_a_refused_one_are_acknowledged_in_the_end(disk: Disk, clone: Clone) -> None:
    orders = orders_of(clone)
    orders.publish_many(HUNDRED[50:], KEYS[50:]).wait(10)
    with orders.consumer("g") as consumer:
        first = next(consumer)
        fill(disk, clone)
        tickets = [first.done()]
        while (batch := consumer.take(0.1)) is not None and len(tickets) < 3:
            tickets.append(batch.done())
        for ticket in tickets:
            settled(ticket)
        disk.full = False
        assert drain(consumer, orders) == set(HUNDRED)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of consumers."""
    return [record.getMessage() for record in caplog.records if record.name == "chp_client.topics"]


def test_a_refusal_is_logged_once_unless_commit_raised_it(
    disk: Disk, clone: Clone, caplog: pytest.LogCaptureFixture
) -> None:
    orders = orders_of(clone)
    with caplog.at_level(logging.WARNING, "chp_client.topics"), orders.consumer("g") as consumer:
        batch = next(consumer)
        fill(disk, clone)
        with pytest.raises(Refused, match="full"):
            batch.commit({"/a": b"1"}, timeout=10)
        assert consumer.take(0.0) is None and not warned(caplog)
        again = next(consumer)
        settled(again.done())
        assert consumer.take(0.0) is None
        assert [text.count("its messages are given again") for text in warned(caplog)] == [1]
        disk.full = False
        assert drain(consumer, orders) == set(HUNDRED[:50])


def test_an_async_consumer_gets_messages_of_a_refused_acknowledgement_again(disk: Disk) -> None:
    async def done_of(consumer: AsyncConsumer, n: int) -> set[bytes]:
        taken: set[bytes] = set()
        while len(taken) < n:
            batch = await consumer.take(5)
            if batch is not None:
                taken.update(batch.values)
                try:
                    await asyncio.wait_for(batch.done(), 10)
                except Refused:
                    taken.clear()
        return taken

    async def run(address: str) -> None:
        async with AsyncClone([address], subtree=None) as clone:
            topic = clone.topic("orders")
            await topic.subscribe("g", "begin")
            await topic.publish_many(HUNDRED)
            async with await topic.consumer("g") as consumer:
                batch = await consumer.take(10)
                assert batch is not None
                disk.full = True
                # The loop ends when the server refuses.
                while True:
                    try:
                        await clone.set("/full", b"")
                    except Refused:
                        break
                nobody_waits = asyncio.ensure_future(batch.done())
                with pytest.raises(Refused):
                    await nobody_waits
                assert await consumer.take(0.1) is None
                disk.full = False
                await asyncio.wait_for(done_of(consumer, 100), WAIT_S)
                assert [group["lag"] for group in await topic.groups()] == [0]

    with TestServer() as server:
        asyncio.run(run(server.address))


# -- acknowledged before


def test_ack_before_gives_no_messages_while_the_disk_is_full(disk: Disk, clone: Clone) -> None:
    orders = orders_of(clone)
    with orders.consumer("g", ack="before") as consumer:
        fill(disk, clone)
        assert consumer.take(0.5) is None, "nobody sees what is not acknowledged"
        assert lag(orders) == 50
        disk.full = False
        assert next(consumer).values == HUNDRED[:50]
        assert lag(orders) == 0


def test_a_consumer_with_ack_before_goes_on_after_its_lease_expired(clone: Clone) -> None:
    orders = orders_of(clone)
    with orders.consumer("g", ttl=1.0, ack="before") as consumer:
        assert next(consumer).values == HUNDRED[:50]
        stand_still(clone)
        until(lambda: orders.groups()[0]["members"] == [])
        orders.publish_many(HUNDRED[50:], KEYS[50:]).wait(10)
        taken: list[bytes] = []
        while len(taken) < 50:
            taken += next(consumer).values
        assert taken == HUNDRED[50:]
        until(lambda: lag(orders) == 0)


@pytest.mark.parametrize("code", ["fenced", "parted", "full"])
def test_ack_before_gives_no_batch_whose_acknowledgement_was_refused(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    orders, done, refused = orders_of(clone), Batch.done, list[Batch]()

    def refuse_first(batch: Batch) -> Ticket:
        if refused:
            return done(batch)
        refused.append(batch)
        batch.sent(ticket := Ticket(str))
        kind = Fenced if code == "fenced" else Refused
        ticket.settle(kind("it is refused", code, None))
        return ticket

    monkeypatch.setattr(Batch, "done", refuse_first)
    with orders.consumer("g", ack="before") as consumer:
        given = next(consumer)
        assert given.values == HUNDRED[:50] and given is not refused[0]
        assert consumer.fenced == 1


def test_take_with_ack_before_times_out_and_gives_the_batch_later(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, done, late = orders_of(clone), Batch.done, list[Batch]()

    def not_sent(batch: Batch) -> Ticket:
        if batch not in late:
            late.append(batch)
        return Ticket(str)

    monkeypatch.setattr(Batch, "done", not_sent)
    with orders.consumer("g", ack="before") as consumer:
        until(lambda: consumer.take(0.05) is None and bool(late))
        monkeypatch.setattr(Batch, "done", done)
        assert next(consumer) is late[0] and len(late) == 1
        until(lambda: lag(orders) == 0)


# -- what is in hand


def test_adjoining_steps_of_a_slot_are_joined_into_one_range() -> None:
    def slots(*some: int) -> bytes:
        return sum(1 << i for i in some).to_bytes(32, "little")

    steps = [[slots(0, 1), 0, 5], [slots(2), 3, 5], [slots(0, 1, 2), 5, 6], [slots(1), 6, 9], [slots(3), 9, 11]]
    assert joined(steps) == [
        [slots(0), 0, 6], [slots(2), 3, 6], [slots(1), 0, 9], [slots(3), 9, 11],
    ]  # fmt: skip
    assert joined([[slots(0), 0, 5], [slots(0), 7, 9]]) == [[slots(0), 0, 5], [slots(0), 7, 9]], "there is a gap"
    one_by_one = [[slots(*range(256)), i, i + 1] for i in range(5000)]
    assert joined(one_by_one) == [[slots(*range(256)), 0, 5000]]
