"""covers: a log of 8 MiB of transactions, messages and commits of groups is read to its end, by each kind of reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from chp.numbers import Revision
from chp_client import Clone
from chp_client.port.feed import Feed
from chp_client.recording.files import files
from chp_client.recording.recorder import record
from chp_server.testing import TestServer
from tests.talk import run

from .busy_log import LAST, Busy, shared

WAIT_S = 120.0


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    return shared(tmp_path_factory)


@pytest.fixture(scope="module")
def busy_server(busy: Busy) -> Iterator[TestServer]:
    with TestServer(store=busy.store) as made:
        yield made


def test_a_feed_reads_every_transaction(busy: Busy, busy_server: TestServer) -> None:
    with Feed([busy_server.address]) as feed:
        oldest, found = feed.facts(WAIT_S).oldest, list[bytes]()
        for records in feed.fetch(oldest, WAIT_S):
            found += [v for each in records for k, v in zip(each.keys, each.values, strict=True) if k == LAST]
        assert feed.complete >= busy.number
    assert list(map(int, found)) == list(range(1, busy.transactions + 1))


def test_chp_history_has_the_versions_of_a_key(busy: Busy, busy_server: TestServer) -> None:
    said = run("--servers", busy_server.address, "--timeout", "120", "history", "--json", "/o/7")
    assert said.exit_code == 0, said.output
    values = [json.loads(line)["value"] for line in said.output.splitlines() if line.startswith("{")]
    assert sorted(map(int, values))[-1] == (busy.transactions - 7) // 1000 * 1000 + 7


def test_a_watch_begins_at_the_oldest_revision(busy: Busy, busy_server: TestServer) -> None:
    with Clone(busy_server.address) as clone:
        clone.wait_until_synced(WAIT_S)
        with clone.watch(LAST, start=Revision(1 << 48 | 1), queue_max=1 << 20) as watch:
            first = watch.get(WAIT_S)
            assert int(first.value) == 1
            found = 1
            while int(watch.get(WAIT_S).value) < busy.transactions:
                found += 1
        assert found == busy.transactions - 1
        assert not dict(clone.stats).get("garbage")


def test_a_recording_has_every_transaction(busy: Busy, busy_server: TestServer, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    ends = Event()
    # The recording still writes the records that exist when it begins.
    ends.set()
    record([busy_server.address], tmp_path, "/o/", start="begin", stop=ends, timeout_s=WAIT_S)
    rows = [row for each in files(tmp_path) for row in pq.read_table(each.path, columns=["key", "value"]).to_pylist()]
    found = [int(row["value"]) for row in rows if row["key"] == LAST]
    assert found == list(range(1, busy.transactions + 1))
