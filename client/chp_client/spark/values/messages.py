"""Messages of a topic: the columns that a reader delivers, and rows that become some.

    key string          null for none           value binary
    topic string        offset bigint           dense from 0 in each topic
    revision bigint     of the record           epoch int, sequence bigint    its two parts
    timestamp timestamp                         the active's clock as it came

What is written needs a value, as of keys (rows.py). It has a key if there is a column `key`, if the option `key` names
one, or by a `key.template`. A codec and a schema of one's own do as for keys (columns.py).
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
ROWS, BYTES = 20_000, 8 << 20  # of one Arrow batch: many are published one by one


@dataclass
class Delivered:
    """Batches of messages put together."""

    topic: str
    keys: list[str | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    runs: list[tuple[int, int, int, int]] = field(default_factory=list)  # offset, how many, revision, ms
    bytes: int = 0

    def add(self, batch: MessageBatch) -> None:
        """The next."""
        self.keys += batch.keys
        self.values += batch.values
        self.runs.append((batch.offset, len(batch), int(batch.revision), round(batch.time * 1000)))
        self.bytes += sum(map(len, batch.values))

    @property
    def full(self) -> bool:
        """Whether it is time to pass them on."""
        return len(self.values) >= ROWS or self.bytes >= BYTES

    def of_runs(self, place: int) -> Any:
        """What is the same in each run, for each row."""
        return np.repeat(
            np.array([run[place] for run in self.runs], np.int64), np.array([run[1] for run in self.runs], np.int64)
        )


def put_together(topic: str, batches: Iterable[MessageBatch]) -> Iterator[Delivered]:
    """In portions that are worth an Arrow batch."""
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
    """What becomes one segment of messages; no key is an empty text."""

    topic: str = ""

    @property
    def duplicates(self) -> int:
        """None: messages of one key are many."""
        return 0

    def encode(self, **more: Any) -> bytes:
        """The segment, with `more` sparse columns."""
        keys = packed(self.key_column, text=True) if len(self.key_column) else (b"\xc0", b"")
        body = b"".join((b"\x92", *keys, *packed(self.value_column, text=False)))
        published = [[self.topic, len(self.value_column), body]]
        return Segment([], [], {columns.PUBLISH: published, **more}).encode()


class MessageShape(Shape):
    """Which columns are the key and the value of messages."""

    def __init__(self, options: dict[str, Any], names: Sequence[str]) -> None:
        self._topic: str = options["topic"]
        super().__init__(options, names)

    def _of_keys(self) -> list[str]:
        return super()._of_keys() if self._template or self._key in self._names else []

    def segments(self, batch: pa.RecordBatch) -> Iterator[PackedRows]:
        """The rows as segments, none larger than a batch may be."""
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
    """What the rows of a frame become: keys, or messages of a topic."""
    return Shape(options, names) if options["topic"] is None else MessageShape(options, names)
