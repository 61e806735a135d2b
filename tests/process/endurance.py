"""A test of endurance: a pair works at half a core for an hour, with hand-overs, and its memory does not grow.

    python -m tests.process.endurance --minutes 60        (`make test-long` does it in parts; a minute proves little)

The load is all that an application does, at a steady pace. It has batches and single sets, a counter that four threads
raise by conditional sets, ttls and deletes. It has leases that are closed and others that expire, Clones that come and
go, one watcher, and a topic with a reader and a group. Every half minute the servers change sides. Samples are taken of
the memory and descriptors of both servers and of the clients' process, and of the size of the journals. The first
quarter is for warming up. After it, the median of the last third may exceed that of the third before by at most
`GROWTH_MB_MAX`. From the tenth minute on the tables of a server are full. Its memory then goes up and down by 6 MiB in
the course of minutes, as records come and go and snapshots are made. Leaked memory raises the lowest point too. So
the lowest minute of the last half may exceed that of the half before by `STEADY_MB_MAX`.
Both servers count their objects by type, at the tenth minute (or at half of a shorter run) and at the end.

For servers the samples are resident memory. For clients they are the memory in use after a garbage collection. Nine
Clones share this process, and a busy moment (a watch's queue, a backlog of records) leaves gaps in Python's allocator,
which it does not give back. After four minutes with all Clones closed, the process held as many blocks as before they
began. Of 225 MiB resident memory 128 stayed, of which malloc used 6. So the clients' resident memory is only reported
(`resident_mb`), and shows the largest such moment.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chp_client import Clone, Conflict, Lagging, Refused, Unanswered
from chp_client.clone.base import internals
from chp_client.port.admin import Admin, AdminError
from tests.talk import WAIT_S, join_all, until

from . import counted
from .cluster import ProcessPair
from .counted import malloc_mb
from .puppets import rss_mb

GROWTH_MB_MAX = 8.0
# After `STEADY_S` seconds a server may grow by at most this many MiB. Only runs of 1.5 * `STEADY_S` and more check it.
STEADY_MB_MAX, STEADY_S = 1.0, 600.0
# A process may have at most this many more descriptors at the end, since connections come and go.
DESCRIPTORS_MAX = 16
SWITCH_S, SAMPLE_S, HELD_S = 30.0, 2.0, 10.0
# The mean size of a block of Python's allocator for a Clone with 20,000 keys, as sys._debugmallocstats shows it.
BLOCK_BYTES = 97
BATCH, BATCHES_A_SECOND, KEYS = 500, 40, 20_000
RAISERS = 4
# The number of keys in each of the ten subtrees of `_visit`. All keys exist before the warm-up is over.
VISITED = 50
# A lease of 5 s would rightly be lost if a busy machine stops its process, which is not tested here.
LEASE_TTL_S = 30
TOLD_EVERY_S = 60.0
TOPIC = "endurance"


@dataclass
class Sample:
    """A sample of all processes: their memory in MiB by name, and other things that must not grow."""

    at: float
    mb: dict[str, float]
    descriptors: dict[str, int]
    cpu_s: dict[str, float]
    journal_mb: float
    # The resident memory of the clients' process.
    resident_mb: float


@dataclass
class Load:
    """The clients: threads of this process, each with a pace. `errors` has the errors that fail the test."""

    servers: list[str]
    ending: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def start(self) -> list[threading.Thread]:
        """Start all threads."""
        jobs: list[tuple[Callable[[Clone, random.Random], None], float]] = [
            (self._batch, 1 / BATCHES_A_SECOND), (self._mortal, 0.05), (self._lease, 0.5), (self._visit, 1.0),
        ]  # fmt: skip
        jobs += [(self._raise, 0.1)] * RAISERS + [(self._single, 0.02), (self._publish, 0.05)]
        threads = [threading.Thread(target=self._pace, args=(*job, seed)) for seed, job in enumerate(jobs)]
        threads += [threading.Thread(target=job) for job in (self._watch, self._read, self._handle, self._handle)]
        for thread in threads:
            thread.start()
        return threads

    def _pace(self, job: Callable[[Clone, random.Random], None], every_s: float, seed: int) -> None:
        chance, due = random.Random(seed), time.monotonic()
        with Clone(self.servers) as clone:
            clone.wait_until_synced(WAIT_S)
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
        clone.set(f"/mortal/{chance.randrange(5000)}", b"soon gone", ttl=chance.uniform(1, 20)).wait(WAIT_S)
        self._count("ttls")

    def _lease(self, clone: Clone, chance: random.Random) -> None:
        lease = clone.lease(ttl=LEASE_TTL_S)
        for i in range(20):
            lease.set(f"/leased/{chance.randrange(1000)}/{i}", b"x")
        if chance.random() < 0.5:
            lease.close()
        else:
            # The lease is not refreshed any more, as if its process were gone, so it expires.
            internals(clone).writer.drop_lease(lease.id)
        self._count("leases")

    def _visit(self, _: Clone, chance: random.Random) -> None:
        subtree = f"/visits/{chance.randrange(10)}/"
        with Clone(self.servers, subtree=subtree) as visitor:
            visitor.wait_until_synced(WAIT_S)
            visitor.set(f"{subtree}{chance.randrange(VISITED)}", b"here").wait(WAIT_S)
        self._count("visits")

    def _raise(self, clone: Clone, _: random.Random) -> None:
        entry = clone.entry("/counter")
        value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
        try:
            clone.set("/counter", b"%d" % (value + 1), if_revision=revision).wait(WAIT_S)
        except Conflict:
            return
        self._count("raised")

    def _single(self, clone: Clone, chance: random.Random) -> None:
        clone.set(f"/single/{chance.randrange(500)}", b"one").wait(WAIT_S)
        self._count("singles")

    def _publish(self, clone: Clone, chance: random.Random) -> None:
        clone.topic(TOPIC).publish(os.urandom(100), key=f"{chance.randrange(100)}").wait(WAIT_S)
        self._count("published")

    def _read(self) -> None:
        after = -1
        with Clone(self.servers, subtree=None) as clone:
            while not self.ending.wait(0.2):
                for batch in clone.topic(TOPIC).read(after + 1, wait=False):
                    after = batch.offsets[-1]
                    self._count("read", len(batch.values))

    def _handle(self) -> None:
        """Run a member of a group. A hand-over may end the member, and then it begins anew."""
        with Clone(self.servers, subtree=None) as clone:
            while not self.ending.is_set():
                try:
                    with clone.topic(TOPIC).consumer("group", ttl=LEASE_TTL_S) as consumer:
                        while not self.ending.is_set():
                            if (batch := consumer.take(1.0)) is not None:
                                batch.commit(timeout=WAIT_S)
                                self._count("handled", len(batch.values))
                except (Refused, Unanswered, TimeoutError):
                    self._count("begun anew")

    def _watch(self) -> None:
        with Clone(self.servers, subtree="/k/") as clone:
            clone.wait_until_synced(WAIT_S)
            while not self.ending.is_set():
                try:
                    self._follow(clone)
                # On a busy machine the watch may lag, and begins anew.
                except Lagging:
                    self._count("lagged")
                except Exception as error:
                    self.errors.append(f"watch: {error!r}")
                    return

    def _follow(self, clone: Clone) -> None:
        for changes in clone.watch().batches():
            self._count("watched", len(changes))
            if self.ending.is_set():
                return


def run(directory: Path, seconds: float) -> dict[str, object]:
    """Run the whole test. Raise AssertionError if memory grew or an update was lost.

    If an earlier run left its journals in `directory`, go on from them.
    """
    program = ("tests.process.counted", str(directory))
    with ProcessPair(directory, "--sync", "always", program=program) as pair:
        with Clone(pair.servers) as first:
            first.wait_until_synced(WAIT_S)
            before = int(first.get("/counter", b"0"))
        load = Load(pair.servers)
        threads = load.start()
        samples, switches, objects = _look(pair, load, seconds, directory)
        load.ending.set()
        join_all(*threads)
        assert not load.errors, load.errors[:3]
        pair.wait_in_sync()
        with Clone(pair.servers) as fresh:
            fresh.wait_until_synced(WAIT_S)
            counter = int(fresh["/counter"])
        raised = before + load.counts["raised"]
        assert counter == raised, f"the counter is {counter}, raised {raised} times"
        # The servers go on changing for a while, because ttls and leases of the load still expire.
        until(partial(_equal, pair), "both servers to hold the same")
    return {
        "seconds": round(seconds), "switches": switches, **load.counts, "objects": objects, **_growth(samples),
    }  # fmt: skip


def _equal(pair: ProcessPair) -> bool:
    """Return True if both servers are at one number. Raise AssertionError if their contents differ there."""
    one, two = ((s["number"], s["fingerprint"]) for s in pair.statuses() if s)
    assert one[0] != two[0] or one == two, f"the servers differ at {one[0]}: {one[1]}, {two[1]}"
    return one == two


def _look(
    pair: ProcessPair, load: Load, seconds: float, directory: Path
) -> tuple[list[Sample], int, dict[str, dict[str, Any]]]:
    began, samples, switches, held, looked = time.monotonic(), [], 0, held_mb(), 0.0
    switched = told = began
    before: dict[str, dict[str, Any]] = {}
    while (now := time.monotonic()) < began + seconds and not load.errors:
        if now - looked > HELD_S:
            looked, held = now, held_mb()
        samples.append(_sample(pair, now - began, held))
        if now - told > TOLD_EVERY_S:
            told = now
            _tell(samples[-1], switches, load)
        if not before and now > began + min(STEADY_S, seconds / 2):
            before = _objects(pair, directory, 1)
        if now - switched > SWITCH_S:
            switched = now
            switches += _switch(pair)
        time.sleep(SAMPLE_S)
    after = _objects(pair, directory, 2)
    return samples, switches, {role: counted.difference(before[role], after[role]) for role in before}


def _objects(pair: ProcessPair, directory: Path, n: int) -> dict[str, dict[str, Any]]:
    return {each.role: counted.ask(directory, each.process.pid, n) for each in pair.both if each.process}


def _tell(sample: Sample, switches: int, load: Load) -> None:
    """Print a line, so that a run that fails shows its progress and growth."""
    mb = " ".join(f"{name} {size:.1f}" for name, size in sample.mb.items())
    counts = " ".join(f"{name} {n}" for name, n in list(load.counts.items()))
    print(
        f"{sample.at:6.0f} s  MiB: {mb} (resident {sample.resident_mb:.1f})  journals {sample.journal_mb:.1f}"
        f"  switches {switches}  {counts}",
        file=sys.stderr,
        flush=True,
    )


def _switch(pair: ProcessPair) -> bool:
    until(pair.in_sync, "the pair to be in sync")
    active = pair.active()
    if active is None:
        return False
    with Admin([active.address], timeout_s=5) as admin:
        try:
            admin.ask(active.address, "switch")
        except (AdminError, Refused):
            return False
    return True


def held_mb() -> float:
    """Return the memory in use by Python's allocator and malloc in MiB, without the gaps."""
    gc.collect()
    return sys.getallocatedblocks() * BLOCK_BYTES / (1 << 20) + malloc_mb()


