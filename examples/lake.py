"""Keep a Parquet table equal to a subtree of the store, deletes included, each change once; or load the table back.

    python -m examples.lake follow tcp://127.0.0.1:5556,tcp://127.0.0.1:5566 /rates/ lake/rates      # until Ctrl-C
    python -m examples.lake follow tcp://127.0.0.1:5556,tcp://127.0.0.1:5566 /rates/ lake/rates --once
    python -m examples.lake load   tcp://127.0.0.1:5556,tcp://127.0.0.1:5566 /rates/ lake/rates      # the table's rows

Parquet has no MERGE. So each micro-batch writes the whole table anew into a folder of its own, such as
lake/rates/batch=7. It has two inputs: the table that the batch before wrote, and its own changes. A folder with
`_SUCCESS` is complete. If the driver dies, Spark runs the batch again under the same number. The second run writes the
same folder from the same two inputs, so a change is in the table once. The two newest folders are kept, because a
reader may still have the older one open.

With Delta or Iceberg, one MERGE statement replaces the last lines of `merge`. The number of the batch then makes sure
that the statement takes effect once.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from chp_client.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key string, value binary, epoch bigint, sequence bigint"
# This many of the newest folders are kept: the table, and the folder that a reader may have open.
KEPT = 2


def folders(table: Path) -> dict[int, Path]:
    """Return the complete folders of a table, by the number of their batch."""
    found = {int(path.name.removeprefix("batch=")): path for path in table.glob("batch=*")}
    return {number: found[number] for number in sorted(found) if (found[number] / "_SUCCESS").exists()}


def newest(spark: SparkSession, table: Path, before: int | None = None) -> DataFrame:
    """Return the newest complete table, or the newest one before batch `before`; an empty table if there is none."""
    whole = [path for number, path in folders(table).items() if before is None or number < before]
    return spark.read.schema(SCHEMA).parquet(str(whole[-1])) if whole else spark.createDataFrame([], SCHEMA)


def last_changes(changes: DataFrame) -> DataFrame:
    """Return the last change of each key. The rows of a batch come in the order of the store."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    latest = Window.partitionBy("key").orderBy(f.desc("epoch"), f.desc("sequence"), f.desc("place"))
    placed = changes.withColumn("place", f.monotonically_increasing_id())
    return placed.withColumn("rank", f.row_number().over(latest)).where("rank = 1")


def merge(table: Path, changes: DataFrame, batch: int) -> None:
    """Write the table after a batch: the rows before it without the changed keys, and the changes without deletes."""
    spark, last = changes.sparkSession, last_changes(changes)
    kept = newest(spark, table, before=batch).join(last, "key", "left_anti")
    added = last.where("value is not null").select("key", "value", "epoch", "sequence")
    kept.unionByName(added).coalesce(1).write.mode("overwrite").parquet(str(table / f"batch={batch}"))
    for number, path in list(folders(table).items())[:-KEPT]:
        if number < batch:
            shutil.rmtree(path)


def follow(spark: SparkSession, servers: str, subtree: str, table: Path, *, once: bool = False) -> None:
    """Merge the changes of a subtree into the table; `once` ends after the changes that exist now."""
    changes = spark.readStream.format("chp").options(servers=servers, subtree=subtree).load()
    query = (
        changes.writeStream.foreachBatch(lambda rows, batch: merge(table, rows, batch))
        .option("checkpointLocation", str(table / "_checkpoint"))
        .trigger(**({"availableNow": True} if once else {"processingTime": "1 second"}))
        .start()
    )
    query.awaitTermination()


def load(spark: SparkSession, servers: str, subtree: str, table: Path) -> None:
    """Make the subtree equal to the table, in one commit: keys that the table lacks are deleted."""
    rows = newest(spark, table).select("key", "value")
    options = {"servers": servers, "subtree": subtree, "confirm.overwrite": "true"}
    rows.write.format("chp").options(**options).mode("overwrite").save()


def main() -> None:
    """Follow a subtree, or load the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("follow", "load"))
    parser.add_argument("servers")
    parser.add_argument("subtree")
    parser.add_argument("table", type=Path)
    parser.add_argument("--once", action="store_true", help="end with what the store has now")
    options = parser.parse_args()
    spark = session("lake")
    if options.action == "load":
        load(spark, options.servers, options.subtree, options.table)
    else:
        follow(spark, options.servers, options.subtree, options.table, once=options.once)


if __name__ == "__main__":
    main()
