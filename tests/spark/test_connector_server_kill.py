"""Tests that kill the active at chosen points of a Spark write: each write is there once, and whole.

The servers are processes with journals. The job stops in the middle of a task, or when everything is staged. Then the
test names the point of the next turn at which the active dies (tests/process/dying_server.py). No other program writes,
so that turn stages or commits.

    staging     before-sync        A staged batch is written, and not durable.
                before-publish     The batch is durable, and its task does not know.
    staged      before-append      The commit has come. The passive may have it, and the journal has not.
                before-sync        The commit is written, and not durable.
                before-publish     The commit is durable, and no reader knows.
                before-ack         Readers know of the commit, and the job does not.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.process.faults import DyingPair, DyingServer, equal
from tests.talk import until

from . import faulty
from .kills import Readers, numbers, once, sum_of_increments, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROWS = 1000
# The width of a batch write's values, whose record is published in several parts.
WIDTH = 1200
SAVES = [
    ("staging", "before-publish"),
    ("staged", "before-append"),
    ("staged", "before-sync"),
    ("staged", "before-publish"),
    ("staged", "before-ack"),
]
BATCHES = [
    ("staging", "before-sync"),
    ("staged", "before-sync"),
    ("staged", "before-publish"),
    ("staged", "before-ack"),
]


@pytest.fixture(autouse=True)
def small_arrow_batches(spark: Any) -> Iterator[None]:
    """Set small Arrow batches, so that a task has a middle."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    faulty.register(spark)
    yield
    spark.conf.set(name, before)


class Killing:
    """Kills the active of a pair at points of writes with faults."""

    def __init__(self, pair: DyingPair, folder: Path, name: str) -> None:
        self._pair, self._folder, self._name = pair, folder, name

    def at(self, version: int, where: tuple[str, str], alive: Callable[[], object]) -> DyingServer:
        """Let a stopped write go on into an active that dies at the point, and return the dead server."""
        stop, point = where
        what = f"{self._name}.{version}.{stop}"
        until(lambda: (self._folder / f"at.{what}").exists() or not alive(), f"{what} to be reached")
        assert alive(), f"the write ended before {what}"
        self._pair.wait_in_sync()
        victim = self._pair.active()
        assert isinstance(victim, DyingServer)
        assert (victim.status() or {})["staged_bytes"] > 0
        victim.arm(point)
        (self._folder / f"go.{what}").touch()
        victim.died()
        return victim


def nothing_staged(pair: DyingPair) -> bool:
    """Return True if neither server has a staged transaction."""
    return all(status is not None and status["transactions"] == 0 for status in pair.statuses())


def going_on(ended: threading.Event) -> bool:
    return not ended.is_set()


def test_a_batch_write_is_done_once_if_the_active_is_killed(spark: Any, tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair, Readers(pair.servers, ["/save/"], ROWS) as readers:
        for n, where in enumerate(SAVES):
            rows = spark.range(n * ROWS, (n + 1) * ROWS, 1, 2)
            frame = rows.selectExpr("concat('/save/', id) key", f"rpad(id, {WIDTH}, ' ') value")
            given = faulty.options(tmp_path, "save", pair.servers, {n: [where[0]]})
            given |= {"subtree": "/save/", "applicationId": "job", "version": str(n)}
            ended = threading.Event()
            # The write stays in this thread, because a session belongs to a thread.
            with ThreadPoolExecutor(1) as beside:
                killing = beside.submit(Killing(pair, tmp_path, "save").at, n, where, partial(going_on, ended))
                try:
                    frame.write.format("faulty").mode("append").options(**given).save()
                finally:
                    ended.set()
                victim = killing.result()
            once(pair.servers, "/save/", numbers("/save/", 0, (n + 1) * ROWS, WIDTH), ROWS)
            victim.start()
        pair.wait_in_sync()
        readers.check()
        equal(pair.both)
        assert nothing_staged(pair)


def test_a_stream_of_increments_is_done_once_if_the_active_is_killed(spark: Any, tmp_path: Path) -> None:
    write_files(tmp_path, len(BATCHES), ROWS)
    with DyingPair(tmp_path) as pair, Readers(pair.servers, ["/inc/"], ROWS) as readers:
        lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{tmp_path}/in")
        rows = lines.repartition(2).selectExpr("concat('/inc/', value) key", "value")
        given = faulty.options(tmp_path, "inc", pair.servers, {n: [stop] for n, (stop, _) in enumerate(BATCHES)})
        writer = rows.writeStream.format("faulty").options(**given, subtree="/inc/")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start()
        try:
            for n, where in enumerate(BATCHES):
                Killing(pair, tmp_path, "inc").at(n, where, lambda: query.isActive).start()
            assert query.awaitTermination(120)
        finally:
            query.stop()
        wanted = numbers("/inc/", 0, len(BATCHES) * ROWS)
        once(pair.servers, "/inc/", wanted, ROWS)
        assert sum_of_increments(spark, pair.servers, "/inc/", tmp_path) == sum(map(int, wanted.values()))
        pair.wait_in_sync()
        readers.check()
        equal(pair.both)
        assert nothing_staged(pair)