def _sample(pair: ProcessPair, at: float, held: float) -> Sample:
    pids = {server.role: server.process.pid for server in pair.both if server.process} | {"clients": os.getpid()}
    size = sum(path.stat().st_size for server in pair.both for path in server.data.rglob("*") if path.is_file())
    return Sample(
        at,
        {name: rss_mb(pid) if name != "clients" else held for name, pid in pids.items()},
        {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        {name: _cpu_s(pid) for name, pid in pids.items()},
        size / (1 << 20),
        rss_mb(os.getpid()),
    )


def _cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _growth(samples: list[Sample]) -> dict[str, object]:
    warm = samples[len(samples) // 4 :]
    third = max(1, len(warm) // 3)
    before, after = warm[third : 2 * third], warm[2 * third :]
    growth = {
        name: round(statistics.median(s.mb[name] for s in after) - statistics.median(s.mb[name] for s in before), 1)
        for name in warm[0].mb
    }
    more = {
        name: round(statistics.median(s.descriptors[name] for s in after))
        - round(statistics.median(s.descriptors[name] for s in before))
        for name in warm[0].descriptors
    }
    steady = [s for s in samples if s.at >= STEADY_S]
    servers = [name for name in warm[0].mb if name != "clients"]
    spent = {name: samples[-1].cpu_s[name] - samples[0].cpu_s[name] for name in warm[0].cpu_s}
    largest = {name: round(max(s.mb[name] for s in samples), 1) for name in warm[0].mb}
    return {
        "growth_mb": growth,
        "largest_mb": largest,
        "steady_mb": {name: _each_minute(steady, name) for name in servers},
        "steady_growth_mb": {
            name: floor_growth(_each_minute(steady, name))
            for name in (servers if samples[-1].at >= 1.5 * STEADY_S else ())
        },
        "resident_mb": [round(statistics.median(s.resident_mb for s in part), 1) for part in (before, after)],
        "more_descriptors": more,
        "cores": {name: round(cpu_s / (samples[-1].at - samples[0].at), 2) for name, cpu_s in spent.items()},
        "journals_mb": [round(statistics.median(s.journal_mb for s in part), 1) for part in (before, after)],
    }


def _each_minute(samples: list[Sample], name: str) -> list[float]:
    """Return the median memory of a process in each minute, in MiB."""
    minutes: dict[int, list[float]] = {}
    for sample in samples:
        minutes.setdefault(int(sample.at // 60), []).append(sample.mb[name])
    return [round(statistics.median(of_one), 1) for of_one in minutes.values()]


def floor_growth(minutes: list[float]) -> float:
    """Return how much higher the lowest minute of the last half is than the lowest of the half before."""
    half = len(minutes) // 2
    return round(min(minutes[half:]) - min(minutes[:half]), 1)


def check(result: dict[str, object]) -> None:
    """Raise AssertionError if memory or descriptors grew."""
    growth, more = result["growth_mb"], result["more_descriptors"]
    assert isinstance(growth, dict) and isinstance(more, dict)
    assert max(growth.values()) <= GROWTH_MB_MAX, f"memory grew: {result}"
    steady = result["steady_growth_mb"]
    assert isinstance(steady, dict)
    assert max(steady.values(), default=0.0) <= STEADY_MB_MAX, f"a server whose tables are full grew: {result}"
    assert max(more.values()) <= DESCRIPTORS_MAX, f"descriptors are not given back: {result}"


def main() -> None:
    """Run the test from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--base", type=Path, help="a directory from which a run goes on, and in which it leaves all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = run(options.base or Path(directory), options.minutes * 60)
    print(
        json.dumps({"command": f"python -m tests.process.endurance --minutes {options.minutes:g}", **result}, indent=1)
    )
    check(result)


if __name__ == "__main__":
    main()
