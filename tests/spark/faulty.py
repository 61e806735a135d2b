"""The format "faulty": the real format("chp"), with faults at chosen points of its writes.

    df.write.format("faulty").options(**options(folder, "save", servers, {0: ["raise"]}), subtree=...)

A write is known by its version: the batch id of a stream, the option of a batch write, else 0. Its points are:

    worker, executor    The Python worker kills itself, or the executor's JVM, in the middle of a task. The other tasks
                        wait for that, so that there is work left.
    raise               The task raises in its middle.
    staging             The task stops in its middle.
    staged, committed   The write stops before the commit, or after it.

Each fault happens once. A process at a point makes the file FOLDER/at.<name>.<version>.<point>. A stopped one goes on
once there is a file go.<...>. Each attempt of a task makes FOLDER/began.<name>.<version>.<partition>.<attempt>.<id>,
and ended.<...> when it has staged everything. The middle of a task is after its first Arrow batch.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from chp_client.spark import staging
from chp_client.spark.datasource import ChpDataSource
from chp_client.spark.write import BatchWriter, StreamWriter

IN_A_TASK = ("worker", "executor", "raise", "staging")


class Faults:
    """The faults of one sink."""

    def __init__(self, folder: str, name: str, wanted: dict[int, list[str]]) -> None:
        self.folder, self.name, self.wanted = Path(folder), name, wanted

    def at(self, version: int, point: str) -> None:
        """Do what is wanted at this point, once."""
        what = f"{self.name}.{version}.{point}"
        if point not in self.wanted.get(version, ()):
            return
        try:
            (self.folder / f"at.{what}").touch(exist_ok=False)
        except FileExistsError:
            return
        if point == "raise":
            raise RuntimeError("a fault that was asked for")
        if point in ("worker", "executor"):
            os.kill(os.getpid() if point == "worker" else _executor(), signal.SIGKILL)
        self._wait_for(f"go.{what}")

    def _wait_for(self, name: str) -> None:
        while not (self.folder / name).exists():
            threading.Event().wait(0.02)

    def task(self, version: int, rows: Iterator[Any], write: Callable[[Iterator[Any]], Any]) -> Any:
        """Run `write` with the faults in it."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        which = f"{self.name}.{version}.{partition}.{context.attemptNumber()}.{context.taskAttemptId()}"

        def faulty() -> Iterator[Any]:
            if partition and "executor" in self.wanted.get(version, ()):
                self._wait_for(f"at.{self.name}.{version}.executor")
            for i, batch in enumerate(rows):
                if i == 1 and partition == 0:
                    for point in IN_A_TASK:
                        self.at(version, point)
                yield batch

        (self.folder / f"began.{which}").touch()
        said = write(faulty())
        (self.folder / f"ended.{which}").touch()
        return said


def _executor() -> int:
    """Return the process of this worker's executor, which is the parent of the daemon that is the worker's parent."""
    with open(f"/proc/{os.getppid()}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


class FaultyBatchWriter(BatchWriter):
    """The writer of a batch write, with faults."""

    faults: Faults
    version: int

    def write(self, iterator: Iterator[Any]) -> Any:
        """Write in a task, with the faults."""
        return self.faults.task(self.version, iterator, super().write)

    def commit(self, messages: list[Any]) -> None:
        """Commit in the process beside the driver, with the faults."""
        self.faults.at(self.version, "staged")
        super().commit(messages)
        self.faults.at(self.version, "committed")


class FaultyStreamWriter(StreamWriter):
    """The writer of a stream, with faults."""

    faults: Faults

    def write(self, iterator: Iterator[Any]) -> Any:
        """Write in a task, with the faults."""
        context = TaskContext.get()
        assert context is not None
        return self.faults.task(int(context.getLocalProperty("streaming.sql.batchId")), iterator, super().write)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit in the process beside the driver, with the faults."""
        self.faults.at(batchId, "staged")
        super().commit(messages, batchId)
        self.faults.at(batchId, "committed")


class FaultySource(ChpDataSource):
    """format("faulty")."""

    def __init__(self, options: Any) -> None:
        given = {name.lower(): text for name, text in options.items()}
        wanted = {int(version): points for version, points in json.loads(given["faults"]).items()}
        self.faults = Faults(given["faults.folder"], given["faults.name"], wanted)
        super().__init__({name: text for name, text in given.items() if not name.startswith("faults")})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "faulty"

    def writer(self, schema: Any, overwrite: bool) -> FaultyBatchWriter:
        """Return a writer with the faults."""
        options, shape = self._for_writing(schema, overwrite)
        writer = FaultyBatchWriter(options, shape, overwrite)
        writer.faults, writer.version = self.faults, options["version"] or 0
        return writer

    def streamWriter(self, schema: Any, overwrite: bool) -> FaultyStreamWriter:
        """Return a writer with the faults."""
        options, shape = self._for_writing(schema, overwrite)
        writer = FaultyStreamWriter(options, shape, overwrite)
        writer.faults = self.faults
        return writer


def register(spark: Any) -> None:
    """Make the format known to a session; its classes travel to the workers with their code."""
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FaultySource)


def options(folder: Path | str, name: str, servers: list[str], wanted: dict[int, list[str]]) -> dict[str, str]:
    """Return the options of a write into which the faults of `wanted` are injected."""
    at = {"faults.folder": str(folder), "faults.name": name, "faults": json.dumps(wanted)}
    return {**at, "servers": ",".join(servers)}


def in_this_process(faults: Faults) -> None:
    """Add the points `staged` and `committed` for foreach_batch, which commits in the driver itself."""
    real = staging.commit

    def commit(servers: list[str], commit_id: bytes, application: str, version: int, *more: Any) -> Any:
        faults.at(version, "staged")
        ack = real(servers, commit_id, application, version, *more)
        faults.at(version, "committed")
        return ack

    module: Any = staging
    module.commit = commit
