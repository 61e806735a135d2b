"""df.write.format("chp"): all at once, once, and not at all if anything is wrong."""

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from chp_client import Clone
from chp_client.spark import staging, write
from chp_client.spark.foreach import foreach_batch
from chp_client.spark.options import BadOption, parse
from chp_client.spark.values.messages import shape_of
from chp_client.spark.write import BatchWriter, StreamWriter, stream_job
from chp_server.testing import TestServer
from tests.talk import until

from .present import core_of, entry_of

pytestmark = pytest.mark.spark


def save(frame: Any, server: TestServer, mode: str = "append", **options: object) -> None:
    frame.write.format("chp").mode(mode).options(servers=server.address, **options).save()


def numbers(spark: Any, n: int, value: str = "id", partitions: int = 4) -> Any:
    return spark.range(0, n, 1, partitions).selectExpr("concat('/n/', id) key", f"cast({value} as string) value")


def test_all_rows_of_a_write_become_visible_in_one_revision(spark: Any, server: TestServer, clone: Clone) -> None:
    seen: set[int] = set()
    stop = threading.Event()
    watch = clone.watch("/n/")

    def look() -> None:
        while not stop.wait(0.001):
            seen.add(len(clone))

    looker = threading.Thread(target=look)
    looker.start()
    save(numbers(spark, 30_000), server, subtree="/n/")
    until(lambda: len(clone) == 30_000)
    save(numbers(spark, 30_000, "id + 1"), server, subtree="/n/")
    until(lambda: clone["/n/7"] == b"8")
    stop.set()
    looker.join()
    assert seen <= {0, 30_000}, "a part of the rows was seen"
    assert len({entry_of(clone, key).revision for key in clone}) == 1
    assert clone["/n/29999"] == b"30000"
    watch.close()


