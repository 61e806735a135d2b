"""A sink for `foreach`: the rows of one partition in one epoch become visible together, exactly once.

    sink = foreach_writer(servers="tcp://a:5556,tcp://b:5566", subtree="/rates/")
    stream.writeStream.foreach(sink).outputMode("update").trigger(realTime="5 minutes").start()

It is for Spark's Real-time Mode, which refuses Python's data sources as sinks, and takes `foreach`. Elsewhere
`writeStream.format("chp")` and `foreach_batch` make a whole micro-batch visible at once, and are quicker.

The epoch is the version, and the application is the query with the sink and the partition. So the servers recognise a
partition that runs again, and write it once. That is right only if Spark gives the partition equal rows again, so the
source has to be one that can be read again. With the option `revision` a row is written only if its key has no later
revision.

Spark 4.3 hands rows to Python in growing portions, the last of them at the end of an epoch. So a row takes between some
seconds and the length of an epoch, and no Python sink can be quicker.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chp.errors import ChpError

from . import staging
from .foreach import purpose, read_options
from .options import BadOption
from .values.fields import BadDataFrame
from .values.messages import shape_of
from .worker import first
from .write import Job, commit, report, stream_job

if TYPE_CHECKING:
    from pyspark.sql import Row

# The writer stages this many rows together. Larger portions are no cheaper.
ROWS = 10_000


class ForeachWriter:
    """The writer that `foreach_writer` returns. Each task has a copy, and Spark calls `open`, `process` and `close`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._rows: list[dict[str, Any]] = []
        self._job: Job | None = None
        self._part: staging.StagedPart | None = None
        self._count = self._partition = 0

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin the rows of a partition in an epoch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if not query and not self._options["applicationId"]:
            raise ChpError("this Spark does not tell a task its query; give the option applicationId")
        sink = self._options["applicationId"] or purpose(self._options)
        self._job = stream_job(query, f"{sink} {partition_id}", epoch_id)
        self._partition, self._count, self._rows, self._part = partition_id, 0, [], None
        return True

    def process(self, row: "Row") -> None:
        """Take a row."""
        self._rows.append(row.asDict())
        self._count += 1
        if len(self._rows) >= ROWS:
            self._stage()

    def close(self, error: Exception | None) -> None:
        """Make the rows visible. After an error of the task, make none of them visible."""
        if error is not None or not self._count:
            return
        self._stage()
        job, part = self._job, self._part
        assert job is not None and part is not None, "rows were staged"
        try:
            part.finish()
            commit(self._options, job, [report(part, self._partition, self._count, 0, job)], overwrite=False)
        except ChpError as failed:
            raise first(failed)  # noqa: B904 (the cause is set)

    def _stage(self) -> None:
        if not self._rows:
            return
        assert self._job is not None, "Spark calls open first"
        try:
            table = _table(self._rows)
            shape = shape_of(self._options, table.column_names)
            if self._part is None:
                options = self._options
                self._part = staging.StagedPart(
                    options["servers"], self._job.commit_id, f"{self._partition}", options["timeout"]
                )
            for batch in table.to_batches():
                for segment in shape.segments(batch):
                    self._part.add(segment)
        except ChpError as failed:
            raise first(failed)  # noqa: B904 (the cause is set)
        self._rows = []


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table, whose types are those of the Python values."""
    if name := next((name for row in rows for name, value in row.items() if isinstance(value, dict | tuple)), None):
        raise BadDataFrame(f"column {name!r} is a map or a struct, which foreach_writer does not take: to_json() it")
    try:
        return pa.Table.from_pylist(rows)
    except pa.ArrowException as error:
        raise BadDataFrame(f"the rows have no common types: {error}; cast the columns in the job") from None


def foreach_writer(**options: object) -> ForeachWriter:
    """Return a writer for `writeStream.foreach`; its options are those of format("chp"), with `_` for a dot.

    Raises `BadOption`. In a task it raises `BadDataFrame`, and another `ChpError` if the servers refuse the rows or do
    not answer for `timeout` seconds.
    """
    given = read_options(options)
    if given["version"] is not None:
        raise BadOption("option version is the epoch here; leave it out, and give applicationId by itself if at all")
    return ForeachWriter(given)
