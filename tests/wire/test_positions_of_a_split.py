"""Tests of a position that a reader kept, in a history that a split has ended: no reader goes on from it silently.

covers: the opener beside the number in feeds, recordings and Spark's offsets (SPEC.md, sections 11 and 17).

Two servers with one store have opened the same epoch each for itself, as the two sides of a split do. Their numbers are
equal and stand for different sets.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from chp_client import Clone
from chp_client.errors import NotRetained
from chp_client.port.feed import Feed
from chp_client.recording.files import POSITION, files, pq
from chp_client.recording.recorder import RecordingWriter, record
from chp_server.testing import TestServer

pytest.importorskip("pyspark.sql.datasource")

from chp_client.spark.options import parse
from chp_client.spark.reading.changes import DataLoss
from chp_client.spark.reading.stream import StreamReader
from tests.talk import WAIT_S, join_all, until

RETAINED: dict[str, Any] = {"retain_memory_bytes": 64 << 20, "heartbeat_s": 0.1}


class Split:
    """A split. At first one side answers, and later the other side, which has more numbers, at the same address."""

    def __init__(self, place: Path) -> None:
        self.one, self.other = place / "one", place / "other"
        self.server = TestServer(store=f"sqlite:{self.one}", **RETAINED).start()
        self._put(5, "both")
        self.server.kill()
        shutil.copytree(self.one, self.other)
        self.server.start()
        self._put(5, "one")

    def _put(self, n: int, value: str) -> None:
        with Clone(self.server.address, subtree=None) as clone:
            for i in range(n):
                clone.set(f"/{i}", value.encode()).wait(WAIT_S)

    @property
    def address(self) -> str:
        return self.server.address

    def give_way(self) -> None:
        """Let the other side serve. It gets more numbers of the same epoch."""
        self.server.kill()
        self.server = TestServer(bind=self.address, store=f"sqlite:{self.other}", **RETAINED).start()
        self._put(50, "other")


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Split]:
    made = Split(tmp_path)
    yield made
    made.server.kill()


def test_a_kept_feed_position_of_an_ended_history_raises_not_retained(split: Split) -> None:
    with Feed(split.address) as feed:
        assert len([record for records in feed.fetch(0) for record in records]) == 10
        number, store, opener = feed.complete, feed.store, feed.opener
    assert len(opener) == 16
    with Feed(split.address, store=store) as feed:
        assert list(feed.fetch(number, opener=opener)) == [] and feed.opener == opener
    split.give_way()
    with Feed(split.address, store=store) as feed, pytest.raises(NotRetained):
        list(feed.fetch(number, opener=opener))


def test_a_running_feed_raises_not_retained_when_a_split_ends_its_history(split: Split) -> None:
    with Feed(split.address) as feed:
        list(feed.fetch(0))
        split.give_way()
        with pytest.raises(NotRetained):
            list(feed.fetch(feed.complete))


def test_a_feed_knows_the_opener_in_the_middle_of_an_answer(split: Split) -> None:
    with Feed(split.address) as feed:
        facts = feed.facts()
        for records in feed.fetch(0):
            assert records[-1].last == facts.newest and feed.opener == facts.opener != b""


def test_a_recording_of_an_ended_history_gets_a_gap_and_a_snapshot(split: Split, tmp_path: Path) -> None:
    folder = tmp_path / "recording"

    def record_until(reached: Callable[[list[str]], bool]) -> list[str]:
        stop = Event()
        said: list[str] = []
        options: dict[str, Any] = {"start": "begin", "every_s": 0.05, "stop": stop, "say": said.append}
        thread = Thread(target=record, args=(split.address, folder), kwargs=options, daemon=True)
        thread.start()
        try:
            until(lambda: reached(said), "the recorder")
        finally:
            stop.set()
            join_all(thread)
        return said

    record_until(lambda _: folder.exists() and bool(files(folder)))
    last = files(folder)[-1].path
    assert len(pq.ParquetFile(last).metadata.metadata[b"chp.opener"]) == 32
    split.give_way()
    said = record_until(lambda told: any("GAP" in text for text in told))
    assert any("no part of this store's history" in text for text in said)
    rows = [row for each in files(folder) for row in pq.read_table(each.path).to_pylist()]
    assert [row["operation"] for row in rows].count("gap") == 1
    held = {row["key"]: row["value"] for row in rows if row["operation"] == "snapshot"}
    assert len(held) == 50 and set(held.values()) == {b"other"}


def test_the_recorded_position_of_a_quiet_subtree_keeps_the_opener(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "", 0.0001, 1 << 20)
    writer.be_of(b"s" * 16)
    writer.be_told(7, b"o" * 16)
    writer.begin(5)
    writer.reached = 7
    Event().wait(0.001)
    writer.rotate_if_due()
    assert (tmp_path / POSITION).exists()
    again = RecordingWriter(tmp_path, "", 60.0, 1 << 20)
    assert (again.reached, again.opener) == (7, b"o" * 16)


def stream(split: Split, **options: str) -> StreamReader:
    return StreamReader(parse({"servers": split.address, "startingOffsets": "earliest", **options}), schema())


def schema() -> Any:
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    return StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def rows_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def test_a_spark_offset_of_an_ended_history_raises_data_loss(split: Split) -> None:
    reader = stream(split)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert rows_of(reader, start, end) == 10 and len(end["opener"]) == 32
    reader.stop()
    split.give_way()
    reader = stream(split)
    with pytest.raises(DataLoss, match="of a history that another server's has replaced"):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    with pytest.raises(DataLoss, match="of a history that another server's has replaced"):
        rows_of(reader, end, {**end, "sequence": end["sequence"] + 3})
    reader.stop()
    reader = stream(split, failOnDataLoss="false")
    assert reader.latestOffset(end, reader.getDefaultReadLimit())["sequence"] > end["sequence"]
    reader.stop()


def test_a_spark_batch_of_an_ended_history_fails(split: Split) -> None:
    reader = stream(split)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    split.give_way()
    with pytest.raises(Exception, match="is no part of the server's history"):
        rows_of(reader, start, end)
    reader.stop()
