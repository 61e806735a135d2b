"""The columns of a read: all that there are, those that a schema asks for, and the decoded values.

    key string            value binary         null for a delete
    revision bigint       of the key           epoch int, sequence bigint   its two parts
    ttl double            seconds left, or as it was given; null for none
    operation string      set or delete        timestamp timestamp          of a change; null in a snapshot

A snapshot and a stream have equal columns, so that a union of both is possible. A user's schema takes some of them;
fewer columns are read faster. It may have the value as string. With a codec it may name the fields inside the value, or
give the column `value` the type of the decoded value:

    spark.read.format("chp").option("codec", "json").schema("key string, bid double, ask double")
    spark.read.format("chp").option("codec", "json").schema("key string, value double")

Upper and lower case do not differ in names of columns, as in Spark. They do differ in names inside a value.
"""

import datetime as dt
import decimal
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute

from chp.numbers import EPOCH_SHIFT, SEQUENCE_MASK

from .fields import BadDataFrame, is_binary, is_text

# The column for values that could not be read, by Spark's default name.
CORRUPT = "_corrupt_record"
SCHEMA = (
    "key string, value binary, revision bigint, ttl double, "
    "operation string, epoch int, sequence bigint, timestamp timestamp"
)


@dataclass
class Updates:
    """The columns as they were on the wire; a value of None is a delete. Keys and values may be Arrow arrays already.

    revisions    an array of numpy, int64
    ttls_ms      the ttls by row, or one ttl of all rows
    """

    keys: list[str] | pa.Array
    values: list[bytes | None] | pa.Array
    revisions: Any
    ttls_ms: dict[int, int] | int | None = None
    wall_ms: int | None = None

    def take(self, rows: Sequence[int]) -> "Updates":
        """Return the given rows, in the given order."""
        ttls = self.ttls_ms
        if isinstance(ttls, dict):
            ttls = {new: ttls[old] for new, old in enumerate(rows) if old in ttls}
        rows = list(rows)
        return Updates(_rows(self.keys, rows), _rows(self.values, rows), self.revisions[rows], ttls, self.wall_ms)


def _rows(column: Any, rows: list[int]) -> Any:
    return column.take(pa.array(rows, pa.int64())) if isinstance(column, pa.Array) else [column[i] for i in rows]


def _ttls(u: Updates) -> pa.Array:
    if isinstance(u.ttls_ms, int):
        return pa.array(np.full(len(u.keys), u.ttls_ms / 1000))
    if not u.ttls_ms:
        return pa.nulls(len(u.keys), pa.float64())
    ttls: list[float | None] = [None] * len(u.keys)
    for i, ms in u.ttls_ms.items():
        ttls[i] = ms / 1000
    return pa.array(ttls, pa.float64())


def packed_column(octets: bytes, lengths: bytes, kind: pa.DataType) -> pa.Array:
    """Return a column of `kind` (string or binary) from its joined elements and their lengths, 32 bits each."""
    sizes = np.frombuffer(lengths, "<u4")
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(octets)])


def _listed(column: Any) -> list[Any]:
    listed: list[Any] = column.to_pylist() if isinstance(column, pa.Array) else column
    return listed


def _arrow(column: Any, kind: pa.DataType) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column, kind)


def _operations(u: Updates) -> pa.Array:
    if isinstance(u.values, pa.Array):
        # Only a snapshot has Arrow values.
        return pa.repeat("set", len(u.keys))
    codes = np.fromiter((value is None for value in u.values), np.int8, len(u.values))
    return pa.array(["set", "delete"]).take(pa.array(codes))


def _timestamps(u: Updates) -> pa.Array:
    if u.wall_ms is None:
        return pa.nulls(len(u.keys), pa.timestamp("us", "UTC"))
    return pa.array(np.full(len(u.keys), u.wall_ms * 1000)).cast(pa.timestamp("us", "UTC"))


# The columns that a read has, and the function that makes each.
Makers = Mapping[str, Callable[[Any], pa.Array]]
_MAKE: Makers = {
    "key": lambda u: _arrow(u.keys, pa.string()),
    "value": lambda u: _arrow(u.values, pa.binary()),
    "revision": lambda u: pa.array(u.revisions),
    "ttl": _ttls,
    "operation": _operations,
    "epoch": lambda u: pa.array((u.revisions >> EPOCH_SHIFT).astype(np.int32)),
    "sequence": lambda u: pa.array(u.revisions & SEQUENCE_MASK),
    "timestamp": _timestamps,
}


# The columns of a lookup: the value alone.
VALUE_ONLY: Makers = {"value": _MAKE["value"]}


