"""Writing a data frame, or a stream's micro-batches, all at once: tasks stage, the driver commits.

    task     write(batches)     ->  Staged: [part, batches], with the staged commit and what identifies the job
    driver   commit(messages)   ->  one record: every reader sees all of it, or none
             abort(messages)    ->  nothing was ever visible

A task that failed, or ran twice, staged parts that no message names; the commit drops them. The id of a stream's staged
commit and its version come from its query id and batch id, which a restart from the checkpoint keeps: a batch that was
committed before the driver died is recognised and answered as done. So is a batch write with the same application
and version; without them each run is another.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from . import staging
from .options import BadOption
from .progress import Progress
from .values.rows import Shape
from .worker import settle

log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged."""

    partition: int
    part: str
    batches: int
    rows: int
    duplicates: int  # rows that a later row of the same Arrow batch replaced
    commit_id: bytes
    application: str
    version: int


@dataclass(frozen=True)
class Job:
    """What a write is known by: its staged commit, and for a repeated run its application and version."""

    commit_id: bytes
    application: str
    version: int


def job_of(options: dict[str, Any]) -> Job:
    """Of a batch write: by the application and version that the options give, or new each time."""
    application, version = options["applicationId"], options["version"]
    if (application is None) != (version is None):
        raise BadOption("options applicationId and version belong together in a batch write; give both or neither")
    return Job(secrets.token_bytes(16), "", 0) if application is None else _known(application, version)


def stream_job(options: dict[str, Any], query: str, batch: int) -> Job:
    """Of a micro-batch: the same in each attempt and after a restart."""
    return _known(options["applicationId"] or query, batch)


def _known(application: str, version: int) -> Job:
    """Name the same staged commit in each run: what a run that died has staged goes when another one commits."""
    name = f"{application}\0{version}".encode()
    return Job(hashlib.blake2b(name, digest_size=16).digest(), application, version)


def stage(options: dict[str, Any], shape: Shape, job: Job, batches: Iterator[Any]) -> Staged:
    """Stage what comes; return when the servers have it."""
    settle()
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    part = staging.StagedPart(options["servers"], job.commit_id, f"{partition}.{attempt}", options["timeout"])
    rows = duplicates = 0
    progress = Progress(f"partition {partition}", "rows staged")
    for batch in batches:
        rows += batch.num_rows
        for segment in shape.segments(batch):
            duplicates += segment.duplicates
            part.add(segment)
            progress.add(len(segment.key_column))
    part.finish()
    return Staged(partition, part.name, part.batches, rows, duplicates, job.commit_id, job.application, job.version)


def commit(options: dict[str, Any], job: Job, messages: list[Any], overwrite: bool) -> None:
    """Make it visible: parts in the order of their partitions, so that of equal keys the last partition's wins."""
    staged = sorted((m for m in messages if m is not None), key=lambda m: m.partition)
    replace = options["subtree"] if overwrite else None
    if replace is None and not any(m.batches for m in staged):
        return
    parts = [(m.part, m.batches) for m in staged]
    ack = staging.commit(
        options["servers"], job.commit_id, job.application, job.version, parts, replace, options["timeout"]
    )
    rows, duplicates = sum(m.rows for m in staged), sum(m.duplicates for m in staged)
    log.info("committed %d rows at %d.%d (%s)", rows, ack.epoch, ack.sequence, ack.durability)
    if duplicates:
        log.warning(
            "%d of %d rows had a key that came again later; the last row of each key was written", duplicates, rows
        )


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("chp")`: pickled to each task, so its job is the same in all of them."""

    def __init__(self, options: dict[str, Any], shape: Shape, overwrite: bool) -> None:
        self._options, self._shape, self._overwrite = options, shape, overwrite
        self._job = job_of(options)

    def write(self, iterator: Iterator[Any]) -> Staged:
        """In a task."""
        return stage(self._options, self._shape, self._job, iterator)

    def commit(self, messages: list[Any]) -> None:
        """Beside the driver, when every task has succeeded."""
        settle()
        commit(self._options, self._job, messages, self._overwrite)

    def abort(self, messages: list[Any]) -> None:
        """Beside the driver, when the job has failed."""
        staging.abort(self._options["servers"], self._job.commit_id, self._options["timeout"])


class StreamWriter(DataSourceStreamArrowWriter):
    """`stream.writeStream.format("chp")`: the tasks know query and batch, and tell it by their messages."""

    def __init__(self, options: dict[str, Any], shape: Shape, overwrite: bool) -> None:
        self._options, self._shape, self._overwrite = options, shape, overwrite

    def write(self, iterator: Iterator[Any]) -> Staged:
        """In a task."""
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise RuntimeError(
                "this Spark does not tell a task its query and batch; use chp_client.spark.foreach_batch"
            )
        return stage(self._options, self._shape, stream_job(self._options, query, int(batch)), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Beside the driver, when every task has succeeded."""
        settle()
        told = next((m for m in messages if m is not None), None)
        if told is not None:
            commit(self._options, Job(told.commit_id, told.application, told.version), messages, self._overwrite)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Beside the driver, when a task has failed for good; without a message the servers forget it after an hour."""
        for commit_id in {m.commit_id for m in messages if m is not None}:
            staging.abort(self._options["servers"], commit_id, self._options["timeout"])
