"""spark.read and readStream of format("chp"): one number in all partitions; every change once, in order.

After a restart too.
"""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from chp.limits import Limits
from chp_client import Clone
from chp_client.errors import Unanswered
from chp_client.spark import spark_api
from chp_client.spark.options import parse
from chp_client.spark.reading.snapshot import plan_read, port_of
from chp_server.testing import Pair, TestServer

from .present import core_of

pytestmark = pytest.mark.spark


def read(spark: Any, server: TestServer, schema: str = "", **options: object) -> Any:
    reader = spark.read.format("chp").options(servers=server.address, **options)
    return (reader.schema(schema) if schema else reader).load()


# -- snapshots


def test_a_snapshot_read_sees_all_keys_at_one_number(spark: Any, server: TestServer, clone: Clone) -> None:
    """A writer goes on changing all keys together; no read may see two versions."""
    keys = [f"/n/{i}" for i in range(2000)]
    clone.set_many((keys, [b"0"] * len(keys)))
    clone.flush(30)
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.wait(0.002):
            n += 1
            clone.set_many((keys, [b"%d" % n] * len(keys))).wait(30)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(3):
            rows = read(spark, server, subtree="/n/", partitions=4).select("value", "revision").distinct().collect()
            assert len(rows) == 1
    finally:
        stop.set()
        writer.join()
    frame = read(spark, server, partitions=4)
    assert frame.rdd.getNumPartitions() == 4 and sorted(r.key for r in frame.collect()) == sorted(keys)


def test_the_columns_of_a_snapshot_read(spark: Any, server: TestServer, clone: Clone) -> None:
    at = clone.set("/a", b"\x00\xff", ttl=60).wait(30)
    clone.set("/b", b"").wait(30)
    a, b = read(spark, server).orderBy("key").collect()
    assert (a.key, bytes(a.value), a.revision, a.epoch, a.sequence) == (
        "/a",
        b"\x00\xff",
        at.revision,
        at.epoch,
        at.sequence,
    )
    assert 0 < a.ttl <= 60 and b.ttl is None and b.value == b"" and a.operation == "set" and a.timestamp is None


def test_values_decoded_by_a_schema(spark: Any, server: TestServer, clone: Clone) -> None:
    thing = {"bid": 1.5, "n": 3, "day": "2026-01-05", "tags": ["x", "y"], "p": "1.10"}
    clone.set("/a", json.dumps(thing).encode()).wait(30)
    schema = "key string, bid double, n int, day date, tags array<string>, p decimal(10,2), missing string"
    (row,) = read(spark, server, schema, codec="json").collect()
    assert (row.bid, row.n, str(row.day), list(row.tags), str(row.p), row.missing) == (
        1.5,
        3,
        "2026-01-05",
        ["x", "y"],
        "1.10",
        None,
    )
    assert read(spark, server, "value string, key string").collect()[0].value == json.dumps(thing)
    with pytest.raises(PySparkException, match=r"there is no column 'bid'.*option codec"):
        read(spark, server, "key string, bid double").collect()
    with pytest.raises(PySparkException, match=r"column 'tags' can't be int"):
        read(spark, server, "tags int", codec="json").collect()


@pytest.mark.parametrize("pushdown", [False, True])
def test_a_filter_narrows_only_one_use_of_a_frame(spark: Any, server: TestServer, clone: Clone, pushdown: bool) -> None:
    """Spark plans a frame's source once for all its uses: no filter may narrow what another use reads."""
    clone.set_many({f"/{a}/{i}": b"" for a in "ab" for i in range(20)})
    clone.flush(30)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = read(spark, server)
        a, b = frame.where("key like '/a/%'"), frame.where("key like '/b/%'")
        assert (a.count(), frame.count()) == (20, 40), "a filter is forgotten by the next use"
        assert sorted(row.key[:3] for row in a.union(b).collect()) == ["/a/"] * 20 + ["/b/"] * 20
        assert frame.union(a).count() == 60
        for condition, n in (("key = '/a/1'", 1), ("key in ('/a/1', '/b/1')", 2), ("key > '/b/'", 20)):
            assert frame.where(condition).count() == n, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.skipif(not spark_api.FILTERS, reason="this Spark tells no filters")
