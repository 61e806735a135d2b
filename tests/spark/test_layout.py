"""Tests of a reader that decodes values by a schema: a value that does not fit is refused by name."""

import datetime as dt
import json
import re
from decimal import Decimal

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from chp_client.spark.options import parse
from chp_client.spark.values.columns import Layout, Updates
from chp_client.spark.values.fields import BadDataFrame
from chp_client.spark.values.rows import Shape


def read(codec: str, field: StructField, *values: bytes | None) -> list[object]:
    updates = Updates([f"/{i}" for i in range(len(values))], list(values), np.arange(len(values)))
    column: pa.Array = Layout(StructType([field]), codec).batch(updates).column(0)
    found: list[object] = column.to_pylist()
    return found


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "key"), [(IntegerType(), 7), (DoubleType(), 1.5), (BooleanType(), True)])
def test_a_map_with_keys_other_than_text_is_read_back(codec: str, kind: DataType, key: object) -> None:
    """msgpack has such maps. In json every key is text, and is read back by the type of the column."""
    schema = StructType([StructField("key", StringType()), StructField("m", MapType(kind, StringType()))])
    frame = pa.record_batch({"key": ["/a"], "m": [[(key, "x")]]}, schema=to_arrow_schema(schema))
    (written,) = Shape(parse({"servers": "tcp://a:5556", "codec": codec, "value": "m"}), ["key", "m"]).segments(frame)
    value = [b'{"m":' + written.values[0] + b"}"] if codec == "json" else [b"\x81\xa1m" + written.values[0]]
    assert read(codec, schema["m"], *value) == [[(key, "x")]]


def test_a_map_with_keys_of_another_type_is_refused() -> None:
    for key in ("seven", "7.5", str(2**40)):
        with pytest.raises(BadDataFrame, match="column 'm' can't be map<int32"):
            read("json", StructField("m", MapType(IntegerType(), StringType())), json.dumps({"m": {key: "x"}}).encode())


def test_column_names_ignore_case_as_in_spark() -> None:
    schema = StructType([StructField("KEY", StringType()), StructField("Value", StringType())])
    found = Layout(schema, "raw").batch(Updates(["/a"], [b"1"], np.arange(1)))
    assert found.to_pydict() == {"KEY": ["/a"], "Value": ["1"]} and found.schema.names == ["KEY", "Value"]
    frame = pa.record_batch({"Key": ["/a"], "VALUE": ["1"], "Ttl": [5]})
    (rows,) = Shape(parse({"servers": "tcp://a:5556", "ttl": "ttl"}), frame.schema.names).segments(frame)
    assert (rows.keys, rows.values, rows.extras) == (["/a"], [b"1"], {"t": [[0], [5000]]})
    both = pa.record_batch({"Base": ["x"], "base": ["y"], "VALUE": [1.5]})
    given = {"servers": "tcp://a:5556", "codec": "json", "key.template": "/{base}", "value": "value"}
    (rows,) = Shape(parse(given), both.schema.names).segments(both)
    assert (rows.keys, rows.values) == (["/y"], [b"1.5"]), "of two the one that is written so"
    with pytest.raises(BadDataFrame, match=r"there is no column 'BASE' for the key"):
        Shape(parse({**given, "key.template": "/{BASE}"}), both.schema.names)


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_an_unreadable_value_is_kept_in_the_corrupt_record_column(kind: DataType) -> None:
    fields = [StructField(name, IntegerType()) for name in "ab"] + [StructField("Bad", kind)]
    values = [b'{"a": 1, "b": 2}', b'{"a": "x", "b": 2}', b"nonsense", None]
    updates = Updates([f"/{i}" for i in range(4)], list(values), np.arange(4))
    layout = Layout(StructType(fields), "json", "permissive", corrupt="bad")
    found = layout.batch(updates).to_pydict()
    assert found["a"] == [1, None, None, None] and found["b"] == [2, 2, None, None]
    bad = [None if each is None else each if type(each) is bytes else each.encode() for each in found["Bad"]]
    assert bad == [None, values[1], values[2], None]
    with pytest.raises(BadDataFrame, match="column 'bad' is int32; it has the values that could not be read"):
        Layout(StructType([StructField("bad", IntegerType())]), "json", corrupt="bad")
    with pytest.raises(BadDataFrame, match="columnNameOfCorruptRecord is 'key', which a read has already"):
        Layout(StructType([StructField("key", StringType())]), "json", corrupt="key")


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_nested_days_times_and_decimals_are_read_back(codec: str) -> None:
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


