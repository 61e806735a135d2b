"""Clones that are given a pair and its replicas: where they read, how they leave a server, and what operators see."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chp.batch import encode
from chp.headers import Move
from chp.keys import session_topic
from chp_client import BadInput, Clone, State
from chp_server.core.updates.channels import greeting
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, run, synced, until


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


def replicas(pair: Pair, *names: str) -> list[TestServer]:
    return [TestServer(replica=True, upstream=",".join(pair.servers), name=name) for name in names]


def test_a_clone_leaves_each_dead_replica_with_a_resume(pair: Pair) -> None:
    found = replicas(pair, "r1", "r2")
    with ExitStack() as stack:
        for each in found:
            stack.enter_context(each)
        by_address = {each.address: each for each in found}
        with synced([*pair.servers, *by_address]) as clone:
            for key in ("/1", "/2"):
                assert clone.active in by_address, "a replica comes before the pair"
                by_address.pop(clone.active).kill()
                clone.set(key, b"1").wait(WAIT_S)
                clone.sync()
                assert clone[key] == b"1"
            assert clone.active in pair.servers, "no replica is left"
            assert clone.stats["resyncs_snapshot"] == 1 and clone.stats["failovers"] == 2
            assert clone.staleness_s < WAIT_S


def test_a_clone_moves_to_another_replica_without_a_snapshot(pair: Pair) -> None:
    found = replicas(pair, "r1", "r2")
    with ExitStack() as stack:
        for each in found:
            stack.enter_context(each)
        addresses = [each.address for each in found]
        clone = stack.enter_context(synced(addresses))
        states: list[State] = []
        clone.on_state(states.append)
        before = clone.active
        server = next(each for each in found if each.address == before).server
        assert server is not None
        move = greeting(session_topic(clone._core.outbox.public), server.core.state.number, encode(Move(600, 1)))

        def moved() -> bool:
            # The turn may be about to end and miss this effect, so the test tries again.
            server.core.turn.effects.publish.append(move)
            return clone.active != before

        until(moved, lambda: f"the clone moves: {clone.describe()}")
        assert clone.set("/moved", b"1").wait(WAIT_S).durability == "replicated"
        clone.sync()
        assert clone["/moved"] == b"1" and states == []
        assert clone.stats["moves"] == 1 and clone.stats["resyncs_snapshot"] == 1


def test_a_list_of_two_pairs_is_an_error(pair: Pair) -> None:
    why = "are 3 servers of pairs; name the two of one pair, and its replicas|they are of two pairs"
    with TestServer() as alone, Clone([*pair.servers, alone.address]) as clone, pytest.raises(BadInput, match=why):
        # The Clone may follow a server already when the third one greets, so the error may come later.
        until(lambda: clone.wait_until_synced(WAIT_S))


def test_two_servers_of_two_pairs_do_not_both_get_a_set() -> None:
    with TestServer() as one, TestServer() as two, Clone([one.address, two.address]) as clone:
        clone.set("/k", b"1").wait(WAIT_S)
        with pytest.raises(BadInput, match="of two pairs: name the servers of one pair"):
            until(lambda: clone.wait_until_synced(WAIT_S))
        clone.set("/k", b"2").wait(WAIT_S)
        found = [server.server.core.state.map.values for server in (one, two) if server.server]
        assert sorted(map(len, found)) == [0, 1]


def test_an_operator_sees_replicas_and_their_clients(pair: Pair) -> None:
    (replica,) = replicas(pair, "r1")
    with replica, synced([replica.address], name="reader"):
        servers = ",".join([*pair.servers, replica.address])

        def told(*words: str) -> str:
            return run(*words, "--servers", servers).output

        until(lambda: "reader" in told("clients"), "the client reports to the replica")
        assert "r1" in told("clients")
        until(lambda: "r1: 1 reader" in told("status", "--no-rates"), lambda: told("status", "--no-rates"))
        text = told("status", "--no-rates")
        assert "1 hop" in text and "healthy: one active, one passive, in sync; 1 replica follows" in text
        assert f"{replica.address} answers, and is ACTIVE" in told("doctor")
