"""covers: consumers and `together` over real sockets: sharing, commits, fencing, failovers, dead letters, tasks."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
import weakref
from collections.abc import Callable
from threading import Lock, Thread
from time import monotonic
from typing import Any

import msgpack
import pytest

from chp_client import (
    AlreadyThere,
    AsyncClone,
    BadInput,
    Clone,
    Conflict,
    Consumer,
    Fenced,
    Message,
    NoSuchGroup,
    NoSuchTopic,
    Refused,
    Transaction,
)
from chp_client.port.ask import QuestionPort
from chp_client.topics.stateless_member import Receipt
from chp_client.topics.transaction import latest
from chp_server.testing import Pair, TestServer
from tests.talk import join_all, until
from tests.wire.still import stand_still


def values_of(consumer: Consumer, n: int) -> list[bytes]:
    """Return so many messages, taken one batch at a time."""
    taken: list[bytes] = []
    while len(taken) < n:
        taken += next(consumer).values
    return taken


def test_a_transaction_of_keys_messages_and_conditions_is_all_or_nothing() -> None:
    with TestServer() as server, Clone([server.address]) as clone:
        with clone.transaction() as t:
            t.set("/a", b"1")
            t.set("/b", b"1", ttl=60)
            t.delete("/c")
            t.publish("log", b"first", key="k")
        at = t.done.revision
        until(lambda: clone.get("/a") == b"1")
        with pytest.raises(Conflict) as conflict, clone.transaction() as t:
            t.expect("/a", at)
            t.expect("/nothing", 1)
            t.set("/a", b"2")
            t.publish("log", b"never")
        assert conflict.value.revisions == {"/nothing": 0}
        with clone.transaction() as t:
            t.expect("/a", at)
            t.expect("/nothing", 0)
            t.delete("/a")
        until(lambda: "/a" not in clone)
        assert [batch.values for batch in clone.topic("log").read(wait=False)] == [[b"first"]]
        with pytest.raises(ZeroDivisionError), clone.transaction() as t:
            t.set("/a", b"3")
            raise ZeroDivisionError
        clone.flush(5)
        assert "/a" not in clone, "nothing of a block that failed was sent"
        for _ in range(2):
            with clone.transaction() as t:
                t.once("importer", 1, strict=True)
                t.publish("log", b"once")
        with pytest.raises(Refused) as refused, clone.transaction() as t:
            t.once("importer", 3, strict=True)
        assert (refused.value.code, refused.value.detail) == ("count", 1)
        assert clone.topic("log").facts()["next"] == 2


def test_a_transaction_refuses_a_set_or_delete_at_another_revision() -> None:
    with TestServer() as server, Clone([server.address], codec="text") as clone:
        with clone.transaction() as t:
            t.set("/new", "1", if_revision=0)
        at = t.done.revision
        acts: list[Callable[[Transaction], None]] = [
            lambda t: t.set("/new", "2", if_revision=0),
            lambda t: t.delete("/new", if_revision="1.99"),
        ]
        for act in acts:
            with pytest.raises(Conflict) as conflict, clone.transaction() as t:
                act(t)
                t.set("/other", "1")
            assert conflict.value.revisions == {"/new": at}
        with pytest.raises(BadInput, match="if_revision=-1 is not a revision"), clone.transaction() as t:
            t.set("/new", "2", if_revision=-1)
        until(lambda: clone.get("/new") == "1")
        asyncio.run(conditional(server.address, int(at)))
        until(lambda: not clone)


async def conditional(address: str, at: int) -> None:
    async with AsyncClone([address], None) as clone:
        async with clone.transaction() as t:
            t.delete("/new", if_revision=at)
        with pytest.raises(Conflict):
            async with clone.transaction() as t:
                t.delete("/new", if_revision=at)


def test_a_transaction_too_large_for_one_batch_is_refused_unsent() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        t = clone.transaction()
        for i in range(17):
            t.set(f"/{i}", bytes(1 << 20))
        with pytest.raises(BadInput, match="one batch"):
            t.send()
        with pytest.raises(BadInput, match="nothing was sent"):
            _ = t.done


def test_unacknowledged_messages_of_a_closed_consumer_go_to_the_other() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"%d" % i for i in range(200)], [f"k{i}" for i in range(200)]).wait(10)
        with orders.consumer("billing") as one, Clone([server.address], subtree=None) as other:
            two = other.topic("orders").consumer("billing")
            until(lambda: sorted(n for _, n in orders.groups()[0]["members"]) == [128, 128])
            part = next(two).values
            assert 0 < len(part) < 200
            two.close()
            rest = values_of(one, 200)
            assert sorted(map(int, rest)) == list(range(200)), "what was not acknowledged came to the other"
            next_one = one.take(0.1)
            assert next_one is None
            until(lambda: orders.groups()[0]["lag"] == 0)


def test_a_batch_is_committed_once_and_fenced_after_a_reset() -> None:
    with TestServer() as server, Clone([server.address]) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"3", b"4"]).wait(10)
        with orders.consumer("billing") as consumer:
            batch = next(consumer)
            batch.commit({"/total": b"7"}, publish={"invoices": [b"i1", b"i2"]}, deletes=["/open"], timeout=10)
            until(lambda: clone.get("/total") == b"7")
            assert clone.topic("invoices").facts()["next"] == 2
            with pytest.raises(BadInput, match="already"):
                batch.commit({"/total": b"14"})
            orders.reset("billing", "begin")
            again = next(consumer)
            assert again.values == [b"3", b"4"]
            orders.reset("billing", "end")
            with pytest.raises(Fenced) as fenced:
                again.commit({"/total": b"never"}, timeout=10)
            assert fenced.value.detail["topic"] == "orders" and "billing" in str(fenced.value)
            assert consumer.take(0.1) is None
        assert clone["/total"] == b"7"


def test_a_reset_to_the_current_position_fences_batches_and_gives_them_again() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"%d" % i for i in range(10)]).wait(10)
        with orders.consumer("billing") as consumer:
            first = next(consumer)
            orders.reset("billing", "begin")
            with pytest.raises(Fenced, match="or began anew, and they are given again"):
                first.commit({"/total": b"before"}, timeout=10)
            again = next(consumer)
            assert again.values == first.values and again.whose[2] != first.whose[2]
            with pytest.raises(Fenced):
                # The old batch can't be committed even after the consumer has become a member again.
                first.commit({"/total": b"before"}, timeout=10)
            again.commit({"/total": b"after"}, timeout=10)
            assert [(group["lag"], len(group["members"])) for group in orders.groups()] == [(0, 1)]


def test_a_consumer_goes_on_over_a_failover_and_nothing_comes_twice() -> None:
    with Pair() as pair, Clone(pair.servers, subtree=None) as clone:
        ticks = clone.topic("ticks")
        ticks.publish_many([b"%d" % i for i in range(10)]).wait(10)
        with ticks.consumer("g") as consumer:
            first = next(consumer)
            assert first.values == [b"%d" % i for i in range(10)]
            pair.primary.kill()
            for i in range(10, 30):
                ticks.publish(b"%d" % i).wait(20)
            assert first.commit({"/seen": b"10"}, timeout=20)
            assert values_of(consumer, 20) == [b"%d" % i for i in range(10, 30)]
            assert consumer.fenced == 0


def test_get_takes_messages_one_by_one_and_acknowledges_the_previous_one() -> None:
    with TestServer() as server, Clone([server.address], subtree=None, codec="json") as clone:
        orders = clone.topic("orders")
        orders.subscribe("g")
        with pytest.raises(AlreadyThere):
            orders.subscribe("g")
        for i in range(5):
            orders.publish({"n": i}, key=f"k{i}").wait(10)
        with orders.consumer("g") as consumer:
            got: list[Any] = [consumer.get(5) for _ in range(3)]
            assert [message.value["n"] for message in got] == [0, 1, 2]
            assert (got[2].key, got[2].offset) == ("k2", 2)
        until(lambda: orders.groups()[0]["position"] == 2)
        with orders.consumer("g") as consumer:
            assert [consumer.get(5).value["n"] for _ in range(3)] == [2, 3, 4]  # type: ignore[union-attr]
            assert consumer.get(0.1) is None
            until(lambda: orders.groups()[0]["lag"] == 0)
        orders.unsubscribe("g")
        with pytest.raises(NoSuchGroup):
            orders.unsubscribe("g")
        assert orders.groups() == []


class OtherPort(QuestionPort):
    """A port that counts how often the consumer wants to ask another server."""

    others = 0

    def ask_another(self) -> None:
        self.others += 1


def test_a_missing_group_is_believed_only_if_the_followed_server_agrees() -> None:
    with TestServer() as server, Clone([server.address], None) as clone, OtherPort([server.address], 1.0) as port:
        orders = clone.topic("orders")
        orders.publish(b"1").wait(10)
        with orders.consumer("g") as consumer:
            for code in ("group", "topic"):
                consumer._refused(Refused("it was stopped before there was one", code), port)
            assert port.others == 2
            orders.unsubscribe("g")
            with pytest.raises(NoSuchGroup):
                consumer._refused(Refused("there is none", "group"), port)
            orders.remove()
            with pytest.raises(NoSuchTopic):
                consumer._refused(Refused("there is none", "topic"), port)


def test_a_message_whose_handler_always_raises_becomes_a_dead_letter() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        n = 2000
        orders.publish_many([b"%d" % i for i in range(n)], [f"k{i % 7}" for i in range(n)]).wait(10)
        seen: dict[str | None, list[int]] = {}
        tried: list[int] = []
        consumer, lock = orders.consumer("billing"), Lock()

        def handler(message: Message) -> None:
            if message.offset == 711:
                tried.append(message.offset)
                raise ValueError("bad order")
            with lock:
                seen.setdefault(message.key, []).append(message.offset)
                if sum(map(len, seen.values())) == n - 1:
                    consumer.stop()

        with consumer:
            runner = Thread(target=consumer.run, args=(handler,), kwargs={"workers": 4, "backoff_s": 0.001})
            runner.start()
            join_all(runner)
        assert len(tried) == 5
        assert sorted(offset for part in seen.values() for offset in part) == [i for i in range(n) if i != 711]
        assert all(part == sorted(part) for part in seen.values()), "each key in order"
        (letter,) = next(clone.topic("orders.billing.dead").read(wait=False))
        told = msgpack.unpackb(letter.value)
        assert (told["offset"], told["value"], told["tries"], told["why"]) == (711, b"711", 5, "ValueError: bad order")
        until(lambda: orders.groups()[0]["lag"] == 0)


def test_a_consumer_that_is_dropped_unclosed_warns_and_leaves_its_group(server: TestServer) -> None:
    with Clone([server.address], subtree=None) as clone:
        orders = clone.topic("dropped")
        orders.publish(b"1").wait(10)
        consumer = orders.consumer("g", ttl=60, name="mine")
        assert next(consumer).values == [b"1"]
        with pytest.warns(ResourceWarning, match=r"unclosed <Consumer mine of group 'g' of topic 'dropped'>; close it"):
            gone = weakref.ref(consumer)
            del consumer
            until(lambda: gc.collect() >= 0 and gone() is None)
        with orders.consumer("g") as other:
            batch = other.take(10)
            assert batch is not None and batch.values == [b"1"], "the other one has the slots now"


def test_an_async_consumer_that_is_dropped_unclosed_warns_and_leaves_its_group(server: TestServer) -> None:
    async def run(address: str) -> None:
        async with AsyncClone([address], subtree=None) as clone:
            orders = clone.topic("dropped")
            await orders.publish(b"1")
            consumer = await orders.consumer("g", ttl=60, name="mine")
            batch = await consumer.take(10)
            assert batch is not None and batch.values == [b"1"]
            with pytest.warns(ResourceWarning, match="unclosed <Consumer mine of group 'g'"):
                gone = weakref.ref(consumer.consumer)
                del consumer
                async with asyncio.timeout(10):
                    while gone() is not None:
                        await asyncio.sleep(0.01)
                        gc.collect()
            async with await orders.consumer("g") as other:
                batch = await other.take(10)
                assert batch is not None and batch.values == [b"1"]

    asyncio.run(run(server.address))


def test_a_closed_or_refused_consumer_warns_of_nothing(server: TestServer) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Clone([server.address], subtree=None) as clone:
            orders = clone.topic("quiet")
            orders.publish(b"1").wait(10)
            with orders.consumer("g") as consumer:
                next(consumer)
            with pytest.raises(BadInput):
                orders.consumer("g", ack="never")
            with pytest.raises(NoSuchGroup):
                orders.consumer("other", create=False)
            kept = orders.consumer("g")
        del consumer, kept
        gc.collect()
    assert [str(each.message) for each in warned if issubclass(each.category, ResourceWarning)] == []


def test_stop_ends_the_pause_between_two_tries_and_the_message_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"%d" % i for i in range(6)], ["k"] * 6).wait(10)
        handled: list[int] = []

        def handler(message: Message) -> None:
            handled.append(message.offset)
            if message.offset in (1, 3):
                raise ValueError("bad order")

        with orders.consumer("billing") as consumer, caplog.at_level(logging.WARNING, "chp_client.topics"):
            runner = Thread(target=consumer.run, args=(handler,), kwargs={"tries": 2, "backoff_s": 2.0})
            runner.start()
            until(lambda: "message 3 of topic orders, try 1 of 2" in caplog.text)
            began = monotonic()
            consumer.stop()
            join_all(runner)
            assert monotonic() - began < 1.5
        assert handled == [0, 1, 1, 2, 3], "the messages behind it in the batch are left"
        (letter,) = next(clone.topic("orders.billing.dead").read(wait=False))
        assert msgpack.unpackb(letter.value)["offset"] == 1
        with orders.consumer("billing") as again:
            assert values_of(again, 3) == [b"3", b"4", b"5"]


def test_a_stopped_consumer_with_ack_before_uses_all_tries_without_a_pause() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"0", b"1"], ["k", "k"]).wait(10)
        handled: list[int] = []

        def handler(message: Message) -> None:
            handled.append(message.offset)
            consumer.stop()
            if message.offset == 0:
                raise ValueError("bad order")

        began = monotonic()
        with orders.consumer("billing", ack="before") as consumer:
            consumer.run(handler, tries=3, backoff_s=5.0)
        assert handled == [0, 0, 0, 1] and monotonic() - began < 5.0
        (letter,) = next(clone.topic("orders.billing.dead").read(wait=False))
        assert msgpack.unpackb(letter.value)["offset"] == 0


def test_a_full_topic_refuses_messages_until_a_consumer_makes_room() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        jobs = clone.topic("jobs")
        jobs.create("acknowledged", max_messages=1000)
        jobs.subscribe("w")
        full = taken = 0
        tickets = [jobs.publish_many([b"%d" % i]) for i in range(3000)]
        for ticket in tickets:
            try:
                ticket.wait(10)
                taken += 1
            except Refused as refused:
                assert refused.code == "full"
                full += 1
        assert (taken, full) == (1000, 2000)
        with jobs.consumer("w") as consumer:
            assert len(values_of(consumer, 1000)) == 1000
            assert consumer.take(0.1) is None
            until(lambda: jobs.facts()["first"] == 1000)
        jobs.publish(b"again").wait(10)


def test_a_consumer_that_was_stopped_for_too_long_is_fenced_and_joins_anew() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"1", b"2"]).wait(10)
        with orders.consumer("g", ttl=1.0) as consumer:
            batch = next(consumer)
            stand_still(clone)
            began = monotonic()
            until(lambda: orders.groups()[0]["members"] == [])
            assert monotonic() - began > 0.3
            with pytest.raises(Fenced):
                batch.commit({"/never": b"1"}, timeout=10)
            again = next(consumer)
            assert again.values == [b"1", b"2"]
            again.commit({"/once": b"1"}, timeout=10)


def test_an_async_consumer_commits_and_acknowledges_batches(server: TestServer) -> None:
    async def run(address: str) -> None:
        async with AsyncClone([address]) as clone:
            topic = clone.topic("t")
            await topic.subscribe("g")
            await topic.publish_many([b"1", b"2"])
            async with clone.transaction() as t:
                t.publish("t", b"3")
                t.set("/a", b"1")
            taken: list[bytes] = []
            async with await topic.consumer("g") as consumer:
                async for batch in consumer:
                    taken += batch.values
                    if len(taken) < 3:
                        await batch.commit({"/n": b"%d" % len(taken)})
                    else:
                        async with clone.transaction() as t:
                            t.ack(batch)
                    if len(taken) == 3:
                        break
                assert await consumer.get(0.1) is None
            assert taken == [b"1", b"2", b"3"]
            assert [group["lag"] for group in await topic.groups()] == [0]
            await topic.unsubscribe("g")

    asyncio.run(run(server.address))


def test_ack_before_acknowledges_a_batch_before_it_is_handled() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish(b"1").wait(10)
        with orders.consumer("g", ack="before") as consumer:
            assert next(consumer).values == [b"1"]
            assert orders.groups()[0]["lag"] == 0, "it is acknowledged before anybody looks at it"


def test_an_acknowledgement_names_the_position_of_its_messages() -> None:
    """A server with another history refuses the acknowledgement, because its offsets may belong to other messages."""
    with TestServer() as server, Clone([server.address], None) as clone:
        topic = clone.topic("t")
        topic.publish_many([b"1", b"2"]).wait(10)
        with topic.consumer("g") as consumer:
            batch = next(consumer)
            assert batch.position is not None and batch.position[0] == batch.revisions[-1]
            receipt = Receipt("m", batch.moves(), batch.position)
            assert Receipt.of(str(receipt)) == receipt and receipt.upto(0).position == batch.position
            assert receipt.acknowledged(*batch.whose)["ack"] == [[*batch.whose, batch.moves(), [batch.position]]]
            # The number is the same, but in an epoch that another server has opened.
            batch.position = [*batch.position[:2], b"another server's"]
            with pytest.raises(Fenced, match="history parted"):
                batch.commit(timeout=10)
            again = next(consumer)
            assert again.values == [b"1", b"2"]
            again.commit(timeout=10)
        assert topic.groups()[0]["lag"] == 0


def test_latest_keeps_the_highest_position_of_each_history() -> None:
    ours, theirs = [[n, b"s", b"o"] for n in (5, 7, 6)], [2, b"s", b"p"]
    assert latest([*ours, theirs]) == [[ours[1], theirs]]
    assert latest([]) == []


def test_a_running_consumer_does_not_make_its_removed_group_again() -> None:
    with TestServer() as server, Clone([server.address]) as clone:
        orders = clone.topic("orders")
        orders.publish_many([b"1", b"2"]).wait(10)
        with orders.consumer("made") as consumer:
            assert consumer.made_group
            batch = next(consumer)
            orders.unsubscribe("made")
            with pytest.raises(NoSuchGroup, match="topic orders has no group made"):
                batch.commit({"/total": b"never"}, timeout=10)
            for _ in range(2):
                with pytest.raises(NoSuchGroup, match="no group 'made' of topic 'orders'"):
                    consumer.take(10)
            assert orders.groups() == [] and "/total" not in clone
            orders.subscribe("made", start=1)
            assert next(consumer).values == [b"2"], "who makes the group again says where it begins"
        asyncio.run(goes_on_without_its_group(server.address))
        assert [group["name"] for group in orders.groups()] == ["made"]
        with orders.consumer("ran") as consumer, pytest.raises(NoSuchGroup):
            consumer.run(lambda _: orders.unsubscribe("ran") if "ran" in str(orders.groups()) else None)
        with orders.consumer("made") as consumer:
            assert not consumer.made_group
            orders.remove()
            with pytest.raises(NoSuchTopic):
                consumer.take(10)
        assert clone.topics() == []


async def goes_on_without_its_group(address: str) -> None:
    """Remove the group of an idle consumer and of one that acknowledges."""
    async with AsyncClone([address]) as clone:
        topic = clone.topic("orders")
        async with await topic.consumer("task") as consumer:
            batch = await consumer.take(10)
            assert batch is not None
            await batch.done()
            await topic.unsubscribe("task")
            with pytest.raises(NoSuchGroup):
                async for _ in consumer:
                    pytest.fail("a message was given again")
