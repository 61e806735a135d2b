"""The messages of a topic: the columns of a read, and the rows that become messages.

    key string          null for none           value binary
    topic string        offset bigint           dense from 0 in each topic
    revision bigint     of the record           epoch int, sequence bigint    its two parts
    timestamp timestamp                         the active's clock when the message came
    headers array<struct<key string, value binary>>    as Kafka's source has them; null for none

A row that is written needs a value, as rows of keys do (rows.py). Its message has a key if the option `key.template` is
given, or if the frame has the column that the option `key` names (by default `key`). A codec and a user's schema work
as they do for keys (columns.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chp import columns
from chp.batch import Segment, packb
from chp.errors import BadInput, BadKey
from chp.numbers import EPOCH_SHIFT, SEQUENCE_MASK
from chp.topics import Headers, check_headers, column_of_headers

from ...topics.reader import MessageBatch
from .columns import Makers
from .fields import BadDataFrame, is_binary, is_text, text_column
from .pack import PackedRows, check_keys, packed
from .rows import Shape

SCHEMA = (
    "key string, value binary, topic string, offset bigint, "
    "revision bigint, epoch int, sequence bigint, timestamp timestamp, headers array<struct<key:string,value:binary>>"
)
# Batches of messages are joined to an Arrow batch up to these bounds, because many messages are published one by one.
ROWS, BYTES = 20_000, 8 << 20


HEADERS_COLUMN = "headers"


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
    # The headers of the messages that have any, by the index of the message.
    headers: dict[int, Headers] = field(default_factory=dict)

    def add(self, batch: MessageBatch) -> None:
        """Add the next batch."""
        if batch.headers is not None:
            self.headers |= {at: each for at, each in enumerate(batch.headers, len(self.keys)) if each}
        self.keys += batch.keys
        self.values += batch.values
        self.runs.append((batch.offset, len(batch), int(batch.revision), round(batch.time * 1000)))
        self.bytes += sum(map(len, batch.values))

    @property
    def full(self) -> bool:
        """True if these messages are enough for an Arrow batch."""
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


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _headers(m: Delivered) -> pa.Array:
    if not m.headers:
        return pa.nulls(len(m.values), HEADERS)
    listed: list[Any] = [None] * len(m.values)
    for at, headers in m.headers.items():
        listed[at] = [{"key": name, "value": text.encode()} for name, text in headers.items()]
    return pa.array(listed, HEADERS)


MAKE: Makers = {
    "key": lambda m: pa.array(m.keys, pa.string()),
    "value": lambda m: pa.array(m.values, pa.binary()),
    "topic": lambda m: pa.repeat(m.topic, len(m.values)),
    "offset": _offsets,
    "revision": lambda m: pa.array(m.of_runs(2)),
    "epoch": lambda m: pa.array((m.of_runs(2) >> EPOCH_SHIFT).astype(np.int32)),
    "sequence": lambda m: pa.array(m.of_runs(2) & SEQUENCE_MASK),
    "timestamp": lambda m: pa.array(m.of_runs(3) * 1000).cast(pa.timestamp("us", "UTC")),
    "headers": _headers,
}


@dataclass(slots=True)
class MessageColumns(PackedRows):
    """The columns of one segment of messages. The key of a message without a key is an empty text."""

    topic: str = ""
    headers: list[Headers] | None = None

    @property
    def duplicates(self) -> int:
        """The number 0: a topic keeps all messages of a key."""
        return 0

    def encode(self, **more: Any) -> bytes:
        """Return the segment, with `more` sparse columns."""
        keys = packed(self.key_column, text=True) if len(self.key_column) else (b"\xc0", b"")
        head, carried = (b"\x92", b"") if self.headers is None else (b"\x93", packb(list(map(dict, self.headers))))
        body = b"".join((head, *keys, *packed(self.value_column, text=False), carried))
        published = [[self.topic, len(self.value_column), body]]
        return Segment([], [], {columns.PUBLISH: published, **more}).encode()


class MessageShape(Shape):
    """The columns that are the key and the value of messages."""

    _NULL_REMEDY = "a message has a value: fill it, or filter such rows out"

    def __init__(self, options: dict[str, Any], names: Sequence[str]) -> None:
        self._topic: str = options["topic"]
        # A column that the option names has to be there; without the option messages may have no keys.
        self._names_key = options["key"] is not None
        named = options["headers"]
        # Without a codec, the value is one column. So another column that is called `headers` is taken for the headers.
        self._headers: str | None = named or (HEADERS_COLUMN if self._is_plain(options, names) else None)
        super().__init__(options, names)

    @staticmethod
    def _is_plain(options: dict[str, Any], names: Sequence[str]) -> bool:
        taken = options["value"], options["key"]
        return options["codec"] == "raw" and HEADERS_COLUMN in names and HEADERS_COLUMN not in taken

    def roles(self) -> list[tuple[str, str]]:
        """Return each column that is used, and its role."""
        return super().roles() + ([(self._headers, "headers")] if self._headers else [])

    def _others(self) -> list[str]:
        return [name for name in super()._others() if name != self._headers]

    def _of_keys(self) -> list[str]:
        is_wanted = self._template or self._names_key or self._key in self._names
        return super()._of_keys() if is_wanted else []

    def segments(self, batch: pa.RecordBatch) -> Iterator[PackedRows]:
        """Yield the rows as segments, none larger than a batch may be."""
        headers, at = self._carried(batch), 0
        for rows in super().segments(batch):
            keys, n = rows.key_column if self.key_columns else rows.key_column[:0], len(rows.value_column)
            carried = None if headers is None else column_of_headers(headers[at : at + n])
            yield MessageColumns(keys, rows.value_column, None, self._topic, carried)
            at += n

    def check(self, empty: pa.Table) -> None:
        """Raise `BadDataFrame` if the types of the columns are wrong; this needs no rows."""
        super().check(empty)
        if self._headers:
            _check_headers_type(self._headers, empty.schema.field(self._headers).type)

    def _carried(self, batch: pa.RecordBatch) -> list[Headers | None] | None:
        """Return the headers of each row; None if the frame has no column of them."""
        if self._headers is None or batch.num_rows == 0:
            return None
        column = batch.column(self._headers)
        _check_headers_type(self._headers, column.type)
        found: list[Headers | None] = []
        for row, listed in enumerate(column.to_pylist()):
            try:
                found.append(check_headers(_mapping(listed)) if listed else None)
            except (BadInput, UnicodeDecodeError, AttributeError) as error:
                raise BadDataFrame(
                    f"column {self._headers!r} has bad headers in row {row} of a batch: {error}"
                ) from None
        return found

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


def _check_headers_type(name: str, kind: pa.DataType) -> None:
    fields: dict[str, pa.DataType] = {}
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        fields = {field.name: field.type for field in kind.value_type}
    texts = all(is_text(each) or is_binary(each) for each in fields.values())
    if fields.keys() != {"key", "value"} or not texts:
        raise BadDataFrame(
            f"column {name!r} is {kind}; headers are array<struct<key:string,value:binary>>, as Kafka's "
            "source has them. Rename the column if it is something else"
        )


def _mapping(listed: list[dict[str, Any]]) -> Headers:
    """Return the headers in a list of structs; a name that is there twice is refused."""
    found: dict[str, str] = {}
    for each in listed:
        name, value = each["key"], each["value"]
        if name in found:
            raise BadInput(f"the name {name!r} is there twice; a message has one text for each name")
        found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def shape_of(options: dict[str, Any], names: Sequence[str]) -> Shape:
    """Return the shape of a frame whose rows become keys, or messages of a topic."""
    return Shape(options, names) if options["topic"] is None else MessageShape(options, names)
