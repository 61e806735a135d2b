"""Days dropped into a folder come out as keys and values; a batch that is run again publishes the same."""

import datetime as dt
from pathlib import Path

import pytest

from chp_client.spark import Published
from examples.rates import ecb, feeder, figures, job

pytestmark = pytest.mark.spark
FIRST, LAST = dt.date(2025, 6, 2), dt.date(2026, 1, 9)


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


def test_days_become_figures(spark, store, tmp_path: Path) -> None:
    days = ecb.history(FIRST, LAST)
    cut = next(n for n, (day, _) in enumerate(days) if day > dt.date(2025, 12, 30))
    folder, ledger = tmp_path / "days", job.Ledger()
    folder.mkdir()
    feeder.write_days(folder, "backlog", days[:cut])

    def sink(rows, batch_id: int) -> None:
        ledger.take(job.publish_rows(rows, store))

    query = job.start(spark, folder, tmp_path / "work", sink, ttl_s=77)
    try:
        query.processAllAvailable()
        assert_close(store.items, expected(days[:cut]))
        assert "/rates/EUR/BGN/last" in store.items
        for day in days[cut:]:
            feeder.write_days(folder, day[0].isoformat(), [day])
        query.processAllAvailable()
    finally:
        query.stop()
    assert_close(store.items, expected(days))
    assert ledger.items == store.items
    assert "/rates/EUR/BGN/last" not in store.items  # it ended
    assert store.ttls["/rates/EUR/USD/last"] == 77 and store.ttls["/rates/EUR/USD/average_30"] is None
    assert store.calls[-1] == ("flush", 0)


def test_a_batch_run_again_publishes_the_same(spark, tmp_path: Path) -> None:
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


def test_lines_that_are_no_rates_are_left_out(spark, store, tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    lines = ["2026-01-05,USD,1.1", "2026-01-05,JPY,abc", "not a line", "2026-01-06,USD,", "", "2026-01-06,,3"]
    (tmp_path / "days" / "a.csv").write_text("\n".join(lines))
    query = job.start(spark, tmp_path / "days", tmp_path / "work", lambda rows, _: job.publish_rows(rows, store))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert store.items["/rates/EUR/USD/last"] == b"1.1"
    assert {key.split("/")[3] for key in store.items} == {"USD"}


def test_the_ledger_follows_sets_and_deletes(tmp_path: Path) -> None:
    ledger = job.Ledger()
    ledger.take(Published({"/a": b"1", "/b": b"2"}, [], 0))
    ledger.take(Published({"/b": b"3"}, ["/a", "/never"], 0))
    ledger.write(tmp_path / "ledger.json")
    assert (tmp_path / "ledger.json").read_text() == '{"/b": "3"}'
