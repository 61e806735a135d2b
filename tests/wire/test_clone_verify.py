"""covers: Clone.verify, clone/comparison.py: a copy whose contents differ while its fingerprint is the server's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chp_client import AsyncClone, Clone
from chp_client.clone.base import internals
from chp_client.core.copy.replica import Replica
from chp_server.testing import TestServer
from tests.talk import WAIT_S


@pytest.fixture
def filled(clone: Clone) -> Clone:
    """Set 3,000 keys."""
    clone.set_many({f"/k/{i}": b"%d" % i for i in range(3000)}).wait(WAIT_S)
    return clone


def replica(clone: Clone) -> Replica:
    return internals(clone).mailbox.core.channels[0].replica


def test_verify_of_an_equal_copy_is_true_and_tells_the_number(filled: Clone) -> None:
    filled.set("/ttl", b"1", ttl=100).wait(WAIT_S)
    del filled["/k/7"]
    filled.flush(WAIT_S)
    found = filled.verify(WAIT_S)
    assert found and found.number == filled.revision and found.differing == () and found.keys == 3000


def test_verify_names_differing_keys_though_the_fingerprint_is_equal(filled: Clone) -> None:
    with internals(filled).mailbox.lock:
        internals(filled).mailbox.core.shown["/k/5"], internals(filled).mailbox.core.shown["/k/6"] = b"6", b"5"
    found = filled.verify(WAIT_S)
    assert not found and not found.ok and found.differing == ("/k/5", "/k/6") and found.differences == 2
    assert filled.verify(contents=False), "which only adds up"


def test_a_key_that_only_one_side_has_is_named(filled: Clone) -> None:
    with internals(filled).mailbox.lock:
        held = replica(filled).map
        held.revisions["/other"], internals(filled).mailbox.core.shown["/other"] = (
            held.revisions.pop("/k/5"),
            internals(filled).mailbox.core.shown.pop("/k/5"),
        )
    assert filled.verify(WAIT_S).differing == ("/k/5", "/other")


def test_a_ttl_that_only_one_side_has_is_named(filled: Clone) -> None:
    with internals(filled).mailbox.lock:
        replica(filled).map.set_deadlines(["/k/9"], 1e9)
    assert filled.verify(WAIT_S).differing == ("/k/9",)


def test_verify_names_at_most_a_hundred_keys_and_counts_all(filled: Clone) -> None:
    with internals(filled).mailbox.lock:
        internals(filled).mailbox.core.shown.update({f"/k/{i}": b"x" for i in range(500)})
    found = filled.verify(WAIT_S)
    assert len(found.differing) == 100 and found.differences == 500


def test_verify_leaves_out_keys_that_change_meanwhile(filled: Clone, server: TestServer) -> None:
    ending = threading.Event()

    def load() -> None:
        with Clone(server.address) as other:
            other.wait_until_synced(WAIT_S)
            i = 0
            while not ending.is_set():
                i += 1
                other.set(f"/k/{i % 3000}", b"%d" % i)
                filled.set(f"/own/{i % 10}", b"%d" % i)
                if i % 3 == 0:
                    other.pop(f"/k/{i * 7 % 3000}", None)
                if i % 50 == 0:
                    other.flush(WAIT_S)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(10):
            assert filled.verify(WAIT_S)
    finally:
        ending.set()
        thread.join()


def test_verify_without_a_server_times_out_unless_contents_is_false() -> None:
    with Clone("tcp://127.0.0.1:9") as clone:
        with pytest.raises(TimeoutError, match="nobody is followed"):
            clone.verify(0.1)
        found = clone.verify(contents=False)
        assert str(found.number) == f"{found.number >> 48}.{found.number & (1 << 48) - 1}", "as everywhere"
        assert found and found.number == 0


def test_verify_names_a_server_that_does_not_answer_in_time(filled: Clone, server: TestServer) -> None:
    with pytest.raises(TimeoutError, match=r"compared in time.*tcp://"):
        filled.verify(0.0)


def test_an_async_clone_compares_without_blocking_its_loop(server: TestServer) -> None:
    async def compare() -> bool:
        async with AsyncClone(server.address) as clone:
            await clone.wait_until_synced(WAIT_S)
            await clone.set("/a", b"1")
            return bool(await clone.verify(WAIT_S))

    assert asyncio.run(compare())


def test_verify_of_a_closed_clone_does_not_compare_with_a_server(server: TestServer) -> None:
    clone = Clone(server.address)
    clone.wait_until_synced(WAIT_S)
    clone.close()
    with Clone(server.address) as other:
        # The closed Clone's copy never reaches the number of this set.
        other.set("/later", b"").wait(WAIT_S)
        found = clone.verify(1.0)
    assert found.ok and found.number == 0