def test_append_upserts_and_overwrite_replaces(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set_many({"/n/old": b"1", "/other": b"1"})
    clone.flush(30)
    save(numbers(spark, 3), server)
    until(lambda: len(clone) == 5)
    save(numbers(spark, 2), server, "overwrite", subtree="/n/", **{"confirm.overwrite": "true"})
    until(lambda: dict(clone) == {"/n/0": b"0", "/n/1": b"1", "/other": b"1"})
    assert len({entry_of(clone, key).revision for key in ("/n/0", "/n/1")}) == 1


def test_deletes_ttls_templates_and_the_last_of_equal_keys(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set("/r/EUR/JPY", b"old").wait(30)
    rows = [("EUR", "USD", "1", 60), ("EUR", "JPY", None, None), ("EUR", "USD", "2", None), ("EUR", "CHF", "3", 50)]
    frame = spark.createDataFrame(rows, "base string, quote string, value string, ttl int").coalesce(1)
    save(frame, server, ttl="ttl", **{"key.template": "/r/{base}/{quote}", "null.value": "delete"})
    until(lambda: dict(clone) == {"/r/EUR/USD": b"2", "/r/EUR/CHF": b"3"})
    assert entry_of(clone, "/r/EUR/USD").ttl is None
    left = entry_of(clone, "/r/EUR/CHF").ttl
    assert left is not None and 10 < left <= 50


def test_a_write_with_revisions_skips_keys_with_newer_values(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set_many({"/n/0": b"a", "/n/1": b"a"})
    clone.flush(30)
    read = (
        spark.read.format("chp")
        .options(servers=server.address)
        .schema("key string, value binary, revision bigint")
        .load()
    )
    rows = read.collect()
    newer = clone.set("/n/1", b"newer").wait(30).revision
    frame = spark.createDataFrame(
        [(r.key, b"back", r.revision) for r in rows], "key string, value binary, revision bigint"
    )
    save(frame, server, revision="revision")
    until(lambda: clone["/n/0"] == b"back")
    assert clone["/n/1"] == b"newer" and entry_of(clone, "/n/1").revision == newer


def test_a_version_is_written_once(spark: Any, server: TestServer, clone: Clone) -> None:
    for version, value in ((1, "'a'"), (1, "'b'"), (0, "'c'")):
        save(numbers(spark, 2, value), server, applicationId="job", version=version)
    until(lambda: len(clone) == 2)
    save(spark.createDataFrame([("/done", "1")], "key string, value string"), server)
    until(lambda: "/done" in clone)
    assert clone["/n/0"] == b"a", "the first of version 1 counts"
    save(numbers(spark, 2, "'d'"), server, txnAppId="job", txnVersion=2)
    until(lambda: clone["/n/0"] == b"d")


def test_a_failed_job_leaves_nothing(spark: Any, server: TestServer, clone: Clone) -> None:
    bad = numbers(spark, 100, "if(id = 99, null, id)")
    with pytest.raises(PySparkException, match="column 'value' is null"):
        save(bad, server)
    until(lambda: core_of(server).state.staging.bytes == 0)  # aborted
    assert not clone


def bad_writes() -> list[tuple[str, dict[str, str], str, str]]:
    good = "concat('/n/', id) key, cast(id as string) value"
    return [
        (good, {"servers": ""}, "append", "option servers is"),
        (good, {"key.templte": "/x"}, "append", "key.templte is not known; did you mean key.template"),
        (good, {}, "overwrite", "overwrite deletes every key in the store.*confirm.overwrite=true"),
        (good, {"subtree": "/n/"}, "overwrite", "overwrite deletes every key in '/n/'"),
        (good, {"applicationId": "x"}, "append", "applicationId and version belong together"),
        ("id", {}, "append", "no column 'key' for the key; the frame has id"),
        (good, {"key.template": "/n/{base}"}, "append", "no column 'base' for the key of the template"),
        ("concat('/n/', id) key, id value", {}, "append", "column 'value' is int64; a value is binary or text"),
        ("concat('/n/', id) key, interval 1 day value", {"codec": "json"}, "append", "column 'value' is duration"),
        ("concat('/n/', id) key, parse_json('1') v", {"codec": "msgpack"}, "append", "'v' is or has variant, "),
        ("concat('/n/', id) key, array(parse_json('1')) v", {"codec": "json"}, "append", "'v' is or has variant"),
        ("concat('/n/', id) key, interval 1 year v", {"codec": "json"}, "append", "'v' is interval year, .*cast it"),
        ("if(id = 1, null, '/n') key, 'x' value", {}, "append", "key 'key' is null in row"),
        ("concat('/n/', id) key, repeat('x', 16777217) value", {}, "append", "a value of 16777217 bytes"),
        (good, {"subtree": "/m/"}, "append", "key '/n/0' is not in the subtree '/m/'"),
    ]


@pytest.mark.parametrize(("columns", "options", "mode", "said"), bad_writes())
def test_bad_input(  # noqa: PLR0917
    spark: Any, server: TestServer, columns: str, options: dict[str, str], mode: str, said: str
) -> None:
    frame = spark.range(0, 2, 1, 1).selectExpr(*_split(columns))
    with pytest.raises(PySparkException, match=said):
        frame.write.format("chp").mode(mode).options(**{"servers": server.address, **options}).save()


def _split(columns: str) -> list[str]:
    """Split a text at commas outside of parentheses."""
    parts, depth = [""], 0
    for c in columns:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def test_a_write_fails_if_no_server_answers(spark: Any) -> None:
    frame = numbers(spark, 2, partitions=1)
    with pytest.raises(PySparkException, match=r"gave no answer for 2 s \(option timeout\)"):
        frame.write.format("chp").mode("append").options(servers="tcp://127.0.0.1:9", timeout=2).save()


def holds(clone: Clone, value: bytes) -> bool:
    return bool(clone.get("/k") == value)


def micro_batch(query: str | None, value: str) -> Any:
    """Return what `foreachBatch` gives a function: a frame of the key /k, in a query with this id."""
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.get)
    table = pa.table({"key": ["/k"], "value": [value]})
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context), toArrow=lambda: table)


def test_foreach_batch_with_an_application_id_writes_the_batches_of_a_new_checkpoint(
    server: TestServer, clone: Clone
) -> None:
    sink = foreach_batch(servers=server.address, applicationId="job")
    for query, batch_id, value in (("first", 0, "a"), ("first", 1, "b"), ("second", 0, "c")):
        sink(micro_batch(query, value), batch_id)
        until(partial(holds, clone, value.encode()), f"the row {value}")
    sink(micro_batch("second", "again"), 0)
    assert core_of(server).committer.counts["commits_repeated"] == 1, "a batch that runs again is recognised"


def batch_write(server: TestServer, value: str, **given: str) -> None:
    """Write the key /k as a job of one task does."""
    options = parse({"servers": server.address, **given})
    table = pa.table({"key": ["/k"], "value": [value], "revision": [0]})
    writer = BatchWriter(options, shape_of(options, table.column_names), overwrite=False)
    writer.commit([writer.write(iter(table.to_batches())), None])


def test_a_warning_says_that_a_repeated_version_wrote_nothing(server: TestServer, caplog: Any) -> None:
    caplog.set_level("INFO")
    sink, done = foreach_batch(servers=server.address, applicationId="job"), "nothing of 1 rows was written"
    batch_write(server, "a", applicationId="job", version="2")
    sink(micro_batch("q", "a"), 7)
    assert "nothing of" not in caplog.text and caplog.text.count("committed 1 rows at 1.") == 2
    for version in ("2", "1"):
        caplog.clear()
        batch_write(server, "b", applicationId="job", version=version)
        assert f"{done}: the servers had done version {version} of the application 'job'" in caplog.text
        assert "committed" not in caplog.text
    caplog.clear()
    sink(micro_batch("q", "again"), 7)
    assert f"{done}: the servers had done version 7 of the application 'q job'" in caplog.text


