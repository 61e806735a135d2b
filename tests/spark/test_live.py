"""Live tables: one replica a process, shared by its tasks, current while they run."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from chp.errors import BadInput, BadSubtree
from chp_client import Clone, State
from chp_client.port.admin import Admin
from chp_client.spark import Live, live
from chp_client.spark.live import REPLICAS_MAX, Pinned
from chp_server.testing import Pair, TestServer
from tests.process.cluster import wait_for

GENEROUS_S = 30.0


@pytest.fixture
def table(lone: TestServer) -> Iterator[Live]:
    """A live table in this process, its replica closed at the end."""
    made = live([lone.address], "/rates/", codec="text")
    yield made
    made.close()


def snapshots(server: TestServer) -> int:
    """How many replicas have asked for a snapshot so far."""
    with Admin([server.address]) as admin:
        return int(admin.ask(server.address, "status").facts["counts"].get("snapshots", 0))


def put(server: TestServer, **rates: str) -> None:
    with Clone([server.address], None, codec="text") as clone:
        clone.set_many({f"/rates/{name}": text for name, text in rates.items()}).wait(GENEROUS_S)


class Halves:
    """A codec of one's own, which travels with the table."""

    def encode(self, value: float) -> bytes:
        return str(value * 2).encode()

    def decode(self, data: bytes) -> float:
        return float(data) / 2


# -- in one process


def test_a_mapping_that_follows(lone: TestServer, table: Live) -> None:
    assert "not opened here" in repr(table) and snapshots(lone) == 0
    put(lone, USD="1.08", JPY="160")
    assert (table["/rates/USD"], table.get("/rates/XXX", "none"), len(table)) == ("1.08", "none", 2)
    assert dict(table) == {"/rates/USD": "1.08", "/rates/JPY": "160"} and "/rates/JPY" in table
    with pytest.raises(KeyError):
        table["/rates/XXX"]
    put(lone, USD="1.09")
    wait_for("the change", lambda: table["/rates/USD"] == "1.09")
    assert table.state is State.SYNCED and table.staleness_s < GENEROUS_S and table.revision > 0


def test_an_empty_subtree_is_opened_once(lone: TestServer, table: Live) -> None:
    for _ in range(3):
        assert len(table) == 0 and table.get("/rates/USD") is None
    assert snapshots(lone) == 1


def test_it_travels_as_a_name_and_shares_the_replica(lone: TestServer, table: Live) -> None:
    put(lone, USD="2")
    assert table["/rates/USD"] == "2"
    sent = pickle.dumps(table)
    assert len(sent) < 300
    others = [pickle.loads(sent) for _ in range(10)]
    own = pickle.loads(pickle.dumps(live([lone.address], "/rates/", codec=Halves())))
    assert [each["/rates/USD"] for each in others] == ["2"] * 10 and own["/rates/USD"] == 1.0
    assert snapshots(lone) == 1


def test_a_pin_is_one_moment(lone: TestServer, table: Live) -> None:
    put(lone, USD="1", JPY="1")
    first = table.pin()
    put(lone, USD="2", JPY="2")
    wait_for("the change", lambda: table["/rates/USD"] == "2")
    assert set(first.values()) == {"1"} and set(table.pin().values()) == {"2"}
    assert table.pin().revision > first.revision and isinstance(first, Pinned)


def test_items_are_those_of_one_moment(lone: TestServer, table: Live) -> None:
    put(lone, USD="1", JPY="1")
    for view in (table.items, table.values):
        wait_for("both", lambda: len(table) == 2)
        seen = []
        for each in view():
            seen.append(each)
            with Clone([lone.address]) as clone:
                clone.delete_many(["/rates/USD", "/rates/JPY"]).wait(GENEROUS_S)
            wait_for("the delete", lambda: len(table) == 0)
        assert len(seen) == 2
        put(lone, USD="1", JPY="1")


def test_a_pin_of_a_store_that_came_to_the_same_number_anew(lone: TestServer, table: Live) -> None:
    put(lone, USD="1")
    before = table.pin()
    lone.kill()
    lone.start()
    put(lone, USD="2")
    wait_for("the new store", lambda: table.get("/rates/USD") == "2" and table.state is State.SYNCED)
    assert before["/rates/USD"] == "1" and table.pin()["/rates/USD"] == "2"
    assert before.revision == table.pin().revision


def test_pins_never_hold_half_a_record(lone: TestServer, table: Live) -> None:
    names = [f"k{i}" for i in range(200)]
    with Clone([lone.address], None) as clone:
        tickets = [clone.set_many({f"/rates/{name}": b"%d" % i for name in names}) for i in range(300)]
        wait_for("the first", lambda: len(table) == 200)
        while not tickets[-1].done:
            assert len(set(table.pin().values())) == 1
    wait_for("the last", lambda: table.pin()["/rates/k0"] == "299")


def test_a_closed_table_opens_anew(lone: TestServer, table: Live) -> None:
    put(lone, USD="1")
    assert table["/rates/USD"] == "1"
    table.close()
    table.close()
    assert table["/rates/USD"] == "1" and snapshots(lone) == 2


def test_it_survives_a_failover(pair: Pair) -> None:
    table = live(pair.servers, "/rates/", codec="text")
    try:
        with Clone(pair.servers, None, codec="text") as clone:
            clone.set("/rates/USD", "1").wait(GENEROUS_S)
            assert table["/rates/USD"] == "1"
            pair.primary.kill()
            clone.set("/rates/USD", "2").wait(GENEROUS_S)
            wait_for("the change", lambda: table["/rates/USD"] == "2")
    finally:
        table.close()


