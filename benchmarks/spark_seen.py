"""How soon a micro-batch of 100 rows is in an application's memory, by each way to write it.

    foreach_batch       a stream of its own; from the call of the sink, as Spark makes it
    writeStream         the same stream into format("chp"); from the beginning of addBatch, when Spark hands the batch
                        to the sink: the trigger's time and what was done before, as the query's progress says
    df.write            no stream: from the call of save()
    ... since trigger   of writeStream, from the trigger itself: with its log of offsets and its planning

The application is a Clone in the driver; a batch is written all at once, so its last key says that all of it is there.
The figures from the progress are in whole milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .rounds import Round, percentiles

ROWS, WARM, PAUSE_MS = 100, 5, 400
BEFORE = ("latestOffset", "getBatch", "queryPlanning", "walCommit")  # what a trigger does before addBatch
WAIT_S = 120.0


def seen(spark: Any, address: str, batches: int) -> dict[str, Any]:
    """Return the case."""
    wanted = batches + WARM
    by_call = _foreach_batch(spark, address, wanted)
    by_sink, since_trigger = _stream(spark, address, wanted)
    times = {
        "chp, foreach_batch": by_call,
        "chp, writeStream": by_sink,
        "chp, writeStream since trigger": since_trigger,
        "chp, df.write": _write(spark, address, wanted),
    }
    return {"contenders": {who: _figures(seconds[WARM:]) for who, seconds in times.items()}}


def _figures(seconds: list[float]) -> Round:
    return {"rounds": len(seconds), **percentiles(seconds)}


def _source(spark: Any) -> Any:
    """Return a stream of a hundred rows a trigger, with the same keys each time, and the batch's number as value."""
    stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=1).load()
    number = f"cast(value div {ROWS} as string)"
    return stream.selectExpr(f"concat('/seen/', value % {ROWS}) key", f"{number} value")


def _foreach_batch(spark: Any, address: str, batches: int) -> list[float]:
    from chp_client.spark import foreach_batch

    begun: dict[int, float] = {}
    sink = foreach_batch(servers=address)

    def stamped(frame: Any, batch: int) -> None:
        begun[batch] = time.time()
        sink(frame, batch)

    shown, _ = _run(_source(spark).writeStream.foreachBatch(stamped), address, batches)
    return [shown[n] - begun[n] for n in sorted(shown)]


def _stream(spark: Any, address: str, batches: int) -> tuple[list[float], list[float]]:
    shown, progress = _run(_source(spark).writeStream.format("chp").option("servers", address), address, batches)
    sink, trigger = [], []
    for n in sorted(shown.keys() & progress.keys()):
        at, durations = datetime.fromisoformat(progress[n]["timestamp"]).timestamp(), progress[n]["durationMs"]
        trigger.append(shown[n] - at)
        sink.append(shown[n] - at - sum(durations.get(name, 0) for name in BEFORE) / 1000)
    return sink, trigger


def _run(writer: Any, address: str, batches: int) -> tuple[dict[int, float], dict[int, Any]]:
    """Return when each batch was seen, and what the query's progress says of the batch."""
    from chp_client import Clone

    shown: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="chp-bench-") as folder, Clone([address], subtree="/seen/") as clone:
        clone.wait_until_synced(30)
        with clone.watch(f"/seen/{ROWS - 1}") as watch:
            query = writer.option("checkpointLocation", folder).trigger(processingTime=f"{PAUSE_MS} milliseconds")
            running = query.start()
            try:
                while len(shown) < batches:
                    change = watch.get(WAIT_S)
                    shown[int(change.value)] = time.time()
                _until(lambda: len(_progress(running)) >= batches)
                return shown, _progress(running)
            finally:
                running.stop()


def _progress(query: Any) -> dict[int, Any]:
    return {each["batchId"]: each for each in query.recentProgress if each["numInputRows"]}


def _until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.05)


def _write(spark: Any, address: str, batches: int) -> list[float]:
    from chp_client import Clone

    last = f"/seen/{ROWS - 1}"
    times = []
    with Clone([address], subtree="/seen/") as clone:
        clone.wait_until_synced(30)
        for n in range(batches):
            mark = f"written {n}"
            frame = spark.range(0, ROWS, 1, 1).selectExpr("concat('/seen/', id) key", f"'{mark}' value")
            frame = frame.localCheckpoint()
            with clone.watch(last) as watch:
                begin = time.monotonic()
                frame.write.format("chp").mode("append").option("servers", address).save()
                while clone.get(last) != mark.encode():
                    watch.get(WAIT_S)
                times.append(time.monotonic() - begin)
    return times