def test_a_decimal_has_the_digits_that_were_written_as_a_json_number() -> None:
    price, digits = DecimalType(38, 18), b"12345678901234567.123456789012345678"
    field = StructField("price", price)
    assert read("json", field, b'{"price": %s}' % digits) == [Decimal(digits.decode())]
    nested = StructField("x", StructType([StructField("prices", ArrayType(price)), StructField("bid", DoubleType())]))
    (found,) = read("json", nested, b'{"x": {"prices": [%s, 1e-3, 2], "bid": 1.50}}' % digits)
    assert found == {"prices": [Decimal(digits.decode()), Decimal("0.001"), Decimal(2)], "bid": 1.5}
    schema = StructType([StructField("n", IntegerType()), StructField("x", FloatType()), field])
    (row,) = frame("failfast", schema, b'{"n": 3.0, "x": 0.5, "price": 0.1}')
    assert row == {"n": 3, "x": 0.5, "price": Decimal("0.1")}
    with pytest.raises(BadDataFrame, match="column 'price' can't be decimal"):
        read("json", StructField("price", DecimalType(9, 3)), b'{"price": 0.30000000000000000001}')


TIMES = [
    (TimestampType(), "2026-01-01T12:00:00+05:00", dt.datetime(2026, 1, 1, 7, tzinfo=dt.UTC)),
    (TimestampType(), "2026-01-01T12:00:00", None),
    (TimestampType(), "2026-01-01T12:00:00.1234567Z", None),
    (TimestampNTZType(), "2026-01-01T12:00:00.5", dt.datetime(2026, 1, 1, 12, 0, 0, 500_000)),
    (TimestampNTZType(), "2026-01-01T12:00:00+05:00", None),
    (DateType(), "2026-01-05", dt.date(2026, 1, 5)),
    (DateType(), "20260105", None),
    (DateType(), "2026-W01-1", None),
]


@pytest.mark.parametrize(("kind", "text", "time"), TIMES)
def test_a_time_inside_a_value_follows_one_set_of_rules_at_any_depth(kind: DataType, text: str, time: object) -> None:
    inner = StructType([StructField("at", kind)])
    fields = {"at": kind, "list": ArrayType(kind), "map": MapType(StringType(), kind), "x": inner}
    things = {"at": text, "list": [text], "map": {"a": text}, "x": {"at": text}}
    found = {"at": time, "list": [time], "map": [("a", time)], "x": {"at": time}}
    for name, outer in fields.items():
        value = json.dumps({name: things[name]}).encode()
        expected = found[name] if time is not None else None
        assert frame("permissive", StructType([StructField(name, outer)]), value) == [{name: expected}], name


def test_a_map_with_days_as_keys_is_read_back() -> None:
    field = StructField("m", MapType(DateType(), StringType()))
    assert read("json", field, b'{"m": {"2026-01-05": "x"}}') == [[(dt.date(2026, 1, 5), "x")]]


def test_text_is_not_read_as_a_list_of_its_characters() -> None:
    field = StructField("prices", ArrayType(DecimalType(9, 3)))
    with pytest.raises(BadDataFrame, match=r"column 'prices' can't be list<"):
        read("json", field, b'{"prices": "123"}')


def test_text_that_is_not_a_day_is_refused() -> None:
    field = StructField("days", ArrayType(DateType()))
    with pytest.raises(BadDataFrame, match=r"column 'days' can't be list<.*yesterday"):
        read("json", field, b'{"days": ["yesterday"]}')


