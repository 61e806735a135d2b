"""One-minute bars of each pair, computed twice for comparison: by Structured Streaming and in plain Python.

    open, close    price of the first and last tick of the minute, by the ticks' own time, then number
    high, low      the extremes          volume    the sum of the sizes        ticks    the number of ticks
    vwap           sum of price times size, divided by the volume

Prices are whole hundred-thousandths until the last division, so the order of additions changes no digit.

- A tick belongs to the minute of its own time, not of its arrival.
- The *watermark* is two minutes behind the newest tick of the batches before. A tick of a minute that ended before the
  watermark is left out; any other changes the bar that has been published already (output mode update).
- A bar is published as JSON under a key such as `/bars/EUR/USD/2026-01-05T07:31Z`, with a ttl. All bars of a batch
  become visible at once.
"""

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ticks import SCALE, Tick

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WATERMARK = "2 minutes"
TTL_S = 86_400
TICK = "time long, price long, size long, no long"
Bar = dict[str, Any]
Sink = Callable[["DataFrame", int], None]


# -- without Spark: the reference


def reference(ticks: Iterable[Tick]) -> dict[str, Bar]:
    """Return the bars of these ticks, by key."""
    minutes: dict[str, list[Tick]] = defaultdict(list)
    for tick in ticks:
        minute = dt.datetime.fromtimestamp(tick.time_ms // 60_000 * 60, dt.UTC)
        minutes[f"/bars/{tick.pair}/{minute:%Y-%m-%dT%H:%MZ}"].append(tick)
    return {key: _reference_bar(sorted(of, key=lambda tick: (tick.time_ms, tick.no))) for key, of in minutes.items()}


def _reference_bar(ticks: list[Tick]) -> Bar:
    prices = [tick.price for tick in ticks]
    volume = sum(tick.size for tick in ticks)
    return {
        "open": prices[0] / SCALE,
        "high": max(prices) / SCALE,
        "low": min(prices) / SCALE,
        "close": prices[-1] / SCALE,
        "volume": volume,
        "vwap": sum(tick.price * tick.size for tick in ticks) / volume / SCALE,
        "ticks": len(ticks),
    }


# -- with Spark


def read(changes: "DataFrame") -> "DataFrame":
    """Return the ticks (pair, time, price, size, no) in changes of /ticks/ (key, value, operation)."""
    from pyspark.sql import functions as f

    parsed = changes.where("operation <> 'delete'").select(
        f.expr("substring(key, 8)").alias("pair"), f.from_json(f.col("value").cast("string"), TICK).alias("tick")
    )
    return parsed.select("pair", f.timestamp_millis("tick.time").alias("time"), "tick.price", "tick.size", "tick.no")


def compute(ticks: "DataFrame") -> "DataFrame":
    """Return bars as rows to publish: key, value, ttl."""
    from pyspark.sql import functions as f

    at = f.struct("time", "no")
    bars = (
        ticks.withWatermark("time", WATERMARK)
        .groupBy("pair", f.window("time", "1 minute"))
        .agg(
            (f.min_by("price", at) / SCALE).alias("open"),
            (f.max("price") / SCALE).alias("high"),
            (f.min("price") / SCALE).alias("low"),
            (f.max_by("price", at) / SCALE).alias("close"),
            f.sum("size").alias("volume"),
            (f.sum(f.expr("price * size")) / f.sum("size") / SCALE).alias("vwap"),
            f.count("*").alias("ticks"),
        )
    )
    minute = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm'Z'")
    value = f.to_json(f.struct("open", "high", "low", "close", "volume", "vwap", "ticks"))
    return bars.select(
        f.concat_ws("/", f.lit("/bars"), "pair", minute).alias("key"), value.alias("value"), f.lit(TTL_S).alias("ttl")
    )


def start(spark: "SparkSession", servers: list[str], work: Path) -> "StreamingQuery":
    """Start making bars of the ticks of a pair of servers; the folder `work` keeps the checkpoint over a crash."""
    from chp_client.spark import foreach_batch

    changes = (
        spark.readStream.format("chp")
        .options(servers=",".join(servers), subtree="/ticks/", startingOffsets="latest")
        .load()
    )
    sink = foreach_batch(servers=",".join(servers), subtree="/bars/", ttl="ttl")
    return write(compute(read(changes)), sink, work)


def write(bars: "DataFrame", sink: Sink, work: Path) -> "StreamingQuery":
    """Hand the bars that change in a micro-batch to `sink`."""
    writer = bars.writeStream.outputMode("update").foreachBatch(sink)
    return writer.option("checkpointLocation", str(work / "checkpoint")).start()


def parse(items: Iterable[tuple[str, bytes]]) -> dict[str, Bar]:
    """Return published bars, by key."""
    return {key: json.loads(value) for key, value in items}
