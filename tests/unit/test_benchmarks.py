"""The benchmarks' own arithmetic: what a watcher's copy is compared with, medians, ratios, percentiles, the table."""

import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.report import table
from benchmarks.roles import ROOT, Process, programs_of
from benchmarks.rounds import in_turn, percentiles, ratio, summary
from benchmarks.workload import BATCH, KEYS, batches, expected


@pytest.mark.parametrize("sets", [BATCH, KEYS, 3 * KEYS, 7 * KEYS, 8 * KEYS + 3 * BATCH])
def test_what_a_watcher_must_hold_is_what_was_written(sets: int) -> None:
    held: dict[str, bytes] = {}
    for keys, values in batches(sets, 10):
        held.update(zip(keys, values, strict=True))
    want = expected(sets, 10)
    assert len(want) == min(sets, KEYS)
    assert all(held[key] == value for key, value in want.items())


def test_a_copy_that_stopped_a_lap_earlier_is_found_out() -> None:
    early, late = expected(KEYS, 100), expected(2 * KEYS, 100)
    assert all(early[key] != late[key] for key in late)


def test_contenders_take_turns() -> None:
    order: list[str] = []
    numbers = count()

    def run(name: str) -> dict[str, int]:
        order.append(name)
        return {"rate": next(numbers)}

    results = in_turn({name: partial(run, name) for name in "ab"}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]  # who comes second finds the machine as the first left it
    assert [r["rate"] for r in results["b"]] == [1, 2, 5]


def test_the_median_and_the_spread() -> None:
    assert summary([{"rate": 1}, {"rate": 9}, {"rate": 2}]) == {"rounds": 3, "rate": 2, "rate_spread": [1, 9]}


def test_the_ratio_is_of_neighbours_so_a_drift_cancels_out() -> None:
    results = {"ours": [{"rate": 20}, {"rate": 40}, {"rate": 80}], "theirs": [{"rate": 10}, {"rate": 20}, {"rate": 40}]}
    assert ratio(results, "rate", "ours", "theirs") == 2


def test_percentiles() -> None:
    assert percentiles([i / 1e6 for i in range(100)]) == pytest.approx({"p50_us": 50, "p99_us": 99})


def test_the_table_shows_median_spread_and_ratio() -> None:
    figures = summary([{"rate": 1.0e6}, {"rate": 1.2e6}, {"rate": 0.9e6}])
    case = {"contenders": {"chp": figures}, "ratio_to_x": 8.0}
    result = {"title": "T", "command": "c", "took_s": 1, "cases": {"k": case}}
    shown = table(result)
    assert "chp" in shown
    assert "rate 1,000,000 (900,000..1,200,000)" in shown
    assert "ratio to x 8.00" in shown


def test_what_is_started_for_another_tree_imports_that_tree(tmp_path: Path) -> None:
    (tmp_path / "client" / "chp_client").mkdir(parents=True)
    (tmp_path / "client" / "chp_client" / "__init__.py").write_text("WHOSE = 'the other one'\n")
    look = [sys.executable, "-c", "import chp_client; print(getattr(chp_client, 'WHOSE', 'this one'))"]
    seen = []
    for tree in (tmp_path, ROOT):
        with programs_of(tree), Process(look, "look", stdout=subprocess.PIPE) as process:
            seen.append(process.child.communicate(timeout=60)[0].strip())
    assert seen == [b"the other one", b"this one"]


def test_a_commit_that_git_does_not_know_is_named() -> None:
    with pytest.raises(ValueError, match="no-such-commit"):
        against.run("no-such-commit", [])
