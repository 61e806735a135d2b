"""A data frame becomes keys and values, a column at a time; what can't is refused before anything is sent."""

import datetime as dt
import decimal
import logging

import pyarrow as pa
import pytest

from chp.errors import BadKey
from chp_client.spark import BadDataFrame, publish


def table(**columns: object) -> pa.Table:
    return pa.table(columns)


def test_text_and_binary_values(store) -> None:
    assert publish(table(key=["/a", "/b"], value=["1", "é"]), store).sets == {"/a": b"1", "/b": "é".encode()}
    publish(table(key=["/c"], value=[b"\x00\xff"]), store)
    assert store.items == {"/a": b"1", "/b": "é".encode(), "/c": b"\x00\xff"}
    assert store.calls == [("set_many", 2), ("set_many", 1)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_every_kind_of_text_and_batch(store, kind: pa.DataType) -> None:
    batch = pa.record_batch({"key": pa.array(["/a", "/b"], kind), "value": pa.array(["1", "2"], kind)})
    publish(batch, store)
    assert store.items == {"/a": b"1", "/b": b"2"}


def test_a_key_template(store) -> None:
    rates = table(base=["EUR", "USD"], quote=["USD", "JPY"], last=["1.08", "150"])
    publish(rates, store, key="/rates/{base}/{quote}/last", value="last", ttl=5)
    assert store.items == {"/rates/EUR/USD/last": b"1.08", "/rates/USD/JPY/last": b"150"}
    assert set(store.ttls.values()) == {5}


def test_a_ttl_column_makes_one_call_a_ttl(store) -> None:
    publish(table(key=["/a", "/b", "/c"], value=["1", "2", "3"], ttl=[5, None, 5]), store, ttl="ttl")
    assert store.ttls == {"/a": 5, "/b": None, "/c": 5}
    assert store.calls == [("set_many", 2), ("set_many", 1)]


def test_the_last_of_duplicate_keys_wins_and_it_says_so(store, caplog) -> None:
    frame = pa.concat_tables([table(key=["/a", "/b", "/a"], value=["1", "2", "3"]), table(key=["/a"], value=["4"])])
    with caplog.at_level(logging.WARNING):
        published = publish(frame, store)
    assert store.items == {"/a": b"4", "/b": b"2"}
    assert published.duplicates == 2 and "2 earlier rows" in published.describe()
    assert "2 of 4 rows had a key that occurs again" in caplog.text


def test_a_later_null_deletes_what_an_earlier_duplicate_set(store) -> None:
    store.items["/a"] = b"old"
    published = publish(table(key=["/a", "/a"], value=["1", None]), store, nulls="delete")
    assert store.items == {} and published.deletes == ["/a"] and published.sets == {}


def test_nulls(store) -> None:
    frame = table(key=["/a", "/b"], value=["1", None])
    store.items["/b"] = b"old"
    with pytest.raises(BadDataFrame, match=r"column 'value' is null for key '/b'.*nulls='delete'"):
        publish(frame, store)
    assert store.calls == []
    publish(frame, store, nulls="skip")
    assert store.items == {"/a": b"1", "/b": b"old"}
    publish(frame, store, nulls="delete")
    assert store.items == {"/a": b"1"}


def test_a_column_of_nothing_but_nulls(store) -> None:
    assert publish(table(key=["/a"], value=pa.nulls(1)), store, nulls="delete").deletes == ["/a"]


def test_an_empty_frame(store) -> None:
    assert publish(table(key=pa.array([], pa.string()), value=pa.array([], pa.string())), store).sets == {}
    assert store.calls == []


def refused(store, text: str, frame: object, **options: object) -> None:
    with pytest.raises(BadDataFrame, match=text):
        publish(frame, store, **options)
    assert store.calls == []


def test_bad_columns(store) -> None:
    refused(store, "no column 'key' for the key; the frame has k, value", table(k=["/a"], value=["1"]))
    refused(store, "no column 'v' for the value", table(key=["/a"], value=["1"]), value="v")
    refused(store, "no column 'base' for the key", table(key=["/a"], value=["1"]), key="/{base}")
    refused(store, "brace without its partner", table(key=["/a"], value=["1"]), key="/{key")
    refused(store, "2 columns are called 'key'", pa.table([["/a"], ["/b"], ["1"]], names=["key", "key", "value"]))


def test_bad_types(store) -> None:
    refused(store, "column 'key' is int64; a key is text", table(key=[1], value=["1"]))
    for value in (1.5, 7, True, dt.date(2026, 1, 5), decimal.Decimal("1.0"), ["x"], {"a": 1}):
        refused(store, "column 'value' is .*; a value is binary or text", table(key=["/a"], value=[value]))
    refused(store, "can't publish a list", [("/a", b"1")])
    refused(store, "nulls is 'maybe'", table(key=["/a"], value=["1"]), nulls="maybe")


def test_null_and_bad_keys(store) -> None:
    refused(store, "key 'key' is null in row 1", table(key=["/a", None], value=["1", "2"]))
    refused(store, "is null in row 0", table(a=[None, "x"], b=["y", "z"], value=["1", "2"]), key="/{a}/{b}")
    for key in ("", "HUGZ", "\x02x", "k" * 1025):
        with pytest.raises(BadKey):
            publish(table(key=["/fine", key], value=["1", "2"]), store)
    assert store.calls == []


def test_bad_ttls(store) -> None:
    for ttl in (0, -1, float("nan"), float("inf"), 1e12):
        refused(store, "ttl", table(key=["/a"], value=["1"]), ttl=ttl)
        refused(store, "ttl", table(key=["/a"], value=["1"], ttl=[float(ttl)]), ttl="ttl")
    refused(store, "column 'ttl' is string", table(key=["/a"], value=["1"], ttl=["5"]), ttl="ttl")


def test_a_value_too_large(store) -> None:
    refused(store, "a value of 16777217 bytes", table(key=["/a"], value=[b"x" * (16 * 2**20 + 1)]))


@pytest.mark.spark
def test_a_spark_data_frame(spark, store) -> None:
    frame = spark.range(1000).selectExpr("concat('/n/', id) as key", "cast(id * 2 as string) as value")
    assert len(publish(frame, store, ttl=60).sets) == 1000
    assert store.items["/n/7"] == b"14" and store.calls == [("set_many", 1000)]
    with pytest.raises(BadDataFrame, match="column 'value' is int64"):
        publish(spark.range(3).selectExpr("concat('/n/', id) as key", "id as value"), store)