def test_key_filters_reach_the_server_with_push_down_predicate(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set_many({f"/{a}/{i}": b"/b" for a in "ab" for i in range(20)}).wait(30)
    reader = spark.read.format("chp").schema("key string, value string")
    reader = reader.options(servers=server.address, pushDownPredicate="true")
    with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
        reader.load().count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
    try:
        for condition, n, held in (
            ("key like '/a/%'", 20, 20),
            # Eleven keys begin with this one.
            ("key = '/a/1'", 1, 11),
            # Eleven keys begin with the common part of these.
            ("key in ('/a/12', '/a/1')", 2, 11),
            ("key in ('/a/1', '/a/12', '/b/1')", 3, 40),
            ("key > '/b/'", 20, 40),
            # This filter says nothing of keys.
            ("value = '/b'", 40, 40),
        ):
            assert reader.load().where(condition).count() == n, condition
            (*_, number) = core_of(server).requests.numbers._numbers.values()
            assert [read.image.size for read in number.images.values()][-1] == held, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_view_and_sql(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set("/a/1", b'{"bid": 1.5}').wait(30)
    options = f"OPTIONS (servers '{server.address}', subtree '/a/', codec 'json', `confirm.overwrite` 'true')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW prices (key string, bid double) USING chp {options}")
    spark.sql("INSERT INTO prices VALUES ('/a/2', 2.5)").collect()
    assert {tuple(row) for row in spark.sql("SELECT key, bid FROM prices").collect()} == {("/a/1", 1.5), ("/a/2", 2.5)}
    spark.sql("INSERT OVERWRITE prices VALUES ('/a/3', 3.5)").collect()
    assert read(spark, server, "key string, bid double", codec="json").collect() == [("/a/3", 3.5)]


def test_a_reader_notices_at_once_if_the_active_dies_during_an_answer(server: TestServer, clone: Clone) -> None:
    clone.set_many({f"/{i}": bytes(1 << 20) for i in range(60)}).wait(30)
    with port_of(parse({"servers": server.address, "timeout": "3600"})) as port:
        (part,) = plan_read(port, "", "", 1)
        chunks = port.stream("", **part.question)
        next(chunks)
        server.kill()
        with pytest.raises(Unanswered, match=r"went away in the middle of an answer; load\(\) the data frame again"):
            list(chunks)


def test_a_read_fails_if_its_snapshot_is_gone(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set("/a", b"1").wait(30)
    frame = read(spark, server, timeout=5)
    assert len(frame.collect()) == 1
    core_of(server).state.undo.drop(list(core_of(server).state.undo.numbers))
    core_of(server).requests.numbers.clear()
    with pytest.raises(PySparkException, match=r"the snapshot at 1.3: .*not read in time.*load\(\) it again"):
        frame.collect()


def test_a_failover_between_plan_and_task(spark: Any) -> None:
    """A frame keeps to its snapshot at the new active, and a new frame reads what is there now."""
    with Pair(heartbeat_s=0.1) as pair, Clone(pair.servers) as clone:
        clone.set("/a", b"1").wait(60)
        options = {"servers": ",".join(pair.servers), "timeout": 60}
        frame = spark.read.format("chp").options(**options).load()
        assert frame.count() == 1
        (first,) = [each for each in (pair.primary, pair.backup) if each.server and each.server.core.active]
        first.kill()
        clone.set("/b", b"2").wait(60)
        clone.set("/a", b"3").wait(60)
        # A Spark that tells no filters plans each action anew.
        kept = [("/a", b"1")] if spark_api.FILTERS else [("/a", b"3"), ("/b", b"2")]
        for _ in range(2):
            assert sorted((row.key, bytes(row.value)) for row in frame.collect()) == kept
        assert spark.read.format("chp").options(**options).load().count() == 2


# -- changes


class Changes:
    """A query that keeps what it delivers, batch by batch."""

    def __init__(self, spark: Any, server: TestServer, work: Path, **options: object) -> None:
        self.batches: list[list[Any]] = []
        stream = spark.readStream.format("chp").options(servers=server.address, **options).load()
        self._writer = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(work))

    def _take(self, frame: Any, _: int) -> None:
        self.batches.append(frame.collect())

    @property
    def rows(self) -> list[tuple[str, bytes | None, str]]:
        return [
            (r.key, None if r.value is None else bytes(r.value), r.operation) for batch in self.batches for r in batch
        ]

    def run(self) -> "Changes":
        """Run the query up to the present changes."""
        query = self._writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        return self


def test_every_change_once_in_order_over_restarts(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    clone.set("/a", b"0").wait(30)
    options = {"startingOffsets": "earliest", "subtree": "/"}
    assert Changes(spark, server, tmp_path, **options).run().rows == [("/a", b"0", "set")]
    clone.set("/a", b"1", ttl=60).wait(30)
    clone.delete("/a").wait(30)
    clone.set_many({"/b": b"2", "/c": b"3"}).wait(30)
    second = Changes(spark, server, tmp_path, **options).run()
    assert second.rows == [("/a", b"1", "set"), ("/a", None, "delete"), ("/b", b"2", "set"), ("/c", b"3", "set")]
    (rows,) = second.batches
    assert [r.sequence for r in rows] == [3, 4, 5, 5] and rows[0].ttl == 60 and rows[0].timestamp is not None


@pytest.mark.skipif(not spark_api.ADMISSION, reason="this Spark has no admission control")
def test_a_stream_batch_ends_with_a_whole_record(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    for n in range(5):
        clone.set_many({f"/{n}/{i}": b"" for i in range(10)}).wait(30)
    found = Changes(spark, server, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=25).run()
    assert [len(batch) for batch in found.batches] == [20, 20, 10]


def test_a_stream_reads_a_snapshot_then_changes(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    clone.set_many({f"/{i}": b"old" for i in range(100)}).wait(30)
    clone.delete("/7").wait(30)
    options = {"startingOffsets": "snapshot", "partitions": 3}
    first = Changes(spark, server, tmp_path, **options).run()
    assert sorted(first.rows) == sorted((f"/{i}", b"old", "set") for i in range(100) if i != 7)
    clone.set("/1", b"new").wait(30)
    assert Changes(spark, server, tmp_path, **options).run().rows == [("/1", b"new", "set")]


def test_a_stream_starts_at_latest_or_an_offset(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    clone.set("/a", b"1").wait(30)
    at = clone.set("/a", b"2").wait(30)
    assert Changes(spark, server, tmp_path / "1", startingOffsets="latest").run().rows == []
    clone.set("/a", b"3").wait(30)
    assert Changes(spark, server, tmp_path / "1", startingOffsets="latest").run().rows == [("/a", b"3", "set")]
    start = json.dumps({"epoch": at.epoch, "sequence": at.sequence})
    assert Changes(spark, server, tmp_path / "2", startingOffsets=start).run().rows == [("/a", b"3", "set")]


def test_a_query_without_a_start_begins_with_a_snapshot(
    spark: Any, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    clone.set_many({"/a": b"1", "/b": b"2"}).wait(30)
    clone.set("/a", b"3").wait(30)
    assert sorted(Changes(spark, server, tmp_path).run().rows) == [("/a", b"3", "set"), ("/b", b"2", "set")]
    clone.delete("/b").wait(30)
    assert Changes(spark, server, tmp_path).run().rows == [("/b", None, "delete")]


def test_a_stream_refuses_changes_that_are_not_retained(spark: Any, tmp_path: Path) -> None:
    with TestServer(Limits(log_records_max=10), retain_memory_bytes=2000) as server, Clone(server.address) as clone:
        clone.wait_until_synced(30)
        clone.set("/a", b"1").wait(30)
        options = {"startingOffsets": "earliest"}
        assert len(Changes(spark, server, tmp_path, **options).run().rows) == 1
        for i in range(100):
            clone.set("/n", b"%d" % i).wait(30)
        with pytest.raises(
            PySparkException, match=r"changes after 1.2 are not retained any more.*failOnDataLoss=false"
        ):
            Changes(spark, server, tmp_path, **options).run()
        rows = Changes(spark, server, tmp_path, failOnDataLoss=False, **options).run().rows
        assert 5 < len(rows) < 60 and rows[-1] == ("/n", b"99", "set")


def test_a_checkpoint_of_another_store_is_refused(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    clone.set("/a", b"1").wait(30)
    Changes(spark, server, tmp_path, startingOffsets="earliest").run()
    with TestServer() as other, Clone(other.address) as there:
        there.set_many({f"/{i}": b"" for i in range(10)}).wait(30)
        with pytest.raises(
            PySparkException, match=r"the checkpoint is of the store [0-9a-f]{32}, and the servers hold"
        ):
            Changes(spark, other, tmp_path).run()
        assert len(Changes(spark, other, tmp_path, failOnDataLoss=False).run().rows) == 10


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_a_batch_planned_for_a_replaced_store_is_refused(spark: Any, tmp_path: Path, start: str) -> None:
    """The checkpoint names the end of the batch in numbers of a store that is gone."""

    class Failing(Changes):
        def _take(self, frame: Any, _: int) -> None:
            raise RuntimeError("planned, and not done")

    with TestServer(heartbeat_s=0.1) as server:
        with Clone(server.address) as clone:
            clone.set_many({f"/{i}": b"old" for i in range(5)}).wait(30)
        with pytest.raises(PySparkException, match="planned, and not done"):
            Failing(spark, server, tmp_path, startingOffsets=start).run()
        server.restart()
        with Clone(server.address) as clone:
            for i in range(10):
                clone.set(f"/{i}", b"new").wait(30)
        found = Changes(spark, server, tmp_path, startingOffsets=start)
        with pytest.raises(PySparkException, match=r"of the store [0-9a-f]{32}, and the servers hold [0-9a-f]{32}"):
            found.run()
        assert found.rows == []
        found = Changes(spark, server, tmp_path, startingOffsets=start, failOnDataLoss=False).run()
        if not (found.rows or spark_api.ADMISSION):
            # The trigger availableNow ends with the batch that it repeats.
            found.run()
        assert {value for _, value, _ in found.rows} == {b"new"}


def test_written_rows_are_read_back(spark: Any, server: TestServer) -> None:
    rows = spark.range(0, 20_000, 1, 3).selectExpr(
        "concat('/n/', id) key", "encode(repeat('é', int(id % 50)), 'UTF-8') value"
    )
    rows.write.format("chp").mode("append").options(servers=server.address).save()
    back = read(spark, server, "key string, value binary", partitions=3)
    assert back.exceptAll(rows).count() == 0 and rows.exceptAll(back).count() == 0
