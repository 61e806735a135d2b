"""A join with the store by key: each row of a frame gets the value that its key has when a task reads the row.

    known = lookup(orders, "customer_key", "/customers/", "name string, limit double", servers=servers, codec="json")
    known.where("name is not null")                 # the orders whose customer is in the store

The servers make no image, and Spark shuffles nothing: a worker looks each row up in its own copy of the subtree
(live.py), which takes about a microsecond. The first task of a worker waits for that copy. The subtree has to fit the
memory of each Python worker. A row gets nulls if the store does not have its key. An update may come between the rows
of one Arrow batch. So the frame is not deterministic, like a UDF that reads a live table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chp.errors import BadInput

from ..target import FilePath, Servers
from .live import TIMEOUT_S, Live, live
from .options import parse
from .values.columns import VALUE_ONLY, Layout, Updates
from .values.fields import BadDataFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def lookup(
    frame: DataFrame,
    key: str,
    subtree: str,
    columns: str = "value binary",
    *,
    servers: Servers | None = None,
    client_file: FilePath | None = None,
    codec: str = "raw",
    mode: str = "failfast",
    timeout_s: float = TIMEOUT_S,
) -> DataFrame:
    """Return the frame with more columns: the value that the key in column `key` has, or fields of that value.

    columns        names and types as a DDL text: `value binary`, `value string`, or with a codec fields inside values
    servers        as for `live`, or in place of them `client_file`, a path that is equal on all executors
    codec, mode    as the options of format("chp")
    timeout_s      how long the first task of a worker may wait for its copy of the subtree

    Raises `BadInput`. Raises `BadDataFrame` if the column `key` is missing or is not text, or if the frame already has
    one of the new columns.
    """
    from pyspark.sql.types import StringType, StructType

    given = parse({"servers": "tcp://lookup:1", "codec": codec, "mode": mode})
    schema = frame.schema
    named = [name for name in schema.fieldNames() if name.lower() == key.lower()]
    found = key if key in schema.fieldNames() else named[0] if len(named) == 1 else None
    if found is None:
        raise BadDataFrame(f"there is no column {key!r} with the keys; the frame has {', '.join(schema.fieldNames())}")
    if not isinstance(schema[found].dataType, StringType):
        kind = schema[found].dataType.simpleString()
        raise BadDataFrame(f"column {found!r} is {kind}; a key is text: cast it to string")
    more = _more(columns)
    there = {name.lower() for name in schema.fieldNames()}
    if twice := next((name for name in more.fieldNames() if name.lower() in there), None):
        raise BadDataFrame(f"the frame has a column {twice!r} already; rename it first, as withColumnRenamed does")
    # Each worker makes this layout. Make it on the driver too, so that its errors come before the job runs.
    Layout(more, given["codec"], given["mode"], VALUE_ONLY)
    if given["mode"] == "dropmalformed":
        raise BadInput("mode dropmalformed leaves out rows, and a lookup keeps them: use permissive, or failfast")
    table = live(servers, subtree, client_file=client_file, timeout_s=timeout_s)
    rows = _Lookup(table, found, more, given["codec"], given["mode"])
    return frame.mapInArrow(rows, StructType(schema.fields + more.fields))


def _more(columns: str) -> Any:
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(columns)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise BadInput(f"columns is {columns!r:.80}; it is names and types, as 'value string' ({said})") from None


class _Lookup:
    """The function that a worker applies to Arrow batches. The copy does not travel to the worker with it."""

    def __init__(self, table: Live, key: str, columns: Any, codec: str, mode: str) -> None:
        self._table, self._key = table, key
        self._columns, self._codec, self._mode = columns, codec, mode

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = Layout(self._columns, self._codec, self._mode, VALUE_ONLY)
        get = self._table.get
        for batch in batches:
            keys = batch.column(self._key).to_pylist()
            values = [None if key is None else get(key) for key in keys]
            known = ["" if key is None else key for key in keys]
            more = layout.batch(Updates(known, values, np.zeros(len(keys), np.int64)))
            arrays, names = [*batch.columns, *more.columns], [*batch.schema.names, *more.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, names)
