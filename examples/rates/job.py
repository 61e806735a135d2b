"""The Spark job: days of exchange rates come in as files, figures go out to every application.

    files  ->  micro-batch  ->  with what is kept of earlier ones  ->  figures.py  ->  publish  ->  keep for the next

Each batch keeps 425 days of rates in a Parquet folder. Batch n reads the folder of batch n-1, and writes its own folder
before Spark notes that batch n is done. So a batch that runs again after a crash starts from the same state and
computes the same figures. The pair knows the query and the batch, and takes the figures once. Figures show one day:
of the days in one batch only the newest is published. Applications see all figures of a batch at the same moment.

The live figures carry a ttl, and each batch renews them. When the job has ended, they expire in every application, so
that they are not mistaken for today's figures.
"""

import argparse
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from chp_client.spark import foreach_batch, session, stop

from . import figures, leash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCHEMA = "day date, currency string, rate double"
# The ttl of live figures is well above the time between two batches.
TTL_S = 600.0
Sink = Callable[["DataFrame", int], None]


def publisher(servers: str) -> Sink:
    """Return the sink that publishes figures, each batch in one step and once. A null figure deletes its key."""
    return foreach_batch(servers=servers, subtree="/rates/", ttl="ttl", null_value="delete", timeout=60)


def start(spark: "SparkSession", days: Path, work: Path, sink: Sink, ttl_s: float = TTL_S) -> "StreamingQuery":
    """Start reading `days`; each batch's rows (key, value, ttl) go to `sink`; `work` keeps the state over a crash."""
    from pyspark.sql import functions as f

    files = spark.readStream.schema(SCHEMA).option("mode", "PERMISSIVE").csv(str(days))
    arrived = files.select("*", f.col("_metadata.file_modification_time").alias("arrived"))
    each = functools.partial(process, work=work, sink=sink, ttl_s=ttl_s)
    return arrived.writeStream.foreachBatch(each).option("checkpointLocation", str(work / "checkpoint")).start()


def process(batch: "DataFrame", batch_id: int, work: Path, sink: Sink, ttl_s: float = TTL_S) -> None:
    """Process one micro-batch, from the new rates to the published figures."""
    spark = batch.sparkSession
    before = work / "kept" / str(batch_id - 1)
    if batch_id > 0:
        batch = spark.read.schema(SCHEMA + ", arrived timestamp").parquet(str(before)).unionByName(batch)
    rates = figures.clean(batch).cache()
    try:
        sink(figures.to_rows(figures.compute(rates), ttl_s), batch_id)
        _keep(rates, work / "kept" / str(batch_id))
    finally:
        rates.unpersist()
    shutil.rmtree(work / "kept" / str(batch_id - 2), ignore_errors=True)


def _keep(rates: "DataFrame", folder: Path) -> None:
    """Write the rates that later figures can depend on."""
    recent = f"select * from {{rates}} where datediff((select max(day) from {{rates}}), day) < {figures.HORIZON_DAYS}"
    kept = rates.sparkSession.sql(recent, rates=rates)
    kept.coalesce(1).write.mode("overwrite").parquet(str(folder))


class Ledger:
    """A record of what the pair should hold now: every figure that it acknowledged."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}

    def take(self, rows: Iterable[tuple[str, str | None]]) -> None:
        """Add one batch: keys, each with its value, or with None if the key is deleted."""
        for key, value in rows:
            if value is None:
                self.items.pop(key, None)
            else:
                self.items[key] = value

    def write(self, path: Path) -> None:
        """Write the ledger as JSON, in one step."""
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(self.items))
        os.replace(draft, path)


def noted(publish: Sink, ledger: Ledger) -> Sink:
    """Return a sink that publishes, enters what was published into the ledger, and prints a line for each batch."""

    def sink(rows: "DataFrame", batch_id: int) -> None:
        # Compute the rows once, for the pair and for the ledger.
        rows = rows.cache()
        began = time.monotonic()
        publish(rows, batch_id)
        took_ms = 1000 * (time.monotonic() - began)
        ledger.take(rows.select("key", "value").collect())
        rows.unpersist()
        print(f"batch {batch_id}: computed and published in {took_ms:.0f} ms, {len(ledger.items)} figures", flush=True)

    return sink


def main(argv: list[str] | None = None) -> int:
    """Run until the parent says stop, then finish what has arrived."""
    options = _options().parse_args(argv)
    options.days.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    spark = session("rates", cores=2, quick_start=True, **{"spark.ui.showConsoleProgress": False})
    # Install our signal handlers here, after Spark has installed its own.
    orders = leash.orders(options.leash)
    ledger = Ledger()
    sink = noted(publisher(options.servers), ledger)
    print("ready", flush=True)
    failed = _run(start(spark, options.days, options.work, sink, options.ttl), orders)
    if options.ledger:
        ledger.write(options.ledger)
    print(f"done {len(ledger.items)}", flush=True)
    stop(spark)
    return failed


def _run(query: "StreamingQuery", orders: leash.Orders) -> int:
    """Wait for `finish` (what has arrived is still published), `stop`, or a failure of the query."""
    while query.isActive:
        order = leash.next_order(orders, 0.5)
        if order == "finish":
            query.processAllAvailable()
        if order in ("finish", leash.STOP):
            query.stop()
            return 0
    print(f"job: the query ended: {query.exception()}", file=sys.stderr)
    return 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="job", description="Publish figures of exchange rates, computed by Spark.")
    parser.add_argument("days", type=Path, help="the folder into which days are dropped")
    parser.add_argument("--servers", required=True, help="tcp://host:port,tcp://host:port")
    parser.add_argument(
        "--work", type=Path, default=Path("rates-work"), help="checkpoint and state; default rates-work"
    )
    parser.add_argument("--ttl", type=float, default=TTL_S, help=f"seconds that live figures live; default {TTL_S:.0f}")
    parser.add_argument("--ledger", type=Path, help="at the end, write here what was published, as JSON")
    parser.add_argument("--leash", action="store_true", help="take orders from standard input, and end when it does")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
