"""covers: spark/reading/changes.py: changes by number and by time; the lag of a stream; deletes by a column."""

import datetime as dt
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from chp.limits import Limits
from chp.numbers import Revision
from chp_client import Clone
from chp_client.spark import spark_api
from chp_server.testing import TestServer

pytestmark = pytest.mark.spark


def changes(spark: Any, server: TestServer, **options: object) -> list[tuple[str, bytes | None, str]]:
    frame = spark.read.format("chp").options(servers=server.address, **options).load()
    return [(r.key, None if r.value is None else bytes(r.value), r.operation) for r in frame.collect()]


def test_changes_between_two_revisions(spark: Any, server: TestServer, clone: Clone) -> None:
    first = clone.set("/a", b"1").wait(30)
    second = clone.set_many({"/a": b"2", "/b": b"2"}).wait(30)
    third = clone.delete("/a").wait(30)
    end = [("/a", b"2", "set"), ("/b", b"2", "set"), ("/a", None, "delete")]
    assert changes(spark, server, startingOffsets="earliest") == [("/a", b"1", "set"), *end]
    assert changes(spark, server, startingOffsets=str(Revision(first.revision))) == end
    offset = json.dumps({"epoch": first.epoch, "sequence": first.sequence})
    until = {"startingOffsets": offset, "endingRevision": str(Revision(second.revision))}
    assert changes(spark, server, **until) == end[:2], "the record that has the revision is read whole"
    assert changes(spark, server, subtree="/", startingOffsets=str(Revision(third.revision))) == []
    frame = spark.read.format("chp").options(servers=server.address, startingOffsets="earliest").load()
    assert frame.count() == 4
    clone.set("/c", b"3").wait(30)
    # A Spark that tells no filters plans each action anew.
    assert frame.count() == (4 if spark_api.FILTERS else 5), "its end is that of its plan"


def test_changes_by_time(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set("/a", b"1").wait(30)
    before = moment()
    clone.set("/a", b"2").wait(30)
    between = moment()
    clone.set("/a", b"3").wait(30)
    after = moment()
    assert [v for _, v, _ in changes(spark, server, startingTimestamp=before)] == [b"2", b"3"]
    assert [v for _, v, _ in changes(spark, server, startingTimestamp=before, endingTimestamp=between)] == [b"2"]
    assert [v for _, v, _ in changes(spark, server, startingOffsets="earliest", endingTimestamp=between)] == [
        b"1",
        b"2",
    ]
    assert changes(spark, server, startingTimestamp=after) == []
    assert len(changes(spark, server, startingTimestamp="2020-01-01")) == 3, "nothing was before: all is there"
    tomorrow = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).isoformat()
    with pytest.raises(PySparkException, match=r"startingTimestamp is .*, which has not come yet"):
        changes(spark, server, startingTimestamp=tomorrow)
    with pytest.raises(
        PySparkException, match=r"endingRevision is 1\.999, which has not come yet: the store is at 1\."
    ):
        changes(spark, server, startingOffsets="earliest", endingRevision="1.999")


def moment() -> str:
    """Return the present time, some milliseconds away from all updates."""
    threading.Event().wait(0.02)
    now = dt.datetime.now(dt.UTC).isoformat()
    threading.Event().wait(0.02)
    return now


def test_a_read_of_changes_that_are_not_retained_is_refused(spark: Any) -> None:
    with TestServer(Limits(log_records_max=10), retain_memory_bytes=2000) as server, Clone(server.address) as clone:
        clone.wait_until_synced(30)
        early = moment()
        first = clone.set("/n", b"first").wait(30)
        for i in range(100):
            clone.set("/n", b"%d" % i).wait(30)
        with pytest.raises(PySparkException, match=r"changes since .* may be retained no more; those there are begin"):
            changes(spark, server, startingTimestamp=early)
        with pytest.raises(PySparkException, match=r"the changes after 1\.\d+ are not retained any more"):
            changes(spark, server, startingOffsets=str(Revision(first.revision)))
        rest = changes(spark, server, startingTimestamp=early, failOnDataLoss="false")
        assert 5 < len(rest) < 60 and rest[-1] == ("/n", b"99", "set")


@pytest.mark.skipif(not spark_api.ADMISSION, reason="this Spark has no admission control")
def test_a_stream_starts_at_a_timestamp_and_reports_its_lag(
    spark: Any, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    clone.set("/a", b"0").wait(30)
    start = moment()
    for n in range(1, 6):
        clone.set("/a", b"%d" % n).wait(30)
    seen: list[bytes] = []
    stream = spark.readStream.format("chp").options(
        servers=server.address, startingTimestamp=start, maxOffsetsPerTrigger=2
    )
    query = (
        stream.load()
        .writeStream.foreachBatch(lambda frame, _: seen.extend(bytes(row.value) for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert seen == [b"1", b"2", b"3", b"4", b"5"]
    told = [progress["sources"][0]["latestOffset"] for progress in query.recentProgress]
    told = [json.loads(t) if isinstance(t, str) else t for t in told]
    assert [t["behind"] for t in told][:3] == [3, 1, 0] and told[0]["sequence"] == told[-1]["sequence"], told
    assert told[0]["revision"] == f"{told[0]['epoch']}.{told[0]['sequence']}"


def test_a_write_deletes_keys_by_its_operation_column(
    spark: Any, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    clone.set_many({"/a/1": b"1", "/a/2": b"2", "/b/1": b"old"}).wait(30)
    clone.delete("/a/1").wait(30)
    read = spark.readStream.format("chp").options(servers=server.address, subtree="/a/", startingOffsets="earliest")
    copies = read.load().selectExpr("replace(key, '/a/', '/b/') as key", "value", "operation")
    sink = copies.writeStream.format("chp").options(servers=server.address, subtree="/b/", operation="operation")
    query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    clone.sync(30)
    assert dict(clone.prefix("/b/")) == {"/b/2": b"2"}
    frame = spark.createDataFrame([("/b/2", 1.5, "delete"), ("/b/3", 2.5, "set")], "key string, bid double, op string")
    options = {"servers": server.address, "codec": "json", "operation": "op"}
    frame.write.format("chp").mode("append").options(**options).save()
    clone.sync(30)
    assert dict(clone.prefix("/b/")) == {"/b/3": b'{"bid":2.5}'}
