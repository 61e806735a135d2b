"""covers: topics/consumer.py, batch.py and the pair, killed with -9 while a group commits: nothing lost, or twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chp_client import Clone, Ticket

from .cluster import GENEROUS_S, ProcessPair, wait_for
from .summing import GROUP, RECEIPTS, SUMS, TOPIC

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KEYS = 24
A_MOMENT_S = 0.02


class Publisher(threading.Thread):
    """Publishes 1, 2, 3, ..., a few at a time, under some keys, until told to end."""

    def __init__(self, clone: Clone) -> None:
        super().__init__(daemon=True)
        self.clone, self.n, self.tickets, self.ending = clone, 0, list[Ticket](), threading.Event()

    def run(self) -> None:
        topic = self.clone.topic(TOPIC)
        while not self.ending.wait(A_MOMENT_S):
            numbers = range(self.n + 1, self.n + 13)
            keys = [f"k{i % KEYS}" for i in numbers]
            self.tickets.append(topic.publish_many([b"%d" % i for i in numbers], keys, timeout=GENEROUS_S))
            self.n = numbers[-1]

    def end(self) -> dict[str, int]:
        """All that was published is there; what the sums are to be."""
        self.ending.set()
        self.join()
        for ticket in self.tickets:
            ticket.wait(GENEROUS_S)
        return {f"{SUMS}k{k}": sum(i for i in range(1, self.n + 1) if i % KEYS == k) for k in range(KEYS)}


class Worker:
    """One consumer, started again when it was killed."""

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


@pytest.mark.timeout(400)
def test_the_active_and_consumers_are_killed_and_each_message_is_counted_once(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Clone(pair.servers, SUMS) as clone:
        clone.wait_until_synced(GENEROUS_S)
        numbers, receipts = clone.topic(TOPIC), clone.topic(RECEIPTS)
        receipts.create(timeout=GENEROUS_S)
        numbers.subscribe(GROUP, "begin", timeout=GENEROUS_S)
        publisher = Publisher(clone)
        publisher.start()
        workers = [Worker(pair, f"w{i}", tmp_path) for i in range(2)]

        def done() -> int:
            return int(receipts.facts(GENEROUS_S)["next"])

        def more() -> None:
            before = done()
            wait_for("300 more receipts", lambda: done() >= before + 300)

        def both_hold_slots() -> bool:
            members = dict(numbers.groups(GENEROUS_S)[0]["members"])
            return members.keys() == {"w0", "w1"} and all(members.values())

        try:
            wait_for("two consumers that share", both_hold_slots)
            more()
            for victim, active_too in ((workers[0], False), (None, True), (workers[1], True)):
                active = pair.active() if active_too else None
                if active is not None:
                    active.kill()
                if victim is not None:
                    victim.kill()
                more()
                if active is not None:
                    active.start()
                    pair.wait_in_sync()
                if victim is not None:
                    victim.start()
                wait_for("two consumers that share", both_hold_slots)
                more()
            expected = publisher.end()
            wait_for("all to be acknowledged", lambda: numbers.groups(GENEROUS_S)[0]["lag"] == 0)
        finally:
            publisher.ending.set()
            for worker in workers:
                worker.kill()
                print(worker.log.read_text()[-2000:])
        clone.sync(GENEROUS_S)
        given = sorted(int(value) for batch in receipts.read(wait=False) for value in batch.values)
        assert given == list(range(publisher.n)), "a receipt for each message, and one only"
        assert {key: int(clone[key]) for key in expected} == expected, "and each number is in its sum once"
