"""A replica as its clients meet it: copies, log reads, topics and commands, with the sockets of a server."""

from collections.abc import Iterator

import pytest

from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, synced, until


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


@pytest.fixture
def replica(pair: Pair) -> Iterator[TestServer]:
    with TestServer(replica=True, upstream=",".join(pair.servers), name="R1") as made:
        yield made


def test_many_clones_cost_the_pair_one_snapshot(pair: Pair, replica: TestServer) -> None:
    assert pair.active is not None and pair.active.server is not None
    with synced(pair.servers) as direct:
        direct.set("/a", b"1").wait(WAIT_S)
    snapshots = pair.active.server.core.committer.counts["snapshots"]
    clones = [Clone([replica.address]) for _ in range(12)]
    try:
        for clone in clones:
            clone.wait_until_synced(WAIT_S)
            assert clone["/a"] == b"1"
    finally:
        for clone in clones:
            clone.close()
    assert pair.active.server.core.committer.counts["snapshots"] == snapshots


def test_topics_and_commands_go_through_a_replica(pair: Pair, replica: TestServer) -> None:
    with synced([replica.address]) as clone:
        clone.topic("orders").publish(b"one").wait(WAIT_S)
        with clone.topic("orders").consumer("billing") as consumer:
            batch = next(iter(consumer))
            assert [message.value for message in batch] == [b"one"]
            batch.commit()
        with clone.lease(5.0) as lease:
            lease.set("/leased", b"1").wait(WAIT_S)
            with Admin([replica.address]) as admin:
                facts = admin.ask(replica.address, "leases").facts
            assert facts["leases"], "the active told them"


def test_a_consumer_at_a_replica_goes_on_over_a_failover(pair: Pair, replica: TestServer) -> None:
    with synced([replica.address]) as clone:
        topic = clone.topic("orders")
        topic.publish(b"0").wait(WAIT_S)
        with topic.consumer("billing") as consumer:
            batches = iter(consumer)
            assert [message.value for message in next(batches)] == [b"0"]
            pair.kill()
            topic.publish(b"1").wait(WAIT_S)
            assert [message.value for message in next(batches)] == [b"1"]


def test_a_replica_and_its_server_tell_of_each_other(pair: Pair, replica: TestServer) -> None:
    assert pair.active is not None
    active = pair.active.address
    with synced([replica.address]), Admin([replica.address, active]) as admin:
        facts = admin.ask(replica.address, "status").facts
        assert (facts["role"], facts["state"], facts["replica"]["hops"]) == ("replica", "active", 1)
        until(lambda: admin.ask(active, "status").facts["replicas"][0]["readers"] == 1)


def test_more_writers_than_one_connection_has_topics_hear_their_answers(
    pair: Pair, replica: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chp_server.ports.upstream.TOPICS_MAX", 2)
    clones = [Clone([replica.address]) for _ in range(5)]
    try:
        for i, clone in enumerate(clones):
            assert clone.set(f"/{i}", b"1").wait(WAIT_S).durability == "replicated"
    finally:
        for clone in clones:
            clone.close()
