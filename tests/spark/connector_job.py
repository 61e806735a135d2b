"""A job for the kill tests: files of numbers become increments in the store, with faults at chosen points.

    python -m tests.spark.connector_job SERVERS FOLDER '{"0": "worker", "1": "staging", "2": "staged"}'

Each file of FOLDER/in is a micro-batch. By batch: "worker": the Python worker of a task kills itself, in the middle
of its first attempt. The others stop at a point, leave a file FOLDER/at.<batch>, and go on once there is
FOLDER/go.<batch>: "staging" in the middle of a task, "staged" before the commit, "committed" after it.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from chp_client.spark import session
from chp_client.spark.datasource import ChpDataSource
from chp_client.spark.write import StreamWriter


class FaultyWriter(StreamWriter):
    """The real one, with the faults around it."""

    folder: str
    faults: dict[str, str]

    def _fault(self, batch: int, point: str) -> None:
        at = Path(self.folder) / f"at.{batch}"
        if self.faults.get(str(batch)) != point or at.exists():
            return
        at.touch()
        if point == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        while not (Path(self.folder) / f"go.{batch}").exists():
            threading.Event().wait(0.02)

    def write(self, iterator: Iterator[Any]) -> Any:
        """Stops after its first Arrow batch was handed over."""
        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))

        def faulty() -> Iterator[Any]:
            for i, rows in enumerate(iterator):
                if i == 1 and TaskContext.get().partitionId() == 0:
                    self._fault(batch, "worker")
                    self._fault(batch, "staging")
                yield rows

        return super().write(faulty())

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Stops before, or after."""
        self._fault(batchId, "staged")
        super().commit(messages, batchId)
        self._fault(batchId, "committed")


class FaultySource(ChpDataSource):
    """format("faulty")."""

    folder: str
    faults: dict[str, str]

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> FaultyWriter:
        """With the faults."""
        options, shape = self._for_writing(schema, overwrite)
        writer = FaultyWriter(options, shape, overwrite)
        writer.folder, writer.faults = self.folder, self.faults
        return writer


def main(servers: str, folder: str, faults: str) -> None:
    """Run until every file has been taken."""
    FaultySource.folder, FaultySource.faults = folder, json.loads(faults)
    settings = {"spark.master": "local[2,4]", "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = session("kill", quick_start=True, **settings)
    spark.dataSource.register(FaultySource)
    numbers = (
        spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{folder}/in").repartition(2)
    )
    rows = numbers.selectExpr("concat('/inc/', value) key", "value")
    stream = rows.writeStream.format("faulty").options(servers=servers, subtree="/inc/")
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
