"""Endurance: a pair that works at half a core for an hour, with hand-overs, and grows in nothing.

    python -m tests.process.endurance --minutes 60        (`make test-long` does; a minute of it is a look, not a proof)

Everything that an application does, at a steady pace: batches and single sets, a counter that four raise by conditional
sets, ttls, deletes, leases that are closed and others that run out, Clones that come and go (each a new session), one
watcher that loops. Every half minute the servers change sides. Sampled: resident memory, threads and descriptors of
both servers and of the clients' process, and what the journals take. The first quarter is for warming up; after it the
median of the last third may lie above that of the one before by no more than `GROWTH_MB_MAX`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chp_client import Clone, Conflict, Refused
from chp_client.admin import Admin, AdminError

from .cluster import GENEROUS_S, ProcessPair, wait_for
from .puppets import rss_mb

GROWTH_MB_MAX = 8.0
DESCRIPTORS_MAX = 16  # how many more there may be at the end: connections come and go
SWITCH_S, SAMPLE_S = 30.0, 2.0
BATCH, BATCHES_A_SECOND, KEYS = 500, 40, 20_000
RAISERS = 4


@dataclass
class Sample:
    """One look at all processes: by name, MiB; and what else must not grow."""

    at: float
    mb: dict[str, float]
    descriptors: dict[str, int]
    journal_mb: float


@dataclass
class Load:
    """The clients: threads of this process, each with a pace; `errors` is what a test has to be told."""

    servers: list[str]
    ending: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def start(self) -> list[threading.Thread]:
        """Begin all of it."""
        jobs: list[tuple[Callable[[Clone, random.Random], None], float]] = [
            (self._batch, 1 / BATCHES_A_SECOND), (self._mortal, 0.05), (self._lease, 0.5), (self._visit, 1.0),
        ]  # fmt: skip
        jobs += [(self._raise, 0.1)] * RAISERS
        threads = [threading.Thread(target=self._pace, args=(*job, seed)) for seed, job in enumerate(jobs)]
        threads.append(threading.Thread(target=self._watch))
        for thread in threads:
            thread.start()
        return threads

    def _pace(self, job: Callable[[Clone, random.Random], None], every_s: float, seed: int) -> None:
        chance, due = random.Random(seed), time.monotonic()
        with Clone(self.servers) as clone:
            clone.wait_until_synced(GENEROUS_S)
            while not self.ending.is_set():
                try:
                    job(clone, chance)
                except Exception as error:
                    self.errors.append(f"{job.__name__}: {error!r}")
                    return
                due = max(due + every_s, time.monotonic() - 5)
                self.ending.wait(max(0.0, due - time.monotonic()))

    def _count(self, name: str, n: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def _batch(self, clone: Clone, chance: random.Random) -> None:
        start = chance.randrange(KEYS)
        keys = [f"/k/{(start + i) % KEYS}" for i in range(BATCH)]
        if chance.random() < 0.1:
            clone.delete_many(keys[:50])
        clone.set_many({key: os.urandom(chance.randrange(20, 180)) for key in keys})
        self._count("sets", BATCH)

    def _mortal(self, clone: Clone, chance: random.Random) -> None:
        clone.set(f"/mortal/{chance.randrange(5000)}", b"soon gone", ttl=chance.uniform(1, 20)).wait(GENEROUS_S)
        self._count("ttls")

    def _lease(self, clone: Clone, chance: random.Random) -> None:
        lease = clone.lease(ttl=5)
        for i in range(20):
            lease.set(f"/leased/{chance.randrange(1000)}/{i}", b"x")
        if chance.random() < 0.5:
            lease.close()
        self._count("leases")

    def _visit(self, _: Clone, chance: random.Random) -> None:
        subtree = f"/visits/{chance.randrange(10)}/"
        with Clone(self.servers, subtree=subtree) as visitor:
            visitor.wait_until_synced(GENEROUS_S)
            visitor.set(f"{subtree}{chance.randrange(1000)}", b"here").wait(GENEROUS_S)
        self._count("visits")

    def _raise(self, clone: Clone, _: random.Random) -> None:
        entry = clone.entry("/counter")
        value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
        try:
            clone.set("/counter", b"%d" % (value + 1), if_revision=revision).wait(GENEROUS_S)
        except Conflict:
            return
        self._count("raised")

    def _watch(self) -> None:
        with Clone(self.servers, subtree="/k/") as clone:
            clone.wait_until_synced(GENEROUS_S)
            for changes in clone.watch().batches():
                self._count("watched", len(changes))
                if self.ending.is_set():
                    return


def run(directory: Path, seconds: float) -> dict[str, object]:
    """The whole test; AssertionError if something grew or was lost."""
    with ProcessPair(directory, "--sync", "always") as pair:
        load = Load(pair.servers)
        threads = load.start()
        samples, switches = _look(pair, load, seconds)
        load.ending.set()
        for thread in threads:
            thread.join(GENEROUS_S)
        assert not load.errors, load.errors[:3]
        pair.wait_in_sync()
        with Clone(pair.servers) as fresh:
            fresh.wait_until_synced(GENEROUS_S)
            counter = int(fresh["/counter"])
        assert counter == load.counts["raised"], f"the counter is {counter}, raised {load.counts['raised']} times"
        prints = {status["fingerprint"] for status in pair.statuses() if status}
        assert len(prints) == 1, f"the servers differ: {prints}"
    return {"seconds": round(seconds), "switches": switches, **load.counts, **_growth(samples)}


def _look(pair: ProcessPair, load: Load, seconds: float) -> tuple[list[Sample], int]:
    began, samples, switches, switched = time.monotonic(), [], 0, time.monotonic()
    while (now := time.monotonic()) < began + seconds and not load.errors:
        samples.append(_sample(pair, now - began))
        if now - switched > SWITCH_S:
            switched = now
            switches += _switch(pair)
        time.sleep(SAMPLE_S)
    return samples, switches


def _switch(pair: ProcessPair) -> bool:
    wait_for("the pair to be in sync", pair.in_sync)
    active = pair.active()
    if active is None:
        return False
    with Admin([active.address], timeout_s=5) as admin:
        try:
            admin.ask(active.address, "switch")
        except (AdminError, Refused):
            return False
    return True


def _sample(pair: ProcessPair, at: float) -> Sample:
    pids = {server.role: server.process.pid for server in pair.both if server.process} | {"clients": os.getpid()}
    size = sum(path.stat().st_size for server in pair.both for path in server.data.rglob("*") if path.is_file())
    return Sample(
        at,
        {name: rss_mb(pid) for name, pid in pids.items()},
        {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        size / (1 << 20),
    )


def _growth(samples: list[Sample]) -> dict[str, object]:
    warm = samples[len(samples) // 4 :]
    third = max(1, len(warm) // 3)
    before, after = warm[third : 2 * third], warm[2 * third :]
    growth = {
        name: round(statistics.median(s.mb[name] for s in after) - statistics.median(s.mb[name] for s in before), 1)
        for name in warm[0].mb
    }
    more = {name: after[-1].descriptors[name] - before[0].descriptors[name] for name in warm[0].descriptors}
    largest = {name: round(max(s.mb[name] for s in samples), 1) for name in warm[0].mb}
    return {
        "growth_mb": growth,
        "largest_mb": largest,
        "more_descriptors": more,
        "journals_mb": [round(statistics.median(s.journal_mb for s in part), 1) for part in (before, after)],
    }


def check(result: dict[str, object]) -> None:
    """AssertionError if something grew."""
    growth, more = result["growth_mb"], result["more_descriptors"]
    assert isinstance(growth, dict) and isinstance(more, dict)
    assert max(growth.values()) <= GROWTH_MB_MAX, f"memory grew: {result}"
    assert max(more.values()) <= DESCRIPTORS_MAX, f"descriptors are not given back: {result}"


def main() -> None:
    """As `make test-long` runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = run(Path(directory), options.minutes * 60)
    print(
        json.dumps({"command": f"python -m tests.process.endurance --minutes {options.minutes:g}", **result}, indent=1)
    )
    check(result)


if __name__ == "__main__":
    main()
