"""Spark and the store: a million rows written at once and read back, and how soon a small micro-batch is seen.

    write   a cached DataFrame in local[2] into a lone in-memory server, committed atomically; values of 20 or 100 bytes
            beside foreachPartition with one set a row, with redis-py pipelines of 1,000 SETs, and with pipelines of
            ten MSETs of 1,000 keys each
    read    the same keys as a DataFrame: all columns, and four of them
    topic   the rows of 100 bytes published to a topic by one commit, and read back by two tasks
    seen    a micro-batch of 100 rows: from the sink to an application's memory (spark_seen.py)
    beside  another client's awaited sets while the job writes to a pair, beside idle (spark_bystander.py)
    cross   all 7,156,092 cross rates of the ECB's history, published, read back and compared (spark_crosses.py)

A write is acknowledged when it is committed and in the log. Right after that the server puts the rows into its map, and
only then takes the next request. Each round begins when the rows are in the map. Two contenders include this time:
`chp, 3 in a row`, one write after the other and the wait until the last rows are in the map; and `chp, just written`, a
read right after a write. The other reads are of keys that have an image already. `the first of the session` is one
write of 100-byte values, before anything is warm: Python workers, imports, the JVM's compiler.

Each round of a write and of a read tells the processor seconds of driver, JVM, Python workers and server
(spark_processor.py). Those of a write include what the server does until the rows are in its map.

The writes to Redis, and those by one set a row, are not atomic. Redis tells no reader of a change. Users
would write such programs otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from .rounds import Round, in_turn, ratio, summary
from .servers import ChpServer, Redis, redis_program, status
from .spark_bystander import bystanders
from .spark_crosses import crosses
from .spark_processor import Processor
from .spark_seen import seen

KEY = "concat('/bench/', lpad(id, 8, '0')) key"
VALUE, LARGER = (f"cast(repeat('x', {size}) as binary) value" for size in (20, 100))
IN_A_ROW = 3
TOPIC = "bench"


def run(quick: bool = False, only: str = "") -> dict[str, Any]:
    """Run the benchmark."""
    from chp_client.spark import session, stop

    rows, rounds = (100_000, 2) if quick else (1_000_000, 5)
    server, redis = ChpServer(), Redis() if redis_program() else None
    settings: dict[str, Any] = {"spark.driver.memory": "4g"}
    spark = session("bench", cores=2, **settings)
    cases: dict[str, Any] = {}
    try:
        frame, larger = (spark.range(0, rows, 1, 2).selectExpr(KEY, value).cache() for value in (VALUE, LARGER))
        frame.count()
        larger.count()
        # The slow ways to write, which set each row singly, get fewer rows.
        fewer = rows // 10
        few = frame.limit(fewer).repartition(2).cache()
        few.count()
        options = {"servers": server.address, "subtree": "/bench/"}

        def idle() -> None:
            status(server.address, timeout_ms=60_000)

        used = Processor(server.pid)
        first = _rate(lambda: _save(larger, options), rows, idle, used)()
        writers = {
            "chp": _rate(lambda: _save(frame, options), rows, idle, used),
            "chp, 100-byte values": _rate(lambda: _save(larger, options), rows, idle, used),
            "chp, 3 in a row": _rate(lambda: _in_a_row(frame, options, idle), IN_A_ROW * rows, idle, used),
            "chp, 3 in a row of 100": _rate(lambda: _in_a_row(larger, options, idle), IN_A_ROW * rows, idle, used),
            "one set a row": _rate(lambda: _each_row(few, server.address), fewer, idle, used),
        }
        if redis is not None:
            port, by_redis = redis.port, Processor(redis.pid)
            writers["redis"] = _rate(lambda: _pipelines(few, port), fewer, idle, by_redis)
            writers["redis, MSET"] = _rate(lambda: _msets(frame, port), rows, idle, by_redis)
        cases["rows written"] = _case(writers, rounds)
        cases["rows written"]["contenders"]["chp, the first of the session"] = summary([first])
        readers = {
            "chp": _rate(lambda: _load(spark, options), rows, idle, used),
            "chp, 4 columns": _rate(lambda: _load(spark, options, _FOUR), rows, idle, used),
            "chp, just written": _rate(lambda: _load(spark, options), rows, lambda: _save(frame, options)),
        }
        cases["rows read"] = _case(readers, rounds)
        published = {"chp": _rate(lambda: _publish(larger, server.address), rows, lambda: _emptied(server.address))}
        cases["rows published to a topic"] = _case(published, rounds)
        topic = {"servers": server.address, "topic": TOPIC}
        cases["rows read from a topic"] = _case({"chp": _rate(lambda: _load(spark, topic), rows, idle)}, rounds)
        cases["a micro-batch of 100 rows, seen"] = seen(spark, server.address, 5 if quick else 30)
        cases[f"a bystander's awaited sets beside a commit of {rows:,} rows"] = bystanders(spark, frame, rounds)
        frame.unpersist()
        larger.unpersist()
        cases["cross rates"] = crosses(spark, 200 if quick else 0)
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
    for other in [name for name in results if not name.startswith("chp")]:
        case[f"ratio_to_{other}"] = ratio(results, "rate", "chp", other)
    return case


def _rate(
    work: Callable[[], None], rows: int, before: Callable[[], None], used: Processor | None = None
) -> Callable[[], Round]:
    def once() -> Round:
        before()
        earlier = used.read() if used else {}
        begin = time.monotonic()
        work()
        seconds = time.monotonic() - begin
        figures: Round = {"rate": rows / seconds, "seconds": seconds}
        if used:
            # Wait for the server again: its work on the rows after its acknowledgement counts too.
            before()
            figures |= used.since(earlier)
        return figures

    return once


def _save(frame: Any, options: dict[str, str]) -> None:
    frame.write.format("chp").mode("append").options(**options).save()


def _in_a_row(frame: Any, options: dict[str, str], idle: Callable[[], None]) -> None:
    for _ in range(IN_A_ROW):
        _save(frame, options)
    idle()


def _publish(frame: Any, address: str) -> None:
    frame.write.format("chp").mode("append").options(servers=address, topic=TOPIC).save()


def _emptied(address: str) -> None:
    from chp_client import Clone, NoSuchTopic

    with Clone([address], subtree=None) as clone, suppress(NoSuchTopic):
        clone.topic(TOPIC).remove(timeout=60)
    status(address, timeout_ms=60_000)


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


def _msets(frame: Any, port: int) -> None:
    def send(rows: Iterator[Any]) -> None:
        import redis

        pipe, batch = redis.Redis(port=port).pipeline(transaction=False), {}
        for n, row in enumerate(rows, 1):
            batch[row.key] = bytes(row.value)
            if n % 1000 == 0:
                pipe.mset(batch)
                batch = {}
            if n % 10_000 == 0:
                pipe.execute()
        if batch:
            pipe.mset(batch)
        pipe.execute()

    frame.foreachPartition(send)
