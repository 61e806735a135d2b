"""covers: retain_bytes, retain_memory_bytes, min_free_disk: what a journal keeps for readers of changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_client.port.feed import Feed
from chp_server.store.sql import sql_journal
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until

SETS = 300


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TestServer]:
    """Return a function that makes a server whose memory keeps two small records, and whose snapshots are frequent."""
    monkeypatch.setattr(sql_journal, "SMALL", 10_000)

    def made(**settings: Any) -> TestServer:
        store = f"sqlite:{tmp_path}/data"
        return TestServer(store=store, sync="off", heartbeat_s=0.1, retain_memory_bytes=200, **settings)

    return made


def write(server: TestServer) -> None:
    """Make some hundred records of a hundred bytes, and wait until a snapshot covers some of them."""
    with Clone(server.address) as clone:
        for i in range(SETS):
            clone.set(f"/k/{i % 10}", b"%0100d" % i).wait(WAIT_S)
    until(lambda: stats(server)["snapshot_number"] > 0, "a snapshot")


def stats(server: TestServer) -> dict[str, Any]:
    assert server.server is not None
    found: dict[str, Any] = server.server.core.requests.shell_facts()["journal"]
    return found


def read(server: TestServer) -> tuple[int, int]:
    """Return where the retained records begin, and how many sets a feed from there gets."""
    with Feed([server.address]) as feed:
        facts = feed.facts(WAIT_S)
        found = feed.fetch(facts.oldest, WAIT_S, opener=facts.oldest_opener)
        return facts.oldest, sum(len(record.keys) for records in found for record in records)


def test_the_journal_keeps_more_than_memory_also_over_a_restart(make: Callable[..., TestServer]) -> None:
    with make() as server:
        write(server)
        assert read(server) == (0, SETS)
        server.restart()
        assert read(server) == (0, SETS)


def test_a_feed_reads_from_the_oldest_record_that_retain_bytes_keeps(make: Callable[..., TestServer]) -> None:
    with make(retain_bytes=20_000) as server:
        write(server)
        until(lambda: stats(server)["rows"] < SETS - 50, "rows to be deleted")
        oldest, sets = read(server)
        assert oldest > 0 and 20 < sets < SETS - 50


def test_the_journal_deletes_old_records_on_a_short_disk_and_takes_sets(
    tmp_path: Path, make: Callable[..., TestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make() as server:
        write(server)
        assert stats(server)["row_bytes"] > 30_000
        monkeypatch.setattr(sql_journal, "SMALL", 16 << 20)
    # The journal retains fewer records while less than four times `min_free_disk` is free. Here that is the case.
    free = shutil.disk_usage(tmp_path).free
    with make(min_free_disk=free // 2) as server, Clone(server.address) as clone:
        until(lambda: stats(server)["row_bytes"] < 15_000, "the past to be deleted")
        assert stats(server)["short_bytes"] > 0
        clone.set("/taken", b"1").wait(WAIT_S)
        assert len(clone) == 11