def test_a_number_that_is_too_large_is_refused() -> None:
    with pytest.raises(
        BadDataFrame, match=rf"column 'n' can't be int64 for '/0', where it is {2**70}; give another type"
    ):
        read("json", StructField("n", LongType()), json.dumps({"n": 2**70}).encode())


def test_a_null_in_a_non_nullable_column_is_refused() -> None:
    """Without this Spark ends with a Java error that names nothing."""
    field = StructField("bid", DoubleType(), nullable=False)
    assert read("json", field, b'{"bid": 1.5}') == [1.5]
    with pytest.raises(BadDataFrame, match="column 'bid' is null for '/1', and the schema says it never is"):
        read("json", field, b'{"bid": 1.5}', b'{"ask": 1.5}', None)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (StructType([StructField("bid", DoubleType(), nullable=False)]), {"bid": 1.5}, {"ask": 1.5}),
        (StructType([StructField("at", DateType(), nullable=False)]), {"at": dt.date(2026, 1, 5)}, {"at": None}),
        (ArrayType(DoubleType(), containsNull=False), [1.5], [None]),
        (MapType(StringType(), DoubleType(), valueContainsNull=False), [("a", 1.5)], {"a": None}),
    ],
)
def test_a_null_in_a_non_nullable_field_inside_a_value_is_refused(kind: DataType, good: object, bad: object) -> None:
    """Without this the Java process of Spark ends."""
    schema = StructType([StructField("x", kind)])
    said = {"a": 1.5} if isinstance(kind, MapType) else good
    values = [json.dumps({"x": thing}, default=str).encode() for thing in (said, None, bad)]
    assert read("json", schema["x"], *values[:2]) == [good, None]
    with pytest.raises(BadDataFrame, match=r"column 'x' can't be .* in it is null, and the schema says it never is"):
        read("json", schema["x"], *values)
    assert [row["x"] for row in frame("permissive", schema, *values)] == [good, None, None]


def frame(mode: str, schema: StructType, *values: bytes | None) -> list[dict[str, object]]:
    updates = Updates([f"/{i}" for i in range(len(values))], list(values), np.arange(len(values)))
    rows: list[dict[str, object]] = Layout(schema, "json", mode).batch(updates).to_pylist()
    return rows


BID = StructType(
    [StructField("key", StringType()), StructField("bid", IntegerType()), StructField("name", StringType())]
)
BAD = [
    b'{"bid": 1.0832}', b'{"bid": true}', b'{"bid": "1"}', b'{"bid": 2147483648}', b'{"bid": [1]}',
    b"{", b"[1]", b"\xff",
]  # fmt: skip


class TestNumbersAndKeys:
    @pytest.mark.parametrize("kind", [DoubleType(), FloatType(), ArrayType(DoubleType()), ArrayType(FloatType())])
    def test_true_is_not_read_as_a_number(self, kind: DataType) -> None:
        field, nested = StructField("x", kind), isinstance(kind, ArrayType)
        with pytest.raises(BadDataFrame, match=r"column 'x' can't be .*true is not a number"):
            read("json", field, b'{"x": [true]}' if nested else b'{"x": true}')
        with pytest.raises(BadDataFrame, match=r"column 'x' can't be .*false is not a number"):
            read("msgpack", field, b"\x81\xa1x\x91\xc2" if nested else b"\x81\xa1x\xc2")

    @pytest.mark.parametrize("kind", [DoubleType(), DecimalType(9, 3)])
    @pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity"])
    def test_a_number_that_json_cannot_say_is_refused(self, kind: DataType, number: bytes) -> None:
        with pytest.raises(BadDataFrame, match=r"the value of '/0' is not json: .*number"):
            read("json", StructField("x", kind), b'{"x": %s}' % number)

    def test_msgpack_keeps_a_number_that_json_cannot_say(self) -> None:
        assert read("msgpack", StructField("x", DoubleType()), msgpack.packb({"x": float("inf")})) == [float("inf")]

    @pytest.mark.parametrize("kind", [IntegerType(), DoubleType()])
    def test_keys_that_become_equal_are_refused(self, kind: DataType) -> None:
        field = StructField("m", MapType(kind, StringType()))
        with pytest.raises(BadDataFrame, match=r"column 'm' can't be map<.*two of its keys are equal .*: 1, 01"):
            read("json", field, b'{"m": {"1": "a", "01": "b"}}')


