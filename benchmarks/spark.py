"""Spark and the store: a million rows written at once and read back, and how soon a small micro-batch is seen.

    write   a cached DataFrame in local[2] into a lone in-memory server, committed atomically
            beside foreachPartition with one set a row, and redis-py pipelines of 1,000 from foreachPartition
    read    the same keys as a DataFrame: all columns, and four of them
    batch   100 rows: from the sink's call to the moment an application holds the last one; foreach_batch, and the sink

Redis and one set a row are not atomic and no reader is told of anything; they are what people write otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from .rounds import Round, in_turn, ratio, summary
from .servers import ChpServer, Redis, redis_program

COLUMNS = ["concat('/bench/', lpad(id, 8, '0')) key", "cast(repeat('x', 20) as binary) value"]


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """The benchmark."""
    from chp_client.spark import session, stop

    rows, rounds = (100_000, 2) if quick else (1_000_000, 5)
    server, redis = ChpServer(), Redis() if redis_program() else None
    spark = session("bench", cores=2)
    cases: dict[str, Any] = {}
    try:
        frame = spark.range(0, rows, 1, 2).selectExpr(*COLUMNS).cache()
        frame.count()
        fewer = rows // 10  # of what takes microseconds a row
        few = frame.limit(fewer).repartition(2).cache()
        few.count()
        options = {"servers": server.address, "subtree": "/bench/"}
        writers = {
            "chp": _rate(lambda: _save(frame, options), rows),
            "one set a row": _rate(lambda: _each_row(few, server.address), fewer),
        }
        if redis is not None:
            port = redis.port
            writers["redis"] = _rate(lambda: _pipelines(few, port), fewer)
        cases["rows written"] = _case(writers, rounds)
        readers = {"chp": lambda: _load(spark, options), "chp, 4 columns": lambda: _load(spark, options, _FOUR)}
        cases["rows read"] = _case({name: _rate(read, rows) for name, read in readers.items()}, rounds)
        cases["100 rows seen, ms"] = _seen(spark, server.address, 5 if quick else 20)
    finally:
        stop(spark)
        for process in (server, redis):
            if process is not None:
                process.close()
    return {"title": "Spark", "unit": "rows/s", "cases": cases}


_FOUR = "key string, value binary, revision bigint, ttl double"


def _case(contenders: dict[str, Callable[[], Round]], rounds: int) -> dict[str, Any]:
    for warm in contenders.values():
        warm()
    results = in_turn(contenders, rounds)
    case: dict[str, Any] = {"contenders": {who: summary(each) for who, each in results.items()}, "raw": results}
    for other in set(results) - {"chp"}:
        case[f"ratio_to_{other}"] = ratio(results, "rate", "chp", other)
    return case


def _rate(work: Callable[[], None], rows: int) -> Callable[[], Round]:
    def once() -> Round:
        begin = time.monotonic()
        work()
        seconds = time.monotonic() - begin
        return {"rate": rows / seconds, "seconds": seconds}

    return once


def _save(frame: Any, options: dict[str, str]) -> None:
    frame.write.format("chp").mode("append").options(**options).save()


def _load(spark: Any, options: dict[str, str], schema: str = "") -> None:
    reader = spark.read.format("chp").options(**options)
    (reader.schema(schema) if schema else reader).load().write.format("noop").mode("overwrite").save()


def _each_row(frame: Any, address: str) -> None:
    def send(rows: Iterator[Any]) -> None:
        from chp_client import Clone

        with Clone([address], subtree=None) as clone:
            for row in rows:
                clone.set(row.key, bytes(row.value))
            clone.flush(120)

    frame.foreachPartition(send)


def _pipelines(frame: Any, port: int) -> None:
    def send(rows: Iterator[Any]) -> None:
        import redis

        pipe = redis.Redis(port=port).pipeline(transaction=False)
        for n, row in enumerate(rows, 1):
            pipe.set(row.key, bytes(row.value))
            if n % 1000 == 0:
                pipe.execute()
        pipe.execute()

    frame.foreachPartition(send)


def _seen(spark: Any, address: str, batches: int) -> dict[str, Any]:
    """From the sink's call, as `foreachBatch` sees it, to the last key in a Clone's map."""
    from chp_client import Clone
    from chp_client.spark.foreach import foreach_batch

    def by_driver(frame: Any, n: int) -> None:
        foreach_batch(servers=address, applicationId=f"bench-{time.monotonic()}")(frame, n)

    def by_tasks(frame: Any, n: int) -> None:
        _save(frame, {"servers": address})

    results: dict[str, Any] = {}
    with Clone([address], subtree="/seen/") as clone:
        clone.wait_until_synced(30)
        for name, sink in (("foreach_batch", by_driver), ("format chp", by_tasks)):
            times = [_one_batch(spark, clone, sink, n, name) for n in range(batches + 3)][3:]
            results[name] = {"ms": statistics.median(times), "ms_max": max(times), "batches": batches}
    return {"contenders": results}


def _one_batch(spark: Any, clone: Any, sink: Callable[[Any, int], None], n: int, name: str) -> float:
    mark = f"{name} {n}"
    frame = spark.range(0, 100, 1, 1).selectExpr("concat('/seen/', id) key", f"'{mark}' value").localCheckpoint()
    with clone.watch("/seen/99") as watch:
        begin = time.monotonic()
        sink(frame, n)
        while clone.get("/seen/99") != mark.encode():
            next(iter(watch))
    return (time.monotonic() - begin) * 1000
