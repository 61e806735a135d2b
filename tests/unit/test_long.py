"""Tests of the long proofs in parts: their table, lines and report. covers: tests/long"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.long import __main__ as long
from tests.long.parts import MINUTES, PARTS, Part
from tests.long.report import report
from tests.long.state import note, noted, passed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> long.Runner:
    answers = {"rev-parse": "c0ffee", "status": "", "diff": ""}
    monkeypatch.setattr(long, "git", lambda verb, *_: answers[verb])
    return long.Runner(tmp_path / "long", tmp_path / "long.jsonl")


def part(code: str, *, minutes: float = MINUTES, shares: str = "") -> Part:
    return Part("some", "a part", f"{{python}} -c {shlex.quote(code)} {{state}}/done", minutes, shares)


def lines(runner: long.Runner) -> list[dict[str, Any]]:
    return [json.loads(line) for line in runner._lines.read_text().splitlines()]


def test_each_part_has_a_name_of_its_own_a_bound_and_a_command_that_can_be_filled_in() -> None:
    assert len({each.name for each in PARTS}) == len(PARTS)
    assert all(0 < each.minutes <= MINUTES for each in PARTS)
    assert all(each.command.startswith("{python} -m ") for each in PARTS)


def test_each_file_with_a_long_test_is_in_a_part() -> None:
    commands = " ".join(each.command for each in PARTS)
    files = [path for path in ROOT.glob("tests/*/test_*.py") if re.search(r"mark\.long\b", path.read_text())]
    names = [path.relative_to(ROOT).as_posix() for path in files if path != Path(__file__)]
    assert names
    assert not [name for name in names if not {name, name.rpartition("/")[0]} & set(commands.split())]


def test_the_seeds_of_the_parts_are_twenty_thousand() -> None:
    starts = [re.search(r"--seeds (\d+) --from (\d+)$", each.command) for each in PARTS]
    ranges = [range(int(m[2]), int(m[2]) + int(m[1])) for m in starts if m]
    assert sorted(seed for each in ranges for seed in each) == list(range(20_000))


def test_a_part_that_goes_well_leaves_a_green_line_and_begins_anew(runner: long.Runner) -> None:
    code = "import sys; open(sys.argv[1],'a').write('1\\tok\\n2\\tok\\n3\\tskipped\\n')"
    assert runner.run(part(code))["result"] == runner.run(part(code))["result"] == "green"
    assert [(line["rounds"], line["skipped"]) for line in lines(runner)] == [(2, 1), (2, 1)]
    assert {key: lines(runner)[0][key] for key in ("part", "commit", "dirty")} == {
        "part": "some", "commit": "c0ffee", "dirty": False,
    }  # fmt: skip


def test_a_part_that_fails_leaves_a_red_line_with_what_failed(runner: long.Runner) -> None:
    told = "import sys; open(sys.argv[1],'a').write('1\\tok\\n2\\ta key is lost\\n'); sys.exit(1)"
    assert runner.run(part(told))["failed"] == ["2: a key is lost"]
    assert runner.run(part("raise SystemExit('no journal')"))["failed"] == ["the command: exit code 1: no journal"]
    assert [line["result"] for line in lines(runner)] == ["red", "red"]


def test_a_part_that_exceeds_its_time_is_stopped_and_goes_on(runner: long.Runner) -> None:
    code = (
        "import sys, time\nf = open(sys.argv[1], 'a+'); f.seek(0); n = len(f.readlines())\n"
        "f.write(f'{n}\\tok\\n'); f.close()\nwhile n == 0: time.sleep(0.05)"
    )
    slow = part(code, minutes=2.0 / 60)
    assert [runner.run(slow)["result"] for _ in range(2)] == ["stopped", "green"]
    assert [line["rounds"] for line in lines(runner)] == [1, 2]


def test_what_parts_share_is_left_for_the_next_one_unless_it_failed(runner: long.Runner) -> None:
    kept = part("import sys; open(sys.argv[1], 'a').write('1\\tok\\n')", shares="both")
    assert runner.run(kept)["result"] == "green" and (runner._place / "both/done").exists()
    assert runner.run(part("raise SystemExit(1)", shares="both"))["result"] == "red"
    assert not (runner._place / "both").exists()


def test_what_was_done_in_another_tree_does_not_count(runner: long.Runner) -> None:
    state = runner._state(part(""))
    note(state / "done", "1")
    runner._tree = "another"
    assert passed(runner._state(part("")) / "done") == set()


def test_main_refuses_a_part_that_there_is_not(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["long", "sim-1", "sim-0"])
    with pytest.raises(SystemExit):
        long.main()
    assert "there is no part sim-0; --list prints the parts" in capsys.readouterr().err


def test_tests_that_passed_are_left_out_of_the_next_run(tmp_path: Path) -> None:
    test, done = tmp_path / "test_it.py", tmp_path / "done"
    test.write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert 0, 'b'\ndef test_c(): pytest.skip('c')\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.long.noted", "-p", "no:cacheprovider"]
    argv += ["--done", str(done), "--rootdir", str(tmp_path), str(test)]
    first = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.returncode == 1 and list(noted(done).values()) == ["ok", "call: AssertionError: b", "skipped"]
    test.write_text("def test_a(): pass\ndef test_b(): pass\n")
    again = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "1 passed, 1 deselected" in again.stdout
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, check=False).returncode == 0, "all had passed before"


def test_the_report_tells_what_was_proved_since_the_last_change_of_each_package(tmp_path: Path) -> None:
    told = [("sim-1", "aaa", "green", False), ("sim-1", "bbb", "red", False), ("kills", "ccc", "green", True)]
    rows = [{"part": p, "commit": c, "result": r, "dirty": d, "rounds": 5, "at": "2030-01-02"} for p, c, r, d in told]
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    last = {".": "ccc1", "chp": "aaa1", "server": "bbb1", "client": ""}
    after = {"aaa1": "bbb1 ccc1", "bbb1": "ccc1", "ccc1": ""}

    def git(verb: str, *words: str) -> str:
        return last[words[words.index("--") + 1]] if verb == "log" else after[words[0].partition(".")[0]]

    said = [re.split("  +", line) for line in report(file, ["sim-1", "kills"], git).splitlines()]
    assert said[0] == ["part", "this commit", "chp", "server", "client"]
    assert said[1] == ["sim-1", "-", "red 5 2030-01-02", "red 5 2030-01-02", "-"]
    assert said[2] == ["kills", *["dirty green 5 2030-01-02"] * 3, "-"]