class DeliveredRows(Protocol):
    """The rows that a `Layout` turns into a record batch."""

    @property
    def keys(self) -> Sequence[str | None] | pa.Array:
        """The keys of all rows."""

    @property
    def values(self) -> Sequence[bytes | None] | pa.Array:
        """The values of all rows."""


class Layout:
    """A maker of record batches with one schema.

    A row is bad if its value can't be decoded, or if a field inside the value does not fit its column. No field is cut
    to fit. `mode` says what becomes of a bad row, in the words of Spark's own readers: permissive (null), dropmalformed
    (left out), failfast (an error). In mode permissive the column `corrupt` of the schema, if there is one, has the
    whole value of a bad row.
    """

    def __init__(
        self, schema: Any, codec: str, mode: str = "failfast", make: Makers | None = None, corrupt: str = CORRUPT
    ) -> None:
        from .arrow_types import arrow_schema

        self._schema: pa.Schema = arrow_schema(schema)
        self._make = _MAKE if make is None else make
        own = {name.lower(): name for name in self._make}
        self._corrupt = next((field.name for field in self._schema if field.name.lower() == corrupt.lower()), None)
        if self._corrupt is not None:
            self._check_corrupt(self._corrupt, own)
        # For each field of the schema the name of the read's column, or None for a field inside the values.
        self._own = [own.get(field.name.lower()) for field in self._schema]
        self._inside = [
            field.name
            for field, name in zip(self._schema, self._own, strict=True)
            if name is None and field.name != self._corrupt
        ]
        # With a codec, a column `value` that is neither text nor bytes has the decoded value.
        self._whole = codec != "raw" and any(
            name == "value" and not (is_text(field.type) or is_binary(field.type))
            for field, name in zip(self._schema, self._own, strict=True)
        )
        self._codec = codec
        self._has_decimals = any(_has_decimals(field.type) for field in self._schema)
        self._mode = mode
        if self._inside and codec == "raw":
            raise BadDataFrame(
                f"there is no column {self._inside[0]!r}; there are {', '.join(self._make)}. What is inside the values "
                "needs the option codec (json, msgpack)"
            )

    def _check_corrupt(self, name: str, own: Mapping[str, str]) -> None:
        kind = self._schema.field(name).type
        if name.lower() in own:
            raise BadDataFrame(f"option columnNameOfCorruptRecord is {name!r}, which a read has already; name another")
        if not (is_text(kind) or is_binary(kind)):
            raise BadDataFrame(
                f"column {name!r} is {kind}; it has the values that could not be read, so it is string or binary "
                "(option columnNameOfCorruptRecord)"
            )

    def batch(self, updates: DeliveredRows) -> pa.RecordBatch:
        """Return the rows in the columns of the schema."""
        bad: set[int] = set()
        inside = self._decode(updates, bad) if self._inside or self._whole else []
        arrays: list[Any] = [
            None if field.name == self._corrupt else self._array(field, name, updates, inside, bad)
            for field, name in zip(self._schema, self._own, strict=True)
        ]
        if self._corrupt is not None:
            # By now `bad` has the bad rows of every column.
            place = self._schema.get_field_index(self._corrupt)
            arrays[place] = _corrupt_values(updates, bad, self._schema.field(place).type)
        keys = updates.keys
        if bad and self._mode == "dropmalformed":
            kept = pa.array([i for i in range(len(keys)) if i not in bad], pa.int64())
            arrays, keys = [array.take(kept) for array in arrays], _arrow(keys, pa.string()).take(kept)
        for field, array in zip(self._schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                key = _listed(keys)[pa.compute.index(array.is_null(), True).as_py()]
                raise BadDataFrame(f"column {field.name!r} is null for {key!r}, and the schema says it never is")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(
        self, field: pa.Field, name: str | None, updates: DeliveredRows, inside: list[Any], bad: set[int]
    ) -> pa.Array:
        make = None if name is None or (self._whole and name == "value") else self._make[name]
        column: Any
        if make is None:
            whole = name == "value"
            column = inside if whole else [None if thing is None else thing.get(field.name) for thing in inside]
            convert: Callable[[Any], pa.Array] = partial(_typed, kind=field.type)
        else:
            column = make(updates)
            convert = partial(_cast, kind=field.type)
        try:
            return convert(column)
        except UNFIT as error:
            unfit = _unfit(column, convert)
            remedy = "give another type" if make is not None and name != "value" else _REMEDY
            if not unfit:
                raise BadDataFrame(f"column {field.name!r} can't be {field.type}: {error}; {remedy}") from None
            if self._mode == "failfast":
                thing, key = _listed(column[unfit[0] : unfit[0] + 1])[0], _listed(updates.keys)[unfit[0]]
                raise BadDataFrame(
                    f"column {field.name!r} can't be {field.type} for {key!r}, where it is {thing!r:.80}"
                    f"{_reason(column[unfit[0] : unfit[0] + 1], convert)}; {remedy}"
                ) from None
        bad.update(unfit)
        mask = [i in bad for i in range(len(column))]
        if make is None:
            return convert([None if gone else thing for thing, gone in zip(column, mask, strict=True)])
        return convert(pa.compute.if_else(pa.array(mask), pa.scalar(None, column.type), column))

    def _decode(self, updates: DeliveredRows, bad: set[int]) -> list[Any]:
        """Return each value decoded; None for a delete, and for a bad value, whose row is added to `bad`."""
        decode: Callable[[bytes], Any] = _from_msgpack
        if self._codec == "json":
            decode = _from_json(WrittenFloat if self._has_decimals else _finite)
        things: list[Any] = []
        for i, (key, value) in enumerate(zip(_listed(updates.keys), _listed(updates.values), strict=True)):
            thing: Any = None
            why = ""
            try:
                thing = None if value is None else decode(value)
            except Exception as error:
                why = f"the value of {key!r} is not {self._codec}: {error}"
            if value is not None and not why and self._inside and type(thing) is not dict:
                why = f"the value of {key!r} is not an object with names, so it has no {self._inside[0]!r}"
            if why and self._mode == "failfast":
                raise BadDataFrame(f"{why}; the option mode says what becomes of such rows")
            if why:
                bad.add(i)
            things.append(None if why else thing)
        return things


def _corrupt_values(updates: DeliveredRows, bad: set[int], kind: pa.DataType) -> pa.Array:
    """Return the values of the bad rows as they were on the wire, and null for the others."""
    values = _listed(updates.values) if bad else []
    found = [values[i] if i in bad else None for i in range(len(updates.keys))]
    if is_text(kind):
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in found], kind)
    return pa.array(found, kind)


