"""The columns of a data frame that become keys, values and ttls: their names, their types, and what is refused.

Rules
- Columns go through Arrow: no step here runs Python code for each row.
- A key is text, never null. A value is binary, or text, which becomes UTF-8. Numbers are refused, because only the job
  knows how many decimals they need (`cast` or `format_string`).
- A ttl is a number of seconds; null means no ttl.
"""

import re
from collections.abc import Iterator

from chp.errors import BadInput
from chp.limits import DEFAULT

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as _error:
    raise ImportError(f"{_error}; pyarrow comes with the extra: pip install 'chp-clone[spark]'") from _error


class BadDataFrame(BadInput):
    """The error for columns that can't be written or read. Its text has the column, the row if any, and the remedy."""


def named_column(table: pa.Table, name: str, role: str) -> pa.ChunkedArray:
    """Return the one column of that name. `role` tells in an error what the column is for."""
    found = table.column_names.count(name)
    if found == 0:
        raise BadDataFrame(f"there is no column {name!r} for the {role}; the frame has {', '.join(table.column_names)}")
    if found > 1:
        raise BadDataFrame(f"{found} columns are called {name!r}; rename all but one")
    column = table.column(name)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Return True if a column of that type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return True if a column of that type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def text_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the column of the keys."""
    column = named_column(table, name, "key")
    if not is_text(column.type):
        raise BadDataFrame(f"column {name!r} is {column.type}; a key is text: cast it to string in the job")
    return column.cast(pa.large_string())


def template_parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the template's parts in order, each with True if it names a column."""
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


def value_column(table: pa.Table, value: str) -> pa.ChunkedArray:
    """Return the column of the values, as bytes."""
    column = named_column(table, value, "value")
    if pa.types.is_null(column.type):
        return column.cast(pa.large_binary())
    if not (is_text(column.type) or is_binary(column.type)):
        raise BadDataFrame(
            f"column {value!r} is {column.type}; a value is binary or text: cast or encode it in the job"
        )
    column = column.cast(pa.large_string() if is_text(column.type) else pa.large_binary()).cast(pa.large_binary())
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > DEFAULT.value_bytes_max:
        raise BadDataFrame(f"column {value!r} has a value of {longest} bytes; at most {DEFAULT.value_bytes_max} fit")
    return column


def ttl_column(table: pa.Table, ttl: float | str | None) -> pa.ChunkedArray:
    """Return a ttl for each row, in seconds; null means no ttl."""
    if not isinstance(ttl, str):
        _check_ttl(ttl, "ttl")
        return pa.chunked_array([pa.repeat(pa.scalar(ttl, pa.float64()), table.num_rows)])
    column = named_column(table, ttl, "ttl")
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
