"""covers: `ack="before"`, which is the Get of source 000: no message is returned twice, even after kills."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from chp_client import Clone, Topic
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .getting import GROUP, TOPIC

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# The number of messages between two kills, and the pause after each publish in seconds.
MORE, A_MOMENT_S = 100, 0.02


class Publisher(threading.Thread):
    """A thread that publishes 0, 1, 2, ... one by one, until it is told to end."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(daemon=True)
        self.topic, self.n, self.ending = topic, 0, threading.Event()

    def run(self) -> None:
        while not self.ending.wait(A_MOMENT_S):
            self.topic.publish(b"%d" % self.n, "k", timeout=WAIT_S)
            self.n += 1

    def end(self) -> None:
        """End the publisher."""
        self.ending.set()
        self.join()


@pytest.mark.timeout(400)
def test_no_message_is_returned_twice_over_kills_of_subscriber_and_active(tmp_path: Path) -> None:
    path, log = tmp_path / "got.txt", tmp_path / "getting.log"
    path.touch()

    def begin(pair: ProcessPair) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            words = [",".join(pair.servers), str(path)]
            return subprocess.Popen([sys.executable, "-m", "tests.process.getting", *words], cwd=ROOT, stderr=out)

    def got() -> list[bytes]:
        return path.read_bytes().split()

    with ProcessPair(tmp_path) as pair, Clone(pair.servers, subtree=None) as clone:
        topic = clone.topic(TOPIC)
        topic.subscribe(GROUP, "begin", timeout=WAIT_S)
        publisher, subscriber = Publisher(topic), begin(pair)
        publisher.start()
        try:
            for kill_active in (False, True, False):
                due = len(got()) + MORE
                until(lambda due=due: len(got()) >= due, "more messages")  # type: ignore[misc]
                active = pair.active()
                assert active is not None
                if kill_active:
                    active.kill()
                subscriber.kill()
                subscriber.wait()
                subscriber = begin(pair)
                if kill_active:
                    active.start()
                    pair.wait_in_sync()
            publisher.end()
            topic.publish(b"last", "k").wait(WAIT_S)
            until(lambda: b"last" in got(), "the last message")
        finally:
            publisher.ending.set()
            subscriber.kill()
            subscriber.wait()
    twice = [value for value, times in Counter(got()).items() if times > 1]
    assert twice == [], log.read_text()
    values = [int(value) for value in got() if value != b"last"]
    assert values == sorted(values), "in order"
    assert len(values) > publisher.n // 3, "a process that dies takes with it no more than what it had in hand"
