"""A replica as its clients meet it: copies, log reads, topics and commands, with the sockets of a server."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.shell import replica as shell
from chp_server.testing import Pair, TestServer, free_port
from tests.talk import WAIT_S, synced, until


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


@pytest.fixture
def replica(pair: Pair) -> Iterator[TestServer]:
    with TestServer(replica=True, upstream=",".join(pair.servers), name="R1") as made:
        yield made


def test_clones_of_a_replica_cost_the_pair_no_snapshot(pair: Pair, replica: TestServer) -> None:
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


def slow_link(to: int) -> int:
    """Open ports P to P+2 that lead to `to` to `to`+2, and return P. A megabyte takes 0.25 s on its way back."""
    port = free_port()

    def carry(source: socket.socket, target: socket.socket, pause_s: float) -> None:
        with source, target:
            try:
                while data := source.recv(1 << 16):
                    time.sleep(len(data) * pause_s)
                    target.sendall(data)
            except OSError:
                pass

    def serve(listening: socket.socket, beyond: int) -> None:
        while True:
            near, _ = listening.accept()
            far = socket.create_connection(("127.0.0.1", beyond))
            for source, target, pause_s in ((near, far, 0.0), (far, near, 0.25e-6)):
                threading.Thread(target=carry, args=(source, target, pause_s), daemon=True).start()

    for i in range(3):
        threading.Thread(
            target=serve, args=(socket.create_server(("127.0.0.1", port + i)), to + i), daemon=True
        ).start()
    return port


def test_a_replica_that_follows_a_host_name_gets_a_slow_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica tries another kind of address (IPv4 or IPv6) only while nothing comes from the server."""
    monkeypatch.setattr(shell, "LOOK_AGAIN_S", 1.0)
    with TestServer(store="memory:") as lone, synced([lone.address]) as clone:
        clone.set_many({f"/{i}": bytes(100_000) for i in range(120)}).wait(WAIT_S)
        port = slow_link(int(lone.address.rpartition(":")[2]))
        with TestServer(replica=True, upstream=f"tcp://localhost:{port}", store="memory:") as replica:
            until(lambda: replica.server is not None and replica.server.core.active, "the replica to have the state")


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


def test_replica_and_active_report_each_other_in_their_status(pair: Pair, replica: TestServer) -> None:
    assert pair.active is not None
    active = pair.active.address
    with synced([replica.address]), Admin([replica.address, active]) as admin:
        facts = admin.ask(replica.address, "status").facts
        assert (facts["role"], facts["state"], facts["replica"]["hops"]) == ("replica", "active", 1)
        until(lambda: admin.ask(active, "status").facts["replicas"][0]["readers"] == 1)


def test_a_replica_serves_more_writers_than_one_connection_has_topics(
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
