"""Tests of a replica with too many readers: which it asks to move, how often, and that the loads become even.

covers: replica/moves.py
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from chp.batch import decode
from chp.headers import Move
from chp.keys import CLIENT_BYTES, session_topic
from chp_server.core.questions.clients import Clients
from chp_server.core.replica.moves import ASK_S, ASK_S_MAX, BUSY_CPU, MoveRequests
from tests.unit.client_frames import ACTIVE, PASSIVE, Talk, message, n, own_topic, topic


def client(i: int) -> bytes:
    """Return the public session of a client."""
    return i.to_bytes(16, "big")[::-1]


def told(clients: Clients, *numbers: int, moves: int = 1) -> None:
    for i in numbers:
        said = {"client": client(i)[:CLIENT_BYTES].hex(), "moves": moves}
        clients.told(i.to_bytes(4), said, "", 1.0)


def test_a_replica_asks_the_newest_half_of_its_movable_readers_to_move() -> None:
    clients = Clients()
    told(clients, *range(6))
    told(clients, 6, moves=0)
    found = MoveRequests(4, clients).ask(7, [session_topic(client(i)) for i in range(7) if i != 5], n(3))
    assert [frames[0] for frames in found] == [session_topic(client(i)) for i in (4, 3, 2)], "client 5 is gone"
    assert decode(found[0][4])[0] == Move(7, 3)


@pytest.mark.parametrize(("readers", "cpu", "asks"), [(10, 0, False), (11, 0, True), (3, BUSY_CPU, True)])
def test_a_replica_with_too_many_readers_or_a_busy_cpu_asks(readers: int, cpu: int, asks: bool) -> None:
    assert MoveRequests(10, Clients()).due(5.0, readers, cpu) is asks


def test_a_replica_asks_less_often_if_no_reader_moves() -> None:
    requests, now, asked = MoveRequests(10, Clients()), 0.0, []
    while now < 300:
        now += 0.5
        asked += [now] if requests.due(now, 20, 0) else []
    waits = [round(b - a) for a, b in pairwise(asked)]
    assert waits[:5] == [2, 4, 4, 4, 4] and max(waits) == ASK_S_MAX
    assert not requests.due(now + 100, 10, 0) and requests.due(now + 101, 20, 0)
    assert requests.due(now + 101 + ASK_S, 15, 0), "some went, so the wait is short again"


def load(readers: int) -> dict[str, int]:
    return {"hops": 1, "age": 0, "readers": readers, "cpu": 0}


class Reader(Talk):
    """A client of three replicas."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(servers=3, chance=chance.random)
        self.look([0, 0, 0], PASSIVE)
        assert self.at == 0, "the others are not there yet"
        self.snapshot(n(1), {}, id=self.last_id(), server=0)

    @property
    def at(self) -> int:
        return next(i for i, topics in enumerate(self.topics) if topic("") in topics)

    def look(self, loads: list[int], others: int = ACTIVE) -> None:
        """Let all replicas answer what the client subscribes to, until it has chosen and moved."""
        for _ in range(2):
            for i, readers in enumerate(loads):
                self.greet(others if i else ACTIVE, n(1), i, bytes([i]) * 16, load(readers))


def test_300_readers_of_one_replica_spread_over_three_in_ten_seconds() -> None:
    chance = random.Random(7)
    readers = [Reader(chance) for _ in range(300)]
    requests = [MoveRequests(110, Clients()) for _ in range(3)]
    for second in range(10):
        loads = [[each.at for each in readers].count(i) for i in range(3)]
        for i, replica in enumerate(requests):
            if replica.due(float(second), loads[i], 0):
                newest = [each for each in reversed(readers) if each.at == i][: loads[i] // 2]
                for each in newest:
                    each.update(message(own_topic(), n(1), [13, loads[i], len(newest)]), i)
                    # All look at the same time, so all see the same loads.
                    each.look(loads)
    found = Counter(each.at for each in readers)
    assert all(80 <= found[i] <= 120 for i in range(3)), found
    assert max(len(each.states) for each in readers) == 1, "none was STALE"
    assert max(each.stats["resyncs_snapshot"] for each in readers) == 1, "nobody took a snapshot again"
