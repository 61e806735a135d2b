"""A live table on a Spark cluster: tasks on other machines read what changes while they run.

    spark-submit --master spark://host:7077 --py-files chp.zip examples/live_on_cluster.py --servers tcp://127.0.0.1:5556

First many short tasks read a rate. Then one task on each executor keeps reading while this program, the driver, changes
another key. The driver makes each change after all tasks have seen the change before. The program prints a line of
JSON: which processes read, from which copy of the package, and after how many seconds the changes were seen.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

import chp_client
from chp_client import Clone
from chp_client.spark import live

CHANGES = 5
PATIENCE_S = 120.0


def main() -> None:
    """Run both parts, and print what was seen."""
    options = _options().parse_args()
    context = SparkSession.builder.appName("live-on-cluster").getOrCreate().sparkContext
    rates = live(options.servers, "/rates/", codec="text")
    servers = options.servers

    def read(numbers: Iterator[int]) -> Iterator[tuple[str, int, str, str]]:
        yield os.getcwd(), os.getpid(), chp_client.__file__, rates["/rates/EUR/USD"]

    def follow(numbers: Iterator[int]) -> Iterator[tuple[str, float, int]]:
        (number,) = numbers
        slowest, seen = 0.0, 0
        until = time.monotonic() + PATIENCE_S
        with Clone(servers, None, codec="text") as tell:
            while seen < CHANGES and time.monotonic() < until:
                no, _, at = rates.get("/rates/changed", "0 0").partition(" ")
                if int(no) > seen:
                    slowest, seen = max(slowest, time.time() - float(at)), int(no)
                tell.set(f"/seen/{number}", str(seen)).wait(PATIENCE_S)
        yield os.getcwd(), slowest, seen

    with Clone(servers, codec="text") as clone:
        clone.set("/rates/EUR/USD", "1.0832").wait(PATIENCE_S)
        clone.delete_many([key for key in clone if key.startswith("/seen/")] or ["/rates/changed"])
        short = context.parallelize(range(options.tasks), options.tasks).mapPartitions(read).collect()
        with ThreadPoolExecutor(1) as pool:
            changed = pool.submit(change, clone, options.executors)
            long = context.parallelize(range(options.executors), options.executors).mapPartitions(follow).collect()
            changed.result()
    print(json.dumps(summary(short, long)), flush=True)
    context.stop()


def change(clone: Clone, executors: int) -> None:
    """Change a key several times, each time after all tasks have seen the change before."""
    for no in range(CHANGES):
        with clone.watch("/seen/", start="snapshot") as watch:
            while {clone.get(f"/seen/{i}") for i in range(executors)} != {str(no)}:
                watch.get(timeout=PATIENCE_S)
        clone["/rates/changed"] = f"{no + 1} {time.time()}"


def summary(short: list[tuple[str, int, str, str]], long: list[tuple[str, float, int]]) -> dict[str, Any]:
    """Return the figures to print, computed from what the tasks have returned."""
    return {
        "tasks": len(short),
        "executors": len({where for where, _, _, _ in short}),
        "processes": len({(where, pid) for where, pid, _, _ in short}),
        "package": sorted({path for _, _, path, _ in short}),
        "values": sorted({value for _, _, _, value in short}),
        "followers": len({where for where, _, _ in long}),
        "changes_seen": min(seen for _, _, seen in long),
        "slowest_s": max(slowest for _, slowest, _ in long),
    }


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Read a live table on all executors of a cluster.")
    parser.add_argument("--servers", required=True, help="tcp://host:port,tcp://host:port")
    parser.add_argument("--tasks", type=int, default=1000, help="short tasks; default 1000")
    parser.add_argument("--executors", type=int, default=2, help="long tasks; as many as there are cores; default 2")
    return parser


if __name__ == "__main__":
    main()
