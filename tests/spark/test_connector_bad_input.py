"""Bad input by each way in: the same message wherever it is given, before anything runs where that can be known."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from chp.errors import ChpError
from chp.limits import Limits
from chp_client import Clone
from chp_client.spark import foreach_batch
from chp_server.testing import TestServer
from tests.talk import QUICK

pytestmark = pytest.mark.spark
WRONG = [
    ({"servers": ""}, r"option servers is ''"),
    ({"servers": "local/host"}, r"is not tcp://host:port"),
    ({"sbutree": "/n/"}, r"option sbutree is not known; did you mean subtree"),
    ({"subtree": "n"}, r"subtree is 'n'"),
    ({"codec": "pickle"}, r"codec is 'pickle': it is one of raw, json, msgpack"),
]


@pytest.fixture(scope="module")
def filled() -> Iterator[TestServer]:
    """Start a server of one key for all tests here."""
    with TestServer(**QUICK) as made, Clone(made.address, None) as clone:
        clone.set("/n/1", b"1").wait(60)
        yield made


def run(writer: Any, folder: Path) -> None:
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination(60)


def batch_read(spark: Any, _: Path, options: dict[str, str]) -> None:
    spark.read.format("chp").options(**options).load().collect()


def stream_read(spark: Any, folder: Path, options: dict[str, str]) -> None:
    run(spark.readStream.format("chp").options(**options).load().writeStream.format("noop"), folder / "checkpoint")


def rows(spark: Any, folder: Path) -> Any:
    """Return a stream of one row."""
    (folder / "in").mkdir()
    (folder / "in" / "1.txt").write_text("1\n")
    lines = spark.readStream.schema("id string").text(str(folder / "in"))
    return lines.selectExpr("concat('/n/', id) key", "id value")


def stream_write(spark: Any, folder: Path, options: dict[str, str]) -> None:
    run(rows(spark, folder).writeStream.format("chp").options(**options), folder / "checkpoint")


def each_batch(spark: Any, folder: Path, options: dict[str, Any]) -> None:
    run(rows(spark, folder).writeStream.foreachBatch(foreach_batch(**options)), folder / "checkpoint")


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[next(iter(options)) for options, _ in WRONG])
@pytest.mark.parametrize("way", [batch_read, stream_read, stream_write, each_batch])
def test_wrong_options(  # noqa: PLR0917
    spark: Any,
    filled: TestServer,
    tmp_path: Path,
    way: Callable[[Any, Path, dict[str, str]], None],
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises((PySparkException, ChpError), match=said):
        way(spark, tmp_path, {"servers": filled.address, **options})


@pytest.mark.parametrize("way", [batch_read, stream_read, stream_write])
def test_servers_must_be_given(spark: Any, tmp_path: Path, way: Callable[[Any, Path, dict[str, str]], None]) -> None:
    with pytest.raises(PySparkException, match="option servers is missing"):
        way(spark, tmp_path, {})


def test_a_stream_write_refuses_wrong_columns(spark: Any, filled: TestServer, tmp_path: Path) -> None:
    """Wrong columns of a stream are refused before its first batch."""
    stream = rows(spark, tmp_path).selectExpr("key", "cast(value as double) value")
    wrong = [
        (stream.selectExpr("value"), {}, "no column 'key' for the key; the frame has value"),
        (stream, {"key.template": "/n/{base}"}, "no column 'base' for the key of the template '/n/{base}'"),
        (stream, {}, "column 'value' is double; a value is binary or text"),
    ]
    for i, (frame, options, said) in enumerate(wrong):
        writer = frame.writeStream.format("chp").options(servers=filled.address, **options)
        with pytest.raises(PySparkException, match=said):
            run(writer, tmp_path / f"checkpoint{i}")


def test_a_stream_write_refuses_a_batch_with_a_wrong_value(spark: Any, filled: TestServer, tmp_path: Path) -> None:
    """A batch with a wrong value is not written, and no part of it is."""
    with pytest.raises(PySparkException, match="key 'key' is null in row"):
        frame = rows(spark, tmp_path).selectExpr("if(value = '1', null, key) key", "value")
        run(frame.writeStream.format("chp").options(servers=filled.address), tmp_path / "1")
    with pytest.raises(PySparkException, match="a value of 16777217 bytes"):
        frame = spark.readStream.text(str(tmp_path / "in")).selectExpr("'/n/2' key", "repeat('x', 16777217) value")
        run(frame.writeStream.format("chp").options(servers=filled.address), tmp_path / "2")
    with Clone(filled.address) as clone:
        clone.wait_until_synced(60)
        assert dict(clone) == {"/n/1": b"1"}


def test_stream_overwrites_need_the_option_confirm_overwrite(spark: Any, filled: TestServer, tmp_path: Path) -> None:
    counts = rows(spark, tmp_path).groupBy("key").count().selectExpr("key", "cast(count as string) value")
    writer = counts.writeStream.format("chp").outputMode("complete").options(servers=filled.address, subtree="/n/")
    with pytest.raises(PySparkException, match=r"overwrite deletes every key in '/n/'.*confirm.overwrite=true"):
        run(writer, tmp_path / "checkpoint")
    with pytest.raises(ChpError, match=r"confirm\.overwrite=true"):
        foreach_batch(overwrite=True, servers=filled.address)
    with pytest.raises(ChpError, match="option version is the batch id here"):
        foreach_batch(servers=filled.address, version=1)


def test_a_stream_refuses_an_offset_that_is_not_retained_or_never_existed(spark: Any, tmp_path: Path) -> None:
    with (
        TestServer(Limits(log_records_max=10), retain_memory_bytes=2000) as filled,
        Clone(filled.address, None) as clone,
    ):
        for i in range(100):
            clone.set("/n", b"%d" % i).wait(60)
        offsets = {"are not retained any more": (1, 2), "never were in this store": (7, 1_000_000)}
        for i, (what, (epoch, sequence)) in enumerate(offsets.items()):
            start = json.dumps({"epoch": epoch, "sequence": sequence})
            options = {"servers": filled.address, "startingOffsets": start}
            said = f"the changes after {epoch}.{sequence} {what}.*; those there are begin after 1.*failOnDataLoss=false"
            with pytest.raises(PySparkException, match=said):
                stream_read(spark, tmp_path / f"{i}", options)
            found: list[str] = []
            stream = spark.readStream.format("chp").options(**options, failOnDataLoss="false").load()
            take = lambda batch, _, found=found: found.extend(bytes(row.value).decode() for row in batch.collect())  # noqa: E731
            run(stream.writeStream.foreachBatch(take), tmp_path / f"{i}" / "again")
            assert 5 < len(found) < 60 and found[-1] == "99", "what there is, up to the newest"


def test_only_the_head_of_spark_precedes_a_connector_error(spark: Any, server: TestServer, tmp_path: Path) -> None:
    """Only Spark's own head comes before our error, on its own line if a task failed."""
    there = {"servers": server.address}
    for line, act, said in (
        (0, lambda: batch_read(spark, tmp_path, {**there, "sbutree": "/"}), "BadOption: option sbutree"),
        (1, lambda: spark.createDataFrame([("/a", "1")], "key string, value string").write.format("chp").mode("append")
         .options(**there, subtree="/n/").save(), "BadDataFrame: key '/a' is not in"),
        (0, lambda: stream_read(spark, tmp_path, {**there, "startingOffsets": "9.9"}),
         "DataLoss: the changes after 9.9 never were in this store"),
    ):  # fmt: skip
        with pytest.raises(PySparkException) as told:
            act()
        assert said in str(told.value).strip().splitlines()[line], str(told.value)


def test_tables_of_the_spark_catalog_are_refused(spark: Any, server: TestServer) -> None:
    said = r"Spark's catalog.*CREATE TEMPORARY VIEW \.\.\. USING chp OPTIONS"
    given = f"OPTIONS (servers '{server.address}')"
    with pytest.raises(Exception, match=said):
        spark.sql(f"CREATE TABLE whole USING chp {given}")
    try:
        # With columns Spark does not ask. The first use is the error.
        spark.sql(f"CREATE TABLE columns (key string, value binary) USING chp {given}")
        with pytest.raises(Exception, match=said):
            spark.table("columns").collect()
        frame = spark.createDataFrame([("/t", "x")], "key string, value string")
        frame.write.format("chp").options(servers=server.address).mode("append").saveAsTable("rows")
        with pytest.raises(Exception, match=said):
            spark.table("rows").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS columns")
        spark.sql("DROP TABLE IF EXISTS rows")
        with suppress(OSError):
            Path("spark-warehouse").rmdir()
