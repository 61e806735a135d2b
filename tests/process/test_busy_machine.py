"""A slow but healthy pair on two cores with thirty busy programs neither changes sides nor forks.

covers: pair/liveness.py, ports/sockets.py
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chp_client import Clone
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .faults import other, wait_active

pytestmark = pytest.mark.long

PROGRAMS, CORES = 30, 2
WATCHED_S = 90.0
# The 99th percentile of the times of the awaited sets may be at most this many seconds.
BYSTANDER_S = 2.0


@contextmanager
def crowd() -> Iterator[None]:
    """Run `PROGRAMS` busy programs on `CORES` cores, which this process and its children share with them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    spin = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(spin) for _ in range(PROGRAMS)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
        os.sched_setaffinity(0, before)


def awaited(clone: Clone, seconds: float) -> list[float]:
    """Set a key again and again for this many seconds, and return how long each set took."""
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        clone.set("/bystander", b"%d" % len(took)).wait(WAIT_S)
        took.append(time.monotonic() - began)
    return took


def epochs(pair: ProcessPair) -> list[int]:
    """Return the epoch of each server."""
    return [(server.status(WAIT_S) or {})["epoch"] for server in pair.both]


def test_a_healthy_pair_makes_no_failover_on_a_busy_machine(tmp_path: Path) -> None:
    with crowd(), ProcessPair(tmp_path, heartbeat_s=0.25) as pair, Clone(pair.servers) as clone:
        active = pair.active()
        assert active is not None
        before = epochs(pair)
        took = awaited(clone, WATCHED_S)
        p99 = statistics.quantiles(took, n=100)[-1]
        print(f"{len(took)} awaited sets: median {statistics.median(took):.3f} s, p99 {p99:.3f}, most {max(took):.3f}")
        print(f"stats {clone.stats}")
        assert epochs(pair) == before and pair.active() is active
        assert p99 < BYSTANDER_S


def test_a_restarted_server_follows_the_active_on_a_busy_machine(tmp_path: Path) -> None:
    with crowd(), ProcessPair(tmp_path, heartbeat_s=0.25) as pair, Clone(pair.servers) as clone:
        for _ in range(3):
            first = pair.active()
            assert first is not None
            successor = other(pair, first)
            first.kill()
            clone.set("/after", b"1").wait(WAIT_S)
            epoch = wait_active(successor)["epoch"]
            first.start()
            until(pair.in_sync, "the pair to be in sync")
            assert epochs(pair) == [epoch, epoch], "it serves beside the one that lives"
