"""The shape of rows. It turns Arrow columns into keys, values, ttls and conditions, without Python code for each row.

    shape = Shape(options, ["base", "quote", "bid"])       decides once, from names and types: key, value, ttl
    for segment in shape.segments(batch): ...              each fits one batch of the protocol

Only a codec looks at rows one by one, because it makes an object of each. Without the option `value` that object has
the columns that are not named elsewhere. If the only such column is called `value`, it is the value itself.

A bad row is an error that names the column, and the row if there is one: a job that stops is better than one that drops
rows silently. The order of rows is kept, so of rows with equal keys the last one wins.
"""

import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chp import columns
from chp.errors import BadKey
from chp.keys import check_subtree
from chp.limits import DEFAULT

from ..options import KEY_COLUMN
from .fields import (
    BadDataFrame,
    is_binary,
    is_text,
    named_column,
    template_parts,
    text_column,
    ttl_column,
    value_column,
)
from .pack import PackedRows, buffers, check_keys

# A staged batch has about this many bytes: few enough for a steady flow, and enough for a low cost for each row.
PART_BYTES = 2 << 20


class Shape:
    """The columns that are the key, the value, the ttl and the condition."""

    _NULL_REMEDY = "fill it, or say null.value=delete"

    def __init__(self, options: dict[str, Any], names: Sequence[str]) -> None:
        self._names = list(names)
        self._template = options["key.template"]
        self._key: str = self._template or self._found(options["key"] or KEY_COLUMN)
        self._subtree = check_subtree(options["subtree"])
        self._codec: str = options["codec"]
        ttl = options["ttl"]
        self._ttl: float | str | None = self._found(ttl) if isinstance(ttl, str) else ttl
        self._revision: str | None = self._found(options["revision"])
        self._operation: str | None = self._found(options["operation"])
        self._nulls: str = options["null.value"]
        self._value: str | None = self._found(options["value"] or (None if self._codec != "raw" else "value"))
        self.key_columns = self._of_keys()
        if self._value is None and [name.lower() for name in self._others()] == ["value"]:
            # The only column that is left is called `value`. So it is the value itself, and not an object of one field.
            self._value = self._others()[0]
        self.value_columns = [self._value] if self._value else self._others()
        for column, role in self.roles():
            self._require(column, role)
        if not self.value_columns:
            raise BadDataFrame(
                "no column is left for the value: all are key, ttl or revision; name one with the option value"
            )

    def _of_keys(self) -> list[str]:
        if not self._template:
            return [self._key]
        if not (named := [self._found(part) for part, is_column in template_parts(self._key) if is_column]):
            raise BadDataFrame(
                f"key template {self._template!r} names no column, so all rows would have one key; write {{column}}"
            )
        return named

    @overload
    def _found(self, name: str) -> str: ...
    @overload
    def _found(self, name: str | None) -> str | None: ...
    def _found(self, name: str | None) -> str | None:
        """Return the column that a name means. As in Spark, case does not matter, unless several columns match then.

        `spark.sql.caseSensitive` is not known here. If it is true, two columns may differ only in case. Then the name
        means the column with exactly that spelling.
        """
        if name is None or name in self._names:
            return name
        near = [each for each in self._names if each.lower() == name.lower()]
        return near[0] if len(near) == 1 else name

    def roles(self) -> list[tuple[str, str]]:
        """Return each column that is used, and its role."""
        found = [(name, "key") for name in self.key_columns] + [(name, "value") for name in self.value_columns]
        found += [(self._ttl, "ttl")] if isinstance(self._ttl, str) else []
        found += [(self._operation, "operation")] if self._operation else []
        return found + ([(self._revision, "revision")] if self._revision else [])

    def _others(self) -> list[str]:
        used = {*self.key_columns, self._ttl, self._revision, self._operation}
        return [name for name in self._names if name not in used]

    def _require(self, name: str, role: str) -> None:
        if self._names.count(name) == 1:
            return
        if name in self._names:
            raise BadDataFrame(f"{self._names.count(name)} columns are called {name!r}; rename all but one")
        source = f" of the template {self._template!r}" if role == "key" and self._template else ""
        option = "key.template" if role == "key" and self._template else role
        raise BadDataFrame(
            f"there is no column {name!r} for the {role}{source}; the frame has {', '.join(self._names)}. "
            f"Name another with the option {option}"
        )

    # -- a batch

    def segments(self, batch: pa.RecordBatch) -> Iterator[PackedRows]:
        """Yield the rows as segments, none larger than a batch may be."""
        rows = batch.num_rows
        if rows == 0:
            return
        keys, values, absent, ttls, revisions = self._columns(pa.Table.from_batches([batch]))
        for start, stop in _parts(buffers(keys)[0] + buffers(values)[0]):
            extras: dict[str, Any] = {}
            if absent and (deletes := [i - start for i in absent if start <= i < stop]):
                extras[columns.DELETES] = deletes
            if self._ttl is not None:
                self._add_ttl(extras, None if ttls is None else ttls.slice(start, stop - start))
            if revisions is not None:
                _sparse(extras, columns.UNLESS_NEWER, revisions[start:stop])
            yield PackedRows(keys.slice(start, stop - start), values.slice(start, stop - start), extras or None)

    def check(self, empty: pa.Table) -> None:
        """Raise `BadDataFrame` if the types of the columns are wrong; this needs no rows."""
        self._columns(empty)

    def _columns(self, table: pa.Table) -> tuple[pa.Array, pa.Array, list[int], Any, list[int | None] | None]:
        ttls = ttl_column(table, self._ttl) if isinstance(self._ttl, str) else None
        return self._keys(table), *self._values(table), ttls, self._revisions(table)

    def _keys(self, table: pa.Table) -> pa.Array:
        column = self._templated(table) if self._template else text_column(table, self._key)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise BadDataFrame(
                f"key {self._key!r} is null in row {row} of a batch ({column.null_count} such rows); filter them out"
            )
        keys = _whole(column)
        try:
            check_keys(keys)
        except BadKey as error:
            raise BadDataFrame(f"column {self._key!r} has a key that can't be one: {error}") from None
        if self._subtree and not pc.all(inside := pc.starts_with(keys, self._subtree), min_count=0).as_py():
            stranger = keys[pc.index(inside, False).as_py()].as_py()
            raise BadDataFrame(
                f"key {stranger!r} is not in the subtree {self._subtree!r}; mend the key or the option subtree"
            )
        return keys

    def _templated(self, table: pa.Table) -> pa.ChunkedArray:
        parts = [
            _part(table, self._found(part)) if named else pa.scalar(part, pa.large_string())
            for part, named in template_parts(self._key)
        ]
        return pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()), null_handling="emit_null")

    def _values(self, table: pa.Table) -> tuple[pa.Array, list[int]]:
        """Return a value for each row, and the rows that delete their key."""
        deleted = self._deleted(table)
        if self._codec != "raw":
            encoded, absent = self._encoded(table, deleted)
            values = pa.array(encoded, pa.large_binary())
        else:
            assert self._value is not None, "without a codec there is one column"
            column = _whole(value_column(table, self._value))
            if deleted:
                column = pc.if_else(_mask(deleted, len(column)), pa.scalar(None, column.type), column)
            absent = [] if not column.null_count else pc.indices_nonzero(pc.is_null(column)).to_pylist()
            values = column.fill_null(b"") if absent else column
        if self._nulls == "error" and (nulls := [i for i in absent if i not in deleted]):
            raise BadDataFrame(
                f"column {self._value!r} is null in row {nulls[0]} of a batch ({len(nulls)} such rows); "
                f"{self._NULL_REMEDY}"
            )
        return values, absent

    def _deleted(self, table: pa.Table) -> set[int]:
        """Return the rows whose operation is a delete."""
        if self._operation is None:
            return set()
        column = named_column(table, self._operation, "operation")
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise BadDataFrame(f"column {self._operation!r} is {column.type}; an operation is text: set, or delete")
        known = pc.is_in(column, pa.array(["set", "delete"], column.type)) if len(column) else None
        if known is not None and not pc.all(known).as_py():
            row = pc.index(known, False).as_py()
            raise BadDataFrame(
                f"column {self._operation!r} has {column[row].as_py()!r} in row {row} of a batch; it is set or delete"
            )
        return set(pc.indices_nonzero(pc.equal(column, "delete")).to_pylist()) if len(column) else set()

    def _encoded(self, table: pa.Table, deleted: set[int]) -> tuple[list[bytes], list[int]]:
        for name in self.value_columns:
            _check_encodable(name, table.schema.field(name).type, self._codec)
        try:
            rows = table.select(self.value_columns).to_pylist(maps_as_pydicts="strict")
        except KeyError:
            raise BadDataFrame(_twice_in_a_map(table.select(self.value_columns))) from None
        things = [row[self._value] for row in rows] if self._value else rows
        if deleted:
            things = [None if i in deleted else thing for i, thing in enumerate(things)]
        absent = [i for i, thing in enumerate(things) if thing is None]
        encode = _to_json if self._codec == "json" else _to_msgpack
        try:
            encoded = [encode(thing) for thing in things]
        except (TypeError, ValueError):
            raise BadDataFrame(_unsayable(rows, encode, self._codec)) from None
        _check_sizes(max(map(len, encoded), default=0), names=self.value_columns)
        for i in absent:
            encoded[i] = b""
        return encoded, absent

    def _add_ttl(self, extras: dict[str, Any], column: pa.ChunkedArray | None) -> None:
        if column is None:
            assert isinstance(self._ttl, float), "without a column it is a number"
            extras[columns.TTLS] = _ms(self._ttl)
        else:
            _sparse(extras, columns.TTLS, [None if ttl is None else _ms(ttl) for ttl in column.to_pylist()])

    def _revisions(self, table: pa.Table) -> list[int | None] | None:
        if self._revision is None:
            return None
        column = named_column(table, self._revision, "revision")
        if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise BadDataFrame(
                f"column {self._revision!r} is {column.type}; a revision is a whole number, as it was read"
            )
        if column.null_count < len(column) and (lowest := pc.min(column).as_py()) < 0:
            raise BadDataFrame(f"column {self._revision!r} has {lowest}; a revision is a number from 0 on, or null")
        revisions: list[int | None] = column.to_pylist()
        return revisions


