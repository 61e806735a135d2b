"""covers: dead_letter.py, dead_letter_format.py: a message that can't be handled becomes a dead letter."""

from __future__ import annotations

import asyncio
import logging
from threading import Thread
from typing import Any

import msgpack
import pytest

from chp.headers import Messages
from chp.limits import DEFAULT, MIB
from chp.topics import pack_messages
from chp_client import AsyncClone, BadInput, Clone, Consumer, Message, Refused
from chp_client.topics import dead_letter
from chp_client.topics.chunk import parts_of
from chp_server.testing import TestServer
from tests.talk import join_all, until


class NoText(Exception):
    """An error that can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def run(consumer: Consumer, bad: dict[int, Exception], last: int, tries: int = 2) -> list[int]:
    """Handle messages until the last one, and return the handled offsets. Some handlers raise."""
    handled: list[int] = []

    def handler(message: Message) -> None:
        if message.offset in bad:
            raise bad[message.offset]
        handled.append(message.offset)
        if message.offset == last:
            consumer.stop()

    with consumer:
        consumer.run(handler, tries=tries, backoff_s=0.001)
    return handled


def letters(clone: Clone, topic: str) -> list[dict[str, Any]]:
    return [msgpack.unpackb(value) for batch in clone.topic(topic).read(wait=False) for value in batch.values]


def test_a_message_is_put_aside_with_any_text_of_its_exception(clone: Clone) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"%d" % i for i in range(5)], ["k"] * 5).wait(10)
    bad = {0: ValueError("caf\udce9"), 1: NoText(), 2: ValueError("x" * (20 * MIB)), 3: ValueError("é" * 4096)}
    assert run(orders.consumer("g"), bad, 4) == [4]
    found = [(told["offset"], told["value"], told["why"]) for told in letters(clone, "orders.g.dead")]
    assert found[0] == (0, b"0", "ValueError: caf\\udce9")
    assert found[1] == (1, b"1", "NoText: its text can't be had (RuntimeError)")
    assert found[2] == (2, b"2", ("ValueError: " + "x" * 4096)[:4096])
    assert found[3][2].startswith("ValueError: éé") and 4090 < len(found[3][2].encode()) <= 4096
    until(lambda: orders.groups()[0]["lag"] == 0)


def test_a_message_of_the_largest_size_is_put_aside_behind_its_letter(clone: Clone) -> None:
    orders, large = clone.topic("orders"), bytes(DEFAULT.value_bytes_max)
    orders.publish(large, "k").wait(20)
    orders.publish_many([large], ["k"]).wait(20)
    orders.publish(bytes(15 * MIB)).wait(20)
    orders.publish(b"good").wait(20)
    assert run(orders.consumer("g"), dict.fromkeys(range(3), ValueError("y" * 5000)), 3) == [3]
    found = [message for batch in clone.topic("orders.g.dead").read(wait=False) for message in batch]
    assert [len(message.value) == len(large) for message in found] == [False, True, False, True, False]
    told = msgpack.unpackb(found[2].value)
    assert (told["offset"], told["value"], told["bytes"], len(told["why"])) == (1, None, len(large), 4096)
    assert found[3].value == large and found[3].key == found[2].key == "k"
    assert len(msgpack.unpackb(found[4].value)["value"]) == 15 * MIB
    with pytest.raises(BadInput, match="at most 65,536 messages, of 16 MiB together"):
        orders.publish_many([large, b"", b"1"])


def test_a_server_takes_no_message_above_the_limit(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chp_client.checks._VALUE_MAX", 17 * MIB)
    with pytest.raises(Refused, match="a message has at most") as refused:
        clone.topic("orders").publish(bytes(DEFAULT.value_bytes_max + 1)).wait(20)
    assert refused.value.code == "size"


def test_topics_and_groups_with_long_names_have_distinct_dead_topics(clone: Clone) -> None:
    names = []
    for last in "ab":
        topic = clone.topic("t" * 199 + last)
        topic.publish(b"1").wait(10)
        topic.publish(b"2").wait(10)
        consumer = topic.consumer("g" * 200)
        assert run(consumer, {0: ValueError("x")}, 1) == [1]
        names.append(consumer.dead_topic)
        assert [told["offset"] for told in letters(clone, consumer.dead_topic)] == [0]
    assert all(len(name) == 200 and name.endswith(".dead") for name in names) and len(set(names)) == 2


def test_messages_are_handled_once_while_the_dead_topic_is_full(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dead_letter, "PAUSE_S", 0.01)
    dead, orders = clone.topic("orders.g.dead"), clone.topic("orders")
    dead.create("acknowledged", max_messages=1)
    dead.subscribe("operator", "begin")
    orders.publish_many([b"%d" % i for i in range(10)], [f"k{i}" for i in range(10)]).wait(10)
    handled: list[int] = []
    consumer = orders.consumer("g")

    def handler(message: Message) -> None:
        handled.append(message.offset)
        if message.offset in (3, 6):
            raise ValueError("x")

    with caplog.at_level(logging.WARNING, "chp_client.topics"), consumer:
        runner = Thread(target=consumer.run, args=(handler,), kwargs={"tries": 1})
        runner.start()
        until(lambda: "message 6 of topic orders can't be put aside in topic orders.g.dead" in caplog.text)
        assert "make room there" in caplog.text
        until(lambda: orders.groups()[0]["position"] == 6)
        orders.publish(b"later").wait(10)
        with clone.topic("orders.g.dead").consumer("operator") as operator:
            assert msgpack.unpackb(next(operator).values[0])["offset"] == 3
            assert msgpack.unpackb(next(operator).values[0])["offset"] == 6
            until(lambda: orders.groups()[0]["lag"] == 0)
        consumer.stop()
        join_all(runner)
    assert handled == [*range(10), 10], "nothing was handled twice"


def test_a_consumer_stopped_at_a_full_dead_topic_acknowledges_the_rest(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = clone.topic("orders")
    clone.topic("orders.g.dead").create("all", max_bytes=1)
    orders.publish_many([b"%d" % i for i in range(10)], [f"k{i}" for i in range(10)]).wait(10)
    consumer = orders.consumer("g")
    warned: list[str] = []

    def warn(text: str) -> None:
        warned.append(text)
        consumer.stop()

    with consumer:
        batch = next(consumer)
        batch.reject(4, "x")
        assert not consumer.put_aside(batch, warn)
    assert len(warned) == 1 and clone.topic("orders.g.dead").facts()["next"] == 0
    with orders.consumer("g") as again:
        assert next(again).offsets == [4], "what is of other slots is acknowledged"


def test_each_letter_is_there_once_if_a_batch_is_acknowledged_in_parts(clone: Clone) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"%d" % i for i in range(5)]).wait(10)
    with orders.consumer("g") as consumer:
        batch = next(consumer)
        for offset in range(5):
            if offset in (1, 3):
                batch.reject(offset, "x")
            batch.upto(offset + 1).done().wait(10)
        with pytest.raises(BadInput, match="message 3 is acknowledged already"):
            batch.reject(3, "x")
    assert [told["offset"] for told in letters(clone, "orders.g.dead")] == [1, 3]


def test_more_letters_than_fit_one_record_go_in_several(clone: Clone) -> None:
    orders, n = clone.topic("orders"), 30
    orders.publish_many([bytes(MIB // 2)] * n).wait(20)
    with orders.consumer("g") as consumer:
        batch = next(consumer)
        for offset in batch.offsets:
            batch.reject(offset, "x" * 9000)
        batch.done().wait(20)
        until(lambda: orders.groups()[0]["lag"] == n - len(batch))
    assert [told["offset"] for told in letters(clone, "orders.g.dead")] == list(batch.offsets)


def test_all_of_a_chunk_may_be_put_aside_by_commits(clone: Clone) -> None:
    orders, n, name = clone.topic("o" * 90), DEFAULT.batch_items_max, "g" * 90
    orders.publish_many([b"%d" % i for i in range(n)], [f"key-{i}" for i in range(n)]).wait(30)
    done: list[int] = []
    with orders.consumer(name) as consumer:
        while len(done) < n:
            batch = consumer.take(30)
            assert batch is not None
            for offset in batch.offsets:
                batch.reject(offset, "x" * 4096)
            batch.commit({f"/done/{batch.offsets[0]}": b"%d" % len(batch)}, timeout=60)
            done += batch.offsets
    assert done == list(range(n)), "each once, in their order, though they came as one batch"
    found = letters(clone, f"{'o' * 90}.{name}.dead")
    assert [told["offset"] for told in found] == done
    assert {told["value"] for told in found} == {b"%d" % i for i in range(n)}
    assert min(len(told["why"]) for told in found) == 512, "less is told of each where so many may be put aside"


def test_a_chunk_of_large_messages_is_cut_into_parts_with_adjoining_steps() -> None:
    values = [bytes(2 * MIB), bytes(2 * MIB), bytes(5 * MIB), b"x"]
    body = pack_messages(["a", "b", "c", "d"], values)
    header, item = Messages(1, 14, 3, 20, [[b"s", 10], [b"t", 12], [b"u", 8]]), [10, 4, 7, 1000, [body]]
    parts = parts_of(header, [item])
    assert [(list(part.offsets), part.upto) for part in parts] == [([10], 11), ([11], 12), ([12], 13), ([13], 14)]
    assert [part.spans for part in parts] == [
        [[b"s", 10], [b"u", 8]], [[b"s", 11], [b"u", 11]], [[b"s", 12], [b"t", 12], [b"u", 12]],
        [[b"s", 13], [b"t", 13], [b"u", 13]],
    ]  # fmt: skip
    assert [part.values for part in parts] == [[value] for value in values]
    small = [10, 2, 7, 1000, [pack_messages(None, [b"1", b"2"])], b"\0\1"]
    small[4] = [pack_messages(None, [b"2"])]
    (whole,) = parts_of(header, [small])
    assert (whole.offsets, whole.keys, whole.values, whole.upto) == ([11], [None], [b"2"], 14)


def test_a_failed_message_is_put_aside_with_ack_before(clone: Clone) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"1", b"2"]).wait(10)
    assert run(orders.consumer("g", ack="before"), {0: ValueError("x")}, 1) == [1]
    assert [told["offset"] for told in letters(clone, "orders.g.dead")] == [0]


def test_a_message_that_its_codec_cannot_decode_is_put_aside(server: TestServer, clone: Clone) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"{", b"[1]", b"\xff"], ["a", "b", "c"]).wait(10)
    orders.publish(b"nonsense").wait(10)
    orders.publish(b"[2]").wait(10)
    with Clone([server.address], subtree=None, codec="json") as reader:
        with reader.topic("orders").consumer("one") as consumer:
            got: list[Any] = [consumer.get(5), consumer.get(5)]
            assert [message.value for message in got] == [[1], [2]]
            assert got[0].key == "b"
            assert consumer.get(0.1) is None
        assert run(reader.topic("orders").consumer("two"), {1: ValueError("x")}, 4) == [4]
    for group, offsets in (("one", [0, 2, 3]), ("two", [0, 1, 2, 3])):
        found = letters(clone, f"orders.{group}.dead")
        assert [told["offset"] for told in found] == offsets
        assert found[0]["value"] == b"{" and "is not JSON" in found[0]["why"]


def test_an_async_consumer_puts_a_rejected_message_aside(server: TestServer, clone: Clone) -> None:
    async def main() -> None:
        async with AsyncClone([server.address]) as here:
            await here.topic("orders").publish(bytes(DEFAULT.value_bytes_max))
            await here.topic("orders").publish(b"good")
            async with await here.topic("orders").consumer("g") as consumer:
                async for batch in consumer:
                    for message in batch:
                        if message.offset == 0:
                            batch.reject(message, "\udce9" * 9000)
                    await batch.commit({"/seen": b"1"})
                    if message.offset == 1:
                        return

    asyncio.run(main())
    first, value = [message for batch in clone.topic("orders.g.dead").read(wait=False) for message in batch]
    told = msgpack.unpackb(first.value)
    assert told["why"] == ("\\udce9" * 9000)[:4096] and len(value.value) == told["bytes"]
