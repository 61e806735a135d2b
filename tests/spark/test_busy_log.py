"""covers: Spark reads a log of 8 MiB of transactions, messages and commits of groups: as a batch and as a stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_server.testing import TestServer
from tests.wire.busy_log import LAST, Busy, shared

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    return shared(tmp_path_factory)


@pytest.fixture(scope="module")
def busy_server(busy: Busy) -> Iterator[TestServer]:
    with TestServer(store=busy.store) as made:
        yield made


def test_a_stream_reads_every_transaction(spark: Any, busy: Busy, busy_server: TestServer, tmp_path: Path) -> None:
    source = spark.readStream.format("chp").options(servers=busy_server.address, startingOffsets="earliest").load()
    rows = source.filter(source.key == LAST)
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    writer = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True)
    writer.start().awaitTermination(300)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.count() == found.select("value").distinct().count() == busy.transactions


def test_a_batch_reads_every_transaction(spark: Any, busy: Busy, busy_server: TestServer) -> None:
    source = spark.read.format("chp").options(servers=busy_server.address, startingOffsets="earliest").load()
    assert source.filter(source.key == LAST).count() == busy.transactions
