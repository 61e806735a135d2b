"""The feeder's files are whole when they are seen, and hold what the bank published."""

import datetime as dt
import io
import sys
from pathlib import Path

import pytest

from examples.rates import ecb, feeder


def test_the_rate_history_of_the_bank() -> None:
    days = ecb.history(dt.date(2026, 1, 1), dt.date(2026, 1, 9))
    assert [day for day, _ in days] == [dt.date(2026, 1, n) for n in (2, 5, 6, 7, 8, 9)]
    assert float(days[0][1]["USD"]) > 1 and "BGN" not in days[0][1] and "" not in days[0][1]
    assert len(ecb.history()) > 7000 and ecb.history()[0][0] == dt.date(1999, 1, 4)


def test_write_days_leaves_one_whole_file(tmp_path: Path) -> None:
    day = (dt.date(2026, 1, 5), {"USD": "1.1", "JPY": "170.25"})
    path = feeder.write_days(tmp_path, "x", [day])
    assert path.read_text() == "2026-01-05,USD,1.1\n2026-01-05,JPY,170.25\n"
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


def test_the_feeder_writes_a_backlog_and_one_file_a_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = ["--from", "2026-01-05", "--days", "3", "--backlog-days", "10", "--pace", "1000"]
    assert feeder.main([str(tmp_path), *days]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "2026-01-05.csv", "2026-01-06.csv", "2026-01-07.csv", "backlog.csv",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "backlog 10 days to 2026-01-02", "day 2026-01-05", "day 2026-01-06", "day 2026-01-07", "done",
    ]  # fmt: skip


def test_a_leashed_feeder_ends_with_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert feeder.main([str(tmp_path), "--backlog-days", "1", "--pace", "0.01", "--leash"]) == 0
    assert "done" in capsys.readouterr().out


@pytest.mark.parametrize("pace", ["0", "-1", "nan", "x", "1e9"])
def test_a_bad_pace_is_refused(tmp_path: Path, pace: str) -> None:
    with pytest.raises(SystemExit):
        feeder.main([str(tmp_path), "--pace", pace])