class TestWhatDoesNotFit:
    @pytest.mark.parametrize("value", BAD)
    def test_failfast_refuses_a_bad_value_and_names_the_option_mode(self, value: bytes) -> None:
        with pytest.raises(BadDataFrame, match="the option mode"):
            frame("failfast", BID, b'{"bid": 1}', value)

    @pytest.mark.parametrize("value", BAD)
    def test_permissive_reads_a_bad_value_as_null(self, value: bytes) -> None:
        rows = frame("permissive", BID, b'{"bid": 1, "name": "a"}', value, b'{"bid": 3.0}', None)
        assert [row["bid"] for row in rows] == [1, None, 3, None] and [row["key"] for row in rows] == [
            "/0",
            "/1",
            "/2",
            "/3",
        ]
        assert rows[0]["name"] == "a"

    @pytest.mark.parametrize("value", BAD)
    def test_dropmalformed_leaves_out_the_row_of_a_bad_value(self, value: bytes) -> None:
        rows = frame("dropmalformed", BID, value, b'{"bid": 1}', value, b'{"bid": 3.0}')
        assert [(row["key"], row["bid"]) for row in rows] == [("/1", 1), ("/3", 3)]

    @pytest.mark.parametrize(
        ("kind", "good", "bad"),
        [
            (LongType(), 1 << 62, 1.5),
            (FloatType(), 1.5, 1e300),
            (ArrayType(IntegerType()), [1, None, 2], [1, 2.5]),
            (MapType(StringType(), IntegerType()), [("a", 1)], {"a": 1.5}),
            (StructType([StructField("n", IntegerType())]), {"n": 1}, {"n": 0.5}),
            (DecimalType(4, 1), Decimal("1.5"), 1.0832),
            (DateType(), dt.date(2026, 1, 2), "2026-13-01"),
            (StringType(), "x", 1.5),
            (DoubleType(), 1.5, "1.5"),
        ],
    )
    def test_no_type_cuts_a_value_that_does_not_fit(self, kind: DataType, good: object, bad: object) -> None:
        schema = StructType([StructField("x", kind)])
        said = dict(good) if isinstance(good, list) and good and isinstance(good[0], tuple) else good
        values = [json.dumps({"x": thing}, default=str).encode() for thing in (said, bad, None)]
        assert [row["x"] for row in frame("permissive", schema, *values)] == [good, None, None]
        assert [row["x"] for row in frame("dropmalformed", schema, *values)] == [good, None]
        with pytest.raises(BadDataFrame, match="column 'x' can't be"):
            frame("failfast", schema, *values)

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            (
                StructField("n", IntegerType()),
                b'{"n": "x"}',
                "'n' can't be int32 for '/1', where it is 'x' ('x' is not a w",
            ),
            (
                StructField("s", StringType()),
                b'{"s": 1.5}',
                "'s' can't be string for '/1', where it is 1.5; give another",
            ),
            (
                StructField("value", StringType()),
                b"\xff",
                r"'value' can't be string for '/1', where it is b'\xff'; give",
            ),
            (
                StructField("at", TimestampType()),
                b'{"at": "now"}',
                "for '/1', where it is 'now' ('now' is not a time with",
            ),
            (
                StructField("x", ArrayType(DoubleType())),
                b'{"x": ["y"]}',
                "where it is ['y']; give another type, read the",
            ),
        ],
    )
    def test_failfast_names_the_key_and_the_value(self, field: StructField, value: bytes, said: str) -> None:
        with pytest.raises(BadDataFrame, match=re.escape(said)):
            frame("failfast", StructType([field]), b"{}", value)

    def test_the_remedy_for_a_column_of_the_read_does_not_name_the_value(self) -> None:
        with pytest.raises(
            BadDataFrame, match=r"column 'key' can't be int32 for '/0', where it is '/0'; give another type$"
        ):
            frame("failfast", StructType([StructField("key", IntegerType())]), b"1")

    def test_the_modes_apply_to_a_value_column_of_text(self) -> None:
        schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
        assert [row["value"] for row in frame("permissive", schema, b"a", b"\xff", b"c")] == ["a", None, "c"]
        assert [row["key"] for row in frame("dropmalformed", schema, b"a", b"\xff", b"c")] == ["/0", "/2"]
        with pytest.raises(BadDataFrame, match="column 'value' can't be string"):
            frame("failfast", schema, b"a", b"\xff")

    def test_permissive_refuses_a_null_in_a_non_nullable_column(self) -> None:
        schema = StructType([StructField("bid", IntegerType(), nullable=False)])
        with pytest.raises(BadDataFrame, match=r"column 'bid' is null for '/1'"):
            frame("permissive", schema, b'{"bid": 1}', b'{"bid": 1.5}')
        assert frame("dropmalformed", schema, b'{"bid": 1}', b'{"bid": 1.5}') == [{"bid": 1}]

    def test_only_the_bad_rows_among_many_become_null(self) -> None:
        values = [b'{"bid": 1}'] * 8000
        values[77] = values[7000] = b'{"bid": 0.5}'
        rows = frame("permissive", BID, *values)
        assert [i for i, row in enumerate(rows) if row["bid"] is None] == [77, 7000]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_lone_value_column_is_encoded_without_an_object(codec: str) -> None:
    schema = StructType([StructField("key", StringType()), StructField("value", DoubleType())])
    frame = pa.record_batch({"key": ["/a", "/b"], "value": [1.5, 2.0]})
    (written,) = Shape(parse({"servers": "tcp://a:5556", "codec": codec}), ["key", "value"]).segments(frame)
    if codec == "json":
        assert written.values == [b"1.5", b"2.0"]
    updates = Updates([*written.keys, "/c"], [*written.values, None], np.arange(3))
    assert Layout(schema, codec).batch(updates).column("value").to_pylist() == [1.5, 2.0, None]


