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
from tests.talk import WAIT_S, join_all, until


@pytest.fixture
def table(server: TestServer) -> Iterator[Live]:
    """Open a live table in this process, and close its replica at the end."""
    made = live([server.address], "/rates/", codec="text")
    yield made
    made.close()


def snapshots(server: TestServer) -> int:
    """Return the number of snapshots that replicas have asked for so far."""
    with Admin([server.address]) as admin:
        return int(admin.ask(server.address, "status").facts["counts"].get("snapshots", 0))


def put(server: TestServer, **rates: str) -> None:
    with Clone([server.address], None, codec="text") as clone:
        clone.set_many({f"/rates/{name}": text for name, text in rates.items()}).wait(WAIT_S)


class Halves:
    """A codec of one's own, which travels with the table."""

    def encode(self, value: float) -> bytes:
        return str(value * 2).encode()

    def decode(self, data: bytes) -> float:
        return float(data) / 2


# -- in one process


def test_a_live_table_is_a_mapping_that_follows_changes(server: TestServer, table: Live) -> None:
    assert "not opened here" in repr(table) and snapshots(server) == 0
    put(server, USD="1.08", JPY="160")
    assert (table["/rates/USD"], table.get("/rates/XXX", "none"), len(table)) == ("1.08", "none", 2)
    assert dict(table) == {"/rates/USD": "1.08", "/rates/JPY": "160"} and "/rates/JPY" in table
    with pytest.raises(KeyError):
        table["/rates/XXX"]
    put(server, USD="1.09")
    until(lambda: table["/rates/USD"] == "1.09", "the change")
    assert table.state is State.SYNCED and table.staleness_s < WAIT_S and table.revision > 0


def test_an_empty_subtree_is_opened_once(server: TestServer, table: Live) -> None:
    for _ in range(3):
        assert len(table) == 0 and table.get("/rates/USD") is None
    assert snapshots(server) == 1


def test_a_pickled_table_shares_the_replica_of_its_process(server: TestServer, table: Live) -> None:
    put(server, USD="2")
    assert table["/rates/USD"] == "2"
    sent = pickle.dumps(table)
    assert len(sent) < 300
    others = [pickle.loads(sent) for _ in range(10)]
    own = pickle.loads(pickle.dumps(live([server.address], "/rates/", codec=Halves())))
    assert [each["/rates/USD"] for each in others] == ["2"] * 10 and own["/rates/USD"] == 1.0
    assert snapshots(server) == 1


def test_a_pin_keeps_the_values_of_one_moment(server: TestServer, table: Live) -> None:
    put(server, USD="1", JPY="1")
    first = table.pin()
    put(server, USD="2", JPY="2")
    until(lambda: table["/rates/USD"] == "2", "the change")
    assert set(first.values()) == {"1"} and set(table.pin().values()) == {"2"}
    assert table.pin().revision > first.revision and isinstance(first, Pinned)


def test_items_and_values_are_of_one_moment(server: TestServer, table: Live) -> None:
    put(server, USD="1", JPY="1")
    for view in (table.items, table.values):
        until(lambda: len(table) == 2, "both")
        seen = []
        for each in view():
            seen.append(each)
            with Clone([server.address]) as clone:
                clone.delete_many(["/rates/USD", "/rates/JPY"]).wait(WAIT_S)
            until(lambda: len(table) == 0, "the delete")
        assert len(seen) == 2
        put(server, USD="1", JPY="1")


def test_a_new_store_at_an_equal_number_gets_a_new_pin(server: TestServer, table: Live) -> None:
    put(server, USD="1")
    before = table.pin()
    server.kill()
    server.start()
    put(server, USD="2")
    until(lambda: table.get("/rates/USD") == "2" and table.state is State.SYNCED, "the new store")
    assert before["/rates/USD"] == "1" and table.pin()["/rates/USD"] == "2"
    assert before.revision == table.pin().revision


def test_pins_never_hold_half_a_record(server: TestServer, table: Live) -> None:
    names = [f"k{i}" for i in range(200)]
    with Clone([server.address], None) as clone:
        tickets = [clone.set_many({f"/rates/{name}": b"%d" % i for name in names}) for i in range(300)]
        until(lambda: len(table) == 200, "the first")
        while not tickets[-1].done:
            assert len(set(table.pin().values())) == 1
    until(lambda: table.pin()["/rates/k0"] == "299", "the last")


def test_a_closed_table_opens_anew(server: TestServer, table: Live) -> None:
    put(server, USD="1")
    assert table["/rates/USD"] == "1"
    table.close()
    table.close()
    assert table["/rates/USD"] == "1" and snapshots(server) == 2


def test_a_copy_that_closed_by_itself_is_replaced(server: TestServer, table: Live) -> None:
    put(server, USD="1")
    before = table.pin()
    assert before["/rates/USD"] == "1" and table._clone is not None
    # A Clone whose agent fails closes in this way: the table is not told.
    table._clone.close()
    put(server, USD="2")
    assert table["/rates/USD"] == table.pin()["/rates/USD"] == "2" and table.state is State.SYNCED


