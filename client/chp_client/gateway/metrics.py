"""The counters of a gateway at /metrics, in the text format of Prometheus (0.0.4), written without a library.

chp_gateway_request_seconds{what}   a histogram of the time of answers, by the kind of the route; streams do not count
chp_gateway_answers_total{code}     answers by status
chp_gateway_...                     requests and readers under way, events and bytes sent, how old the copy is
"""

from __future__ import annotations

import os
import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time
from typing import Any

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
KINDS = ("read", "write", "page", "batch", "other")
# A gauge is its help text, and its value or a value for each mount.
Gauge = tuple[str, float | dict[str, float]]
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class GatewayMetrics:
    """The counters of one gateway."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self._buckets = {kind: [0] * (len(BOUNDS_S) + 1) for kind in KINDS}
        self._sums = dict.fromkeys(KINDS, 0.0)
        self.events = self.event_bytes = self.conflated = self.cut_off = 0
        self.begun = time()

    def took(self, kind: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.answers[status] += 1
        self._buckets[kind][bisect_left(BOUNDS_S, seconds)] += 1
        self._sums[kind] += seconds

    def quantiles(self) -> dict[str, dict[str, float]]:
        """Return the count, p50 and p99 of each kind of request that was answered so far."""
        return {
            kind: {"count": sum(counts), "p50_ms": _bound_ms(counts, 0.5), "p99_ms": _bound_ms(counts, 0.99)}
            for kind, counts in self._buckets.items()
            if any(counts)
        }

    def text(self, gauges: dict[str, Gauge]) -> str:
        """Return all metrics as text; `gauges` has the metrics whose values other parts know, with their help texts."""
        return "\n".join([*self._histograms(), *self._counters(), *_gauges(gauges), *_process(self.begun)]) + "\n"

    def _histograms(self) -> Iterator[str]:
        name = "chp_gateway_request_seconds"
        yield from _head(name, "histogram", "how long answers took, from the head of the request on")
        for kind, counts in self._buckets.items():
            so_far = 0
            for bound, count in zip((*BOUNDS_S, "+Inf"), counts, strict=True):
                so_far += count
                yield f'{name}_bucket{{what="{kind}",le="{bound}"}} {so_far}'
            yield f'{name}_sum{{what="{kind}"}} {self._sums[kind]:.6f}'
            yield f'{name}_count{{what="{kind}"}} {so_far}'

    def _counters(self) -> Iterator[str]:
        yield from _head("chp_gateway_answers_total", "counter", "answers by status")
        for code, count in sorted(self.answers.items()):
            yield f'chp_gateway_answers_total{{code="{code}"}} {count}'
        for name, about in (
            ("events", "events sent to readers of changes"),
            ("event_bytes", "bytes of those"),
            ("conflated", "times that a reader had fallen behind, and got the latest of each key"),
            ("cut_off", "readers that took nothing for too long"),
        ):
            yield from _head(f"chp_gateway_{name}_total", "counter", about)
            yield f"chp_gateway_{name}_total {getattr(self, name)}"


def _bound_ms(counts: list[int], share: float) -> float:
    """Return, in ms, the lowest bound that holds for this share of the answers; if none does, the highest bound."""
    wanted, so_far = share * sum(counts), 0
    for bound, count in zip(BOUNDS_S, counts, strict=False):
        so_far += count
        if so_far >= wanted:
            return bound * 1000
    return BOUNDS_S[-1] * 1000


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _gauges(gauges: dict[str, Gauge]) -> Iterator[str]:
    for name, (about, found) in gauges.items():
        yield from _head(f"chp_gateway_{name}", "gauge", about)
        labelled = {_label(mount): value for mount, value in found.items()} if isinstance(found, dict) else {"": found}
        for label, value in labelled.items():
            shown = f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
            yield f"chp_gateway_{name}{label} {shown}"


def _label(mount: str) -> str:
    escaped = mount.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{mount="{escaped}"}}'


def _process(begun: float) -> Iterator[str]:
    yield from _head("chp_gateway_build_info", "gauge", "1, with what is running")
    yield f'chp_gateway_build_info{{version="{_version()}",python="{platform.python_version()}"}} 1'
    stat: list[Any] = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    for name, kind, about, value in (
        ("process_cpu_seconds_total", "counter", "processor time", (int(stat[11]) + int(stat[12])) / _TICKS),
        ("process_resident_memory_bytes", "gauge", "memory", memory),
        ("process_open_fds", "gauge", "files and sockets", len(os.listdir("/proc/self/fd"))),
        ("process_start_time_seconds", "gauge", "when it began", round(begun, 3)),
    ):
        yield from _head(name, kind, about)
        yield f"{name} {value}"


def _version() -> str:
    try:
        return version("chp-clone")
    except PackageNotFoundError:
        return "unknown"