def layout_of(options: Mapping[str, Any], schema: Any, make: Makers | None = None) -> Layout:
    """Return the layout of a read by its options."""
    return Layout(schema, options["codec"], options["mode"], make, options["columnNameOfCorruptRecord"])


_REMEDY = "give another type, read the value as binary, or say what becomes of such rows with the option mode"
UNFIT = (pa.ArrowException, ValueError, TypeError, AttributeError, ArithmeticError)


def _unfit(column: Any, convert: Callable[[Any], pa.Array]) -> list[int]:
    """Return the rows that can't be converted. The search by halves is cheap if few of many rows are bad."""

    def among(start: int, stop: int) -> list[int]:
        try:
            convert(column[start:stop])
        except UNFIT:
            if stop - start == 1:
                return [start]
            half = (start + stop) // 2
            return among(start, half) + among(half, stop)
        return []

    return among(0, len(column)) if len(column) else []


def _reason(column: Any, convert: Callable[[Any], pa.Array]) -> str:
    """Return in brackets why a column of one row does not fit, or "" if only an error of Arrow says it."""
    try:
        convert(column)
    except (pa.ArrowException, OverflowError, AttributeError):
        return ""
    except UNFIT as error:
        return f" ({error})"
    return ""


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type.equals(kind) else array.cast(kind)


def _from_msgpack(value: bytes) -> Any:
    # A map column may have numbers as keys.
    return msgpack.unpackb(value, strict_map_key=False)


def _from_json(parse_float: Callable[[str], float]) -> Callable[[bytes], Any]:
    """Return the function that decodes a value. It refuses NaN and infinite numbers, as the writer of JSON does."""
    decode = json.JSONDecoder(parse_float=parse_float, parse_constant=_no_number).decode
    return lambda value: decode(value.decode(json.detect_encoding(value), "surrogatepass"))


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large for a number")
    return number


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in it")


class WrittenFloat(float):
    """A float of JSON that keeps its digits as they were written, because a decimal may have more than a float."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> "WrittenFloat":
        """Return the float that a text is."""
        made = super().__new__(cls, _finite(text))
        made._text = text
        return made

    def __repr__(self) -> str:
        """Return the digits."""
        return self._text


def _has_decimals(kind: pa.DataType) -> bool:
    """Return True if the type is a decimal, or has one inside."""
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(i).type) for i in range(kind.num_fields))


def _typed(column: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of `kind` from decoded values, in which days, times and decimals are text."""
    if pa.types.is_decimal(kind):
        return pa.array([None if thing is None else str(thing) for thing in column]).cast(kind)
    # If a column has only these Python types, its values need no check one by one.
    plain = {int} if pa.types.is_integer(kind) else {int, float} if kind == pa.float64() else set()
    read = None if plain and set(map(type, column)) <= {*plain, type(None)} else _reader(kind)
    return pa.array(column if read is None else [None if thing is None else read(thing) for thing in column], kind)