def _parts(ends: Any) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about `PART_BYTES`, at least one row each; `ends` has the byte where each row ends."""
    start, rows = 0, len(ends) - 1
    while start < rows:
        full = int(np.searchsorted(ends, ends[start] + PART_BYTES, "right")) - 1
        stop = min(max(full, start + 1), start + DEFAULT.batch_items_max, rows)
        yield start, stop
        start = stop


def _mask(rows: set[int], n: int) -> pa.Array:
    """Return a mask of `n` rows that is True for these rows."""
    mask = np.zeros(n, np.bool_)
    mask[list(rows)] = True
    return pa.array(mask)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _sparse(extras: dict[str, Any], name: str, column: list[int | None]) -> None:
    places = [i for i, thing in enumerate(column) if thing is not None]
    if places:
        extras[name] = [places, [column[i] for i in places]]


def _ms(ttl: float) -> int:
    return max(1, round(ttl * 1000))


def _part(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a template, as text. Raise if a row has an empty text, because its key would lack a part."""
    column = named_column(table, name, "key")
    kind = column.type
    if is_text(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
        column = column.cast(pa.large_string())
        if (row := pc.index(column, pa.scalar("", pa.large_string())).as_py()) >= 0:
            raise BadDataFrame(
                f"column {name!r} of the template is empty in row {row} of a batch; fill it, or filter such rows out"
            )
        return column
    raise BadDataFrame(
        f"column {name!r} is {kind}; the columns of a key are text, whole numbers or dates: cast it to string"
    )


def _check_sizes(longest: int, names: Sequence[str]) -> None:
    if longest > DEFAULT.value_bytes_max:
        columns = ", ".join(map(repr, names))
        raise BadDataFrame(f"column {columns} has a value of {longest} bytes; at most {DEFAULT.value_bytes_max} fit")


def _check_encodable(name: str, kind: pa.DataType, codec: str) -> None:
    t = pa.types
    if t.is_duration(kind) or t.is_interval(kind) or t.is_union(kind) or t.is_time(kind):
        raise BadDataFrame(
            f"column {name!r} is {kind}, which no codec here takes: cast it to string or a number in the job"
        )
    if codec == "json" and is_binary(kind):
        raise BadDataFrame(
            f"column {name!r} is or has binary, which json can't say: base64() it in the job, or take the codec msgpack"
        )
    if t.is_map(kind) and not _is_key(kind.key_type, codec):
        raise BadDataFrame(
            f"column {name!r} is or has a map with keys of {kind.key_type}, which {codec} can't say: "
            "cast them to string in the job"
        )
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in fields]
    if t.is_struct(kind) and (twice := next((each for each in names if names.count(each) > 1), None)) is not None:
        raise BadDataFrame(f"column {name!r} is or has a struct with two fields {twice!r}; rename one of them")
    for field in fields:
        _check_encodable(name, field.type, codec)


