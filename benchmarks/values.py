"""How long one set of a large value takes, awaited: 64 KiB, 1, 4 and 16 MiB, beside Redis SET.

A value goes to Redis once. Here it goes to the server, and back to all clients that hold the key, with the writer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .latency import Awaited
from .roles import closing_all
from .rounds import in_turn, ratio, summary
from .servers import redis_program

KIB, MIB = 1 << 10, 1 << 20
# name, bytes, sets a round; the largest leaves room for its key in a batch of 16 MiB
CASES = [
    ("64 KiB", 64 * KIB, 200),
    ("1 MiB", MIB, 60),
    ("4 MiB", 4 * MIB, 20),
    ("16 MiB", 16 * MIB - 4 * KIB, 8),
]


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    cases: dict[str, Any] = {}
    with closing_all() as keep:
        lanes = {"chp": keep(Awaited("chp"))}
        if redis_program():
            lanes["redis"] = keep(Awaited("redis"))
        for name, size, sets in CASES:
            n = max(4, sets // 4) if quick else sets
            for lane in lanes.values():
                lane.round(4, size)
            turns = {who: partial(lane.round, n, size) for who, lane in lanes.items()}
            results = in_turn(turns, 2 if quick else 5)
            cases[name] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
            if "redis" in results:
                cases[name]["ratio_to_redis"] = ratio(results, "p50_us", "chp", "redis")
    return {"title": "One set of a large value, awaited", "unit": "us", "cases": cases}
