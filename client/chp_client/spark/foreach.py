"""A sink for `foreachBatch`: a micro-batch goes through the driver and becomes visible at once, exactly once.

    sink = foreach_batch(servers="tcp://a:5556,tcp://b:5566", subtree="/rates/", key_template="/rates/{base}/{quote}")
    stream.writeStream.foreachBatch(sink).outputMode("update").start()

The sink takes output mode update, which Spark does not allow for `writeStream.format("chp")`. It is quicker with small
batches: the rows come to the driver as Arrow, and no task has to be started to send them. A batch has to fit the
driver's memory.

The batch id is the version. The application is the query id and the `applicationId`, or else a digest of the options,
so that one query may write to several subtrees. Two sinks of one query with equal options need an `applicationId` each.
Without it the second sink raises an error, because the servers would take its batch for a repetition of the first
sink's. Spark Connect does not tell the query id. There the application is the `applicationId` alone, and a new
checkpoint needs a new `applicationId`.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chp.errors import ChpError

from . import staging
from .options import KEY_COLUMN, BadOption, check_direction, parse
from .progress import Progress
from .values.messages import shape_of
from .worker import first
from .write import Job, log_commit, make_visible, report, stream_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def foreach_batch(overwrite: bool = False, **options: object) -> "Callable[[DataFrame, int], None]":
    """Return a function for `foreachBatch`; its options are those of format("chp"), with `_` for a dot.

    With `overwrite`, each batch replaces the whole subtree; this needs `confirm_overwrite=True`. Raises `BadOption`.
    The returned function raises `BadDataFrame`, and another `ChpError` if the servers refuse a batch or do not answer
    for `timeout` seconds.
    """
    given = read_options(options, several=not overwrite)
    if overwrite and given["topic"]:
        raise BadOption("messages are added to a topic: leave overwrite out")
    if given["version"] is not None:
        raise BadOption("option version is the batch id here; leave it out, and give applicationId by itself if at all")
    if overwrite and not given["confirm.overwrite"]:
        raise BadOption("overwrite replaces the subtree; say confirm.overwrite=true")

    def sink(batch: "DataFrame", batch_id: int) -> None:
        query, run = _query_of(batch, given)
        if not query and not given["applicationId"]:
            raise ChpError("this Spark does not tell the query's id; give the option applicationId")
        job = stream_job(query, given["applicationId"] or purpose(given), batch_id)
        try:
            _check_first(run, job)
            send(given, job, batch.toArrow(), overwrite)
        except ChpError as error:
            raise first(error)  # noqa: B904 (the cause is set)
        _sent[job.application] = run, batch_id

    return sink


def read_options(options: dict[str, object], *, several: bool = True) -> dict[str, Any]:
    """Return the options of format("chp"). `options` are the arguments of a sink, whose names have `_` for a dot."""
    given = {name.replace("_", "."): _text(value) for name, value in options.items()}
    found = parse(given, several=several)
    check_direction(given, "sink")
    return found


def _query_of(batch: "DataFrame", options: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the id of the query that a batch belongs to, and the id of that query's run."""
    try:
        context = batch.sparkSession.sparkContext
    except Exception:
        # The type of the error that Spark Connect raises here differs between its versions.
        if options["applicationId"]:
            return None, None
        raise ChpError(
            "Spark Connect has no sparkContext, which tells foreach_batch the id of its query: "
            "give the option applicationId, or use writeStream.format('chp')"
        ) from None
    return context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")


# For each application the run of the query that wrote last, and the id of the batch that it wrote.
_sent: dict[str, tuple[str | None, int]] = {}


def purpose(options: dict[str, Any]) -> str:
    """Return a digest of the options that tell the sinks of one query apart. It is equal in the query's next run."""
    said = [options[name] for name in ("subtree", "key", "key.template", "value", "codec")]
    # Earlier checkpoints have the name of the column here also if no option named it.
    said[1] = said[1] or KEY_COLUMN
    # Add the topic only if there is one. So a sink without a topic keeps the digest of its earlier checkpoints.
    said += [] if options["topic"] is None else [options["topic"]]
    return hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()


def _check_first(run: str | None, job: Job) -> None:
    """Raise `ChpError` if this run of the query has written the batch already: Spark gives a run each batch once."""
    if run and _sent.get(job.application) == (run, job.version):
        raise ChpError(
            f"batch {job.version} was written already, by this foreach_batch or another one with the same options or "
            "applicationId, so the servers would take this for a repetition and leave it out; make one for each frame "
            "that a batch writes, and give each an applicationId"
        )


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        # The value is a list of servers.
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def send(options: dict[str, Any], job: Job, table: Any, overwrite: bool = False) -> int:
    """Stage an Arrow table and commit it; return how many rows it had."""
    shape = shape_of(options, table.column_names)
    part = staging.StagedPart(options["servers"], job.commit_id, "driver", options["timeout"])
    keys: set[str] = set()
    progress = Progress(f"batch {job.version}", "rows staged")
    for batch in table.to_batches():
        for segment in shape.segments(batch):
            part.add(segment)
            keys.update(segment.keys if options["topic"] is None else ())
            progress.add(len(segment.key_column))
    rows: int = table.num_rows
    twice = rows - len(keys) if options["topic"] is None else 0
    try:
        # Send the commit without waiting for the staged batches: the servers take all of them in order.
        ack = make_visible(options, job, [report(part, 0, rows, twice, job)], overwrite)
    except staging.StagingFailed as error:
        if not isinstance(error.__cause__, TimeoutError):
            # If the servers refused a staged batch, `finish` raises that reason, which is the better error.
            part.finish()
        raise
    if ack is not None:
        # The servers have answered the staged batches too, so `finish` has nothing to wait for.
        part.finish()
        log_commit(options, job, [report(part, 0, rows, twice, job)], ack)
    return rows
