"""Tests of a list of servers that names two pairs: the second pair gets no sets, and is not followed.

covers: server_list.py
"""

from __future__ import annotations

import pytest

from tests.unit.client_frames import ACTIVE, PASSIVE, Talk, n

from .test_client_replicas import Servers, load

OURS, THEIRS = b"1" * 16, b"2" * 16
UUID = [b"S" * 16, b"s" * 16]


def two(state: int = ACTIVE, theirs: bytes | None = THEIRS, epoch: int = 1) -> Talk:
    """Return a client that follows server 0, and a server 1 that has greeted beside it."""
    talk = Talk(servers=2)
    talk.greet(told=n(5), store=OURS)
    talk.up(0)
    talk.snapshot(n(5), {"/a": (b"1", n(5))})
    talk.greet(state, n(7, epoch), 1, UUID[1], store=theirs)
    talk.up(1)
    return talk


def pass_time(talk: Talk, seconds: float, *heard: int) -> None:
    """Let time pass while these servers send heartbeats; server 1 is ahead in its own numbers."""
    for _ in range(round(seconds / 0.25)):
        talk.wait(0.25)
        for server in heard:
            talk.heartbeat(n(5) if server == 0 else n(7, 9), server=server)


@pytest.mark.parametrize("state", [ACTIVE, PASSIVE])
@pytest.mark.parametrize(("theirs", "sent_to"), [(THEIRS, [0]), (OURS, [0, 1]), (None, [0, 1])])
def test_a_server_with_another_store_gets_no_sets(state: int, theirs: bytes | None, sent_to: list[int]) -> None:
    talk = two(state, theirs)
    talk.set({"/b": b"2"})
    assert [i for i, *_ in talk.sent] == sent_to
    assert bool(talk.core.misfit) is (state == ACTIVE and theirs == THEIRS)


def test_a_client_does_not_follow_a_pair_with_another_store() -> None:
    talk = two(epoch=9)
    assert talk.core.active_address == "tcp://server0:5556"
    assert f"server1:5556 holds the store {THEIRS.hex()}" in talk.core.misfit and "name the servers" in talk.core.misfit
    assert "can't be used" in talk.core.describe(talk.now)
    pass_time(talk, 3, 0, 1)
    pass_time(talk, 6, 1)
    assert talk.core.active_address == "tcp://server0:5556", "it stays stale"
    talk.greet(ACTIVE, n(8, 9), 1, UUID[1], store=THEIRS)
    talk.set({"/b": b"2"})
    assert [i for i, *_ in talk.sent] == [0]


def test_a_pair_that_was_started_anew_is_followed() -> None:
    """A late heartbeat of the first store makes it look as if both stores were served at once."""
    talk = two(epoch=9)
    assert talk.core.links[1].foreign
    pass_time(talk, 2, 1)
    assert talk.core.active_address == "tcp://server1:5556" and not talk.core.misfit


def test_a_followed_server_that_was_started_again_may_hold_another_store() -> None:
    talk = two()
    talk.down(0)
    talk.greet(ACTIVE, n(7), 1, UUID[1], store=THEIRS)
    talk.greet(ACTIVE, n(8), 0, b"r" * 16, store=THEIRS)
    assert not talk.core.misfit and not talk.core.links[1].foreign and not talk.core.links[1].unspoken


def test_a_store_is_known_as_long_as_the_connection_lives() -> None:
    talk = two(PASSIVE, OURS)
    talk.down(0)
    talk.up(0)
    talk.greet(PASSIVE, n(5), 1, b"b" * 16, store=THEIRS)
    assert not talk.core.links[1].foreign, "server 0 may hold that store too by now"


def test_a_passive_that_takes_over_the_store_is_used() -> None:
    talk = two(PASSIVE)
    talk.greet(PASSIVE, n(5), 1, UUID[1], store=OURS)
    talk.set({"/b": b"2"})
    assert [i for i, *_ in talk.sent] == [0, 1]


@pytest.mark.parametrize("gone", [True, False])
def test_a_promoted_replica_takes_the_place_of_a_server_that_is_gone(gone: bool) -> None:
    talk = Servers(servers=3, replicas=1).reading()
    for server in (0, 1):
        talk.up(server)
        if gone:
            talk.down(server)
    talk.greet(ACTIVE, n(6, 2), 2, b"r" * 16)
    assert bool(talk.core.misfit) is not gone
    talk.wait(5.0)
    talk.greet(ACTIVE, n(6, 2), 2, b"r" * 16)
    talk.greet(PASSIVE, n(6, 2), 1, b"b" * 16)
    assert (talk.core.epoch == 2) is gone and bool(talk.core.misfit) is not gone


def test_replicas_of_two_pairs_are_not_followed() -> None:
    talk = Servers(servers=2, replicas=2)
    for i, store in enumerate((OURS, THEIRS)):
        talk.greet(ACTIVE, n(5), i, bytes([i]) * 16, load(), store=store)
    talk.wait(1.0)
    assert talk.core.active is None and not talk.requests and "two pairs" in talk.core.misfit
