"""covers: topics/consumer.py, batch.py and the pair: kill -9 while a group commits loses and repeats nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chp_client import Clone, Ticket
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .summing import GROUP, RECEIPTS, SUMS, TOPIC

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KEYS = 24
A_MOMENT_S = 0.02


class Publisher(threading.Thread):
    """A thread that publishes 1, 2, 3, ..., a few at a time, under some keys, until it is told to end."""

    def __init__(self, clone: Clone) -> None:
        super().__init__(daemon=True)
        self.clone, self.n, self.tickets, self.ending = clone, 0, list[Ticket](), threading.Event()

    def run(self) -> None:
        topic = self.clone.topic(TOPIC)
        while not self.ending.wait(A_MOMENT_S):
            numbers = range(self.n + 1, self.n + 13)
            keys = [f"k{i % KEYS}" for i in numbers]
            self.tickets.append(topic.publish_many([b"%d" % i for i in numbers], keys, timeout=WAIT_S))
            self.n = numbers[-1]

    def end(self) -> dict[str, int]:
        """End the publisher, wait for all acknowledgements, and return the expected sums."""
        self.ending.set()
        self.join()
        for ticket in self.tickets:
            ticket.wait(WAIT_S)
        return {f"{SUMS}k{k}": sum(i for i in range(1, self.n + 1) if i % KEYS == k) for k in range(KEYS)}


class Worker:
    """A consumer process that can be killed and started again."""

    def __init__(self, pair: ProcessPair, name: str, folder: Path) -> None:
        self._argv = [sys.executable, "-m", "tests.process.summing", ",".join(pair.servers), name]
        self.log = folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, cwd=ROOT, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Group:
    """Workers that share a topic, with a pair and a publisher. Some are killed at work."""

    def __init__(self, pair: ProcessPair, clone: Clone, folder: Path, workers: int) -> None:
        self.pair = pair
        self.numbers, self.receipts = clone.topic(TOPIC), clone.topic(RECEIPTS)
        self.receipts.create(timeout=WAIT_S)
        self.numbers.subscribe(GROUP, "begin", timeout=WAIT_S)
        self.workers = [Worker(pair, f"w{i}", folder) for i in range(workers)]

    def more(self) -> None:
        """Wait until some more messages are done."""
        due = self._done() + 300
        until(lambda: self._done() >= due, "300 more receipts")

    def _done(self) -> int:
        return int(self.receipts.facts(WAIT_S)["next"])

    def all_share(self) -> None:
        """Wait until each worker has slots."""
        names = {f"w{i}" for i in range(len(self.workers))}

        def do() -> bool:
            members = dict(self.numbers.groups(WAIT_S)[0]["members"])
            return members.keys() == names and all(members.values())

        until(do, "consumers that share")

    def lose(self, victims: list[Worker], *, active: bool) -> None:
        """Kill some workers and the active, and start them again when the others have gone on."""
        server = self.pair.active() if active else None
        if server is not None:
            server.kill()
        for victim in victims:
            victim.kill()
        self.more()
        if server is not None:
            server.start()
            self.pair.wait_in_sync()
        for worker in victims:
            worker.start()
        self.all_share()


@pytest.mark.parametrize(
    ("workers", "of_the_active", "of_workers"),
    [
        pytest.param(2, 1, 2, marks=pytest.mark.timeout(400)),
        pytest.param(4, 50, 100, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_each_message_is_counted_once_over_kills_of_consumers_and_active(
    tmp_path: Path, workers: int, of_the_active: int, of_workers: int
) -> None:
    with ProcessPair(tmp_path) as pair, Clone(pair.servers, SUMS) as clone:
        clone.wait_until_synced(WAIT_S)
        group = Group(pair, clone, tmp_path, workers)
        publisher = Publisher(clone)
        publisher.start()
        chance, kills = random.Random(7), [True] * of_the_active + [False] * of_workers
        chance.shuffle(kills)
        try:
            group.all_share()
            group.more()
            while kills:
                now = [kills.pop()]
                # Half of the times kill the active and a consumer at once.
                if kills and kills[-1] != now[0] and chance.random() < 0.5:
                    now.append(kills.pop())
                group.lose(chance.sample(group.workers, now.count(False)), active=True in now)
                group.more()
            expected = publisher.end()
            until(lambda: group.numbers.groups(WAIT_S)[0]["lag"] == 0, "all to be acknowledged")
        finally:
            publisher.ending.set()
            for worker in group.workers:
                worker.kill()
                print(worker.log.read_text()[-2000:])
        clone.sync(WAIT_S)
        given = sorted(int(value) for batch in group.receipts.read(wait=False) for value in batch.values)
        assert given == list(range(publisher.n)), "a receipt for each message, and one only"
        assert {key: int(clone[key]) for key in expected} == expected, "and each number is in its sum once"