def test_a_copy_of_another_store_gets_a_new_pin(server: TestServer, table: Live) -> None:
    put(server, USD="1")
    before = table.pin()
    assert table._clone is not None
    table._clone.close()
    server.kill()
    server.start()
    put(server, USD="2")
    now = table.pin()
    assert now["/rates/USD"] == "2" and (now.revision, now.resyncs) == (before.revision, before.resyncs)


def test_a_live_table_survives_a_failover(pair: Pair) -> None:
    table = live(pair.servers, "/rates/", codec="text")
    try:
        with Clone(pair.servers, None, codec="text") as clone:
            clone.set("/rates/USD", "1").wait(WAIT_S)
            assert table["/rates/USD"] == "1"
            pair.primary.kill()
            clone.set("/rates/USD", "2").wait(WAIT_S)
            until(lambda: table["/rates/USD"] == "2", "the change")
    finally:
        table.close()


def _read_in_child(table: Live, out: object) -> None:
    out.send((os.getpid(), table["/rates/USD"], len(table.pin())))  # type: ignore[attr-defined]


def test_a_forked_child_opens_its_own_replica(server: TestServer, table: Live) -> None:
    put(server, USD="1")
    assert table.pin() == {"/rates/USD": "1"}
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_read_in_child, args=(table, there))
    child.start()
    assert here.poll(WAIT_S)
    pid, value, count = here.recv()
    child.join(WAIT_S)
    assert child.exitcode == 0 and pid != os.getpid() and (value, count) == ("1", 1)
    put(server, USD="2")
    until(lambda: table["/rates/USD"] == "2", "the parent's replica to go on")
    assert snapshots(server) == 2


def test_live_refuses_bad_arguments_and_silent_servers() -> None:
    with pytest.raises(BadSubtree, match="begin and end with"):
        live(["tcp://a:5556"], "rates")
    with pytest.raises(BadInput, match="is not tcp://host:port"):
        live("a/b")
    with pytest.raises(BadInput, match="codec 'pickle' is not known"):
        live("tcp://a:5556", codec="pickle")
    with pytest.raises(TimeoutError, match="not heard from"):
        live("tcp://127.0.0.1:9", timeout_s=0.2)["/a"]
    live("tcp://127.0.0.1:9").close()


def test_replicas_are_bounded(server: TestServer) -> None:
    tables = [live(server.address, f"/{i}/") for i in range(REPLICAS_MAX)]
    try:
        assert [len(each) for each in tables] == [0] * REPLICAS_MAX
        with pytest.raises(BadInput, match="use one of a larger subtree"):
            live(server.address, "/more/").get("x")
        clone = tables[0]._clone
        assert clone is not None
        clone.close()
        assert len(live(server.address, "/0/")) == 0, "a copy takes the place of the closed one"
    finally:
        for each in tables:
            each.close()


# -- in Spark's workers


@pytest.mark.spark
def test_live_tables_work_in_udfs_and_in_pandas_and_arrow_functions(spark: Any, server: TestServer) -> None:
    import pyarrow as pa
    from pyspark.sql.functions import udf

    put(server, USD="1.25", JPY="160")
    rates = live(server.address, "/rates/", codec="text")
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
def test_many_tasks_share_the_replicas_of_their_workers(spark: Any, server: TestServer) -> None:
    put(server, USD="1")
    rates = live(server.address, "/rates/", codec="text")

    def task(batches: Any) -> Any:
        for batch in batches:
            yield batch.assign(pid=os.getpid(), rate=rates["/rates/USD"])

    rows = spark.range(0, 150, numPartitions=150).mapInPandas(task, "id long, pid long, rate string").collect()
    pids = {row.pid for row in rows}
    assert {row.rate for row in rows} == {"1"} and len(rows) == 150
    # There are two cores, and a worker may have been replaced.
    assert snapshots(server) == len(pids) <= 4


@pytest.mark.spark
def test_a_running_task_sees_a_change_within_a_second(spark: Any, server: TestServer) -> None:
    rates = live(server.address, "/rates/", codec="text")
    echo = (server.address, "/seen/")
    changes = 5

    def task(batches: Any) -> Any:
        with Clone(echo[0], None, codec="text") as out:
            for batch in batches:
                delays: list[float] = []
                end = time.monotonic() + 60
                out["/seen/ready"] = "0"
                while len(delays) < changes and time.monotonic() < end:
                    sent = rates.get(f"/rates/{len(delays)}")
                    if sent is not None:
                        delays.append(time.time() - float(sent))
                        out["/seen/ready"] = str(len(delays))
                yield batch.assign(quickest=min(delays, default=-1.0), seen=len(delays))

    from threading import Thread

    def has_seen(clone: Clone, i: int) -> bool:
        return bool(clone.get("/seen/ready") == str(i))

    def write() -> None:
        with Clone(server.address, codec="text") as clone:
            for i in range(changes):
                until(partial(has_seen, clone, i), "the task")
                clone.set(f"/rates/{i}", str(time.time())).wait(WAIT_S)

    writer = Thread(target=write)
    writer.start()
    [row] = spark.range(0, 1, numPartitions=1).mapInPandas(task, "id long, quickest double, seen int").collect()
    join_all(writer)
    assert row.seen == changes and 0 <= row.quickest < 1.0, "no change took less, so not only this machine was busy"
