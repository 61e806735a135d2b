"""The benchmarks' own arithmetic: what a watcher's copy is compared with, medians, ratios, percentiles, the table."""

import json
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from benchmarks import against, plots
from benchmarks.__main__ import LOAD_MAX, NAMES, RESULTS, too_busy
from benchmarks.report import table
from benchmarks.roles import ROOT, Process, programs_of
from benchmarks.rounds import in_turn, percentiles, ratio, summary
from benchmarks.topic_roles import in_order
from benchmarks.topics import figures
from benchmarks.virtual_readers import VirtualReaders
from benchmarks.workload import BATCH, KEYS, batches, expected


@pytest.mark.parametrize("sets", [BATCH, KEYS, 3 * KEYS, 7 * KEYS, 8 * KEYS + 3 * BATCH])
def test_expected_returns_the_last_values_that_batches_wrote(sets: int) -> None:
    held: dict[str, bytes] = {}
    for keys, values in batches(sets, 10):
        held.update(zip(keys, values, strict=True))
    want = expected(sets, 10)
    assert len(want) == min(sets, KEYS)
    assert all(held[key] == value for key, value in want.items())


def test_the_expected_values_of_two_laps_differ_for_every_key() -> None:
    early, late = expected(KEYS, 100), expected(2 * KEYS, 100)
    assert all(early[key] != late[key] for key in late)


def test_contenders_take_turns() -> None:
    order: list[str] = []
    numbers = count()

    def run(name: str) -> dict[str, int]:
        order.append(name)
        return {"rate": next(numbers)}

    results = in_turn({name: partial(run, name) for name in "ab"}, 3)
    # The second system finds the machine as the first left it.
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [r["rate"] for r in results["b"]] == [1, 2, 5]


def test_summary_gives_the_median_and_the_spread() -> None:
    assert summary([{"rate": 1}, {"rate": 9}, {"rate": 2}]) == {"rounds": 3, "rate": 2, "rate_spread": [1, 9]}


def test_the_ratio_compares_neighbouring_rounds() -> None:
    results = {"ours": [{"rate": 20}, {"rate": 40}, {"rate": 80}], "theirs": [{"rate": 10}, {"rate": 20}, {"rate": 40}]}
    assert ratio(results, "rate", "ours", "theirs") == 2


def test_percentiles() -> None:
    assert percentiles([i / 1e6 for i in range(100)]) == pytest.approx({"p50_us": 50, "p99_us": 99})


def test_the_table_shows_median_spread_and_ratio() -> None:
    figures = summary([{"rate": 1.0e6}, {"rate": 1.2e6}, {"rate": 0.9e6}])
    case = {"contenders": {"chp": figures}, "ratio_to_x": 8.0}
    result = {"title": "T", "command": "c", "took_s": 1, "cpu_s": 2, "cases": {"k": case}}
    shown = table(result)
    assert "chp" in shown
    assert "rate 1,000,000 (900,000..1,200,000)" in shown
    assert "ratio to x 8.00" in shown


def test_a_topic_benchmark_fails_on_missing_or_misordered_messages() -> None:
    assert in_order([(["a", "b"], [b"1", b"1"]), (["a"], [b"2"])])
    assert not in_order([(["a", "b"], [b"2", b"1"]), (["b", "a"], [b"2", b"1"])])
    # This is the same message once more.
    assert not in_order([(["a", "a"], [b"2", b"2"])])
    published = {"begin": 10.0, "end": 11.0, "rate": 100.0}
    took = {"count": 50, "last": 12.0, "in_order": True}
    assert figures(published, [took, took], 100)["rate"] == 50
    with pytest.raises(AssertionError, match="100 messages were consumed, and 101 were due"):
        figures(published, [took, took], 101)
    with pytest.raises(AssertionError, match="out of their order"):
        figures(published, [took, took | {"in_order": False}], 100)


def test_a_process_started_for_another_tree_imports_that_tree(tmp_path: Path) -> None:
    (tmp_path / "client" / "chp_client").mkdir(parents=True)
    (tmp_path / "client" / "chp_client" / "__init__.py").write_text("WHOSE = 'the other one'\n")
    look = [sys.executable, "-c", "import chp_client; print(getattr(chp_client, 'WHOSE', 'this one'))"]
    seen = []
    for tree in (tmp_path, ROOT):
        with programs_of(tree), Process(look, "look", stdout=subprocess.PIPE) as process:
            seen.append(process.child.communicate(timeout=60)[0].strip())
    assert seen == [b"the other one", b"this one"]


def test_a_commit_unknown_to_git_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="no-such-commit"):
        against.run("no-such-commit", [])


