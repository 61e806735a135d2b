"""All ordered cross rates of the European Central Bank's history, 7,156,092 rows, published and read back.

    write    df.write.format("chp"), one transaction, all visible at once; nothing is set on the server but its store
    read     spark.read.format("chp") into a cache, as the comparison needs it
    differences   the number of keys whose published value and read value differ, or that one side lacks (by a full
                  outer join); the counts of both sides, and of the server's keys, have to be equal

A day's crosses are the quotients of all pairs of its currencies, the euro among them. A key is /cross/day/base/quote,
a value the quotient as Spark writes a double. `server_mib` is what the server holds afterwards; `server_peak_mib` the
most it had, while it held the staged rows beside the map. There is one round only, as it takes a minute or two.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .rounds import Round
from .servers import ChpServer, status

VALUES = "key string, value binary"


def crosses(spark: Any, days: int) -> dict[str, Any]:
    """Return the case for the last `days` days; 0 means all days."""
    server = ChpServer()
    try:
        frame = _crosses(spark, days).cache()
        rows = frame.count()
        options = {"servers": server.address, "subtree": "/cross/"}
        write = _timed(lambda: frame.write.format("chp").mode("append").options(**options).save(), rows)
        write |= {"server_mib": server.memory_bytes() / (1 << 20), "server_peak_mib": _peak_mib(server.pid)}
        back = spark.read.format("chp").schema(VALUES).options(**options).load().cache()
        read = _timed(back.count, rows)
        read["differences"] = _differences(frame, back) + abs(back.count() - rows) + abs(_keys(server) - rows)
        back.unpersist(blocking=True)
        frame.unpersist(blocking=True)
    finally:
        server.close()
    return {"contenders": {"chp, write": write, "chp, read into a cache": read}}


def _crosses(spark: Any, days: int) -> Any:
    from examples.rates import ecb

    history = ecb.history()[-days:]
    rates = [*ecb.flat(history), *((day, "EUR", 1.0) for day, _ in history)]
    spark.createDataFrame(rates, "day date, currency string, rate double").createOrReplaceTempView("rates")
    return spark.sql(
        "select concat_ws('/', '/cross', a.day, a.currency, b.currency) key,"
        " cast(cast(b.rate / a.rate as string) as binary) value"
        " from rates a join rates b on a.day = b.day and a.currency <> b.currency"
    )


def _timed(work: Any, rows: int) -> Round:
    begin = time.monotonic()
    work()
    seconds = time.monotonic() - begin
    return {"rounds": 1, "rate": rows / seconds, "seconds": seconds, "rows": rows}


def _differences(ours: Any, theirs: Any) -> int:
    both = ours.selectExpr("key", "value ours").join(theirs.selectExpr("key", "value theirs"), "key", "full_outer")
    different: int = both.where("not (ours <=> theirs)").count()
    return different


def _keys(server: ChpServer) -> int:
    keys: int = status(server.address)["keys"]
    return keys


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
