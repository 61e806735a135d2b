"""Spark reads a recording as plain Parquet, while it is being written too: only what is finished, row for row."""

from pathlib import Path
from typing import Any

import pytest

from chp.numbers import number
from chp_client.port.feed import FeedRecord
from chp_client.recording.files import LOCK, PART, POSITION, files
from chp_client.recording.recorder import GROUP_ROWS, RecordingWriter
from chp_server.testing import TestServer
from tests.process.test_recording import recorded, set_some
from tests.talk import until

pytestmark = pytest.mark.spark


def test_spark_reads_only_the_finished_files_of_a_recording(spark: Any, tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "/a/", 600, 1 << 30)
    writer.be_of(b"\x0f" * 16)
    writer.begin(number(1, 1))
    first = FeedRecord(
        number(1, 2), number(1, 3), 1_795_246_000_250, ["/a/x", "/a/y"], [b"\x00\xff", b""], [1], {0: 2500}
    )
    writer.take(first)
    writer.rotate(writer.reached)
    big = FeedRecord(number(2, 1), number(2, GROUP_ROWS), 0, [f"/a/{i}" for i in range(GROUP_ROWS)], [b""] * GROUP_ROWS)
    writer.take(big)
    writer._write_position()
    (tmp_path / LOCK).touch()
    assert len(files(tmp_path)) == 1 and (tmp_path / PART).exists() and (tmp_path / POSITION).exists()

    frame = spark.read.parquet(str(tmp_path))
    assert frame.dtypes == [
        ("key", "string"), ("value", "binary"), ("operation", "string"), ("epoch", "int"), ("sequence", "bigint"),
        ("revision", "bigint"), ("timestamp", "timestamp"), ("ttl", "double"),
    ]  # fmt: skip
    x, y = frame.orderBy("key").selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert (x.key, bytes(x.value), x.operation, x.ttl) == ("/a/x", b"\x00\xff", "set", 2.5)
    assert (y.key, y.value, y.operation, y.ttl) == ("/a/y", None, "delete", None)
    assert {(r.epoch, r.sequence, r.revision, r.ms) for r in (x, y)} == {(1, 3, number(1, 2), 1_795_246_000_250)}

    writer.rotate(writer.reached)
    assert spark.read.parquet(str(tmp_path)).where("epoch = 2").count() == GROUP_ROWS


def test_spark_reads_a_recording_of_a_server(spark: Any, server: TestServer, tmp_path: Path) -> None:
    with recorded([server.address], tmp_path, start="begin", every_s=0.1):
        set_some(server, 50)
        until(lambda: files(tmp_path), "files")
        assert spark.read.parquet(str(tmp_path)).count() <= 50
    rows = spark.read.parquet(str(tmp_path)).orderBy("epoch", "sequence").collect()
    assert [bytes(row.value) for row in rows] == [b"%d" % i for i in range(50)]
