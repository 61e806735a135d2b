"""The duration of turns: a histogram for metrics, the longest turn, and a line of the log for each long one.

A turn holds up all clients, so it must be short whatever clients do. The processor time of the serving thread counts,
because on a busy machine a turn may last longer through no fault of its own. To read that time is a system call, while
the wall clock is cheap to read, and a turn takes at most as much processor time as wall time. So the processor time is
read once in LOOK_S of turns. A long turn took at least the processor time since the last reading, less the wall time of
the turns before it. Only the wall clock tells how long each part of a turn took.

`WaitTimes` measures by the wall clock what clients wait for: the journal's sync, acknowledgements, copies.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from .. import logs
from ..core.updates.acks import Acks

log = logs.get_log(__name__)
BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
WAITS_S = (*BUCKETS_S, 2.5, 5.0, 10.0, 30.0, 60.0)
# A histogram in the form of Prometheus: the number of times up to each bound, and the sum of all times.
Told = tuple[list[tuple[str, float]], float]
# For each bound from this one on, a status tells how many turns were longer.
TOLD_S = 0.01
# The log tells of each turn longer than this: after a few of these in a row the peer takes over.
SLOW_S = 0.1
# The processor's clock is read once in this many seconds of turns.
LOOK_S = 0.005


class TurnClock:
    """A clock for turns: `begin`, some `lap`s, `end`, and again."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.longest_s = 0.0
        self.longest_did = ""
        # The processor time before the first turn, and at the last look.
        self._first_cpu = self._cpu = 0.0
        # The wall time of the turns since the last look.
        self._unlooked_s = 0.0
        # Each lap with its end.
        self._laps: list[tuple[str, float]] = []

    @property
    def sum_s(self) -> float:
        """The processor time of the thread since the first turn."""
        return time.thread_time() - self._first_cpu if self._first_cpu else 0.0

    def begin(self, now: float) -> None:
        """Begin a turn. The processor time of waits counts as a part of the turns."""
        if not self._first_cpu:
            self._first_cpu = self._cpu = time.thread_time()
        self._laps = [("", now)]

    def lap(self, name: str) -> None:
        """Name the work since the last lap."""
        self._laps.append((name, time.monotonic()))

    def end(self) -> None:
        """End the turn with its last lap."""
        took_s = self._laps[-1][1] - self._laps[0][1]
        self._unlooked_s += took_s
        if self._unlooked_s >= LOOK_S:
            took_s = self._look(took_s)
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        if took_s > self.longest_s:
            self.longest_s, self.longest_did = took_s, self._did()
        if took_s > SLOW_S:
            log.limited("a long turn", cpu_ms=round(took_s * 1000), did=self._did())

    def _look(self, took_s: float) -> float:
        """Return a lower bound of this turn's processor time: the turns before it took no more than they lasted."""
        cpu = time.thread_time()
        used_s, before_s = cpu - self._cpu, self._unlooked_s - took_s
        self._cpu, self._unlooked_s = cpu, 0.0
        return min(took_s, max(0.0, used_s - before_s))

    def _did(self) -> str:
        """Return the parts of a turn that took a tenth of it or more, the longest first."""
        took: defaultdict[str, float] = defaultdict(float)
        for (_, began), (name, ended) in pairwise(self._laps):
            took[name] += ended - began
        whole = sum(took.values())
        longest_first = sorted(took.items(), key=itemgetter(1), reverse=True)
        return ", ".join(f"{name} {round(lap * 1000)} ms" for name, lap in longest_first if lap >= whole / 10)

    def facts(self) -> dict[str, Any]:
        """Return the facts for `chp status` since the start."""
        return {
            "turns": sum(self.counts),
            "seconds": round(self.sum_s, 3),
            "longest_ms": round(self.longest_s * 1000, 1),
            "longest_did": self.longest_did,
            "above_ms": {str(round(bound * 1000)): n for bound, n in self._above() if bound >= TOLD_S},
        }

    def _above(self) -> Iterator[tuple[float, int]]:
        """Yield each bound of the histogram, with the number of turns that took longer."""
        left = sum(self.counts)
        for bound, n in zip(BUCKETS_S, self.counts, strict=False):
            left -= n
            yield bound, left

    def histogram(self) -> Told:
        """Return the histogram in the form of Prometheus: the number of turns up to each bound, and the sum of all."""
        return cumulative(BUCKETS_S, self.counts), self.sum_s


class Histogram:
    """A histogram of times."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAITS_S) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Add a time."""
        self.counts[bisect_left(WAITS_S, took_s)] += 1
        self.sum_s += took_s

    def told(self) -> Told:
        """Return the histogram in the form of Prometheus."""
        return cumulative(WAITS_S, self.counts), self.sum_s


class WaitTimes:
    """The times that clients wait, and the messages that are published, since the start."""

    def __init__(self, acks: Acks, took: deque[float]) -> None:
        """Take the answers that are owed, and the times of copies that are not counted yet."""
        self._acks, self._took = acks, took
        self.syncs, self.acks, self.copies = Histogram(), Histogram(), Histogram()
        # The messages that were published, and their bytes.
        self.messages = self.bytes = 0
        # The numbers that answers wait for, each with the time when it was made.
        self._owed: deque[tuple[int, float]] = deque()

    def synced(self, began: float) -> None:
        """Note that the journal has a turn's records."""
        self.syncs.add(time.monotonic() - began)

    def decided(self, now: float) -> None:
        """Note the answers that are owed by the turn that began at `now`."""
        waiting = self._acks.waiting
        if not waiting:
            self._owed.clear()
        elif not self._owed or self._owed[-1][0] < waiting[-1][0]:
            self._owed.append((waiting[-1][0], now))

    def answered(self, turn_began: float) -> None:
        """Note that answers were sent. An answer that is sent in the turn that made it is not in `_owed`."""
        now, since = time.monotonic(), turn_began
        while self._owed and self._owed[0][0] <= self._acks.answered:
            since = self._owed.popleft()[1]
            self.acks.add(now - since)
        if since is turn_began:
            self.acks.add(now - since)

    def published(self, messages: int, size: int) -> None:
        """Note what was published."""
        self.messages += messages
        self.bytes += size

    def count_copies(self) -> None:
        """Count the snapshots and resumes that are complete."""
        while self._took:
            self.copies.add(self._took.popleft())


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the number of times up to each bound."""
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