def _read_in_child(table: Live, out: object) -> None:
    out.send((os.getpid(), table["/rates/USD"], len(table.pin())))  # type: ignore[attr-defined]


def test_a_forked_child_opens_its_own(lone: TestServer, table: Live) -> None:
    put(lone, USD="1")
    assert table.pin() == {"/rates/USD": "1"}
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_read_in_child, args=(table, there))
    child.start()
    assert here.poll(GENEROUS_S)
    pid, value, count = here.recv()
    child.join(GENEROUS_S)
    assert child.exitcode == 0 and pid != os.getpid() and (value, count) == ("1", 1)
    put(lone, USD="2")
    wait_for("the parent's replica to go on", lambda: table["/rates/USD"] == "2")
    assert snapshots(lone) == 2


def test_what_it_refuses() -> None:
    with pytest.raises(BadSubtree, match="begin and end with"):
        live(["tcp://a:5556"], "rates")
    with pytest.raises(BadInput, match="is not tcp://host:port"):
        live("a")
    with pytest.raises(BadInput, match="codec 'pickle' is not known"):
        live("tcp://a:5556", codec="pickle")
    with pytest.raises(TimeoutError, match="not heard from"):
        live("tcp://127.0.0.1:9", timeout_s=0.2)["/a"]
    live("tcp://127.0.0.1:9").close()


def test_replicas_are_bounded(lone: TestServer) -> None:
    tables = [live(lone.address, f"/{i}/") for i in range(REPLICAS_MAX)]
    try:
        assert [len(each) for each in tables] == [0] * REPLICAS_MAX
        with pytest.raises(BadInput, match="use one of a larger subtree"):
            live(lone.address, "/more/").get("x")
    finally:
        for each in tables:
            each.close()


# -- in Spark's workers


@pytest.mark.spark
def test_in_every_kind_of_function(spark: Any, lone: TestServer) -> None:
    import pyarrow as pa
    from pyspark.sql.functions import udf

    put(lone, USD="1.25", JPY="160")
    rates = live(lone.address, "/rates/", codec="text")
    frame = spark.createDataFrame([("USD",), ("JPY",), ("XXX",)], "name string").repartition(2)

    def pandas_batches(batches: Any) -> Any:
        for batch in batches:
            now = rates.pin()
            yield batch.assign(rate=[now.get(f"/rates/{name}") for name in batch.name])

    def arrow_batches(batches: Any) -> Any:
        for batch in batches:
            now = rates.pin()
            found = pa.array([now.get(f"/rates/{name}") for name in batch["name"].to_pylist()], pa.string())
            yield pa.record_batch([batch["name"], found], ["name", "rate"])

    one = udf(lambda name: rates.get(f"/rates/{name}"), "string").asNondeterministic()
    wanted = [("JPY", "160"), ("USD", "1.25"), ("XXX", None)]
    schema = "name string, rate string"
    assert sorted(map(tuple, frame.select("name", one("name")).collect())) == wanted
    assert sorted(map(tuple, frame.mapInPandas(pandas_batches, schema).collect())) == wanted
    assert sorted(map(tuple, frame.mapInArrow(arrow_batches, schema).collect())) == wanted


@pytest.mark.spark
def test_many_tasks_share_the_replicas_of_their_workers(spark: Any, lone: TestServer) -> None:
    put(lone, USD="1")
    rates = live(lone.address, "/rates/", codec="text")

    def task(batches: Any) -> Any:
        for batch in batches:
            yield batch.assign(pid=os.getpid(), rate=rates["/rates/USD"])

    rows = spark.range(0, 150, numPartitions=150).mapInPandas(task, "id long, pid long, rate string").collect()
    pids = {row.pid for row in rows}
    assert {row.rate for row in rows} == {"1"} and len(rows) == 150
    assert snapshots(lone) == len(pids) <= 4  # two cores; a worker may have been replaced


@pytest.mark.spark
def test_a_running_task_sees_a_change_within_a_second(spark: Any, lone: TestServer) -> None:
    rates = live(lone.address, "/rates/", codec="text")
    echo = (lone.address, "/seen/")
    changes = 5

    def task(batches: Any) -> Any:
        with Clone(echo[0], None, codec="text") as out:
            for batch in batches:
                delays: list[float] = []
                until = time.monotonic() + 60
                out["/seen/ready"] = "0"
                while len(delays) < changes and time.monotonic() < until:
                    sent = rates.get(f"/rates/{len(delays)}")
                    if sent is not None:
                        delays.append(time.time() - float(sent))
                        out["/seen/ready"] = str(len(delays))
                yield batch.assign(slowest=max(delays, default=-1.0), seen=len(delays))

    from threading import Thread

    def has_seen(clone: Clone, i: int) -> bool:
        return bool(clone.get("/seen/ready") == str(i))

    def write() -> None:
        with Clone(lone.address, codec="text") as clone:
            for i in range(changes):
                wait_for("the task", partial(has_seen, clone, i))
                clone.set(f"/rates/{i}", str(time.time())).wait(GENEROUS_S)

    writer = Thread(target=write)
    writer.start()
    [row] = spark.range(0, 1, numPartitions=1).mapInPandas(task, "id long, slowest double, seen int").collect()
    writer.join(GENEROUS_S)
    assert row.seen == changes and 0 <= row.slowest < 1.0
