"""The reader of a snapshot: every task reads a slice of one image, so all rows are of one number.

    plan      the active makes an image of the keys to read, and cuts it into slices           (SPEC.md, section 17)
    task i    reads slice i, in chunks with credit, as columns from end to end

The active keeps an image for ten minutes after its last use, and for a minute after all slices were read. A data frame
that is used later than that, or after a failover, has to be made anew; `cache()` it if it is to last.

Filters are left to Spark, unless the option pushDownPredicate says that a frame is used once. Spark 4.3 plans a Python
source once for all uses of a data frame (or view), so the rows that one use filters out are missing in another. Then
`f.where(a).union(f.where(b))` would have the rows of `b` twice, and a count after a filter those of the filter. The
option `subtree` belongs to the frame, and always narrows a read.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chp import columns
from chp.errors import ChpError
from chp.headers import Kthxbai, Sync
from chp.numbers import describe

from ...errors import Refused
from ...port.ask import QuestionPort
from ..pairs import Place, places_of, readers_of
from ..progress import Progress
from ..spark_api import EqualTo, In, StringStartsWith
from ..values.columns import Updates, layout_of, packed_column
from ..worker import errors_first, has_answered, note_answer, settle

KEYS_A_TASK, TASKS_MAX = 500_000, 64
FIRST_S = 15.0


AGAIN = "load() the data frame again, or start the query again"


class ReadFailed(ChpError):
    """The servers no longer have what the query reads."""


class ImagePartition(InputPartition):
    """A slice of an image."""

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


class PlacedSlice(InputPartition):
    """A slice of the image of a place."""

    def __init__(self, place: Place, piece: ImagePartition) -> None:
        self.place, self.piece = place, piece


def port_of(options: dict[str, Any], *, plans: bool = False, servers: Sequence[str] | None = None) -> ReadPort:
    """Return the port to `servers`, or else to those that the options name for reading.

    The plan of a batch read waits no longer than `FIRST_S` for servers that have not answered in this session: they are
    more likely the wrong ones, or not started, than in a failover.
    """
    servers, timeout_s = readers_of(options) if servers is None else servers, options["timeout"]
    if plans and not has_answered(servers):
        timeout_s = min(timeout_s, FIRST_S)
    return ReadPort(servers, timeout_s)


def make_image(port: QuestionPort, subtree: str, prefix: str, partitions: int | None) -> list[ImagePartition]:
    """Make an image of the keys that begin with `prefix` in a subtree; return its slices."""
    name = secrets.token_bytes(16)
    facts = port.ask(subtree, image=name, prefix=prefix, parts=partitions or 1)
    if partitions is None:
        partitions = max(1, min(TASKS_MAX, -(-facts["keys"] // KEYS_A_TASK)))
        facts = port.ask(subtree, image=name, prefix=prefix, parts=partitions)
    return [ImagePartition(name, i, facts["number"]) for i in range(partitions)]


def read_slice(port: QuestionPort, subtree: str, piece: ImagePartition, *, packed: bool = False) -> Iterator[Updates]:
    """Yield the updates of a slice, chunk by chunk; if `packed`, with keys and values in Arrow's form."""
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
    """Return the updates of a segment of a SYNC."""
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
    """The reader of `spark.read.format("chp")`."""

    def __init__(self, options: dict[str, Any], schema: Any) -> None:
        self._options = options
        self._layout = layout_of(options, schema)
        self._prefix: str = options["subtree"]

    def narrow(self, prefixes: list[str]) -> None:
        """Read no more than the keys that begin with each of these prefixes."""
        for prefix in prefixes:
            if prefix.startswith(self._prefix):
                self._prefix = prefix

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks: one image for all of them, or with several mounts one of each."""
        settle()
        found: list[InputPartition] = []
        for place in places_of(self._options, self._prefix):
            with port_of(self._options, plans=True, servers=place.servers) as port:
                pieces = make_image(port, place.subtree, place.prefix, self._options["partitions"])
            found += [PlacedSlice(place, piece) for piece in pieces]
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a slice in a task, as record batches."""
        assert isinstance(partition, PlacedSlice)
        settle()
        place, piece = partition.place, partition.piece
        progress = Progress(f"slice {piece.part}", "keys read")
        with port_of(self._options, servers=place.servers) as port:
            for updates in read_slice(port, place.subtree, piece, packed=True):
                yield self._layout.batch(place.own(updates))
                progress.add(len(updates.keys))


@errors_first
class NarrowedReader(BatchReader):
    """A reader with pushDownPredicate: it reads no keys whose beginning the filters rule out."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Narrow the read, and return all filters for Spark to apply again: a prefix says less than a filter."""
        self.narrow([prefix for each in filters if (prefix := key_prefix(each)) is not None])
        return filters


def key_prefix(condition: Any) -> str | None:
    """Return the prefix of all keys that meet the condition; None if the condition implies none."""
    if getattr(condition, "attribute", None) != ("key",):
        return None
    if isinstance(condition, EqualTo | StringStartsWith):
        return str(condition.value) if isinstance(condition.value, str) else None
    if isinstance(condition, In):
        return _common([str(value) for value in condition.value])
    return None


def _common(texts: list[str]) -> str:
    """Return the common prefix of all texts, which is that of the first and the last in order."""
    low, high = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