ABOUT = {
    "name": "sets", "command": "python -m benchmarks", "date": "2026-11-22 03:56:54 UTC", "commit": "a",
    "title": "Sets",
    "machine": {"cores": 2, "model": "AMD EPYC", "memory_gib": 23.5},
    "versions": {"python": "3.11.7", "libzmq": "4.3.5", "pyzmq": "27.3.0", "redis-server": "7.0.15"},
}  # fmt: skip


def test_each_plot_has_one_unit_and_no_plot_has_a_single_bar(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rate, time = {"rate": 1e6, "rate_spread": [9e5, 2e6]}, {"p50_us": 460, "p99_us": 654}
    cases = {
        "set_many, 100 bytes, 1 watcher": {"contenders": {"chp": rate, "redis": {"rate": 281188}}},
        "alone": {"contenders": {"chp": rate}},
        "one set awaited": {"contenders": {"chp": time, "redis HGETALL": time}},
        "recovery": {"contenders": {"chp": {"seconds": 1.9}}},
    }
    drawn = plots.plot({**ABOUT, "cases": cases}, tmp_path / "sets.png")
    assert [path.name for path in drawn] == ["sets.png", "sets-time.png"], (
        "rates, and times; the rest has no other beside it"
    )
    assert all(path.stat().st_size < 150_000 for path in drawn)
    (bar, redis) = plots._groups({"cases": cases}, plots.KINDS[0])["set_many, 100 bytes, 1 watcher"]
    assert (bar.label, bar.text, bar.low, bar.high, bar.ours) == ("chp-clone", "1,000,000", 9e5, 2e6, True)
    assert (redis.label, redis.text, redis.ours) == ("Redis", "281,000", False)
    first = plots._groups({"cases": cases}, next(kind for kind in plots.KINDS if kind.key == "p50_us"))[
        "one set awaited"
    ]
    assert [(each.label, each.text) for each in first] == [
        ("chp-clone", "0.46, 99 % within 0.654"), ("Redis, HGETALL", "0.46, 99 % within 0.654")
    ]  # fmt: skip


def test_cases_with_one_contender_are_plotted_as_one_group(tmp_path: Path) -> None:
    cases = {f"{n} watchers": {"contenders": {"chp": {"rate": 1e5 * n}}} for n in (1, 4)}
    (group,) = plots._groups({"cases": cases}, plots.KINDS[0]).items()
    assert group[0] == "" and [bar.label for bar in group[1]] == ["1 watching clients", "4 watching clients"]


def test_plots_describe_each_benchmark_in_plain_words() -> None:
    assert set(NAMES) <= plots.MEASURED.keys()
    assert (
        plots.spelled("set_many, 100 bytes, 4 watchers")
        == "set_many of 1,000 keys, 100-byte values, 4 watching clients"
    )
    assert (
        plots.named("chp, 3 in a row") == "chp-clone, 3 in a row" and plots.named("bare Starlette") == "bare Starlette"
    )


def test_a_busy_machine_is_refused_with_the_remedy() -> None:
    assert too_busy(LOAD_MAX) == ""
    assert "--busy" in too_busy(LOAD_MAX + 0.5)


def test_growing_md_shows_the_tables_of_the_readers_result() -> None:
    result = json.loads((RESULTS / "readers.json").read_text())
    page = (ROOT / "docs/operations/growing.md").read_text()
    assert "\n".join(result["markdown"]) in page, "copy `markdown` of results/readers.json into the page"


def test_virtual_readers_miss_nothing_and_a_lost_replica_costs_no_snapshot() -> None:
    virtual = VirtualReaders(2, 20, 10)
    start = virtual.start()
    assert (start["snapshots_by_the_pair"], start["snapshots"], start["resumes"], start["holes"]) == (2, 20, 0, 0)
    # Ten readers join each replica. A reader gets a greeting for itself, one for each later reader, and one of its own.
    assert 20 <= start["greetings_each"] <= 65
    steady = virtual.steady(2.0)
    beats = steady["heartbeats_a_reader_a_s"]
    assert (steady["readers_each"], steady["holes"]) == (10, 0)
    assert 3.5 <= beats <= 8
    # HUGZ is for all subscribers of its own topic only.
    assert steady["replica_to_readers_a_s"] == pytest.approx(10 * (10 + beats), rel=0.2)
    assert (steady["active_to_readers_a_s"], steady["passive_to_readers_a_s"]) == (0, 0)
    lost = virtual.lose()
    assert (lost["moved"], lost["resumes"], lost["snapshots"], lost["holes"]) == (10, 10, 0, 0)


def test_a_message_that_a_virtual_reader_lacks_is_counted() -> None:
    virtual = VirtualReaders(0, 3, 10)
    virtual.start()
    assert virtual.steady(1.0)["holes"] == 0
    virtual.world.do("drop P>P's.upd 1")
    assert virtual.steady(1.0)["holes"] > 0
