"""Tests of the types of columns: each kind of text and bytes that Spark hands over; others are refused by name."""

import datetime as dt
import decimal

import msgpack
import pyarrow as pa
import pytest

from chp_client.spark import BadDataFrame
from chp_client.spark.options import parse
from chp_client.spark.values.rows import PART_BYTES, Shape


def written(frame: pa.RecordBatch, **options: object) -> tuple[dict[str, bytes], object]:
    """Return the keys and values of a batch that fits a segment, and its extras."""
    texts = {name.replace("_", "."): str(value) for name, value in options.items()}
    shape = Shape(parse({"servers": "tcp://a:5556", **texts}), frame.schema.names)
    (segment,) = shape.segments(frame)
    return dict(zip(segment.keys, segment.values, strict=True)), segment.extras


def batch(**columns: object) -> pa.RecordBatch:
    return pa.record_batch(columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_every_kind_of_text(kind: pa.DataType) -> None:
    frame = batch(key=pa.array(["/a", "/é"], kind), value=pa.array(["1", "é"], kind))
    assert written(frame) == ({"/a": b"1", "/é": "é".encode()}, None)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.dictionary(pa.int8(), pa.binary())])
def test_every_kind_of_bytes(kind: pa.DataType) -> None:
    assert written(batch(key=["/a"], value=pa.array([b"\x00\xff"], kind))) == ({"/a": b"\x00\xff"}, None)


def test_a_column_of_nothing_but_nulls() -> None:
    frame = batch(key=["/a", "/b"], value=pa.nulls(2), ttl=pa.nulls(2))
    assert written(frame, null_value="delete", ttl="ttl") == ({"/a": b"", "/b": b""}, {"d": [0, 1]})


def test_an_empty_frame() -> None:
    frame = batch(key=pa.array([], pa.string()), value=pa.array([], pa.string()))
    assert list(Shape(parse({"servers": "tcp://a:5556"}), frame.schema.names).segments(frame)) == []


def refused(text: str, frame: pa.RecordBatch, **options: object) -> None:
    with pytest.raises(BadDataFrame, match=text):
        written(frame, **options)


@pytest.mark.parametrize("value", [1.5, 7, True, dt.date(2026, 1, 5), decimal.Decimal("1.0"), ["x"], {"a": 1}])
def test_a_value_that_is_not_binary_or_text_is_refused(value: object) -> None:
    refused("column 'value' is .*; a value is binary or text", batch(key=["/a"], value=[value]))


DAY = dt.date(2026, 1, 5)
UNSAYABLE = [
    ("json", pa.map_(pa.date32(), pa.int64()), r"'x' is or has a map with keys of date32\[day\], which json can't say"),
    ("json", pa.list_(pa.map_(pa.decimal128(3, 1), pa.int64())), "'x' is or has a map with keys of decimal"),
    ("msgpack", pa.map_(pa.struct([("a", pa.int64())]), pa.int64()), "'x' is or has a map with keys of struct"),
    ("json", pa.struct([pa.field("a", pa.int64())] * 2), "'x' is or has a struct with two fields 'a'; rename one"),
]


@pytest.mark.parametrize(("codec", "kind", "said"), UNSAYABLE)
def test_a_type_that_a_codec_cannot_say_is_refused_without_a_row(codec: str, kind: pa.DataType, said: str) -> None:
    shape = Shape(parse({"servers": "tcp://a:5556", "codec": codec}), ["key", "x"])
    with pytest.raises(BadDataFrame, match=said):
        shape.check(pa.table({"key": pa.array([], pa.string()), "x": pa.array([], kind)}))


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_map_with_a_key_twice_is_refused_by_column_and_row(codec: str) -> None:
    things = pa.array([[("a", 1)], [("b", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))
    refused(
        "column 'x' has a map with a key that is there twice, in row 1", batch(key=["/a", "/b"], x=things), codec=codec
    )


def test_a_map_with_days_as_keys_is_written_with_msgpack() -> None:
    things = pa.array([[(DAY, 1)]], pa.map_(pa.date32(), pa.int64()))
    (values, _) = written(batch(key=["/a"], x=things), codec="msgpack")
    assert msgpack.unpackb(values["/a"]) == {"x": {"2026-01-05": 1}}


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pa.RecordBatch.from_arrays([pa.array(["/a"])] * 2 + [pa.array(["1"])], names=["key", "key", "value"])
    refused("2 columns are called 'key'; rename all but one", frame)


@pytest.mark.parametrize("key", ["", "HUGZ", "\x02x", "k" * 1025])
def test_invalid_keys_are_refused(key: str) -> None:
    refused("column 'key' has a key that can't be one", batch(key=["/fine", key], value=["1", "2"]))


def test_a_null_in_a_key_template_is_refused() -> None:
    frame = batch(a=["w", None], b=["y", "z"], value=["1", "2"])
    refused("key '/{a}/{b}' is null in row 1 of a batch", frame, key_template="/{a}/{b}")


def test_an_empty_column_in_a_key_template_is_refused() -> None:
    frame = batch(a=["w", "x"], b=["y", ""], value=["1", "2"])
    refused("column 'b' of the template is empty in row 1 of a batch", frame, key_template="/{a}/{b}")


def test_a_slash_in_a_column_of_a_key_template_becomes_a_part_of_the_key() -> None:
    frame = batch(a=["x/y", "v"], b=["z", "w"], value=["1", "2"])
    assert written(frame, key_template="/{a}/{b}") == ({"/x/y/z": b"1", "/v/w": b"2"}, None)


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_invalid_ttls_are_refused(ttl: float) -> None:
    refused("column 'ttl'", batch(key=["/a"], value=["1"], ttl=[ttl]), ttl="ttl")


def test_a_ttl_of_text_is_refused() -> None:
    refused(
        "column 'ttl' is string; a ttl is a number of seconds", batch(key=["/a"], value=["1"], ttl=["5"]), ttl="ttl"
    )


def test_a_few_large_values_among_many_small_ones() -> None:
    values = [b"x" * 10] * 9900 + [bytes(1 << 20)] * 100
    frame = pa.record_batch({"key": [f"/{i}" for i in range(10_000)], "value": values})
    segments = list(Shape(parse({"servers": "tcp://a:5556"}), frame.schema.names).segments(frame))
    assert max(len(segment.encode()) for segment in segments) < PART_BYTES + (1 << 20)
    assert [value for segment in segments for value in segment.values] == values
