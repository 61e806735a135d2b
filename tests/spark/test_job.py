"""Days dropped into a folder come out as keys and values; a batch that is run again publishes the same."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_client.spark import foreach
from chp_server.testing import TestServer
from examples.rates import ecb, feeder, figures, job
from tests.talk import synced, until

from .present import core_of, entry_of

pytestmark = pytest.mark.spark
FIRST, LAST = dt.date(2025, 6, 2), dt.date(2026, 1, 9)


@pytest.fixture
def held(server: TestServer) -> Iterator[Clone]:
    """Open an application that holds the figures."""
    with synced(server.address, "/rates/") as made:
        yield made


def expected(days: list[ecb.Day]) -> dict[str, bytes]:
    found = {}
    for (base, quote), row in figures.reference(ecb.flat(days)).items():
        for name in figures.FIGURES:
            text = figures.value_text(getattr(row, name))
            if text is not None:
                found[f"/rates/{base}/{quote}/{name}"] = text.encode()
    return found


def assert_close(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if not key.endswith("/day"):
            assert float(found[key]) == pytest.approx(float(value), rel=1e-8, abs=2e-10), key


def test_days_become_figures(spark: Any, server: TestServer, held: Clone, tmp_path: Path) -> None:
    days = ecb.history(FIRST, LAST)
    cut = next(n for n, (day, _) in enumerate(days) if day > dt.date(2025, 12, 30))
    folder, ledger = tmp_path / "days", job.Ledger()
    folder.mkdir()
    feeder.write_days(folder, "backlog", days[:cut])

    def as_published() -> bool:
        return {key: value.decode() for key, value in held.items()} == ledger.items

    sink = job.noted(job.publisher(server.address), ledger)
    query = job.start(spark, folder, tmp_path / "work", sink, ttl_s=77)
    try:
        query.processAllAvailable()
        until(as_published, "the first batch")
        assert_close(dict(held), expected(days[:cut]))
        assert "/rates/EUR/BGN/last" in held
        for day in days[cut:]:
            feeder.write_days(folder, day[0].isoformat(), [day])
        query.processAllAvailable()
    finally:
        query.stop()
    until(as_published, "the last batch")
    assert_close(dict(held), expected(days))
    assert "/rates/EUR/BGN/last" not in held  # it ended
    live, kept = entry_of(held, "/rates/EUR/USD/last"), entry_of(held, "/rates/EUR/USD/average_30")
    assert live is not None and live.ttl is not None and 0 < live.ttl <= 77
    assert kept is not None and kept.ttl is None
    assert live.revision == kept.revision, "a batch is one record"


def test_a_repeated_batch_publishes_equal_rows(spark: Any, tmp_path: Path) -> None:
    days = ecb.history(dt.date(2026, 1, 5), dt.date(2026, 1, 9))
    schema, seen = job.SCHEMA + ", arrived long", []

    def run(day: ecb.Day, batch_id: int) -> None:
        rows = [(*rate, batch_id) for rate in ecb.flat([day])]
        batch = spark.createDataFrame(rows, schema).selectExpr(
            "day", "currency", "rate", "timestamp_seconds(arrived) arrived"
        )
        job.process(batch, batch_id, tmp_path, lambda rows, _: seen.append(sorted(rows.collect())))

    for number in (0, 1, 1, 2, 2):
        run(days[number], number)
    assert seen[1] == seen[2] and seen[3] == seen[4] and seen[2] != seen[3]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["1", "2"]


def test_a_batch_that_is_published_twice_counts_once(
    spark: Any, server: TestServer, held: Clone, tmp_path: Path
) -> None:
    """A job may die after the commit, before Spark notes that the batch is done; the batch still counts once."""
    (tmp_path / "days").mkdir()
    feeder.write_days(tmp_path / "days", "day", ecb.history(dt.date(2026, 1, 5), dt.date(2026, 1, 5)))
    publish, revisions = job.publisher(server.address), []

    def twice(rows: Any, batch_id: int) -> None:
        for _ in range(2):
            # A new process would have none of these.
            foreach._sent.clear()
            publish(rows, batch_id)
            until(lambda: "/rates/EUR/USD/last" in held, "the figures")
            revisions.append(entry_of(held, "/rates/EUR/USD/last").revision)

    query = job.start(spark, tmp_path / "days", tmp_path / "work", twice)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    counts = core_of(server).committer.counts
    assert (counts["commits"], counts["commits_repeated"]) == (1, 1)
    assert len(revisions) == 2 and len(set(revisions)) == 1


def test_lines_that_are_no_rates_are_left_out(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    lines = ["2026-01-05,USD,1.1", "2026-01-05,JPY,abc", "not a line", "2026-01-06,USD,", "", "2026-01-06,,3"]
    (tmp_path / "days" / "a.csv").write_text("\n".join(lines))
    ledger = job.Ledger()
    query = job.start(spark, tmp_path / "days", tmp_path / "work", job.noted(lambda rows, _: None, ledger))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert ledger.items["/rates/EUR/USD/last"] == "1.1"
    assert {key.split("/")[3] for key in ledger.items} == {"USD"}


def test_the_ledger_follows_sets_and_deletes(tmp_path: Path) -> None:
    ledger = job.Ledger()
    ledger.take([("/a", "1"), ("/b", "2")])
    ledger.take([("/b", "3"), ("/a", None), ("/never", None)])
    ledger.write(tmp_path / "ledger.json")
    assert (tmp_path / "ledger.json").read_text() == '{"/b": "3"}'