def test_columns_beside_the_value_make_an_object() -> None:
    frame = pa.record_batch({"key": ["/a"], "value": [1.5], "at": [7], "left": [60]})
    options = {"servers": "tcp://a:5556", "codec": "json"}
    (written,) = Shape(parse(options), ["key", "value", "at"]).segments(frame.select(["key", "value", "at"]))
    assert written.values == [b'{"value":1.5,"at":7}']
    (written,) = Shape(parse({**options, "ttl": "left"}), ["key", "value", "left"]).segments(
        frame.select(["key", "value", "left"])
    )
    assert written.values == [b"1.5"], "a ttl is no part of a value"


def test_the_modes_apply_to_a_whole_value_that_does_not_fit() -> None:
    schema = StructType([StructField("value", DoubleType())])
    with pytest.raises(BadDataFrame, match="column 'value' can't be double"):
        frame("failfast", schema, b'"x"')
    with pytest.raises(BadDataFrame, match="the value of '/0' is not json"):
        frame("failfast", schema, b"{")
    assert frame("permissive", schema, b'"x"', b"{", b"1") == [{"value": None}, {"value": None}, {"value": 1.0}]


def test_a_type_that_only_spark_can_read_is_refused() -> None:
    from pyspark.sql import types

    geography = getattr(types, "GeographyType", None)
    if geography is None:
        pytest.skip("this Spark has no such type")
    schema = StructType([StructField("x", StructType([StructField("at", geography(4326))]))])
    with pytest.raises(BadDataFrame, match=r"column 'x' is or has geography, .*such as st_asbinary"):
        Layout(schema, "msgpack")
