"""Bars by Spark are, to the digit, those of a plain computation, with ticks that come late and too late."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_client.recording.files import files
from chp_client.recording.replayer import replay
from chp_server.testing import TestServer
from examples.marketdata import bars, ticks
from examples.rates.ecb import history
from tests.talk import until

ROOT = Path(__file__).parents[2]
MINUTE = 60_000


def test_derived_ticks_are_repeatable_and_end_at_the_published_rate() -> None:
    made = ticks.derive(days=2, minutes=10)
    assert made == ticks.derive(days=2, minutes=10) != ticks.derive(days=2, minutes=10, seed=1)
    assert [tick.arrival_ms for tick in made] == sorted(tick.arrival_ms for tick in made)
    assert [tick.time_ms for tick in made] != sorted(tick.time_ms for tick in made)
    rates = history(first=ticks.FIRST)
    for day, published in rates[:2]:
        for currency in ticks.PAIRS:
            of_day = [t for t in made if t.pair == f"EUR/{currency}" and _day(t) == day]
            assert max(of_day, key=lambda tick: tick.time_ms).price == round(float(published[currency]) * ticks.SCALE)


def _day(tick: ticks.Tick) -> dt.date:
    return dt.datetime.fromtimestamp(tick.time_ms / 1000, dt.UTC).date()


def test_the_reference_equals_a_bar_computed_by_hand() -> None:
    def tick(time_ms: int, price: int, size: int, no: int) -> ticks.Tick:
        return ticks.Tick(0, "EUR/USD", no, time_ms, price, size)

    made = [tick(61_000, 110_000, 10, 3), tick(60_000, 100_000, 30, 1), tick(61_000, 90_000, 10, 2), tick(0, 1, 1, 0)]
    found = bars.reference(made)
    assert found["/bars/EUR/USD/1970-01-01T00:01Z"] == {
        "open": 1.0, "high": 1.1, "low": 0.9, "close": 1.1, "volume": 50, "vwap": 1.0, "ticks": 3,
    }  # fmt: skip
    assert len(found) == 2


def test_a_derived_recording_replays(server: TestServer, tmp_path: Path) -> None:
    made = ticks.derive(minutes=3)
    ticks.write_recording(tmp_path, made)
    assert len(files(tmp_path)) == 1
    with Clone([server.address], None) as writer, Clone([server.address], "/ticks/") as clone:
        assert replay(tmp_path, writer, speed=1000).rows == len(made)
        last = {tick.key: tick.value for tick in made}
        until(lambda: dict(clone) == last, "the last ticks")


@pytest.mark.spark
def test_bars_with_late_ticks_equal_the_reference(spark: Any, tmp_path: Path) -> None:
    made = ticks.derive(minutes=20)
    late = ticks.too_late(made, every=10)
    delayed = sum(tick.arrival_ms - tick.time_ms > 1600 for tick in made)
    assert delayed > 50 and len(late) > 30
    folder, published, seen = tmp_path / "changes", {}, []

    def put(name: str, some: list[ticks.Tick]) -> None:
        lines = [json.dumps({"key": t.key, "value": t.value.decode(), "operation": "set"}) for t in some]
        draft = folder / f".{name}"
        draft.write_text("\n".join(lines))
        draft.rename(folder / f"{name}.json")

    def sink(rows: Any, batch_id: int) -> None:
        batch = rows.collect()
        seen.append(len(batch))
        published.update({row.key: json.loads(row.value) for row in batch})

    folder.mkdir()
    changes = spark.readStream.schema("key string, value string, operation string").json(str(folder))
    query = bars.write(bars.compute(bars.read(changes)), sink, tmp_path)
    try:
        first = made[0].arrival_ms
        # Each part has six minutes.
        for part in range(4):
            put(f"part{part}", [t for t in made if part == min((t.arrival_ms - first) // (6 * MINUTE), 3)])
            query.processAllAvailable()
        whole = bars.reference(made)
        assert published == whole
        put("late", late)
        query.processAllAvailable()
    finally:
        query.stop()
    assert published == whole and sum(bar["ticks"] for bar in published.values()) == len(made)
    # Delayed ticks changed bars that had been published.
    assert sum(seen) > len(whole)
    assert bars.reference([*made, *late]) != whole


@pytest.mark.spark
def test_the_market_data_demo_ends_with_equal_bars() -> None:
    command = [sys.executable, "-m", "examples.marketdata.demo", "--minutes", "20", "--speed", "150"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "80 bars, each equal to the plain computation" in run.stdout
    assert "too late" in run.stdout
