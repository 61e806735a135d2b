"""covers: docs/sources.md, 003: the tests T1.1 to T10.3 of competing consumers, one function each, with their names.

Tests with slow, dead or cut-off consumers check which member gets which messages, and in which order. No time is
asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

import pytest

from chp_client import Clone, Consumer, Message, Refused
from chp_server.testing import Pair, TestServer
from tests.talk import join_all, until
from tests.wire.still import stand_still


def drained(consumers: Sequence[Consumer], n: int) -> list[list[Message]]:
    """Return the messages of each consumer, once all consumers together have this many."""
    parts: list[list[Message]] = [[] for _ in consumers]

    def drain(consumer: Consumer, part: list[Message]) -> None:
        for batch in consumer:
            part += batch
            batch.done().wait(30)
            if sum(map(len, parts)) >= n:
                for each in consumers:
                    each.stop()

    threads = [Thread(target=drain, args=each) for each in zip(consumers, parts, strict=True)]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert sorted(message.offset for part in parts for message in part) == list(range(n)), "each once"
    return parts


def joined(clone: Clone, topic: str, n: int) -> list[Consumer]:
    """Return consumers of one group, each with its share of the slots."""
    consumers = [clone.topic(topic).consumer("g", name=f"c{i}") for i in range(n)]
    until(lambda: sum(slots > 0 for _, slots in clone.topic(topic).groups()[0]["members"]) == n)
    return consumers


def offset_of(message: Message | None) -> int:
    """Return the offset of a message, and check that it came."""
    assert message is not None, "it came in time"
    return message.offset


def test_t1_1_a_late_subscriber_gets_ten_earlier_messages() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").publish_many([b"%d" % i for i in range(10)]).wait(10)
        assert len(drained(joined(clone, "t", 1), 10)[0]) == 10


def test_t1_2_two_subscribers_have_equal_shares() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").subscribe("g")
        two = joined(clone, "t", 2)
        clone.topic("t").publish_many([b""] * 1024).wait(10)
        assert list(map(len, drained(two, 1024))) == [512, 512]


def test_t1_3_a_partition_goes_whole_to_one_of_two_subscribers() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").subscribe("g")
        two = joined(clone, "t", 2)
        clone.topic("t").publish_many([b""] * 1000, [f"p{i % 2}" for i in range(1000)]).wait(10)
        parts = drained(two, 1000)
        for key in ("p0", "p1"):
            assert sorted(sum(message.key == key for message in part) for part in parts) == [0, 500]
    assert all(message.time > 1e9 for part in parts for message in part), "and each has its time, of the wall"


def test_t1_4_a_topic_of_1000_refuses_9000_of_10000_messages() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").create("acknowledged", max_messages=1000)
        clone.topic("t").subscribe("g", "begin")
        full = 0
        for ticket in [clone.topic("t").publish_many([b"%d" % i]) for i in range(10_000)]:
            try:
                ticket.wait(30)
            except Refused as refused:
                full += refused.code == "full"
        assert full == 9000, "who published them is told"
        assert [message.value for message in drained(joined(clone, "t", 1), 1000)[0]] == [
            b"%d" % i for i in range(1000)
        ]


def test_t2_1_two_channels_are_shown_and_then_three() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        for names in (["a", "b"], ["a", "b", "c"]):
            clone.topic(names[-2]).publish(b"1").wait(10)
            clone.topic(names[-1]).publish(b"1").wait(10)
            assert [facts["name"] for facts in clone.topics()] == names


@pytest.mark.parametrize(("each", "n"), [(10, 2), (1, 5)], ids=["t3_1", "t3_2"])
def test_t3_1_and_t3_2_each_publisher_goes_whole_to_one_subscriber(each: int, n: int) -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        for publisher in range(n):
            clone.topic("t").publish_many([b""] * each, [f"{publisher}"] * each).wait(10)
        parts = drained(joined(clone, "t", n), n * each)
        for publisher in range(n):
            assert sorted(sum(message.key == f"{publisher}" for message in part) for part in parts)[-1] == each


def test_t3_3_two_channels_deliver_their_own_messages_in_order() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        for i in range(10):
            clone.topic("a").publish(b"a%d" % i)
            clone.topic("b").publish(b"b%d" % i).wait(10)
        for name in ("a", "b"):
            found = drained(joined(clone, name, 1), 10)[0]
            assert [message.value.decode() for message in found] == [f"{name}{i}" for i in range(10)]


def test_t4_1_a_slow_consumer_shows_lag_and_keeps_its_message() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        topic = clone.topic("t")
        topic.subscribe("g", ack_timeout_s=60)
        with topic.consumer("g") as consumer:
            topic.publish(b"1").wait(10)
            message = consumer.get(10)
            (group,) = topic.groups()
            assert message is not None and group["lag"] == 1
            assert group["oldest_ms"] / 1000 == message.time, "since when it waits"
            assert consumer.get(0.1) is None
            until(lambda: topic.groups()[0]["lag"] == 0)
            assert consumer.fenced == 0


def test_t4_2_the_other_consumer_gets_messages_that_one_left_undone() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").subscribe("g")
        one, two = joined(clone, "t", 2)
        clone.topic("t").publish_many([b""] * 512).wait(10)
        left = list(next(one))
        one.close()
        (rest,) = drained([two], 512)
        assert left and {message.offset for message in left} < {message.offset for message in rest}


@pytest.mark.parametrize("processed", [False, True], ids=["t5_1", "t5_2"])
def test_t5_1_and_t5_2_all_ten_messages_arrive_over_a_failover(processed: bool) -> None:
    with Pair() as pair, Clone(pair.servers, subtree=None) as clone:
        topic = clone.topic("t")
        topic.subscribe("g", timeout=20)
        with topic.consumer("g") as consumer:
            found: list[int] = []
            for i in range(10):
                if i == 5:
                    pair.kill()
                topic.publish(b"%d" % i, key="k").wait(30)
                if processed:
                    found.append(offset_of(consumer.get(30)))
            while len(found) < 10:
                found.append(offset_of(consumer.get(30)))
            assert found == list(range(10)) and consumer.get(0.1) is None and consumer.fenced == 0


def test_t6_1_another_consumer_goes_on_where_a_dead_consumer_stopped() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone, Clone([server.address], None) as dying:
        clone.topic("t").publish_many([b"%d" % i for i in range(5)], ["k"] * 5).wait(10)
        one = dying.topic("t").consumer("g", ttl=1.0)
        assert [offset_of(one.get(10)) for _ in range(4)] == [0, 1, 2, 3]
        until(lambda: clone.topic("t").groups()[0]["position"] == 3)
        with clone.topic("t").consumer("g") as two:
            stand_still(dying)
            assert [offset_of(two.get(60)), offset_of(two.get(60))] == [3, 4], "in order, from what was not done on"


def test_t7_1_and_t8_1_a_silent_member_stays_but_loses_messages() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        topic = clone.topic("t")
        topic.subscribe("g", "begin", ack_timeout_s=1)
        slow = topic.consumer("g", name="slow")
        topic.publish_many([b"%d" % i for i in range(10)], ["k"] * 10).wait(10)
        assert offset_of(slow.get(10)) == 0
        with topic.consumer("g") as other:
            assert [offset_of(other.get(60)) for _ in range(10)] == list(range(10))
            assert len(topic.groups()[0]["members"]) == 2
        slow.close()


def test_t9_1_messages_of_one_key_stay_in_order() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        keys = [f"k{i % 13}" for i in range(2600)]
        clone.topic("t").publish_many([b""] * len(keys), keys).wait(10)
        for part in drained(joined(clone, "t", 4), len(keys)):
            for key in set(keys):
                order = [message.offset for message in part if message.key == key]
                assert order == sorted(order) and len(order) in (0, 200)


def test_t10_1_and_t10_2_a_restarted_publisher_publishes_only_new_messages() -> None:
    with TestServer() as server:
        for last in (10, 10, 11):
            with Clone([server.address], subtree=None) as clone:
                for n in range(last - 9, last + 1):
                    with clone.transaction() as t:
                        t.once("publisher", n)
                        t.publish("t", b"%d" % n)
        with Clone([server.address], subtree=None) as clone:
            found = drained(joined(clone, "t", 1), 11)[0]
            assert [message.value for message in found] == [b"%d" % n for n in range(1, 12)]


def test_t10_3_a_new_subscription_does_not_repeat_acknowledged_messages() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        topic = clone.topic("t")
        topic.create("acknowledged")
        topic.publish_many([b""] * 10).wait(10)
        for each in joined(clone, "t", 1):
            drained([each], 10)
            each.close()
        until(lambda: topic.facts()["first"] == 10)
        topic.unsubscribe("g")
        with topic.consumer("g") as again:
            assert again.get(0.1) is None
