"""Three workers share a topic. One dies, and the others do its unfinished work: in order for each key, nothing twice.

    python -m examples.competing_consumers

A worker publishes its results to the topic "done" in the record that acknowledges its messages. A worker that dies
before that leaves nothing behind. Its messages go to the others when its lease has expired.
"""

import os
import signal
from contextlib import suppress
from multiprocessing import get_context
from threading import Event
from typing import Any

from chp_client import Clone, Fenced, NoSuchTopic

from .pair import servers

JOBS, KEYS, TTL_S = 2000, 50, 2.0
WORKERS = ["ann", "bob", "eve"]


def worker(pair: list[str], name: str) -> None:
    """Handle jobs in a process of its own, until this process is killed."""
    with Clone(pair, None, codec="json") as clone, clone.topic("jobs").consumer("w", ttl=TTL_S, name=name) as consumer:
        for n, batch in enumerate(consumer):
            worked = [{"job": message.offset, "key": message.key, "by": name} for message in batch]
            if name == "bob" and n == 2:
                # Die after the work is done and before it is acknowledged.
                os.kill(os.getpid(), signal.SIGKILL)
            # If this worker was stopped for too long, the pair fences it, and other workers handle these messages.
            with suppress(Fenced):
                batch.commit(publish={"done": worked})


def fill(clone: Clone) -> None:
    """Wait until the three workers have joined, then publish jobs of fifty customers."""
    jobs = clone.topic("jobs")
    while len(jobs.groups()[0]["members"]) < len(WORKERS):
        Event().wait(0.05)
    for first in range(0, JOBS, 20):
        keys = [f"customer-{i % KEYS}" for i in range(first, first + 20)]
        jobs.publish_many([f"job of {key}" for key in keys], keys).wait(30)


def check(done: list[dict[str, Any]]) -> None:
    """Check that each job is there once, and the jobs of a customer are in the order of their publication."""
    assert sorted(each["job"] for each in done) == list(range(JOBS)), "each once"
    for key in {each["key"] for each in done}:
        order = [each["job"] for each in done if each["key"] == key]
        assert order == sorted(order), f"{key} in order"


def main() -> None:
    """Start the workers, publish jobs, and read the results."""
    with servers() as pair, Clone(pair, None, codec="json") as clone:
        for topic in map(clone.topic, ("jobs", "done")):
            # Remove the topics of an earlier run.
            with suppress(NoSuchTopic):
                topic.remove(10)
        clone.topic("jobs").subscribe("w", timeout=10)
        workers = [get_context("spawn").Process(target=worker, args=(pair, name), daemon=True) for name in WORKERS]
        try:
            for process in workers:
                process.start()
            fill(clone)
            done = [row for batch in clone.topic("done").read(until=JOBS - 1) for row in batch.values]
            check(done)
            assert clone.topic("done").facts()["next"] == JOBS, "and no more came"
            assert workers[1].exitcode == -signal.SIGKILL, "bob died"
            shares = {name: sum(row["by"] == name for row in done) for name in WORKERS}
            print(f"{shares}; bob died")
            print(f"{len(done)} jobs of {KEYS} customers: 0 lost, 0 twice, each customer's in order")
        finally:
            for process in workers:
                process.kill()


if __name__ == "__main__":
    main()
