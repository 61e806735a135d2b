"""covers: a message that kills its consumers: a few of them die, all other messages are handled, over kills too."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import msgpack
import pytest

from chp_client import Clone
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .dying_worker import BAD, DONE, GROUP, TOPIC

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MOST = 3


class Supervisor(threading.Thread):
    """A supervisor, which starts its consumer again each time that the consumer ends."""

    def __init__(self, pair: ProcessPair, way: str, log: Path) -> None:
        super().__init__(daemon=True)
        self._argv = [sys.executable, "-m", "tests.process.dying_worker", ",".join(pair.servers), way]
        self._log, self.deaths, self.ending = log, 0, False
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._argv, cwd=ROOT, stdout=log, stderr=log)

    def run(self) -> None:
        while not self.ending:
            if self.process.wait() == 1:
                self.deaths += 1
            if not self.ending:
                self.process = self._begin()

    def end(self) -> None:
        self.ending = True
        self.process.kill()
        self.join(WAIT_S)


@pytest.mark.parametrize(
    ("way", "messages", "kills"),
    [
        pytest.param("commit", 400, 1, marks=pytest.mark.timeout(300)),
        pytest.param("run", 10_000, 20, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
        pytest.param("commit", 10_000, 20, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_message_that_kills_its_consumers_becomes_a_dead_letter(
    tmp_path: Path, way: str, messages: int, kills: int
) -> None:
    values = [BAD if i == messages // 2 else b"%d" % i for i in range(messages)]
    with ProcessPair(tmp_path) as pair, Clone(pair.servers, subtree=None) as clone:
        numbers, done = clone.topic(TOPIC), clone.topic(DONE)
        done.create(timeout=WAIT_S)
        numbers.subscribe(GROUP, "begin", max_deliveries=MOST, retry_after_s=0.1, timeout=WAIT_S)
        numbers.publish_many(values, [f"k{i}" for i in range(messages)]).wait(WAIT_S)
        worker = Supervisor(pair, way, tmp_path / "worker.log")
        worker.start()
        try:
            for _ in range(kills):
                due = min(messages - 1, int(done.facts(WAIT_S)["next"]) + messages // (2 * kills))
                until(lambda due=due: done.facts(WAIT_S)["next"] >= due, "more to be done")  # type: ignore[misc]
                active = pair.active()
                assert active is not None
                active.kill()
                until(lambda: done.facts(WAIT_S)["next"] >= 0, "the other server")
                active.start()
                pair.wait_in_sync()
            until(lambda: numbers.groups(WAIT_S)[0]["lag"] == 0, "all to be acknowledged", timeout_s=600)
        finally:
            worker.end()
            print(worker.deaths, (tmp_path / "worker.log").read_text()[-2000:])
        effects = Counter(value for batch in done.read(wait=False) for value in batch.values)
        assert effects.keys() == set(values) - {BAD}, "all others are done"
        assert way == "run" or set(effects.values()) == {1}, "and each of them once"
        (letter,) = [message for batch in clone.topic(f"{TOPIC}.{GROUP}.dead").read(wait=False) for message in batch]
        told = msgpack.unpackb(letter.value)
        assert (told["value"], told["offset"], told["tries"]) == (BAD, messages // 2, MOST)
        # If a takeover comes between a death and the end of its lease, the servers do not count that death.
        assert MOST <= worker.deaths <= MOST + kills
