"""The cost of a watcher that loops over changes, beside a watcher that reads its map: `set_many` of 1,000, 100 bytes.

    looks     reads the map when it likes           batches   `for changes in watch.batches()`, columns
    changes   `for change in watch`, one by one     redis     a loop over messages with a thousand packed in each

`watcher_cpu_us` is the processor time of the watcher's process for one update, with the program's loop.
"""

from __future__ import annotations

from typing import Any

from .roles import closing_all
from .rounds import in_turn, ratio, summary
from .servers import redis_program
from .sets import Lane

READERS = {"chp looks": "chp", "chp batches": "chp_batches", "chp changes": "chp_changes"}


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    sets, rounds = (200_000, 2) if quick else (1_000_000, 5)
    with closing_all() as keep:
        lanes = {name: keep(Lane("chp", "many", 1, 100, sets, reader)) for name, reader in READERS.items()}
        if redis_program():
            lanes["redis"] = keep(Lane("redis", "many", 1, 100, sets // 2))
        for lane in lanes.values():
            lane.round()
        results = in_turn({name: lane.round for name, lane in lanes.items()}, rounds)
    case: dict[str, Any] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
    for name in ("batches", "changes"):
        case[f"ratio_of_{name}_cpu"] = ratio(results, "watcher_cpu_us", f"chp {name}", "chp looks")
    return {"title": "Watchers that loop", "unit": "sets/s", "cases": {"set_many, 100 bytes, 1 watcher": case}}
