"""How long a bystander's awaited sets take while a Spark job writes to the same pair.

    idle                  no other client does anything
    while it is staged    from save() on until the commit is sent: two tasks stage rows
    from the commit on    until the server answers questions again: the rows are published and in its map then

A bystander sets one key and waits until both servers have it, again and again. A set belongs to the time in which it
began. The pair has journals. The job's commit notes the moment when it is sent; the processes of one machine share the
clock. On two cores the job's tasks take processor time from the bystander and the servers while they stage. Changes of
the active server are counted too, and there should be none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .roles import Pipe, Role, closing_all
from .rounds import Round, percentiles
from .servers import ChpPair, status, wait_in_sync

VALUE = b"v" * 100
IDLE_S = 5.0
SUBTREE = "/bystander/"
IDLE, STAGED, COMMITTED = "chp, idle", "chp, while it is staged", "chp, from the commit on"


def bystanders(spark: Any, frame: Any, rounds: int) -> dict[str, Any]:
    """Return the case: the rows of a frame are written `rounds` times; only the first time makes new keys."""
    sets: dict[str, list[float]] = {IDLE: [], STAGED: [], COMMITTED: []}
    lasted: dict[str, list[float]] = {IDLE: [], STAGED: [], COMMITTED: []}
    with closing_all() as keep, tempfile.TemporaryDirectory(prefix="chp-bench-") as folder:
        pair = keep(ChpPair())
        wait_in_sync(pair)
        bystander = keep(Role(waiting, addresses=pair.addresses))
        bystander.hear()
        epoch = _epoch(pair)
        stamp = Path(folder, "committed")
        _register(spark)
        options = {"servers": ",".join(pair.addresses), "subtree": "/bench/", "stamp": str(stamp)}
        for _ in range(rounds):
            bystander.say(go=True)
            began = time.monotonic()
            time.sleep(IDLE_S)
            saved = time.monotonic()
            frame.write.format("stamped").mode("append").options(**options).save()
            status(pair.addresses[0], timeout_ms=60_000)
            ended = time.monotonic()
            committed = float(stamp.read_text(encoding="ascii"))
            bystander.say(go=False)
            times = {IDLE: (began, saved), STAGED: (saved, committed), COMMITTED: (committed, ended)}
            for start, took in bystander.hear(300)["sets"]:
                for name, (first, last) in times.items():
                    if first <= start < last:
                        sets[name].append(took)
            for name, (first, last) in times.items():
                lasted[name].append(last - first)
        changes = _epoch(pair) - epoch
    contenders = {name: {**_figures(took), "lasted_s": sum(lasted[name]) / rounds} for name, took in sets.items()}
    return {"contenders": contenders, "rounds": rounds, "changes_of_sides": changes}


def _figures(seconds: list[float]) -> Round:
    if not seconds:
        # No set began in this time, because one set took longer than all of it.
        return {"rounds": 0}
    return {"rounds": len(seconds), **percentiles(seconds), "longest_us": max(seconds) * 1e6}


def _epoch(pair: ChpPair) -> int:
    epochs: list[int] = [status(address, timeout_ms=60_000)["epoch"] for address in pair.addresses]
    return max(epochs)


def waiting(pipe: Pipe, addresses: list[str]) -> None:
    """Set and wait while told to; answer with the beginning and the duration of each set."""
    from chp_client import Clone

    clone = Clone(addresses, subtree=SUBTREE)
    clone.wait_until_synced(timeout=300)
    pipe.say(up=True)
    while True:
        pipe.hear()
        sets = []
        while not pipe.waiting():
            begin = time.monotonic()
            clone.set(f"{SUBTREE}x", VALUE).wait(300)
            sets.append((begin, time.monotonic() - begin))
        pipe.hear()
        pipe.say(sets=sets)


def _register(spark: Any) -> None:
    """Register the format "stamped": the format of the product, which also notes in a file when it sends the commit."""
    from pyspark import cloudpickle

    from chp_client.spark.datasource import ChpDataSource
    from chp_client.spark.write import BatchWriter

    class StampedWriter(BatchWriter):
        """The writer of the product, which notes the moment of the commit in the file `stamp`."""

        stamp: str

        def commit(self, messages: list[Any]) -> None:
            """Note the moment, and commit."""
            Path(self.stamp).write_text(repr(time.monotonic()), encoding="ascii")
            super().commit(messages)

    class StampedSource(ChpDataSource):
        """The format of the product, with one option more."""

        def __init__(self, options: Any) -> None:
            given = {name.lower(): text for name, text in options.items()}
            self._stamp = given.pop("stamp")
            super().__init__(given)

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "stamped"

        def writer(self, schema: Any, overwrite: bool) -> StampedWriter:
            """Return a `StampedWriter` for the file."""
            writer = StampedWriter(*self._for_writing(schema, overwrite), overwrite)
            writer.stamp = self._stamp
            return writer

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(StampedSource)