def _whole_number(thing: Any) -> int:
    """Return a whole number, or raise; Arrow would cut a fraction off."""
    if type(thing) is int or (isinstance(thing, float) and thing.is_integer()):
        return int(thing)
    raise ValueError(f"{thing!r:.40} is not a whole number")


def _double(thing: Any) -> Any:
    """Return a number, or raise for true and false; Arrow would take them for 1 and 0."""
    if type(thing) is bool:
        raise ValueError(f"{str(thing).lower()} is not a number")
    return thing


def _single(thing: Any) -> Any:
    """Return a number for a float of 32 bits, which is rounded as Spark does, but never to infinity."""
    if isinstance(thing, float) and math.isfinite(thing) and abs(thing) > FLOAT_MAX:
        raise ValueError(f"{thing!r} is too large for a float")
    return _double(thing)


_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(_DAY.pattern + r"(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d{1,6})?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII)


def _day(text: str) -> dt.date:
    if not _DAY.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a day such as 2026-01-05")
    return dt.date.fromisoformat(text)


def _time_in_a_zone(text: str) -> dt.datetime:
    if not (found := _TIME.fullmatch(text)) or not found[1]:
        raise ValueError(f"{text!r:.40} is not a time with a zone, such as 2026-01-05T14:30:00.123456Z")
    return dt.datetime.fromisoformat(text)


def _local_time(text: str) -> dt.datetime:
    if not (found := _TIME.fullmatch(text)) or found[1]:
        raise ValueError(f"{text!r:.40} is not a time without a zone, such as 2026-01-05T14:30:00.123456")
    return dt.datetime.fromisoformat(text)


FLOAT_MAX = 3.4028234663852886e38
_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_date, _day),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _time_in_a_zone),
    (pa.types.is_timestamp, _local_time),
    (pa.types.is_decimal, lambda thing: decimal.Decimal(str(thing))),
    (pa.types.is_integer, _whole_number),
    (pa.types.is_float32, _single),
    (pa.types.is_float64, _double),
)


def _reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that checks and converts a decoded value for `kind`; None if it can stay as it is."""
    t = pa.types
    for is_kind, leaf in _LEAVES:
        if is_kind(kind):
            return leaf
    fields = [kind.field(i) for i in range(kind.num_fields)] if t.is_list(kind) or t.is_struct(kind) else []
    found = [_field_reader(field) for field in fields]
    if t.is_map(kind):
        found = [_key_reader(kind.key_type), _field_reader(kind.item_field)]
    if not any(found):
        return None
    readers = [read or _as_it_is for read in found]
    if t.is_list(kind):
        return lambda things: [readers[0](thing) for thing in _listing(things)]
    if t.is_map(kind):
        return lambda thing: _mapping({readers[0](key): readers[1](value) for key, value in thing.items()}, thing)
    names = [field.name for field in fields]
    return lambda thing: {name: read(thing.get(name)) for name, read in zip(names, readers, strict=True)}


def _listing(things: Any) -> list[Any]:
    """Return a list. Raise for a text or an object, which is no list, although Python can iterate over it."""
    if type(things) is not list:
        raise TypeError(f"{things!r:.40} is not a list")
    return things


def _mapping(made: dict[Any, Any], given: dict[Any, Any]) -> dict[Any, Any]:
    """Return the map that was made of a given one, or raise if two of its keys are equal now, such as 1 and 01."""
    if len(made) < len(given):
        raise ValueError(f"two of its keys are equal as keys of the map: {', '.join(map(str, given)):.40}")
    return made


def _key_reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes the keys of a map: the keys of a JSON object are text, whatever they were."""
    t, read = pa.types, _reader(kind)
    if is_text(kind):
        return None
    parse: Callable[[str], Any] | None = int if t.is_integer(kind) else float if t.is_floating(kind) else None
    parse = json.loads if t.is_boolean(kind) else parse
    if parse is None:
        return read
    return lambda key: parse(key) if type(key) is str else key if read is None else read(key)


def _field_reader(field: pa.Field) -> Callable[[Any], Any] | None:
    """Return the reader of a field or element. It passes a null on, or raises if the schema allows no null."""
    read = _reader(field.type)
    if field.nullable:
        return None if read is None else lambda thing: None if thing is None else read(thing)

    def required(thing: Any) -> Any:
        if thing is None:
            raise ValueError(f"{field.name!r} in it is null, and the schema says it never is")
        return thing if read is None else read(thing)

    return required


def _as_it_is(thing: Any) -> Any:
    return thing
