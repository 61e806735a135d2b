"""The writers of a data frame and of a stream's micro-batches: tasks stage, and the driver commits all at once.

    task     write(batches)     ->  Staged: [part, batches], with the staged commit and what identifies the job
    driver   commit(messages)   ->  one record: every reader sees all of it, or none
             abort(messages)    ->  nothing was ever visible

A task that failed, or ran twice, staged parts that no message names; the commit drops them. A stream makes the id and
the version of its staged commit from its query id and batch id, which a restart from the checkpoint keeps. So the
servers recognise a batch that was committed before the driver died, and answer that it is done. A new checkpoint has
another query id, so its batches are new, although they begin at 0 again. The servers also recognise a batch write with
an application and a version that they know. Without these options, each run is a new write.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from chp.numbers import UNKNOWN

from ..core.events import Ack
from . import staging
from .options import BadOption
from .pairs import pair_of, pairs_of
from .progress import Progress
from .spark_api import DataSourceStreamArrowWriter
from .values.rows import Shape
from .worker import errors_first, note_answer, settle

log = logging.getLogger(__name__)
# An application has at most this many characters on the wire.
APPLICATION_MAX = 256


@dataclass
class Staged(WriterCommitMessage):
    """The report of one attempt of a task about what it staged.

    `duplicates` counts the rows that a later row of the same segment replaced. `foreach_batch` counts by micro-batch.
    """

    partition: int
    part: str
    batches: int
    rows: int
    duplicates: int
    commit_id: bytes
    application: str
    version: int
    # The mount of the rows if the options name several mounts, and one of the rows' keys.
    mount: str = ""
    key: str = ""
    # The highest number that the servers gave one of the part's batches.
    revision: int = 0


@dataclass(frozen=True)
class Job:
    """The names of a write: its staged commit, and the application and version that identify a repeated run."""

    commit_id: bytes
    application: str
    version: int


def job_of(options: dict[str, Any]) -> Job:
    """Return the job of a batch write: by the options `applicationId` and `version`, or a new one each time."""
    application, version = options["applicationId"], options["version"]
    if (application is None) != (version is None):
        raise BadOption("options applicationId and version belong together in a batch write; give both or neither")
    return Job(secrets.token_bytes(16), "", 0) if application is None else _known(application, version)


def stream_job(query: str | None, sink: str | None, batch: int) -> Job:
    """Return the job of a micro-batch, which is equal in each attempt and after a restart.

    `query` is the id that the checkpoint keeps, if Spark tells it. `sink` tells the sinks of a query apart, and is the
    whole application where Spark tells no query.
    """
    application = " ".join(part for part in (query, sink) if part)
    if len(application) > APPLICATION_MAX:
        raise BadOption(
            f"option applicationId is too long for a stream: with the query's id it has {len(application)} characters, "
            f"and at most {APPLICATION_MAX} fit"
        )
    return _known(application, batch)


def _known(application: str, version: int) -> Job:
    """Return a job whose commit id is equal in all runs. So the commit of a run drops the rows of a run that died."""
    name = f"{application}\0{version}".encode()
    return Job(hashlib.blake2b(name, digest_size=16).digest(), application, version)


def stage(options: dict[str, Any], shape: Shape, job: Job, batches: Iterator[Any]) -> Staged:
    """Stage the Arrow batches of a task; return when the servers have them."""
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
    return report(part, partition, rows, duplicates, job)


def report(part: staging.StagedPart, partition: int, rows: int, duplicates: int, job: Job) -> Staged:
    """Return what the driver has to know of a part that was staged."""
    known = job.commit_id, job.application, job.version
    return Staged(partition, part.name, part.batches, rows, duplicates, *known, part.mount, part.key, part.revision)


def commit(options: dict[str, Any], job: Job, messages: list[Any], overwrite: bool) -> None:
    """Make the staged parts visible, and log what was written.

    Raise `BadInput` if the parts are of several mounts.
    """
    staged = [m for m in messages if m is not None]
    if (ack := make_visible(options, job, staged, overwrite)) is not None:
        log_commit(options, job, staged, ack)


def make_visible(options: dict[str, Any], job: Job, staged: list[Staged], overwrite: bool) -> Ack | None:
    """Commit the staged parts in the order of their partitions: of equal keys the last partition's wins.

    Return None if there is nothing to commit.
    """
    staged = sorted(staged, key=lambda m: m.partition)
    replace = options["subtree"] if overwrite else None
    if replace is None and not any(m.batches for m in staged):
        return None
    servers = pair_of(options["servers"], ((m.mount, m.key) for m in staged if m.batches))
    parts = [(m.part, m.batches) for m in staged]
    ack = staging.commit(servers, job.commit_id, job.application, job.version, parts, replace, options["timeout"])
    note_answer(servers)
    return ack


def log_commit(options: dict[str, Any], job: Job, staged: list[Staged], ack: Ack) -> None:
    """Log what a commit has written; warn if the servers took its version for done, and wrote nothing."""
    rows, duplicates = sum(m.rows for m in staged), sum(m.duplicates for m in staged)
    # A commit has a higher number than the staged batches that it names. For a version that was done before, the
    # servers answer with the number of an older commit.
    if UNKNOWN < ack.revision < max((m.revision for m in staged), default=0):
        log.warning(
            "nothing of %d rows was written: the servers had done version %d of the application %r, or a later one, at "
            "%s; that is right if this job or batch ran before, else give a higher version or another applicationId",
            rows, job.version, job.application, ack.revision,
        )  # fmt: skip
        return
    log.info(
        "committed %d rows at %s (%s)%s", rows, ack.revision, ack.durability,
        "; of these, rows whose key has a later revision were left out" if options["revision"] else "",
    )  # fmt: skip
    if duplicates:
        log.warning(
            "at least %d of %d rows had a key that came again later; the last row of each key was written",
            duplicates,
            rows,
        )


def abort(options: dict[str, Any], commit_id: bytes) -> None:
    """Tell each pair that may have rows of a staged commit to drop these rows."""
    for servers in pairs_of(options):
        staging.abort(servers, commit_id, options["timeout"])


@errors_first
class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("chp")`. Spark pickles it to each task, so all tasks have one job."""

    def __init__(self, options: dict[str, Any], shape: Shape, overwrite: bool) -> None:
        self._options, self._shape, self._overwrite = options, shape, overwrite
        self._job = job_of(options)

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage a task's rows."""
        return stage(self._options, self._shape, self._job, iterator)

    def commit(self, messages: list[Any]) -> None:
        """Commit beside the driver, after every task has succeeded."""
        settle()
        commit(self._options, self._job, messages, self._overwrite)

    def abort(self, messages: list[Any]) -> None:
        """Abort beside the driver, after the job has failed."""
        abort(self._options, self._job.commit_id)


@errors_first
class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `stream.writeStream.format("chp")`. Each task learns its query and batch, and reports them."""

    def __init__(self, options: dict[str, Any], shape: Shape, overwrite: bool) -> None:
        self._options, self._shape, self._overwrite = options, shape, overwrite

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage a task's rows."""
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise RuntimeError(
                "this Spark does not tell a task its query and batch; use chp_client.spark.foreach_batch"
            )
        job = stream_job(query, self._options["applicationId"], int(batch))
        return stage(self._options, self._shape, job, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit beside the driver, after every task has succeeded."""
        settle()
        told = next((m for m in messages if m is not None), None)
        if told is not None:
            commit(self._options, Job(told.commit_id, told.application, told.version), messages, self._overwrite)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Abort beside the driver, after a task has failed for good.

        If no task has reported, the servers forget the staged commit by themselves after an hour.
        """
        for commit_id in {m.commit_id for m in messages if m is not None}:
            abort(self._options, commit_id)
