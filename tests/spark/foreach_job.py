"""A job for the kill test of `foreach_writer`: it writes files of numbers through `foreach`, and dies at given points.

    python -m tests.spark.foreach_job SERVERS FOLDER '{"0": ["worker", "opened"], "1": ["driver", "staged"]}'

Each file of FOLDER/in is an epoch of two partitions, which come to /n/. The last argument names an epoch, what dies in
it, and the point:

    opened        the partition has begun
    middle        half of the rows are staged
    staged        all rows were handed over, and nothing is committed
    committed     the servers have committed the rows, and Spark does not know it yet

A worker kills itself. For a driver the task stops, until the test kills the job. Each happens once, and makes the file
FOLDER/at.<epoch>.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from chp_client.spark import foreach_rows, foreach_writer, session

POINTS = ("opened", "middle", "staged", "committed")
PARTITIONS = 2
# So many rows are staged together; a partition has 500.
STAGED = 250


class DyingWriter:
    """A writer for `foreach` that dies at a point of some epochs, in one of the partitions."""

    def __init__(self, real: Any, folder: str, faults: dict[int, list[str]]) -> None:
        self._real, self._folder, self._faults = real, folder, faults
        self._epoch = self._rows = 0
        self._dies = False

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a partition."""
        foreach_rows.ROWS = STAGED
        self._epoch, self._rows = epoch_id, 0
        self._dies = epoch_id in self._faults and partition_id == epoch_id // 2 % PARTITIONS
        opened: bool = self._real.open(partition_id, epoch_id)
        self._at("opened")
        return opened

    def process(self, row: Any) -> None:
        """Take a row."""
        self._real.process(row)
        self._rows += 1
        if self._rows == STAGED:
            self._at("middle")

    def close(self, error: Exception | None) -> None:
        """End a partition."""
        self._at("staged")
        self._real.close(error)
        self._at("committed")

    def _at(self, point: str) -> None:
        if not self._dies or self._faults[self._epoch][1] != point:
            return
        try:
            Path(self._folder, f"at.{self._epoch}").touch(exist_ok=False)
        except FileExistsError:
            return
        if self._faults[self._epoch][0] == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


def main(servers: str, folder: str, faults: str) -> None:
    """Run until everything has been taken."""
    settings: dict[str, Any] = {"spark.master": "local[2,4]"}
    spark = session("foreach", quick_start=True, **settings)
    lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{folder}/in")
    rows = lines.repartition(PARTITIONS).selectExpr("concat('/n/', value) key", "value")
    given = {int(epoch): fault for epoch, fault in json.loads(faults).items()}
    writer = rows.writeStream.foreach(DyingWriter(foreach_writer(servers=servers, subtree="/n/"), folder, given))
    writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start().awaitTermination()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
