"""covers: format("chp") with the option topic: rows become messages, all at once and once; messages become rows.

A test removes the commit from the checkpoint, as if the driver had died between its commit and its checkpoint. Spark
then runs the batch again.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from chp_client import Clone
from chp_client.spark import BadDataFrame, spark_api
from chp_client.spark.options import BadOption, parse
from chp_client.spark.values.messages import MessageShape
from chp_server.testing import TestServer
from tests.talk import until

ROWS = [(f"k{i % 7}" if i % 3 else None, f"value {i}") for i in range(3000)]


def frame(spark: SparkSession, rows: list[tuple[str | None, str]] = ROWS) -> Any:
    return spark.createDataFrame(rows, "key string, value string")


def publish(spark: SparkSession, server: TestServer, rows: list[tuple[str | None, str]] = ROWS, **more: str) -> None:
    writer = frame(spark, rows).repartition(3).write.format("chp").mode("append")
    writer.options(servers=server.address, topic="orders", **more).save()


def read(spark: SparkSession, server: TestServer, **more: str) -> list[Any]:
    found = spark.read.format("chp").options(servers=server.address, topic="orders", **more).load()
    return sorted(found.collect(), key=lambda row: row.offset)


def test_rows_become_messages_and_come_back(spark: SparkSession, server: TestServer, clone: Clone) -> None:
    publish(spark, server)
    rows = read(spark, server, partitions="4")
    assert [row.offset for row in rows] == list(range(3000)), "dense, whoever reads which"
    assert sorted((row.key or "", row.value.decode()) for row in rows) == sorted((k or "", v) for k, v in ROWS)
    assert len({row.revision for row in rows}) == 1, "one commit"
    assert {row.topic for row in rows} == {"orders"} and all(row.timestamp for row in rows)
    assert rows[0].epoch << 48 | rows[0].sequence == rows[0].revision
    values = [value for batch in clone.topic("orders").read(wait=False) for value in batch.values]
    assert values == [bytes(row.value) for row in rows]


def test_headers_have_the_form_of_the_kafka_source(spark: SparkSession, server: TestServer, clone: Clone) -> None:
    kind = "key string, value string, headers array<struct<key:string,value:binary>>"
    rows = [("a", "1", [("n", b"1"), ("m", "ü".encode())]), ("b", "2", None), ("c", "3", [])]
    spark.createDataFrame(rows, kind).coalesce(1).write.format("chp").mode("append").options(
        servers=server.address, topic="orders"
    ).save()
    found = [[(each.key, bytes(each.value)) for each in row.headers or []] for row in read(spark, server)]
    assert found == [[("n", b"1"), ("m", "ü".encode())], [], []]
    (batch,) = clone.topic("orders").read(wait=False)
    assert batch.headers == [{"n": "1", "m": "ü"}, {}, {}]
    bad = spark.createDataFrame([("a", "1", [("A", b"1")])], kind).write.format("chp").mode("append")
    with pytest.raises(Exception, match="bad headers in row 0"):
        bad.options(servers=server.address, topic="orders").save()
    with pytest.raises(Exception, match="as Kafka's source has them"):
        bad = spark.createDataFrame([("a", "1", "text")], "key string, value string, headers string").write
        bad.format("chp").mode("append").options(servers=server.address, topic="orders").save()
    assert clone.topic("orders").facts()["next"] == 3


def test_a_job_that_runs_again_publishes_nothing_more(spark: SparkSession, server: TestServer, clone: Clone) -> None:
    for _ in range(2):
        publish(spark, server, applicationId="job", version="1")
    publish(spark, server, applicationId="job", version="2")
    assert clone.topic("orders").facts()["next"] == 6000


def test_a_read_of_a_topic_between_two_offsets(spark: SparkSession, server: TestServer, clone: Clone) -> None:
    clone.topic("orders").publish_many([b"%d" % i for i in range(100)]).wait(30)
    rows = read(spark, server, startingOffsets="17", endingOffsets="42")
    assert [(row.offset, row.key, bytes(row.value)) for row in rows] == [(i, None, b"%d" % i) for i in range(17, 42)]
    assert read(spark, server, startingOffsets="latest") == []
    for name, text in (("startingOffsets", "101"), ("endingOffsets", "101")):
        with pytest.raises(Exception, match=rf"{name} is 101, which has not come yet.*100"):
            read(spark, server, **{name: text})


def test_a_codec_makes_columns_of_message_values(spark: SparkSession, server: TestServer) -> None:
    rows = spark.createDataFrame([("a", 1, 1.5), ("b", 2, None)], "key string, n int, bid double")
    options = {"servers": server.address, "topic": "orders", "codec": "json"}
    rows.write.format("chp").mode("append").options(**options).save()
    found = spark.read.format("chp").options(**options).schema("key string, n int, bid double, offset bigint").load()
    assert sorted((row.key, row.n, row.bid) for row in found.collect()) == [("a", 1, 1.5), ("b", 2, None)]


def drained(query: Any) -> None:
    query.awaitTermination(120)
    if query.exception() is not None:
        raise query.exception()


@pytest.mark.skipif(not spark_api.ADMISSION, reason="this Spark has no admission control")
def test_a_stream_reads_each_message_once_in_bounded_batches(
    spark: SparkSession, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    topic, batches = clone.topic("orders"), list[list[int]]()
    topic.publish_many([b"%d" % i for i in range(250)]).wait(30)
    stream = spark.readStream.format("chp").options(
        servers=server.address, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="100"
    )

    def run() -> Any:
        writer = stream.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink = writer.foreachBatch(lambda rows, _: batches.append(sorted(row.offset for row in rows.collect())))
        query = sink.trigger(availableNow=True).start()
        drained(query)
        return query

    query = run()
    assert list(map(len, batches)) == [100, 100, 50] and list(chain(*batches)) == list(range(250))
    assert '"behind": 0' in str(query.lastProgress["sources"][0]["latestOffset"]).replace("'", '"')
    topic.publish(b"250").wait(30)
    run()
    assert batches[3:] == [[250]], "from the checkpoint on"


def test_a_group_follows_a_query(spark: SparkSession, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    """The group keeps what the query has not read, and its lag is that of the query."""
    topic = clone.topic("orders")
    topic.create("acknowledged")
    topic.subscribe("before", "begin")
    topic.publish_many([b"%d" % i for i in range(50)]).wait(30)
    stream = spark.readStream.format("chp").options(servers=server.address, topic="orders", group="spark")

    def run() -> int:
        writer = stream.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
        drained(writer.trigger(availableNow=True).start())
        found = next(group for group in topic.groups() if group["name"] == "spark")
        return int(found["lag"])

    # Before Spark 4.2 the last batch of a run is counted at the next one.
    assert run() == (0 if spark_api.ADMISSION else 50)
    topic.unsubscribe("before")
    topic.publish_many([b"more"] * 7).wait(30)
    if spark_api.ADMISSION:
        until(lambda: topic.facts()["first"] == 50, "what both have read goes")
        assert run() == 0


def test_a_repeated_batch_from_topic_to_topic_publishes_once(
    spark: SparkSession, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    orders, invoices = clone.topic("orders"), clone.topic("invoices")
    orders.publish_many([b"%d" % i for i in range(500)], [f"k{i % 5}" for i in range(500)]).wait(30)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = spark.readStream.format("chp").options(
            servers=server.address, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="200"
        )
        writer = stream.load().select("key", "value").writeStream.format("chp")
        writer = writer.options(servers=server.address, topic="invoices", checkpointLocation=str(checkpoint))
        drained(writer.trigger(availableNow=True).start())

    run()
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    orders.publish(b"500", "k0").wait(30)
    run()
    if not spark_api.ADMISSION:
        # The trigger availableNow ends with the batch that it repeats.
        run()
    values = [value for batch in invoices.read(wait=False) for value in batch.values]
    assert sorted(values, key=int) == [b"%d" % i for i in range(501)]


def test_reads_of_trimmed_messages_fail(spark: SparkSession, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    topic = clone.topic("orders")
    topic.create("size", max_messages=10)
    for i in range(30):
        topic.publish(b"%d" % i).wait(30)
    until(lambda: topic.facts()["first"] == 20, "it is trimmed, by the second")
    with pytest.raises(Exception, match="messages 5 to 19 of topic orders are kept no more"):
        read(spark, server, startingOffsets="5")
    rows = read(spark, server, startingOffsets="5", failOnDataLoss="false")
    assert [row.offset for row in rows] == list(range(20, 30))

    def run() -> None:
        stream = spark.readStream.format("chp").options(servers=server.address, topic="orders")
        sink = stream.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
        drained(sink.trigger(availableNow=True).start())

    run()
    topic.remove()
    topic.publish_many([b"another"] * 50).wait(30)
    with pytest.raises(Exception, match="of another topic orders"):
        run()


def test_a_read_of_a_missing_topic_is_refused(spark: SparkSession, server: TestServer) -> None:
    with pytest.raises(Exception, match=r"there is no topic 'orders'.*chp topic create"):
        read(spark, server)


def test_a_job_larger_than_its_topic_publishes_nothing(spark: SparkSession, server: TestServer, clone: Clone) -> None:
    clone.topic("orders").create("all", max_messages=2999)
    with pytest.raises(Exception, match="may have 2,999"):
        publish(spark, server)
    assert clone.topic("orders").facts()["next"] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a/b"}, "topic is 'a/b': a topic's name"),
        ({"topic": "t", "subtree": "/a/"}, "option subtree is for keys"),
        ({"topic": "t", "ttl": "5"}, "option ttl is for keys"),
        ({"topic": "t", "startingTimestamp": "2026-01-05"}, "option startingTimestamp is for keys"),
        ({"topic": "t", "startingOffsets": "snapshot"}, "earliest, latest, or the offset"),
        ({"topic": "t", "startingOffsets": "1.42"}, "earliest, latest, or the offset"),
        ({"topic": "t", "endingOffsets": "-1"}, "a number from 0 to 9223372036854775807, or latest"),
        ({"headers": "h"}, "option headers is of messages"),
        ({"group": "g"}, "option group is of messages"),
        ({"topic": "t", "group": "a/b"}, "group is 'a/b'"),
        ({"startingOffsets": "17"}, "an offset of a topic's message"),
        ({"endingOffsets": "17"}, "needs the option topic"),
    ],
)
def test_invalid_topic_options_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse({"servers": "tcp://127.0.0.1:5556", **options})


@pytest.mark.parametrize(
    ("names", "options", "text"),
    [
        (["key"], {}, "no column 'value' for the value"),
        (["customer", "value"], {"key": "custmer"}, "no column 'custmer' for the key; the frame has customer, value"),
        (["value"], {"key": "key"}, "no column 'key' for the key; the frame has value"),
        (["value", "value"], {}, "2 columns are called 'value'"),
        (["id", "value"], {"key.template": "{nr}"}, "no column 'nr' for the key of the template"),
        (["key"], {"codec": "json"}, "no column is left for the value"),
    ],
)
def test_frames_with_wrong_columns_are_refused(names: list[str], options: dict[str, str], text: str) -> None:
    with pytest.raises(BadDataFrame, match=text):
        MessageShape(parse({"servers": "tcp://127.0.0.1:5556", "topic": "t", **options}), names)


def test_a_message_without_a_value_is_refused_with_a_remedy() -> None:
    frame = pa.record_batch({"key": ["k"], "value": pa.nulls(1, pa.string())})
    shape = MessageShape(parse({"servers": "tcp://127.0.0.1:5556", "topic": "t"}), frame.schema.names)
    with pytest.raises(BadDataFrame, match=r"null in row 0.*a message has a value: fill it, or filter"):
        list(shape.segments(frame))


def test_overwriting_a_topic_is_refused(spark: SparkSession, server: TestServer) -> None:
    writer = frame(spark).write.format("chp").mode("overwrite").options(servers=server.address, topic="orders")
    with pytest.raises(Exception, match="use mode append"):
        writer.save()


def test_a_query_without_a_start_begins_with_the_oldest_message(
    spark: SparkSession, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    clone.topic("orders").publish_many([b"1", b"2"]).wait(30)
    seen: list[bytes] = []
    stream = spark.readStream.format("chp").options(servers=server.address, topic="orders").load()
    sink = stream.writeStream.foreachBatch(lambda each, _: seen.extend(bytes(row.value) for row in each.collect()))
    sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [b"1", b"2"]
