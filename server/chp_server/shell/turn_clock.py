"""How long turns take: a histogram for metrics, the longest, and a line of the log for each that was too long.

A turn holds up everybody, so it is to be short whatever clients do. What counts is the processor time of the serving
thread: on a busy machine a turn may last, and that is not its fault. No turn takes more of it than the wall clock
says, which is cheap to read: so the processor's clock, a system call, is read once in LOOK_S of turns, and what a long
one took is what that says less those before it. Which part of the turn took it is told by the wall clock alone.

Beside it, by the wall clock, what others wait for: the journal's sync, acknowledgements, copies (`WaitTimes`).
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
Told = tuple[list[tuple[str, float]], float]  # as Prometheus has a histogram: at most so long, and the sum of all
TOLD_S = 0.01  # a status says how many turns were longer than each bound from here on
SLOW_S = 0.1  # an operator is told: a few of these in a row, and the peer takes over
LOOK_S = 0.005  # of turns by the wall clock


class TurnClock:
    """Begin, laps, end; again and again."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.longest_s = 0.0
        self.longest_did = ""
        self._first_cpu = self._cpu = 0.0  # before the first turn, and at the last look
        self._unlooked_s = 0.0  # of turns since, by the wall clock
        self._laps: list[tuple[str, float]] = []  # each with its end

    @property
    def sum_s(self) -> float:
        """All that the thread took since the first turn."""
        return time.thread_time() - self._first_cpu if self._first_cpu else 0.0

    def begin(self, now: float) -> None:
        """A turn begins; what the waits took of the processor counts as a part of the turns."""
        if not self._first_cpu:
            self._first_cpu = self._cpu = time.thread_time()
        self._laps = [("", now)]

    def lap(self, name: str) -> None:
        """What was done since the last lap has this name."""
        self._laps.append((name, time.monotonic()))

    def end(self) -> None:
        """The turn ended with its last lap."""
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
        """What a turn of so long took of the processor, at least: the turns before it took no more than they lasted."""
        cpu = time.thread_time()
        used_s, before_s = cpu - self._cpu, self._unlooked_s - took_s
        self._cpu, self._unlooked_s = cpu, 0.0
        return min(took_s, max(0.0, used_s - before_s))

    def _did(self) -> str:
        """The parts of a turn that took a tenth of it or more, the longest first."""
        took: defaultdict[str, float] = defaultdict(float)
        for (_, began), (name, ended) in pairwise(self._laps):
            took[name] += ended - began
        whole = sum(took.values())
        longest_first = sorted(took.items(), key=itemgetter(1), reverse=True)
        return ", ".join(f"{name} {round(lap * 1000)} ms" for name, lap in longest_first if lap >= whole / 10)

    def facts(self) -> dict[str, Any]:
        """For `chp status`; since the start."""
        return {
            "turns": sum(self.counts),
            "seconds": round(self.sum_s, 3),
            "longest_ms": round(self.longest_s * 1000, 1),
            "longest_did": self.longest_did,
            "above_ms": {str(round(bound * 1000)): n for bound, n in self._above() if bound >= TOLD_S},
        }

    def _above(self) -> Iterator[tuple[float, int]]:
        """Each bound of the histogram, with how many turns took longer."""
        left = sum(self.counts)
        for bound, n in zip(BUCKETS_S, self.counts, strict=False):
            left -= n
            yield bound, left

    def histogram(self) -> Told:
        """As Prometheus has it: how many turns took at most so long, and the sum of all."""
        return cumulative(BUCKETS_S, self.counts), self.sum_s


class Histogram:
    """How many took at most so long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAITS_S) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        """One more."""
        self.counts[bisect_left(WAITS_S, took_s)] += 1
        self.sum_s += took_s

    def told(self) -> Told:
        """As Prometheus has it."""
        return cumulative(WAITS_S, self.counts), self.sum_s


class WaitTimes:
    """What clients wait for, and what is published; since the start."""

    def __init__(self, acks: Acks, took: deque[float]) -> None:
        """`acks`: what is owed; `took`: how long copies took that have not been counted."""
        self._acks, self._took = acks, took
        self.syncs, self.acks, self.copies = Histogram(), Histogram(), Histogram()
        self.messages = self.bytes = 0  # published
        self._owed: deque[tuple[int, float]] = deque()  # numbers that answers wait for, each with when it was made

    def synced(self, began: float) -> None:
        """The journal has a turn's records."""
        self.syncs.add(time.monotonic() - began)

    def decided(self, now: float) -> None:
        """A turn has been decided that began at `now`: what is owed since then."""
        waiting = self._acks.waiting
        if not waiting:
            self._owed.clear()
        elif not self._owed or self._owed[-1][0] < waiting[-1][0]:
            self._owed.append((waiting[-1][0], now))

    def answered(self, turn_began: float) -> None:
        """Answers have been sent; what was made and answered by one turn was never owed."""
        now, since = time.monotonic(), turn_began
        while self._owed and self._owed[0][0] <= self._acks.answered:
            since = self._owed.popleft()[1]
            self.acks.add(now - since)
        if since is turn_began:
            self.acks.add(now - since)

    def published(self, messages: int, size: int) -> None:
        """So much was sent to whoever has subscribed."""
        self.messages += messages
        self.bytes += size

    def count_copies(self) -> None:
        """Those of Clones that came, and of what others had missed."""
        while self._took:
            self.copies.add(self._took.popleft())


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """How many were at most each bound."""
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
