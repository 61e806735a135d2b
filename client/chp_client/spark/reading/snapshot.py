"""Reading a snapshot: every task reads a slice of one image, so all rows are as of one number.

    plan      an image of what is to be read is made on the active, and cut into slices        (SPEC.md, section 17)
    task i    slice i, in chunks with credit, columns from end to end

An image is kept for ten minutes after its last use, a minute once all slices were read. A data frame that is used again
later than that, or after a failover, has to be made anew; `cache()` it if it is to last.

Filters are left to Spark, unless the option pushDownPredicate says that a frame is used once: Spark 4.3 plans a Python
source once for all uses of a data frame (or view), so what one use pushes down is missing in another. Then
`f.where(a).union(f.where(b))` would have the rows of `b` twice, and a count after a filter those of the filter. What
always narrows a read is the option `subtree`, which is the frame's own.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition, StringStartsWith

from chp import columns
from chp.errors import ChpError
from chp.headers import Kthxbai, Sync
from chp.numbers import describe

from ...errors import Refused
from ...port.ask import QuestionPort
from ..progress import Progress
from ..values.columns import Layout, Updates, packed_column
from ..worker import errors_first, has_answered, note_answer, settle

KEYS_A_TASK, TASKS_MAX = 500_000, 64
FIRST_S = 15.0


AGAIN = "load() the data frame again, or start the query again"


class ReadFailed(ChpError):
    """What was to be read can't be had."""


class ImagePartition(InputPartition):
    """One of the slices of an image."""

    def __init__(self, image: bytes, part: int, number: int) -> None:
        self.image, self.part, self.number = image, part, number


class ReadPort(QuestionPort):
    """The port of a read. It notes when a server has answered."""

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        super().__init__(servers, timeout_s, again=AGAIN)
        self._named = servers

    def ask(self, subtree: str, **options: Any) -> dict[str, Any]:
        """Return the facts of a REPLY."""
        facts = super().ask(subtree, **options)
        note_answer(self._named)
        return facts


def port_of(options: dict[str, Any], *, plans: bool = False) -> ReadPort:
    """Return the port to the servers that the options name.

    The plan of a batch read waits no longer than `FIRST_S` for servers that have not answered in this session: they are
    more likely the wrong ones, or not started, than in a failover.
    """
    servers, timeout_s = options["servers"], options["timeout"]
    if plans and not has_answered(servers):
        timeout_s = min(timeout_s, FIRST_S)
    return ReadPort(servers, timeout_s)


def make_image(port: QuestionPort, subtree: str, prefix: str, partitions: int | None) -> list[ImagePartition]:
    """An image of what begins with `prefix` in a subtree, and its slices."""
    name = secrets.token_bytes(16)
    facts = port.ask(subtree, image=name, prefix=prefix, parts=partitions or 1)
    if partitions is None:
        partitions = max(1, min(TASKS_MAX, -(-facts["keys"] // KEYS_A_TASK)))
        facts = port.ask(subtree, image=name, prefix=prefix, parts=partitions)
    return [ImagePartition(name, i, facts["number"]) for i in range(partitions)]


def read_slice(port: QuestionPort, subtree: str, piece: ImagePartition, *, packed: bool = False) -> Iterator[Updates]:
    """The updates of a slice, chunk by chunk; `packed` with keys and values in Arrow's form."""
    at = describe(piece.number)
    try:
        for header, items in port.stream(subtree, image=piece.image, part=piece.part, packed=packed):
            if isinstance(header, Sync):
                yield from map(updates_of, items)
            elif isinstance(header, Kthxbai) and header.number != piece.number:
                raise ReadFailed(f"the servers hold the snapshot at {describe(header.number)}, not at {at}; read again")
    except Refused as refused:
        raise ReadFailed(
            f"the snapshot at {at} is not held by the servers any more ({refused.code}): not read for ten minutes, or "
            "another server is active now. A data frame keeps to its snapshot, so load() it again and run that, and "
            "cache() what is to last; a stream's query is started again"
        ) from None


def updates_of(segment: list[Any]) -> Updates:
    """A segment of a SYNC."""
    keys, values, extras = segment
    runs = extras[columns.REVISIONS]
    revisions = np.repeat(np.array([run[0] for run in runs], np.int64), [run[1] for run in runs])
    ttls = extras.get(columns.TTLS)
    if type(keys) is bytes:
        keys = packed_column(keys, extras[columns.KEY_BYTES], pa.string())
        values = packed_column(values, extras[columns.VALUE_BYTES], pa.binary())
    return Updates(keys, values, revisions, dict(zip(*ttls, strict=True)) if type(ttls) is list else ttls)


@errors_first
class BatchReader(DataSourceReader):
    """`spark.read.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._layout = Layout(schema, options["codec"], options["mode"])
        self._prefix: str = options["subtree"]

    def narrow(self, prefixes: list[str]) -> None:
        """Read no more than what begins with each of these."""
        for prefix in prefixes:
            if prefix.startswith(self._prefix):
                self._prefix = prefix

    def partitions(self) -> list[InputPartition]:
        """When the query is planned: one image for all tasks."""
        settle()
        with port_of(self._options, plans=True) as port:
            return list(make_image(port, self._options["subtree"], self._prefix, self._options["partitions"]))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task."""
        assert isinstance(partition, ImagePartition)
        settle()
        progress = Progress(f"slice {partition.part}", "keys read")
        with port_of(self._options) as port:
            for updates in read_slice(port, self._options["subtree"], partition, packed=True):
                yield self._layout.batch(updates)
                progress.add(len(updates.keys))


@errors_first
class NarrowedReader(BatchReader):
    """With pushDownPredicate: reads no more than the filters on the key leave, as far as they say how it begins."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """All filters come back, for Spark to apply again: a prefix says less than they do."""
        self.narrow([prefix for each in filters if (prefix := key_prefix(each)) is not None])
        return filters


def key_prefix(condition: Filter) -> str | None:
    """What keys begin with if they meet the condition; None if it says nothing of that."""
    if getattr(condition, "attribute", None) != ("key",):
        return None
    if isinstance(condition, EqualTo | StringStartsWith):
        return str(condition.value) if isinstance(condition.value, str) else None
    if isinstance(condition, In):
        return _common([str(value) for value in condition.value])
    return None


def _common(texts: list[str]) -> str:
    """What all of them begin with: what the first and the last in order share."""
    low, high = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
