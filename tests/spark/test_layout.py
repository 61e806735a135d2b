"""What a reader makes of values by a schema: what fits, and what does not is refused by name."""

import datetime as dt
import json
from decimal import Decimal

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chp_client.spark.columns import Layout, Updates
from chp_client.spark.fields import BadDataFrame
from chp_client.spark.options import parse
from chp_client.spark.rows import Shape


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


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_days_times_and_decimals_deep_within_a_value_are_read_as_they_were_written(codec: str) -> None:
    kinds = {"day": DateType(), "at": TimestampType(), "n": IntegerType(), "price": DecimalType(9, 3)}
    inner = StructType([StructField(name, kind) for name, kind in kinds.items()])
    outer = StructType([StructField("list", ArrayType(inner)), StructField("map", MapType(StringType(), inner))])
    schema = StructType([StructField("key", StringType()), StructField("x", outer)])
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    one = {"day": dt.date(1999, 1, 4), "at": noon, "n": 1, "price": Decimal("1.250")}
    none = dict.fromkeys(one)
    things = [{"list": [one, None, none], "map": [("a", one), ("b", None)]}, {"list": None, "map": None}, None]
    frame = pa.record_batch({"key": ["/a", "/b", "/c"], "x": things}, schema=to_arrow_schema(schema, timezone="UTC"))
    (written,) = Shape(parse({"servers": "tcp://a:5556", "codec": codec}), ["key", "x"]).segments(frame)
    updates = Updates(written.keys, list(written.values), np.arange(3))
    assert Layout(schema, codec).batch(updates).column("x").to_pylist() == things


def test_text_that_is_no_day() -> None:
    field = StructField("days", ArrayType(DateType()))
    with pytest.raises(BadDataFrame, match=r"column 'days' can't be list<.*Invalid isoformat"):
        read("json", field, b'{"days": ["yesterday"]}')


def test_a_number_that_is_too_large() -> None:
    with pytest.raises(BadDataFrame, match=r"column 'n' can't be int64: .*too large.*give another type"):
        read("json", StructField("n", LongType()), json.dumps({"n": 2**70}).encode())


def test_a_column_that_is_never_null() -> None:
    """Without this Spark ends with a Java error that names nothing."""
    field = StructField("bid", DoubleType(), nullable=False)
    assert read("json", field, b'{"bid": 1.5}') == [1.5]
    with pytest.raises(BadDataFrame, match="column 'bid' is null for '/1', and the schema says it never is"):
        read("json", field, b'{"bid": 1.5}', b'{"ask": 1.5}', None)
