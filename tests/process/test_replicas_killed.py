"""Tests of kill -9 of a replica, the active, or both within 2 s: readers miss nothing and need no second snapshot.

The two replicas keep no journal. So a replica that starts again has no records, and the pair sends what its readers
lack.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import WAIT_S, join_all, synced, until

from .cluster import ProcessPair, ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
ROUNDS = 20
KEY = "/n"


def replica_in_memory(directory: Path, name: str, servers: list[str]) -> ServerProcess:
    (directory / name).mkdir()
    flags = ["--replica", "--upstream", ",".join(servers), "--heartbeat-s", "0.1", "--store", "memory:"]
    return ServerProcess(directory / name, "alone", f"tcp://127.0.0.1:{free_port()}", None, *flags)


class Reader:
    """A Clone that watches a key, and keeps each value."""

    def __init__(self, clone: Clone) -> None:
        self.clone, self.seen = clone, list[int]()
        self.thread = Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        for change in self.clone.watch(KEY):
            assert change.value is not None
            self.seen.append(int(change.value))


def test_readers_miss_no_update_over_kills_of_replicas_and_the_active(tmp_path: Path) -> None:
    rng = random.Random(1)
    with ProcessPair(tmp_path) as pair:
        replicas = [replica_in_memory(tmp_path, name, pair.servers).start() for name in ("r1", "r2")]
        first, second = (each.address for each in replicas)
        lists = {"one": [first], "both": [first, second], "all": [second, *pair.servers]}
        with synced(pair.servers, name="writer") as writer:
            try:
                writer.set(KEY, b"0").wait(WAIT_S)
                clones = {name: Clone(servers, name=name) for name, servers in lists.items()}
                for clone in clones.values():
                    clone.wait_until_synced(WAIT_S)
                readers = {name: Reader(clone) for name, clone in clones.items()}
                made = 0
                for round_no in range(ROUNDS):
                    killed = _kill(pair, replicas, round_no % 3, rng)
                    for _ in range(100):
                        made += 1
                        writer.set(KEY, b"%d" % made)
                        time.sleep(0.01)
                    for server in killed:
                        server.start()
                    pair.wait_in_sync()
                    writer.flush(WAIT_S)
                    for name, clone in clones.items():
                        until(partial(_has, clone, made), f"{name} is back in round {round_no}")
                        assert clone.verify(timeout=WAIT_S).ok
                for name, clone in clones.items():
                    assert clone.stats["resyncs_snapshot"] == 1, (name, clone.stats)
                    clone.close()
                join_all(*(reader.thread for reader in readers.values()))
                for name, reader in readers.items():
                    holes = [(a, b) for a, b in zip(reader.seen, reader.seen[1:], strict=False) if b != a + 1]
                    assert not holes and reader.seen[-1] == made, f"{name} missed {holes}"
            finally:
                for each in replicas:
                    each.kill()


def _has(clone: Clone, n: int) -> bool:
    return bool(clone.get(KEY) == b"%d" % n)


def _kill(pair: ProcessPair, replicas: list[ServerProcess], what: int, rng: random.Random) -> list[ServerProcess]:
    """Kill a replica (`what` is 0), the active (1), or both within 2 s (2), and return the killed servers."""
    killed = []
    if what != 1:
        killed.append(rng.choice(replicas))
    if what != 0:
        active = pair.active()
        assert active is not None
        killed.append(active)
    rng.shuffle(killed)
    for server in killed:
        server.kill()
        if server is not killed[-1]:
            time.sleep(rng.uniform(0, 2))
    return killed
