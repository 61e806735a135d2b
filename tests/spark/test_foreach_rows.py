"""Tests of `foreach_writer`: the rows of a partition and an epoch are visible at once, and once."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from chp.errors import ChpError
from chp_client import Clone
from chp_client.spark import BadDataFrame, foreach_writer
from chp_client.spark.options import BadOption
from chp_server.testing import TestServer
from tests.talk import until

from .present import core_of

pytestmark = pytest.mark.spark


def epoch(writer: Any, number: int, *rows: Row, partition: int = 0, error: Exception | None = None) -> None:
    """Call a writer as a task does."""
    there = pickle.loads(pickle.dumps(writer))
    assert there.open(partition, number)
    for row in rows:
        there.process(row)
    there.close(error)


def test_an_epoch_is_written_once(server: TestServer, clone: Clone) -> None:
    writer = foreach_writer(servers=server.address, subtree="/n/", applicationId="job", null_value="delete")
    epoch(writer, 0, Row(key="/n/1", value="a"), Row(key="/n/2", value="b"))
    epoch(writer, 0, Row(key="/n/1", value="again"), partition=0)
    epoch(writer, 0, Row(key="/n/3", value="c"), partition=1)
    until(lambda: dict(clone) == {"/n/1": b"a", "/n/2": b"b", "/n/3": b"c"})
    epoch(writer, 1, Row(key="/n/1", value="x"), error=RuntimeError("the task failed"))
    epoch(writer, 1, Row(key="/n/1", value=None), Row(key="/n/2", value="d"))
    epoch(writer, 2)
    until(lambda: dict(clone) == {"/n/2": b"d", "/n/3": b"c"})
    assert core_of(server).committer.counts["commits"] == 3


def test_many_rows_are_one_record(server: TestServer, clone: Clone) -> None:
    writer = foreach_writer(servers=server.address, applicationId="job", codec="json")
    epoch(writer, 0, *(Row(key=f"/{i}", n=i, x=1.5) for i in range(25_000)))
    until(lambda: len(clone) == 25_000)
    assert clone["/24999"] == b'{"n":24999,"x":1.5}'
    assert core_of(server).committer.counts["commits"] == 1


def test_foreach_writer_refuses_bad_options_and_values(server: TestServer) -> None:
    with pytest.raises(BadOption, match="option version is the epoch here"):
        foreach_writer(servers=server.address, version=1)
    with pytest.raises(ChpError, match="does not tell a task its query; give the option applicationId"):
        epoch(foreach_writer(servers=server.address), 0)
    writer = foreach_writer(servers=server.address, applicationId="job")
    with pytest.raises(BadDataFrame, match=r"column 'value' is a map or a struct.*to_json"):
        epoch(writer, 0, Row(key="/a", value={"a": 1}))
    with pytest.raises(BadDataFrame, match=r"column 'value' is int64; a value is binary or text"):
        epoch(writer, 0, Row(key="/a", value=1))


def test_a_query_writes_rows_with_foreach_writer(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("1\n2\n3\n")
    rows = spark.readStream.schema("value string").text(str(tmp_path / "in")).selectExpr("'/n/' || value key", "value")
    writer = rows.writeStream.foreach(foreach_writer(servers=server.address, subtree="/n/"))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(120)
    until(lambda: dict(clone) == {f"/n/{i}": b"%d" % i for i in (1, 2, 3)})
