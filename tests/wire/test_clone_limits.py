"""A Clone at its limits: a window that is full, values as large as they may be, and batches of nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chp.limits import MIB
from chp_client import Clone, Conflict, Full, Ticket
from tests.talk import WAIT_S
from tests.wire.classic import ClassicServer

KIB = 1024
SETS: dict[str, Callable[[Clone, int], Ticket]] = {
    "large values": lambda clone, i: clone.set(f"/{i}", bytes(100 * KIB)),
    "large values, many": lambda clone, i: clone.set_many({f"/{i}/{j}": bytes(20 * KIB) for j in range(5)}),
    "many": lambda clone, i: clone.set_many({f"/{i}/{j}": bytes(10) for j in range(5000)}),
    "with a ttl": lambda clone, i: clone.set_many({f"/{i}/{j}": bytes(100) for j in range(1000)}, ttl=5),
    "conditions": lambda clone, i: clone.set(f"/{i}", bytes(100 * KIB), if_revision=0),
}


@pytest.mark.parametrize("kind", SETS)
def test_every_kind_of_set_raises_full_beyond_the_window(kind: str) -> None:
    clone = Clone("tcp://127.0.0.1:9", window_bytes=MIB, on_full="raise")
    try:
        with pytest.raises(Full):
            for i in range(40):
                SETS[kind](clone, i)
    finally:
        clone.close(0.0)


def test_a_conditional_set_of_the_largest_value(clone: Clone) -> None:
    for key in ("/largest", "/größte"):
        ack = clone.set(key, bytes(16 * MIB), if_revision=0).wait(WAIT_S)
        assert len(clone[key]) == 16 * MIB
        with pytest.raises(Conflict):
            clone.set(key, b"", if_revision=ack.revision + 1).wait(WAIT_S)


def test_an_empty_batch_is_acknowledged(clone: Clone) -> None:
    for ticket in (clone.set_many({}), clone.set_many({}, ttl=5), clone.delete_many([])):
        assert ticket.wait(WAIT_S).durability == "applied"


def test_an_empty_batch_is_acknowledged_by_a_classic_server() -> None:
    with ClassicServer() as server, Clone(server.endpoint) as clone:
        clone.wait_until_synced(WAIT_S)
        for ticket in (clone.set_many({}), clone.delete_many([])):
            ticket.wait(WAIT_S)
