"""Rounds in turn, and their summary: median, spread, ratio."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

Round = dict[str, Any]


def in_turn(contenders: Mapping[str, Callable[[], Round]], rounds: int) -> dict[str, list[Round]]:
    """Run all contenders `rounds` times, in alternating order, so that a drift of the machine affects all alike."""
    results: dict[str, list[Round]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name, run in list(contenders.items())[:: -1 if i % 2 else 1]:
            results[name].append(run())
            _progress(f"  round {i + 1}/{rounds} {name}: {_short(results[name][-1])}")
    return results


def summary(rounds: list[Round]) -> Round:
    """Return the number of rounds, and for every number in them its median, lowest and highest value."""
    out: Round = {"rounds": len(rounds)}
    for key in rounds[0]:
        values = [r[key] for r in rounds if isinstance(r.get(key), int | float)]
        if values:
            out[key] = statistics.median(values)
            out[key + "_spread"] = [min(values), max(values)]
    return out


def ratio(results: Mapping[str, list[Round]], key: str, ours: str, theirs: str) -> float:
    """Return the median of the rounds' ratios. Both values of a ratio come from the same round."""
    pairs = zip(results[ours], results[theirs], strict=True)
    return statistics.median(float(a[key] / b[key]) for a, b in pairs if b[key])


def percentiles(seconds: list[float]) -> Round:
    """Return p50 and p99 in microseconds."""
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e6 for q in (0.5, 0.99))
    return {"p50_us": p50, "p99_us": p99}


def _short(result: Round) -> str:
    shown = [f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v:,}" for k, v in result.items()
             if isinstance(v, int | float)]  # fmt: skip
    return ", ".join(shown[:6])


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
