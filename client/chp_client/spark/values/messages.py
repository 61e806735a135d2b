"""The messages of a topic: the columns of a read, and the rows that become messages.

    key string          null for none           value binary
    topic string        offset bigint           dense from 0 in each topic
    revision bigint     of the record           epoch int, sequence bigint    its two parts
    timestamp timestamp                         the active's clock as it came

A row that is written needs a value, as rows of keys do (rows.py). It has a key if there is a column `key`, if the
option `key` names one, or by a `key.template`. A codec and a user's schema work as they do for keys (columns.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chp import columns
from chp.batch import Segment
from chp.errors import BadKey
from chp.numbers import EPOCH_SHIFT, SEQUENCE_MASK

from ...topics.reader import MessageBatch
from .columns import Makers
from .fields import BadDataFrame, text_column
from .pack import PackedRows, check_keys, packed
from .rows import Shape

SCHEMA = (
    "key string, value binary, topic string, offset bigint, "
    "revision bigint, epoch int, sequence bigint, timestamp timestamp"
)
# The bounds of one Arrow batch. Many messages are published one by one.
ROWS, BYTES = 20_000, 8 << 20


@dataclass
class Delivered:
    """Batches of messages, joined.

    `runs` has the offset, the number of messages, the revision and the time in ms of each batch.
    """

    topic: str
    keys: list[str | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    bytes: int = 0

    def add(self, batch: MessageBatch) -> None:
        """Add the next batch."""
        self.keys += batch.keys
        self.values += batch.values
        self.runs.append((batch.offset, len(batch), int(batch.revision), round(batch.time * 1000)))
        self.bytes += sum(map(len, batch.values))

    @property
    def full(self) -> bool:
        """True if these messages make an Arrow batch."""
        return len(self.values) >= ROWS or self.bytes >= BYTES

    def of_runs(self, place: int) -> Any:
        """Return a column with one field of the runs, repeated for each row."""
        return np.repeat(
            np.array([run[place] for run in self.runs], np.int64), np.array([run[1] for run in self.runs], np.int64)
        )


def put_together(topic: str, batches: Iterable[MessageBatch]) -> Iterator[Delivered]:
    """Yield the messages in portions that are worth an Arrow batch."""
    found = Delivered(topic)
    for batch in batches:
        found.add(batch)
        if found.full:
            yield found
            found = Delivered(topic)
    if found.values:
        yield found


def _offsets(m: Delivered) -> pa.Array:
    return pa.array(np.concatenate([np.arange(first, first + n, dtype=np.int64) for first, n, _, _ in m.runs]))


MAKE: Makers = {
    "key": lambda m: pa.array(m.keys, pa.string()),
    "value": lambda m: pa.array(m.values, pa.binary()),
    "topic": lambda m: pa.repeat(m.topic, len(m.values)),
    "offset": _offsets,
    "revision": lambda m: pa.array(m.of_runs(2)),
    "epoch": lambda m: pa.array((m.of_runs(2) >> EPOCH_SHIFT).astype(np.int32)),
    "sequence": lambda m: pa.array(m.of_runs(2) & SEQUENCE_MASK),
    "timestamp": lambda m: pa.array(m.of_runs(3) * 1000).cast(pa.timestamp("us", "UTC")),
}


@dataclass(slots=True)
class MessageColumns(PackedRows):
    """The columns of one segment of messages; a message without a key has an empty text there."""

    topic: str = ""

    @property
    def duplicates(self) -> int:
        """The number 0: a topic keeps all messages of a key."""
        return 0

    def encode(self, **more: Any) -> bytes:
        """Return the segment, with `more` sparse columns."""
        keys = packed(self.key_column, text=True) if len(self.key_column) else (b"\xc0", b"")
        body = b"".join((b"\x92", *keys, *packed(self.value_column, text=False)))
        published = [[self.topic, len(self.value_column), body]]
        return Segment([], [], {columns.PUBLISH: published, **more}).encode()


class MessageShape(Shape):
    """The columns that are the key and the value of messages."""

    def __init__(self, options: dict[str, Any], names: Sequence[str]) -> None:
        self._topic: str = options["topic"]
        super().__init__(options, names)

    def _of_keys(self) -> list[str]:
        return super()._of_keys() if self._template or self._key in self._names else []

    def segments(self, batch: pa.RecordBatch) -> Iterator[PackedRows]:
        """Yield the rows as segments, none larger than a batch may be."""
        for rows in super().segments(batch):
            keys = rows.key_column if self.key_columns else rows.key_column[:0]
            yield MessageColumns(keys, rows.value_column, None, self._topic)

    def _keys(self, table: pa.Table) -> pa.Array:
        if not self.key_columns:
            return pa.array(np.full(table.num_rows, "", object), pa.large_string())
        column = self._templated(table) if self._template else text_column(table, self._key)
        keys = column.combine_chunks().fill_null("")
        try:
            check_keys(keys.filter(pc.not_equal(keys, "")))
        except BadKey as error:
            raise BadDataFrame(f"column {self._key!r} has a key that can't be one: {error}") from None
        return keys


def shape_of(options: dict[str, Any], names: Sequence[str]) -> Shape:
    """Return the shape of a frame whose rows become keys, or messages of a topic."""
    return Shape(options, names) if options["topic"] is None else MessageShape(options, names)
