"""Publish a data frame: its rows become keys and values of a Clone.

    publish(frame, clone)                                       columns key and value
    publish(frame, clone, ttl="ttl", nulls="delete")            a ttl (seconds) per row; no value means: delete the key
    publish(frame, clone, key="/rates/{base}/{quote}/last", value="last", ttl=60)

Rules
- The frame goes through Arrow, a column at a time: no step here runs Python code per row.
- A key is text, never null. A value is binary, or text, which becomes UTF-8. Numbers are refused: how many decimals
  they have is for the job to say (`cast` or `format_string`), not for us to guess.
- A null value is an error, or deletes its key (`nulls="delete"`), or leaves it alone (`nulls="skip"`).
- A key that occurs twice in one frame: the last row wins, and the result and a log line say how many were dropped.
  A frame has an order only if the job gave it one (`orderBy`).
- Everything is checked before anything is sent. A frame that is refused publishes nothing.

This is the first cut of `format("chp")`: one batch, through the driver.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from chp.errors import BadInput
from chp.keys import check_column
from chp.limits import DEFAULT

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as _error:
    raise ImportError(f"{_error}; pyarrow comes with the extra: pip install 'chp-clone[spark]'") from _error

log = logging.getLogger(__name__)
NULL_RULES = ("error", "delete", "skip")


class BadDataFrame(BadInput):
    """A data frame that can't be published; the text names the column, the row if there is one, and the remedy."""


class Publisher(Protocol):
    """The part of `Clone` that publishing needs."""

    def set_many(self, items: dict[str, bytes], ttl: float | None = None) -> object: ...
    def delete_many(self, keys: list[str]) -> object: ...


@dataclass(frozen=True, slots=True)
class Published:
    """What one call of `publish` handed to the Clone; it is on its way, and `clone.flush()` waits for it."""

    sets: dict[str, bytes]
    deletes: list[str]
    duplicates: int  # rows that a later row with the same key replaced

    def describe(self) -> str:
        """One line for logs."""
        dropped = f", {self.duplicates} earlier rows of the same key dropped" if self.duplicates else ""
        return f"{len(self.sets)} keys set, {len(self.deletes)} deleted{dropped}"


def publish(
    frame: Any,
    clone: Publisher,
    *,
    key: str = "key",
    value: str = "value",
    ttl: float | str | None = None,
    nulls: str = "error",
) -> Published:
    """Hand every row of `frame` (Spark's, or an Arrow table or batch) to `clone`.

    `key` is a column, or a template over columns such as "/rates/{base}/{quote}"; `value` is a column; `ttl` is in
    seconds, for all rows, or the name of a column. Raises `BadDataFrame` or `BadKey`, before anything is sent.
    """
    if nulls not in NULL_RULES:
        raise BadDataFrame(f"nulls is {nulls!r}; it is one of {', '.join(NULL_RULES)}")
    table = to_arrow(frame)
    columns = _latest(_keys(table, key), _values(table, value), _ttls(table, ttl))
    duplicates = table.num_rows - columns.num_rows
    if duplicates:
        log.warning("%d of %d rows had a key that occurs again in the frame; the last row of each key is published",
                    duplicates, table.num_rows)  # fmt: skip
    check_column(columns["key"].to_pylist(), {})
    present = columns.filter(pc.is_valid(columns["value"]))
    absent = columns.filter(pc.is_null(columns["value"]))
    if absent.num_rows and nulls == "error":
        first, count = absent["key"][0].as_py(), absent.num_rows
        raise BadDataFrame(
            f"column {value!r} is null for key {first!r} ({count} such rows); fill it, or give nulls='delete' or 'skip'"
        )
    deletes: list[str] = absent["key"].to_pylist() if nulls == "delete" else []
    return Published(_send(present, deletes, clone), deletes, duplicates)


def to_arrow(frame: Any) -> pa.Table:
    """The frame as an Arrow table: Spark's by `toArrow`, Arrow's own as they are."""
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    raise BadDataFrame(
        f"can't publish a {type(frame).__name__}; give a Spark DataFrame or a pyarrow Table or RecordBatch"
    )


