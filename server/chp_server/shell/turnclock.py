"""How long turns take: a histogram for metrics, the longest, and a line of the log for each that was too long.

A turn holds up everybody, so it is to be short whatever clients do. What counts is the processor time of the serving
thread: on a busy machine a turn may last, and that is not its fault. Which part of the turn took it is told by the wall
clock, which is cheaper to read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import Any

from . import logs

log = logs.get_log(__name__)
BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
SLOW_S = 0.1  # an operator is told: a few of these in a row, and the peer takes over


class TurnClock:
    """Begin, laps, end; again and again."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0
        self.longest_s = 0.0
        self.longest_did = ""
        self._cpu = 0.0
        self._laps: list[tuple[str, float]] = []  # each with its end

    def begin(self) -> None:
        """A turn begins; what the wait for it took of the processor counts as a part of it."""
        self._cpu = self._cpu or time.thread_time()
        self._laps = [("", time.monotonic())]

    def lap(self, name: str) -> None:
        """What was done since the last lap has this name."""
        self._laps.append((name, time.monotonic()))

    def end(self) -> None:
        """The turn is over."""
        cpu = time.thread_time()
        took_s, self._cpu = cpu - self._cpu, cpu
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.sum_s += took_s
        if took_s > self.longest_s:
            self.longest_s, self.longest_did = took_s, self._did()
        if took_s > SLOW_S:
            log.limited("a long turn", cpu_ms=round(took_s * 1000), did=self._did())

    def _did(self) -> str:
        """The parts of a turn that took a tenth of it or more, the longest first."""
        took: Counter[str] = Counter()
        for (_, began), (name, ended) in pairwise(self._laps):
            took[name] += ended - began  # type: ignore[assignment]
        whole = sum(took.values())
        return ", ".join(f"{name} {round(lap * 1000)} ms" for name, lap in took.most_common() if lap >= whole / 10)

    def facts(self) -> dict[str, Any]:
        """For `chp status`; since the start."""
        return {
            "turns": sum(self.counts),
            "seconds": round(self.sum_s, 3),
            "longest_ms": round(self.longest_s * 1000, 1),
            "longest_did": self.longest_did,
        }

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """As Prometheus has it: how many turns took at most so long, and the sum of all."""
        buckets, total = [], 0
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self.sum_s
