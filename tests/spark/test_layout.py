"""What a reader makes of values by a schema: what fits, and what does not is refused by name."""

import json

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, MapType, StringType, StructField, StructType

from chp_client.spark.columns import Layout, Updates
from chp_client.spark.fields import BadDataFrame


def read(codec: str, field: StructField, *values: bytes | None) -> list[object]:
    updates = Updates([f"/{i}" for i in range(len(values))], list(values), np.arange(len(values)))
    column: pa.Array = Layout(StructType([field]), codec).batch(updates).column(0)
    found: list[object] = column.to_pylist()
    return found


def test_a_map_with_numbers_as_keys() -> None:
    """Which msgpack has, and json has not."""
    field = StructField("m", MapType(IntegerType(), StringType()))
    assert read("msgpack", field, msgpack.packb({"m": {7: "x"}})) == [[(7, "x")]]
    with pytest.raises(BadDataFrame, match="column 'm' can't be map<int32"):
        read("json", field, b'{"m": {"7": "x"}}')


def test_a_number_that_is_too_large() -> None:
    with pytest.raises(BadDataFrame, match=r"column 'n' can't be int64: .*too large.*give another type"):
        read("json", StructField("n", LongType()), json.dumps({"n": 2**70}).encode())


def test_a_column_that_is_never_null() -> None:
    """Without this Spark ends with a Java error that names nothing."""
    field = StructField("bid", DoubleType(), nullable=False)
    assert read("json", field, b'{"bid": 1.5}') == [1.5]
    with pytest.raises(BadDataFrame, match="column 'bid' is null for '/1', and the schema says it never is"):
        read("json", field, b'{"bid": 1.5}', b'{"ask": 1.5}', None)
