"""covers: docs/sources.md, 001: its two system tests by examples/queue_library.py, with the active killed midway."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from chp_client import Clone
from chp_server.testing import Pair, TestServer
from examples.queue_library import MyConsumer, MyProducer, myConsumerError, myProducerError

PRODUCERS = {"P1": ("T1", "T2", "T3"), "P2": ("T1", "T3"), "P3": ("T1",), "P4": ("T2",), "P5": ("T2",)}
CONSUMERS = {"C1": ("T1", "T2", "T3"), "C2": ("T1", "T3"), "C3": ("T1", "T3")}
# The lines of a producer in each topic. The active is killed after half of them.
LINES = 20


@pytest.mark.slow
def test_systemtest1_consumers_get_all_lines_in_order_over_a_failover(tmp_path: Path) -> None:
    stores = f"sqlite:{tmp_path}/a.sqlite", f"sqlite:{tmp_path}/b.sqlite"
    half, killed = Barrier(len(PRODUCERS) + 1), Barrier(len(PRODUCERS) + 1)
    with Pair(store=stores) as pair, Clone(pair.servers, subtree=None, codec="text") as clone:
        producers = {name: MyProducer(clone, name) for name in PRODUCERS}
        consumers = {name: MyConsumer(clone, name) for name in CONSUMERS}
        for who, topics in PRODUCERS.items():
            for topic in topics:
                producers[who].RegisterProducer(topic)
        for who, topics in CONSUMERS.items():
            for topic in topics:
                consumers[who].RegisterConsumer(topic)
        assert producers["P1"].ListTopics() == consumers["C1"].ListTopics() == ["T1", "T2", "T3"]

        def produce(name: str) -> None:
            for n in range(LINES):
                if n == LINES // 2:
                    half.wait(60)
                    killed.wait(60)
                for topic in PRODUCERS[name]:
                    producers[name].Enqueue(topic, f"{name} {n}")

        def consume(name: str) -> dict[str, list[str]]:
            logs: dict[str, list[str]] = {}
            for topic in CONSUMERS[name]:
                of = [producer for producer, topics in PRODUCERS.items() if topic in topics]
                logs[topic] = [consumers[name].Dequeue(topic, 60) for _ in range(len(of) * LINES)]
            consumers[name].close()
            return logs

        with ThreadPoolExecutor(len(PRODUCERS) + len(CONSUMERS)) as pool:
            produced = [pool.submit(produce, name) for name in PRODUCERS]
            consumed = {name: pool.submit(consume, name) for name in CONSUMERS}
            half.wait(60)
            pair.kill()
            killed.wait(60)
            for each in produced:
                each.result()
            logs = {name: each.result() for name, each in consumed.items()}
    for name, topics in CONSUMERS.items():
        for topic in topics:
            for producer in (producer for producer, into in PRODUCERS.items() if topic in into):
                found = [line for line in logs[name][topic] if line.startswith(producer)]
                assert found == [f"{producer} {n}" for n in range(LINES)], (name, topic)


def test_systemtest2_a_consumer_gets_the_lines_of_a_producer_in_order() -> None:
    with TestServer() as server, Clone([server.address], subtree=None, codec="text") as clone:
        producer, consumer = MyProducer(clone), MyConsumer(clone)
        producer.CreateTopic("DS")
        assert producer.RegisterProducer("DS") == producer.id
        assert consumer.RegisterConsumer("DS") == consumer.id
        for n in range(10):
            producer.Enqueue("DS", f"line {n}")
        assert consumer.Size("DS") == 10
        assert [consumer.Dequeue("DS") for _ in range(10)] == [f"line {n}" for n in range(10)]
        with pytest.raises(myConsumerError, match="nothing new"):
            consumer.Dequeue("DS", 0.1)
        consumer.close()


def test_misuse_raises_an_error_of_the_queue_library() -> None:
    with TestServer() as server, Clone([server.address], subtree=None, codec="text") as clone:
        producer, consumer = MyProducer(clone), MyConsumer(clone)
        with pytest.raises(myConsumerError):
            consumer.RegisterConsumer("none")
        with pytest.raises(myProducerError, match="not registered"):
            producer.Enqueue("DS", "line")
        producer.RegisterProducer("DS")
        with pytest.raises(myProducerError):
            producer.CreateTopic("DS")
        for ask in (consumer.Dequeue, consumer.Size):
            with pytest.raises(myConsumerError, match="not registered"):
                ask("DS")
        consumer.RegisterConsumer("DS")
        with pytest.raises(myConsumerError):
            consumer.RegisterConsumer("DS")