def test_the_log_tells_at_least_how_many_rows_were_replaced(server: TestServer, caplog: Any) -> None:
    options = parse({"servers": server.address})
    writer = BatchWriter(options, shape_of(options, ["key", "value"]), overwrite=False)
    twice, again = (pa.record_batch({"key": keys, "value": keys}) for keys in (["/k", "/k"], ["/k"]))
    writer.commit([writer.write(iter([twice, again]))])
    assert "at least 1 of 3 rows had a key that came again later" in caplog.text


def test_the_log_of_a_write_with_revisions_does_not_say_that_all_rows_were_written(
    server: TestServer, caplog: Any
) -> None:
    caplog.set_level("INFO")
    batch_write(server, "a")
    batch_write(server, "b", revision="revision")
    assert "rows whose key has a later revision were left out" in caplog.messages[-1]


def test_a_stream_with_an_application_id_writes_the_batches_of_a_new_checkpoint(
    server: TestServer, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse({"servers": server.address, "applicationId": "job"})
    writer = StreamWriter(options, shape_of(options, ["key", "value"]), overwrite=False)
    for query, batch_id, value in (("first", "0", "a"), ("first", "1", "b"), ("second", "0", "c")):
        local = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch_id}
        task = SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: 0, taskAttemptId=lambda: 0)
        monkeypatch.setattr(write, "TaskContext", SimpleNamespace(get=lambda task=task: task))
        staged = writer.write(iter([pa.record_batch({"key": ["/k"], "value": [value]})]))
        writer.commit([staged], int(batch_id))
        until(partial(holds, clone, value.encode()), f"the row {value}")


def test_an_application_id_that_is_too_long_beside_the_query_id_is_refused() -> None:
    with pytest.raises(BadOption, match=r"applicationId is too long for a stream.*has 257 characters, and at most 256"):
        stream_job("q" * 36, "x" * 220, 0)


def test_two_sinks_in_one_query(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    """Both sinks write; a sink that would count as a repetition of the other is refused and not skipped."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("1\n2\n")
    lines = spark.readStream.schema("id string").text(str(tmp_path / "in"))

    def sinks(*options: dict[str, Any]) -> None:
        made = [foreach_batch(servers=server.address, **each) for each in options]

        def both(batch: Any, batch_id: int) -> None:
            for sink, folder in zip(made, "ab", strict=True):
                sink(batch.selectExpr(f"concat('/{folder}/', id) key", "id value"), batch_id)

        checkpoint = str(tmp_path / f"checkpoint{len(list(tmp_path.iterdir()))}")
        query = lines.writeStream.foreachBatch(both).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination(120)

    sinks({"subtree": "/a/"}, {"subtree": "/b/"})
    until(lambda: set(clone) == {"/a/1", "/a/2", "/b/1", "/b/2"})
    with pytest.raises(PySparkException, match=r"written already, by this foreach_batch.*give each an applicationId"):
        sinks({}, {})
    sinks({"applicationId": "a"}, {"applicationId": "b"})


def test_foreach_batch_fails_if_no_server_answers(spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The log says early what it waits for, and the error names the servers' silence in a few lines."""
    monkeypatch.setattr(staging, "SILENCE_S", 0.5)
    sink = foreach_batch(servers="tcp://127.0.0.1:9", timeout=2, applicationId="test")
    with pytest.raises(staging.StagingFailed, match=r"gave no answer for 2 s \(option timeout\)") as failed:
        sink(numbers(spark, 2, partitions=1), 0)
    assert "tcp://127.0.0.1:9 not heard from: nothing takes connections there; giving up in 1.5 s" in caplog.text
    assert failed.value.__suppress_context__ and len(failed.traceback) == 2


def test_foreach_batch_in_update_mode(spark: Any, server: TestServer, clone: Clone, tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()
    spark.range(10).selectExpr("cast(id % 3 as string) word").write.mode("append").parquet(str(tmp_path / "in"))
    words = spark.readStream.schema("word string").parquet(str(tmp_path / "in")).groupBy("word").count()
    rows = words.selectExpr("concat('/count/', word) key", "cast(count as string) value")
    sink = foreach_batch(servers=server.address, subtree="/count/")
    for _ in range(2):
        query = (
            rows.writeStream.foreachBatch(sink).outputMode("update").trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        query.awaitTermination(60)
    until(lambda: len(clone) == 3)
    assert dict(clone) == {"/count/0": b"4", "/count/1": b"3", "/count/2": b"3"}
    assert core_of(server).committer.counts["commits"] == 1
