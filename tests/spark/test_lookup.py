"""Tests of `lookup`: the values of a frame's keys, from each worker's own copy, also where the servers have keys."""

from pathlib import Path
from typing import Any

import pytest

from chp.errors import BadInput
from chp_client import Clone
from chp_client.spark import BadDataFrame, live, lookup
from chp_server.testing import TestServer
from tests.wire import keys

pytestmark = pytest.mark.spark
ALICE = keys.new_pair()


def test_lookup_adds_the_values_of_keys_to_a_frame(spark: Any, server: TestServer, clone: Clone) -> None:
    clone.set_many({"/c/1": b'{"name": "x", "limit": 1.5}', "/c/2": b'{"name": "y"}'}).wait(30)
    orders = spark.createDataFrame(
        [(1, "/c/1"), (2, "/c/2"), (3, "/c/9"), (4, None), (5, "/c/1")], "id int, customer string"
    ).repartition(2)
    known = lookup(orders, "CUSTOMER", "/c/", "name string, limit double", servers=server.address, codec="json")
    rows = [tuple(row) for row in known.orderBy("id").collect()]
    assert rows == [
        (1, "/c/1", "x", 1.5), (2, "/c/2", "y", None), (3, "/c/9", None, None), (4, None, None, None),
        (5, "/c/1", "x", 1.5),
    ]  # fmt: skip
    raw = lookup(orders, "customer", "/c/", "value string", servers=server.address).where("id = 1")
    assert raw.collect()[0].value == '{"name": "x", "limit": 1.5}'
    assert known.where("name is not null").count() == 3


def test_lookup_refuses_bad_columns_and_modes(spark: Any) -> None:
    frame = spark.createDataFrame([("/c/1", 1, "x")], "customer string, n int, value string")
    given: dict[str, Any] = {"servers": "tcp://127.0.0.1:9"}
    with pytest.raises(BadDataFrame, match=r"no column 'who' with the keys; the frame has customer, n, value"):
        lookup(frame, "who", "/c/", **given)
    with pytest.raises(BadDataFrame, match=r"column 'n' is int; a key is text"):
        lookup(frame, "n", "/c/", **given)
    with pytest.raises(BadDataFrame, match=r"has a column 'value' already; rename it"):
        lookup(frame, "customer", "/c/", **given)
    with pytest.raises(BadDataFrame, match=r"there is no column 'limit'.*option codec"):
        lookup(frame, "customer", "/c/", "limit double", **given)
    with pytest.raises(BadInput, match=r"columns is 'limit'; it is names and types"):
        lookup(frame, "customer", "/c/", "limit", **given)
    with pytest.raises(BadInput, match=r"dropmalformed leaves out rows"):
        lookup(frame, "customer", "/c/", "limit double", codec="json", mode="dropmalformed", **given)


def test_live_tables_and_lookups_work_with_a_client_file(spark: Any, tmp_path: Path) -> None:
    """The path of the client file travels, and the worker reads it."""
    folder = keys.pair_of_directories(tmp_path, ("alice", ALICE))[0]
    with TestServer(keys=str(folder)) as server:
        file = keys.client_file(tmp_path / "alice.toml", ALICE, {server.address: keys.public_of(folder)})
        with Clone(client_file=file) as clone:
            clone.set("/c/1", b"x").wait(30)
        rates = live(client_file=file, subtree="/c/", codec="text")

        def task(batches: Any) -> Any:
            for batch in batches:
                yield batch.assign(value=[rates.get(f"/c/{i}", "none") for i in batch.id])

        found = spark.range(3).mapInPandas(task, "id long, value string").collect()
        assert sorted(row.value for row in found) == ["none", "none", "x"]
        frame = spark.createDataFrame([("/c/1",)], "key string")
        assert lookup(frame, "key", "/c/", client_file=file).collect()[0].value == b"x"
