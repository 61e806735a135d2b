"""Sets per second, acknowledged and in the map of every watcher: one key a call, and `set_many` of 1,000.

    one key a call   10 and 100 bytes, 1 watcher       beside Redis SET + PUBLISH of each key, pipelined
    set_many         10 and 100 bytes, 1 watcher       beside Redis MSET + one PUBLISH of 1,000 packed by hand
    set_many         100 bytes; 4, 20 and 100 watchers      the same

A rate counts from the first call to the moment the slowest watcher holds the last set and every set is acknowledged.
`delivered` is the part of all deliveries that arrived (for us: as updates; what a resync healed is counted there), and
`right` how many watchers ended with the right map.
"""

from __future__ import annotations

import itertools
from typing import Any

from .roles import Meter, Role, closing_all
from .rounds import Round, in_turn, ratio, summary
from .servers import ChpServer, Redis, redis_program
from .watchers import watchers
from .writers import writer

# name, how, value bytes, watchers, sets a round for us and for Redis
CASES = [
    ("one key a call, 100 bytes, 1 watcher", "keys", 100, 1, 600_000, 60_000),
    ("one key a call, 10 bytes, 1 watcher", "keys", 10, 1, 600_000, 60_000),
    ("set_many, 100 bytes, 1 watcher", "many", 100, 1, 1_500_000, 400_000),
    ("set_many, 10 bytes, 1 watcher", "many", 10, 1, 3_000_000, 600_000),
    ("set_many, 100 bytes, 4 watchers", "many", 100, 4, 500_000, 200_000),
    ("set_many, 100 bytes, 20 watchers", "many", 100, 20, 150_000, 60_000),
    ("set_many, 100 bytes, 100 watchers", "many", 100, 100, 50_000, 30_000),
]
_markers = itertools.count(1)


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Run the benchmark."""
    cases = {}
    for name, how, size, n, ours, theirs in CASES:
        if only not in name:
            continue
        share, rounds = (5, 2) if quick else (1, 5)
        with closing_all() as keep:
            contenders = {"chp": keep(Lane("chp", how, n, size, _round_up(ours // share)))}
            if redis_program():
                contenders["redis"] = keep(Lane("redis", how, n, size, _round_up(theirs // share)))
            for lane in contenders.values():
                # The first round fills the map and warms everything up.
                lane.round()
            results = in_turn({name: lane.round for name, lane in contenders.items()}, rounds)
        cases[name] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
        if "redis" in results:
            cases[name]["ratio_to_redis"] = ratio(results, "rate", "chp", "redis")
    return {"title": "Sets acknowledged and seen by every watcher", "unit": "sets/s", "cases": cases}


def _round_up(sets: int) -> int:
    return max(10_000, sets // 10_000 * 10_000)


class Lane:
    """A server, a writer and its watchers, kept running over the rounds."""

    def __init__(  # noqa: PLR0917 (numbers that are always given in this order)
        self, store: str, how: str, n: int, size: int, sets: int, reader: str = "", keyed: tuple[Any, str] | None = None
    ) -> None:
        self.sets, self.size, self.n = sets, size, n
        self.server: Any = keyed[0] if keyed else ChpServer() if store == "chp" else Redis()
        address = keyed[1] if keyed else f"tcp://127.0.0.1:{self.server.port}"
        kind = {"chp": "chp", "redis": "redis_keys" if how == "keys" else "redis_packed"}[store]
        self.watchers = Role(watchers, kind=reader or kind, address=address, n=n)
        self.watchers.hear()
        way = "packed" if (store, how) == ("redis", "many") else how
        self.writer = Role(writer, kind=f"{store}_{way}", address=address)
        self.writer.hear()

    def round(self) -> Round:
        """Return one measurement."""
        work: dict[str, Any] = {"sets": self.sets, "size": self.size, "marker": str(next(_markers))}
        meter = Meter(writer=self.writer, server=self.server)
        self.watchers.ask(**work)
        self.writer.say(**work)
        wrote, saw = self.writer.hear(), self.watchers.hear(200)
        seconds = max(wrote["end"], saw["end"]) - wrote["begin"]
        return {
            "rate": self.sets / seconds,
            "seconds": seconds,
            **meter.read(self.sets),
            "watcher_cpu_us": saw["cpu_s"] / self.sets / self.n * 1e6,
            "delivered": min(1.0, saw["seen"] / (self.sets + 1) / self.n),
            "right": saw["right"],
            "holes": saw["holes"],
            "resyncs": saw["resyncs"],
        }

    def close(self) -> None:
        """End all."""
        for process in (self.writer, self.watchers, self.server):
            process.close()
