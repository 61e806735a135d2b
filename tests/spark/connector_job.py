"""A job for the kill tests: it writes files of numbers into the store in each way, with faults.

    python -m tests.spark.connector_job SERVERS FOLDER '{"inc": {"0": ["worker"], "1": ["staging"]}, "each": {}}'

Each file of FOLDER/in is a micro-batch. The parts that the last argument names run at the same time, with the given
faults (faulty.py):

    inc     writeStream.format                              -> /inc/
    each    foreach_batch                                   -> /each/
    save    a batch write of each file, with its version    -> /save/
    copy    everything in /src/, and then its changes       -> /copy/
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from chp_client.spark import foreach_batch, session

from . import faulty

Faults = dict[int, list[str]]


class Job:
    """The parts of the job."""

    def __init__(self, spark: Any, servers: str, folder: str) -> None:
        self._spark, self._servers, self._folder = spark, servers, folder

    def _numbers(self, subtree: str) -> Any:
        lines = self._spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        return lines.text(f"{self._folder}/in").repartition(2).selectExpr(f"concat('{subtree}', value) key", "value")

    def _start(self, writer: Any, name: str) -> Any:
        """Start a query, and wait until it has begun: Spark's Python workers have ten seconds to come up."""
        checkpoint = f"{self._folder}/checkpoint.{name}"
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        while query.isActive and query.status["message"] == "Initializing sources":
            threading.Event().wait(0.05)
        return query

    def _options(self, name: str, faults: Faults) -> dict[str, str]:
        return {**faulty.options(self._folder, name, [self._servers], faults), "subtree": f"/{name}/"}

    def inc(self, faults: Faults) -> Any:
        """Write the numbers through the format."""
        writer = self._numbers("/inc/").writeStream.format("faulty").options(**self._options("inc", faults))
        return self._start(writer, "inc")

    def each(self, faults: Faults) -> Any:
        """Write the numbers through the driver."""
        faulty.in_this_process(faulty.Faults(self._folder, "each", faults))
        sink = foreach_batch(servers=self._servers, subtree="/each/")
        return self._start(self._numbers("/each/").writeStream.foreachBatch(sink), "each")

    def copy(self, faults: Faults) -> Any:
        """Keep a subtree equal to another one."""
        source = self._spark.readStream.format("chp").options(
            servers=self._servers, subtree="/src/", startingOffsets="snapshot", partitions=2
        )
        rows = source.load().selectExpr("concat('/copy/', substring(key, 6)) key", "value")
        writer = rows.writeStream.format("faulty").options(**self._options("copy", faults))
        return self._start(writer.option("null.value", "delete"), "copy")

    def save(self, faults: Faults) -> None:
        """Write the numbers file by file, from the first file on in each run of the job."""
        for version, path in enumerate(sorted(Path(self._folder, "in").iterdir())):
            lines = self._spark.read.schema("value string").text(str(path)).repartition(2)
            frame = lines.selectExpr("concat('/save/', value) key", "value")
            given = {**self._options("save", faults), "applicationId": "job", "version": str(version)}
            frame.write.format("faulty").mode("append").options(**given).save()


def end_with(queries: list[Any]) -> None:
    """End the job when a query has failed, whatever the others are at."""
    while True:
        for query in queries:
            if (error := query.exception()) is not None:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
        threading.Event().wait(0.2)


def main(servers: str, folder: str, faults: str) -> None:
    """Run until everything has been taken."""
    wanted: dict[str, Faults] = {
        name: {int(version): points for version, points in given.items()} for name, given in json.loads(faults).items()
    }
    settings: dict[str, Any] = {"spark.master": "local[2,4]", "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = session("kill", quick_start=True, **settings)
    faulty.register(spark)
    job = Job(spark, servers, folder)
    queries = [getattr(job, name)(given) for name, given in wanted.items() if name != "save"]
    threading.Thread(target=end_with, args=(queries,), daemon=True).start()
    if "save" in wanted:
        job.save(wanted["save"])
    for query in queries:
        query.awaitTermination()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
