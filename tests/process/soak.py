"""A soak test (`make soak`): no acknowledged set is lost, though servers are killed with SIGKILL over and over.

Several writers set unique keys through Clones, one set at a time and in batches, and note what was acknowledged. Of six
rounds, four kill the active, one kills the passive, and one kills both at once. Then the round starts the killed
servers again and waits until the pair is in sync. At the end each acknowledged set must be in both servers and in each
Clone, the servers must be equal, and no writer may have met an error. The results are printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

from chp_client import Clone
from tests.long.state import note, passed
from tests.talk import WAIT_S, join_all, until

from .cluster import ProcessPair, ServerProcess


class Writer(threading.Thread):
    """A thread that sets unique keys until it is told to end. `acked` has the acknowledged ones."""

    def __init__(self, servers: list[str], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.clone = Clone(servers, subtree=f"/{name}/")
        self.acked: dict[str, bytes] = {}
        self.by_durability: dict[str, int] = {}
        self.errors: list[str] = []
        self.slowest_s = 0.0
        self.ending = threading.Event()

    def run(self) -> None:
        n = 0
        while not self.ending.is_set():
            n += 1
            items = {f"/{self.name}/{n}-{i}": f"{n}.{i}".encode() for i in range(1 + n % 7 * 10)}
            started = time.monotonic()
            try:
                ack = self.clone.set_many(items).wait(timeout=WAIT_S)
            # Any error that a writer meets is a failure of the test.
            except Exception as error:
                self.errors.append(repr(error))
                return
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            self.acked.update(items)
            self.by_durability[ack.durability] = self.by_durability.get(ack.durability, 0) + 1


def run(directory: Path, rounds: int, writers: int = 2, *flags: str, only_active: bool = False) -> dict[str, object]:
    """Run the whole test. Raise AssertionError if a set was lost. With `only_active` each round kills the active."""
    started = time.monotonic()
    with ProcessPair(directory, *flags) as pair:
        threads = [Writer(pair.servers, f"w{i}") for i in range(writers)]
        for thread in threads:
            thread.start()
        for n in range(rounds):
            _round(pair, 0 if only_active else n, threads)
        for thread in threads:
            thread.ending.set()
        join_all(*threads)
        errors = [error for thread in threads for error in thread.errors]
        assert not errors, f"writers met errors: {errors[:3]}"
        pair.wait_in_sync()
        result = _compare(pair, threads)
        for thread in threads:
            thread.clone.close()
    return {"rounds": rounds, "seconds": round(time.monotonic() - started, 1), **result}


def _round(pair: ProcessPair, n: int, threads: list[Writer]) -> None:
    before = [len(thread.acked) for thread in threads]
    active = pair.active()
    assert active is not None, f"round {n}: nobody is active: {pair.statuses()}"
    passive = pair.backup if active is pair.primary else pair.primary
    victims: list[ServerProcess] = [active, passive] if n % 6 == 5 else [passive] if n % 6 == 3 else [active]
    for victim in victims:
        victim.kill()
    if len(victims) == 1:
        _progress(threads, before)
    for victim in victims:
        victim.start()
    pair.wait_in_sync()
    _progress(threads, [len(thread.acked) for thread in threads])


def _progress(threads: list[Writer], before: list[int]) -> None:
    def moved() -> bool:
        return all(len(t.acked) > b or t.errors for t, b in zip(threads, before, strict=True))

    until(moved, "the writers to go on")


def _compare(pair: ProcessPair, threads: list[Writer]) -> dict[str, object]:
    expected = {key: value for thread in threads for key, value in thread.acked.items()}
    for thread in threads:
        held = dict(thread.clone)
        wrong = [key for key, value in thread.acked.items() if held.get(key) != value]
        assert not wrong, f"{thread.name} lost {len(wrong)} acknowledged sets, such as {wrong[:3]}"
    with Clone(pair.servers) as fresh:
        fresh.wait_until_synced(WAIT_S)
        lost = [key for key, value in expected.items() if fresh.get(key) != value]
        assert not lost, f"{len(lost)} of {len(expected)} acknowledged sets are lost, such as {lost[:3]}"
    statuses = [status for status in pair.statuses() if status]
    assert len({status["number"] for status in statuses}) == 1, f"the replicas differ: {statuses}"
    assert len({status["fingerprint"] for status in statuses}) == 1, f"the replicas differ: {statuses}"
    durability: dict[str, int] = {}
    for thread in threads:
        for name, count in thread.by_durability.items():
            durability[name] = durability.get(name, 0) + count
    return {
        "sets_acknowledged": len(expected),
        "lost": 0,
        "batches_by_durability": durability,
        "slowest_acknowledgement_s": round(max(thread.slowest_s for thread in threads), 2),
        "epoch": statuses[0]["epoch"],
        "conflicts": sum(int(status["counts"].get("suffix_conflict", 0)) for status in statuses),
    }


def main() -> None:
    """Run the test from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--output", type=Path, help="write the result there too")
    parser.add_argument("--batch", type=int, default=0, help="rounds of one pair; the next rounds have a new pair")
    parser.add_argument("--done", type=Path, help="a file of the batches that ran; they are not run again")
    options = parser.parse_args()
    results, size = [], options.batch or options.rounds
    before = passed(options.done) if options.done else set()
    for first in range(0, options.rounds, size):
        name = f"rounds {first} to {first + size - 1}"
        if name in before:
            continue
        with tempfile.TemporaryDirectory() as directory:
            results.append(run(Path(directory), min(size, options.rounds - first)))
        if options.done:
            note(options.done, name)
    text = "\n".join(json.dumps({"command": "python -m tests.process.soak", **each}, indent=1) for each in results)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