def _is_key(kind: pa.DataType, codec: str) -> bool:
    """Return True if a codec can write keys of a map of that type. No codec writes a struct, list or map as a key."""
    t = pa.types
    if codec == "json":
        return is_text(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind)
    return not t.is_nested(kind)


def _twice_in_a_map(table: pa.Table) -> str:
    """Return a text that names the first column and row with a map that has a key twice."""
    for name in table.column_names:
        for i, thing in enumerate(table.column(name)):
            try:
                thing.as_py(maps_as_pydicts="strict")
            except KeyError:
                return (
                    f"column {name!r} has a map with a key that is there twice, in row {i} of a batch; drop one of them"
                )
    return "a map has a key that is there twice; drop one of them"


def _unsayable(rows: list[dict[str, Any]], encode: Callable[[Any], bytes], codec: str) -> str:
    """Return a text that names the first column and row that a codec can't take, and the reason."""
    for i, row in enumerate(rows):
        for name, thing in row.items():
            try:
                encode(thing)
            except (TypeError, ValueError) as error:
                return f"column {name!r} can't be written as {codec} in row {i} of a batch: {error}; cast it in the job"
    return f"a row can't be written as {codec}"


def _to_json(thing: Any) -> bytes:
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode()


def _to_msgpack(thing: Any) -> bytes:
    packed: bytes = msgpack.packb(thing, default=_plain)
    return packed


def _plain(thing: Any) -> Any:
    """Return times and days as ISO 8601 and decimals as their digits, because no codec knows them."""
    if isinstance(thing, dt.datetime | dt.date):
        return thing.isoformat()
    if isinstance(thing, decimal.Decimal):
        return str(thing)
    raise TypeError(f"{type(thing).__name__} is not something it can say")