def _column(table: pa.Table, name: str, role: str) -> pa.ChunkedArray:
    found = table.column_names.count(name)
    if found == 0:
        raise BadDataFrame(f"there is no column {name!r} for the {role}; the frame has {', '.join(table.column_names)}")
    if found > 1:
        raise BadDataFrame(f"{found} columns are called {name!r}; rename all but one")
    column = table.column(name)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _keys(table: pa.Table, key: str) -> pa.ChunkedArray:
    if "{" not in key and "}" not in key:
        column = _text_column(table, key)
    else:
        parts = [
            _text_column(table, part) if named else pa.scalar(part, pa.large_string()) for part, named in _template(key)
        ]
        nothing = pa.scalar("", pa.large_string())
        column = pc.binary_join_element_wise(*parts, nothing, null_handling="emit_null")
        if isinstance(column, pa.Array):
            column = pa.chunked_array([column])
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise BadDataFrame(f"key {key!r} is null in row {row} ({column.null_count} such rows); filter them out")
    return column


def _text_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(table, name, "key")
    if not _is_text(column.type):
        raise BadDataFrame(f"column {name!r} is {column.type}; a key is text: cast it to string in the job")
    return column.cast(pa.large_string())


def _template(text: str) -> Iterator[tuple[str, bool]]:
    """The template's parts in order, each with whether it names a column."""
    if re.search(r"[{}]", re.sub(r"\{[^{}]+\}", "", text)):
        raise BadDataFrame(f"key template {text!r} has a brace without its partner; write {{column}}")
    position = 0
    for match in re.finditer(r"\{([^{}]*)\}", text):
        if match.start() > position:
            yield text[position : match.start()], False
        yield match[1], True
        position = match.end()
    if position < len(text):
        yield text[position:], False


def _values(table: pa.Table, value: str) -> pa.ChunkedArray:
    column = _column(table, value, "value")
    if pa.types.is_null(column.type):
        return column.cast(pa.large_binary())
    if not (_is_text(column.type) or _is_binary(column.type)):
        raise BadDataFrame(
            f"column {value!r} is {column.type}; a value is binary or text: cast or encode it in the job"
        )
    column = column.cast(pa.large_string() if _is_text(column.type) else pa.large_binary()).cast(pa.large_binary())
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > DEFAULT.value_bytes_max:
        raise BadDataFrame(f"column {value!r} has a value of {longest} bytes; at most {DEFAULT.value_bytes_max} fit")
    return column


def _ttls(table: pa.Table, ttl: float | str | None) -> pa.ChunkedArray:
    """A ttl for each row, in seconds; null is none."""
    if not isinstance(ttl, str):
        _check_ttl(ttl, "ttl")
        return pa.chunked_array([pa.repeat(pa.scalar(ttl, pa.float64()), table.num_rows)])
    column = _column(table, ttl, "ttl")
    kind = column.type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (number or pa.types.is_null(kind)):
        raise BadDataFrame(f"column {ttl!r} is {kind}; a ttl is a number of seconds")
    column = column.cast(pa.float64())
    extremes = pc.min_max(column).as_py()
    _check_ttl(extremes["min"], f"column {ttl!r}")
    _check_ttl(extremes["max"], f"column {ttl!r}")
    if pc.any(pc.is_nan(column)).as_py():
        raise BadDataFrame(f"column {ttl!r} has nan; a ttl is a number of seconds, or null for none")
    return column


def _check_ttl(ttl: float | None, name: str) -> None:
    if ttl is not None and not 0 < ttl <= DEFAULT.ttl_s_max:
        raise BadDataFrame(f"{name} is {ttl}; it is above 0 s and at most {DEFAULT.ttl_s_max:.0f} s, or null")


def _latest(keys: pa.ChunkedArray, values: pa.ChunkedArray, ttls: pa.ChunkedArray) -> pa.Table:
    """One row a key: the last one of each."""
    rows = pa.table({"key": keys, "value": values, "ttl": ttls})
    if pc.count_distinct(keys).as_py() == len(keys):
        return rows
    numbered = rows.select(["key"]).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
    return rows.take(last.take(pc.sort_indices(last)))


def _send(present: pa.Table, deletes: list[str], clone: Publisher) -> dict[str, bytes]:
    """Hand over sets, one call for each ttl, and deletes; the sets."""
    sent: dict[str, bytes] = {}
    for ttl in pc.unique(present["ttl"]).to_pylist():
        same = pc.is_null(present["ttl"]) if ttl is None else pc.equal(present["ttl"], ttl)
        group = present.filter(same)
        items = dict(zip(group["key"].to_pylist(), group["value"].to_pylist(), strict=True))
        clone.set_many(items, ttl=ttl)
        sent.update(items)
    if deletes:
        clone.delete_many(deletes)
    return sent
