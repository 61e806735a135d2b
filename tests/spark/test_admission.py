"""Tests of a stream's micro-batches: how much each has, where it cuts a record, and which task gets which key.

covers: spark/reading/admission.py, stream.py and messages.py, asked as Spark asks them, without a session
"""

import pickle
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from chp_client import Clone
from chp_client.port.ask import Interrupted
from chp_client.spark import spark_api
from chp_client.spark.datasource import ChpDataSource
from chp_client.spark.options import BadOption, parse
from chp_client.spark.reading import snapshot as snapshot_module
from chp_client.spark.reading import stream as stream_module
from chp_client.spark.reading.admission import Admission
from chp_client.spark.reading.changes import sizes_of
from chp_server.testing import TestServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not spark_api.ADMISSION, reason="this Spark has no admission control"),
]
SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
Rows = list[tuple[str, bytes | None]]


class Stream:
    """A query as Spark runs it: it asks for the end of each batch, plans it, and reads its partitions."""

    def __init__(self, server: TestServer, **options: object) -> None:
        given = {"servers": server.address, "startingOffsets": "earliest"} | {k: str(v) for k, v in options.items()}
        self.given = given
        self._source = ChpDataSource(given)
        self.again()
        self.at: dict[str, Any] = self._reader.initialOffset()
        self.ends = [self.at]

    def again(self) -> None:
        """Start again, as a query does from its checkpoint."""
        self._reader: Any = self._source.streamReader(SCHEMA)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[Rows]:
        """Return the rows of each task of a batch."""
        found = []
        for piece in self._reader.partitions(start, end):
            batches = self._reader.read(pickle.loads(pickle.dumps(piece)))
            found.append([(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()])
        return found

    def next(self) -> Rows | None:
        """Return the rows of the next batch; None if there is none yet."""
        end = self._reader.latestOffset(self.at, self._reader.getDefaultReadLimit())
        if end == self.at:
            return None
        start, self.at = self.at, end
        self.ends.append(end)
        return [row for rows in self.tasks(start, end) for row in rows]

    def all(self) -> Iterator[Rows]:
        """Yield the batches up to the present end."""
        while (rows := self.next()) is not None:
            yield rows


def test_a_record_above_the_bound_is_cut_and_each_row_comes_once(server: TestServer, clone: Clone) -> None:
    clone.set("/a", b"first").wait(30)
    clone.set_many({f"/other/{i}": b"" for i in range(50)}).wait(30)
    clone.set_many({f"/{'n' if i % 2 else 'm'}/{i}": b"%d" % i for i in range(100)}).wait(30)
    clone.set_many({"/n/x": b"", "/n/y": b""}).wait(30)
    stream = Stream(server, subtree="/n/", maxRowsPerTrigger=20)
    found = []
    for rows in stream.all():
        found.append(rows)
        stream.again()
    whole = [(f"/n/{i}", b"%d" % i) for i in range(1, 100, 2)] + [("/n/x", b""), ("/n/y", b"")]
    assert [row for rows in found for row in rows] == whole
    assert max(map(len, found)) == 20 and list(map(len, filter(None, found)))[-3:] == [20, 20, 12]
    cut = [end for end in stream.ends if "row" in end]
    assert [end["row"] for end in cut] == [20, 40] and cut[0]["sequence"] < cut[0]["record"]["sequence"]


def test_a_batch_that_runs_again_has_the_same_rows(server: TestServer, clone: Clone) -> None:
    clone.set_many({f"/{i}": b"x" * i for i in range(100)}).wait(30)
    clone.set("/last", b"").wait(30)
    stream = Stream(server, maxRowsPerTrigger=30)
    found = list(stream.all())
    assert [len(rows) for rows in found if rows] == [30, 30, 30, 10, 1], "the epoch itself has no row"
    clone.set("/more", b"").wait(30)
    stream.again()
    for i, rows in enumerate(found):
        assert stream.tasks(stream.ends[i], stream.ends[i + 1]) == [rows]


def test_a_byte_limit_bounds_each_batch(server: TestServer, clone: Clone) -> None:
    for n in range(4):
        clone.set(f"/{n}", bytes(400)).wait(30)
    clone.set_many({f"/big/{i}": bytes(300) for i in range(5)}).wait(30)
    clone.set("/huge", bytes(5000)).wait(30)
    stream = Stream(server, maxBytesPerTrigger=1000)
    sizes = [[len(value or b"") for _, value in rows] for rows in stream.all() if rows]
    assert sizes == [[400, 400], [400, 400], [300] * 3, [300] * 2, [5000]]


def test_the_changes_of_other_subtrees_make_no_batches(server: TestServer, clone: Clone) -> None:
    for n in range(30):
        clone.set_many({f"/other/{i}": b"" for i in range(10)}).wait(30)
        if n % 10 == 0:
            clone.set_many({f"/n/{i}": b"" for i in range(4)}).wait(30)
    assert [len(rows) for rows in Stream(server, subtree="/n/", maxRowsPerTrigger=9).all()] == [8, 4]


def test_a_restarted_query_continues_within_a_cut_record(clone: Clone, server: TestServer) -> None:
    """The offset of a cut names the record, and not what a process knows of it."""
    clone.set_many({f"/{i}": b"" for i in range(10)}).wait(30)
    stream = Stream(server, maxRowsPerTrigger=4)
    first = stream.next()
    stream.at = pickle.loads(pickle.dumps(stream.at))
    stream.again()
    rest = [row for rows in stream.all() for row in rows]
    assert (first or []) + rest == [(f"/{i}", b"") for i in range(10)]


@pytest.mark.parametrize("most", [1000, 30])
def test_the_changes_of_a_key_reach_one_task_in_order(server: TestServer, clone: Clone, most: int) -> None:
    for n in range(5):
        clone.set_many({f"/{i}": b"%d" % n for i in range(40)}).wait(30)
    stream = Stream(server, partitions=3, maxRowsPerTrigger=most)
    seen: dict[str, list[bytes | None]] = {}
    while (start := stream.at) and stream.next() is not None:
        tasks = stream.tasks(start, stream.at)
        keys = [{key for key, _ in rows} for rows in tasks]
        assert len(tasks) == 3 or not any(tasks)
        assert sum(map(len, keys)) == len(set().union(*keys))
        assert sum(map(bool, tasks)) > 1 or not any(tasks), "the tasks share the keys"
        for rows in tasks:
            for key, value in rows:
                seen.setdefault(key, []).append(value)
    assert len(seen) == 40 and set(map(tuple, seen.values())) == {(b"0", b"1", b"2", b"3", b"4")}


def test_row_and_byte_limits_bound_the_batches_of_a_topic(server: TestServer, clone: Clone) -> None:
    clone.topic("t").publish_many([bytes(100)] * 25 + [bytes(900)] * 2).wait(30)
    sizes = [len(rows) for rows in Stream(server, topic="t", maxRowsPerTrigger=10).all()]
    assert sizes == [10, 10, 7]
    sizes = [len(rows) for rows in Stream(server, topic="t", maxRowsPerTrigger=20, maxBytesPerTrigger=1000).all()]
    assert sizes == [10, 10, 5, 1, 1]


def test_the_stream_asks_again_for_sizes_after_an_interruption(
    server: TestServer, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.set_many({f"/{i}": b"" for i in range(10)}).wait(30)
    breaks = 2

    def breaking(*asked: Any) -> Iterator[Any]:
        nonlocal breaks
        found = list(sizes_of(*asked))
        yield from found[: -1 if breaks else None]
        if breaks:
            breaks -= 1
            raise Interrupted("the server went away in the middle of an answer")

    monkeypatch.setattr(stream_module, "sizes_of", breaking)
    assert [len(rows) for rows in Stream(server, maxRowsPerTrigger=4).all() if rows] == [4, 4, 2]
    breaks, now = 1, count(0, 121)
    monkeypatch.setattr(stream_module, "monotonic", lambda: next(now))
    with pytest.raises(Interrupted):
        list(Stream(server, maxRowsPerTrigger=4).all())


def test_the_first_batch_is_read_again_no_longer_than_the_option_timeout_says(
    server: TestServer, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.set("/a", b"first").wait(30)
    now = count()
    asked = []

    def breaking(*_: object, packed: bool) -> Iterator[Any]:
        asked.append(packed)
        yield from ()
        raise Interrupted("the server went away in the middle of an answer")

    monkeypatch.setattr(snapshot_module, "_answer", breaking)
    monkeypatch.setattr(snapshot_module, "monotonic", lambda: next(now))
    with pytest.raises(Interrupted):
        Stream(server, startingOffsets="snapshot", timeout=7).next()
    assert len(asked) == 8, "a second goes by with each look at the clock"


def test_streams_of_keys_and_topics_refuse_each_others_checkpoints(server: TestServer, clone: Clone) -> None:
    clone.topic("t").publish(b"").wait(30)
    keys, messages = Stream(server), Stream(server, topic="t")
    keys.at, messages.at = messages.at, keys.at
    with pytest.raises(BadOption, match="the checkpoint is of topic t, and there is no option topic"):
        keys.next()
    with pytest.raises(BadOption, match="the checkpoint is of keys, and the option topic is t"):
        messages.next()


@pytest.mark.parametrize("topic", [False, True])
def test_a_batch_waits_for_rows_or_for_the_delay(server: TestServer, clone: Clone, topic: bool) -> None:
    def add(n: int) -> None:
        if topic:
            clone.topic("t").publish_many([b""] * n).wait(30)
        else:
            clone.set_many({f"/{i}": b"" for i in range(n)}).wait(30)

    add(4)
    now = [0.0]
    options = {"topic": "t"} if topic else {}
    stream = Stream(server, minRowsPerTrigger=10, maxTriggerDelay=60, **options)
    reader: Any = stream._reader
    reader._admission = Admission(parse(stream.given), lambda: now[0])
    assert stream.next() is None
    add(6)
    assert len(stream.next() or []) == 10
    add(3)
    assert stream.next() is None
    now[0] = 61.0
    assert len(stream.next() or []) == 3
    add(2)
    assert stream.next() is None, "the delay begins anew"
    reader.prepareForTriggerAvailableNow()
    assert len(stream.next() or []) == 2, "the trigger availableNow waits for nothing"


def test_the_row_limit_is_ignored_if_the_trigger_reads_all(server: TestServer, clone: Clone) -> None:
    clone.set_many({f"/{i}": b"" for i in range(10)}).wait(30)
    stream = Stream(server, maxRowsPerTrigger=4)
    end = stream._reader.latestOffset(stream.at, spark_api.ReadAllAvailable())
    assert [len(rows) for rows in stream.tasks(stream.at, end)] == [10]
