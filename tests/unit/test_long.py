"""Tests of the long proofs in parts: their table, lines and report. covers: tests/long"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.long import __main__ as long
from tests.long import tree
from tests.long.parts import MINUTES, PARTS, REPLICAS, SHELLS, Part
from tests.long.report import report
from tests.long.state import again, note, noted, passed
from tests.long.tree import Tree
from tests.sim.schedule import plan, with_arbiter, with_consumers, with_copies, with_splits
from tests.talk import WAIT_S, until

ROOT = Path(__file__).parents[2]


NOW = Tree("c0ffee000000", "the content", dirty=False)


@pytest.fixture
def runner(tmp_path: Path) -> long.Runner:
    return long.Runner(tmp_path / "long", tmp_path / "long.jsonl", lambda: NOW)


def part(code: str, *, minutes: float = MINUTES, shares: str = "") -> Part:
    return Part("some", "a part", f"{{python}} -c {shlex.quote(code)} {{state}}/done", minutes, shares)


def lines(runner: long.Runner) -> list[dict[str, Any]]:
    return [json.loads(line) for line in runner._lines.read_text().splitlines()]


def test_each_part_has_a_unique_name_a_bound_and_a_command() -> None:
    assert len({each.name for each in PARTS}) == len(PARTS)
    assert all(0 < each.minutes <= MINUTES for each in PARTS)
    assert all(each.command.startswith("{python} -m ") for each in PARTS)


def test_each_file_with_a_long_test_is_in_a_part() -> None:
    commands = " ".join(each.command for each in PARTS)
    files = [path for path in ROOT.glob("tests/*/test_*.py") if re.search(r"mark\.long\b", path.read_text())]
    names = [path.relative_to(ROOT).as_posix() for path in files if path != Path(__file__)]
    assert names
    assert not [name for name in names if not {name, name.rpartition("/")[0]} & set(commands.split())]


def test_the_parts_cover_each_of_the_20_000_seeds_once() -> None:
    starts = [re.search(r"--seeds (\d+) --from (\d+)$", each.command) for each in PARTS]
    ranges = [range(int(m[2]), int(m[2]) + int(m[1])) for m in starts if m]
    assert sorted(seed for each in ranges for seed in each) == list(range(20_000))


def test_a_part_that_goes_well_leaves_a_green_line_and_begins_anew(runner: long.Runner) -> None:
    code = "import sys; open(sys.argv[1],'a').write('1\\tok\\n2\\tok\\n3\\tskipped\\n')"
    assert runner.run(part(code))["result"] == runner.run(part(code))["result"] == "green"
    assert [(line["rounds"], line["skipped"]) for line in lines(runner)] == [(2, 1), (2, 1)]
    assert {key: lines(runner)[0][key] for key in ("part", "commit", "dirty")} == {
        "part": "some", "commit": "c0ffee000000", "dirty": False,
    }  # fmt: skip


def test_a_failed_part_leaves_a_red_line_with_its_failures(runner: long.Runner) -> None:
    told = "import sys; open(sys.argv[1],'a').write('1\\tok\\n2\\ta key is lost\\n'); sys.exit(1)"
    assert runner.run(part(told))["failed"] == ["2: a key is lost"]
    assert runner.run(part("raise SystemExit('no journal')"))["failed"] == ["the command: exit code 1: no journal"]
    assert [line["result"] for line in lines(runner)] == ["red", "red"]


def test_a_part_stopped_by_its_time_limit_goes_on_later(runner: long.Runner) -> None:
    code = (
        "import sys, time\nf = open(sys.argv[1], 'a+'); f.seek(0); n = len(f.readlines())\n"
        "f.write(f'{n}\\tok\\n'); f.close()\nwhile n == 0: time.sleep(0.05)"
    )
    slow = part(code, minutes=2.0 / 60)
    assert [runner.run(slow)["result"] for _ in range(2)] == ["stopped", "green"]
    assert [line["rounds"] for line in lines(runner)] == [1, 2]


@pytest.mark.parametrize(("retries", "result"), [(True, "stopped"), (False, "red")])
def test_a_stopped_part_that_repeats_failures_is_not_red_yet(tmp_path: Path, retries: bool, result: str) -> None:
    note(tmp_path / "done", "1", "busy")
    line = long._line(replace(part(""), retries=retries), NOW, None, tmp_path / "done", tmp_path / "log")
    assert (line["result"], line["failures"]) == (result, 1)


def test_the_shared_directory_of_parts_is_kept_unless_a_part_fails(runner: long.Runner) -> None:
    kept = part("import sys; open(sys.argv[1], 'a').write('1\\tok\\n')", shares="both")
    assert runner.run(kept)["result"] == "green" and (runner._place / "both/done").exists()
    assert runner.run(part("raise SystemExit(1)", shares="both"))["result"] == "red"
    assert not (runner._place / "both").exists()


def test_rounds_done_in_another_tree_do_not_count(runner: long.Runner) -> None:
    state = runner._state(part(""), NOW)
    note(state / "done", "1")
    assert passed(runner._state(part(""), NOW) / "done") == {"1"}
    assert passed(runner._state(part(""), Tree(NOW.commit, "another", dirty=True)) / "done") == set()


def test_a_run_whose_tree_changes_is_dirty_and_keeps_no_state(tmp_path: Path) -> None:
    trees = iter([NOW, Tree(NOW.commit, "another", dirty=False)])
    runner = long.Runner(tmp_path / "long", tmp_path / "long.jsonl", lambda: next(trees))
    line = runner.run(part("import sys; open(sys.argv[1], 'a').write('1\\tok\\n')", shares="both"))
    assert (line["result"], line["dirty"]) == ("green", True)
    assert not (runner._place / "both").exists()


@pytest.mark.parametrize("said", ["", "1\\tskipped\\n"])
def test_a_part_that_ran_no_round_is_skipped(runner: long.Runner, said: str) -> None:
    assert runner.run(part(f"import sys; open(sys.argv[1], 'a').write('{said}')"))["result"] == "skipped"


def test_a_command_without_rounds_counts_as_one_round(runner: long.Runner) -> None:
    line = runner.run(Part("some", "a part", "{python} -c pass"))
    assert (line["result"], line["rounds"]) == ("green", 1)


def test_a_line_counts_rounds_that_passed_on_a_second_try(runner: long.Runner) -> None:
    code = "import sys; open(sys.argv[1], 'a').write('1\\tbusy\\n2\\tok\\n1\\tok\\n')"
    line = runner.run(part(code))
    assert (line["result"], line["rounds"], line["again"]) == ("green", 2, 1)


def test_a_failed_part_prints_the_command_that_shows_a_failed_seed(
    runner: long.Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; f = open(sys.argv[1], 'a'); [f.write(f'{n}\\tlost\\n') for n in range(25)]"
    command = f"{{python}} -c {shlex.quote(code)} {{state}}/done"
    line = runner.run(Part("some", "a part", command, again="python -m tests.sim --show {round}"))
    assert (line["failures"], len(line["failed"])) == (25, 20)
    assert capsys.readouterr().out.endswith("    and 5 more\n    python -m tests.sim --show 0\n")


PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.long import __main__ as long
from tests.long.parts import Part
from tests.long.tree import Tree
from tests.sim.schedule import plan, with_arbiter, with_consumers, with_copies, with_splits

place, command = sys.argv[1:]
long.PARTS = (Part("some", "", command),)
long.Runner.__init__.__defaults__ = (Path(place), Path(place, "lines"), lambda: Tree("", "", dirty=False))
sys.argv = ["long", "some"]
sys.exit(long.main())
"""
SLEEPS = "{python} -c 'import time; time.sleep(600)'"


# The command of a part that takes a second to end after an interrupt, and then makes a file.
ENDS_SLOWLY = (
    "{python} -c 'import pathlib, time\n"
    'try: pathlib.Path("{state}/began").touch(); time.sleep(600)\n'
    'except KeyboardInterrupt: time.sleep(1); pathlib.Path("{state}/ended").touch()\''
)


def begin(place: Path, command: str = SLEEPS) -> tuple[subprocess.Popen[str], int]:
    """Run a part as a shell runs it in the background; return the runner and the process group of the part."""
    argv = ["sh", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-c", PROGRAM, str(place), command]
    runs = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lock = place / "some.lock"
    until(lambda: lock.exists() and lock.read_text(), "the part to run")
    return runs, int(lock.read_text())


def test_a_part_is_not_started_twice_even_if_its_runner_was_killed(runner: long.Runner) -> None:
    runs, group = begin(runner._place)
    runs.kill()
    runs.communicate(timeout=WAIT_S)
    try:
        with pytest.raises(long.CannotRunError, match=rf"some runs already.*`kill -- -{group}`"):
            runner.run(part("pass"))
    finally:
        os.killpg(group, signal.SIGKILL)

    def is_free() -> bool:
        try:
            return bool(runner.run(Part("some", "", "{python} -c pass"))["result"] == "green")
        except long.CannotRunError:
            return False

    until(is_free, "the lock to be free")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_a_run_in_the_background_stops_the_part_and_leaves_a_line(
    tmp_path: Path, number: signal.Signals
) -> None:
    runs, _ = begin(tmp_path)
    runs.send_signal(number)
    said, _ = runs.communicate(timeout=WAIT_S)
    assert runs.returncode == 130 and "stopping" in said and "Traceback" not in said
    assert json.loads((tmp_path / "lines").read_text())["result"] == "stopped"


def test_a_second_interrupt_does_not_cut_the_end_of_a_part_short(tmp_path: Path) -> None:
    runs, _ = begin(tmp_path, ENDS_SLOWLY)
    # Its interpreter needs a moment until it can be interrupted.
    until((tmp_path / "some/began").exists, "the part to begin")
    runs.send_signal(signal.SIGINT)
    assert runs.stdout is not None
    while "stopping" not in (said := runs.stdout.readline()):
        assert said
    runs.send_signal(signal.SIGINT)
    said, _ = runs.communicate(timeout=WAIT_S)
    assert runs.returncode == 130 and "Traceback" not in said
    assert (tmp_path / "some/ended").exists()


def test_main_refuses_an_unknown_part(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
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


def test_again_counts_rounds_that_passed_after_a_failure(tmp_path: Path) -> None:
    for said in ("lost", "ok"):
        note(tmp_path / "done", "1", said)
    note(tmp_path / "done", "2")
    assert again(tmp_path / "done") == 1 and passed(tmp_path / "done") == {"1", "2"}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_tree_is_its_content_without_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROOT", tmp_path)

    def commit(*names: str) -> None:
        tree.git("add", *names)
        tree.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    tree.git("init", "-q")
    write("a", "1")
    commit("a")
    first = tree.look()
    assert not first.dirty and len(first.commit) == 12
    write(tree.LINES, "{}\n")
    assert tree.look() == first
    commit(tree.LINES)
    assert tree.look() == first, "the lines are committed"
    write("new", "1")
    other = tree.look()
    assert other.dirty and other.content != first.content
    write("new", "2")
    assert tree.look().content not in (other.content, first.content)
    commit("new")
    assert not tree.look().dirty and tree.look().commit != first.commit


def test_the_simulator_runs_nothing_that_its_parts_spare() -> None:
    code = (
        "import sys; from tests.sim.run import run_plan;"
        "from tests.sim.schedule import plan, with_arbiter, with_copies;"
        "plans = [change(plan(1)) for change in (lambda p: p, with_arbiter, with_copies)];"
        "ran = set(); sys.setprofile(lambda frame, event, arg: ran.add(frame.f_code.co_filename));"
        "[run_plan(each) for each in plans]; sys.setprofile(None); print(*ran, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    ran = [Path(name).relative_to(ROOT).as_posix() for name in done.stdout.split("\n") if name.startswith(str(ROOT))]
    assert {"server/chp_server/core/core.py", "client/chp_client/core/core.py"} <= set(ran)
    assert not [name for name in ran if name.startswith(SHELLS)]
    assert all((ROOT / path).exists() for path in (*SHELLS, REPLICAS))


def test_only_the_seeds_of_copies_have_replicas() -> None:
    ways = [lambda each: each, with_arbiter, with_consumers, with_splits, with_copies]
    found = [any(c.startswith("replica ") for seed in range(40) for c in way(plan(seed)).commands) for way in ways]
    assert found == [False, False, False, False, True]


A, B, C, WORDS, GONE = "aaa0000", "bbb0000", "ccc0000", "eee0000", "ddd0000"
CHANGED = {
    A: ":100644 100644 old new M\tclient/x.py\n:100644 100644 a b M\tREADME.md",
    B: ":100644 100644 old new M\tserver/ports/x.py\n:100644 000000 old 0 D\tclient/x.py",
    C: "",
    WORDS: ":100644 100644 old told M\tclient/x.py",
}
BLOBS = {"old": "x = 1", "new": "x = 2", "told": '"""About x."""\n# One.\nx = 1'}


def git_of(*words: str) -> str:
    """Stand in for `git diff --raw COMMIT HEAD` and `git cat-file blob`."""
    if words[0] == "cat-file":
        return BLOBS[words[-1]]
    commit = words[words.index("HEAD") - 1]
    if commit not in CHANGED:
        raise subprocess.CalledProcessError(128, "git")
    return CHANGED[commit]


def row(name: str, commit: str, result: str, no: int, **more: Any) -> str:
    line = {"part": name, "commit": commit, "dirty": False, "at": f"2030-01-0{no}", "result": result, "rounds": 5}
    return json.dumps(line | more)


def told(file: Path, *rows: str, parts: tuple[Part, ...] = (part(""),)) -> tuple[list[list[str]], list[str]]:
    """Return the cells of the report's rows, and what is wrong."""
    file.write_text("".join(f"{each}\n" for each in rows))
    table, wrong = report(file, parts, git_of)
    return [re.split("  +", line) for line in table.splitlines()[: len(parts) + 1]], wrong


def test_the_report_shows_the_valid_result_for_each_package(tmp_path: Path) -> None:
    parts = part(""), Part("sim-1", "", "", spares=("server/ports/",))
    rows, wrong = told(
        tmp_path / "lines",
        row("some", A, "green", 1),
        row("some", B, "red", 2),
        row("sim-1", B, "green", 3),
        parts=parts,
    )
    assert rows[0] == ["part", "this commit", "chp", "server", "client"] and not wrong
    assert rows[1] == ["some", "-", "red 5 2030-01-02", "green 5 2030-01-01", "-"]
    assert rows[2] == ["sim-1", "-", *["green 5 2030-01-03"] * 2, "-"], "the part never loads what changed"


def test_a_change_of_comments_and_docstrings_takes_nothing_from_a_proof(tmp_path: Path) -> None:
    rows, _ = told(tmp_path / "lines", row("some", WORDS, "green", 1))
    assert rows[1] == ["some", "-", *["green 5 2030-01-01"] * 3]


def test_the_code_of_a_file_has_each_string_but_docstrings() -> None:
    words = 'class A:\n    """One."""\n\n    def f(self):\n        """Two."""\n        return "x"\n'
    assert tree.code_of(words) == tree.code_of(words.replace("One", "1").replace("Two", "2") + "# more")
    assert tree.code_of(words) != tree.code_of(words.replace('"x"', '"y"'))
    assert tree.code_of(words) != tree.code_of(words.replace("self", "this"))


@pytest.mark.parametrize(
    ("result", "more"), [("green", {"dirty": True}), ("stopped", {}), ("green", {"rounds": 0, "skipped": 3})]
)
def test_a_weaker_line_does_not_hide_an_earlier_green_line(tmp_path: Path, result: str, more: dict[str, Any]) -> None:
    rows, _ = told(tmp_path / "lines", row("some", C, "green", 1), row("some", C, result, 2, **more))
    assert rows[1] == ["some", *["green 5 2030-01-01"] * 4]


def test_the_report_tells_of_skipped_and_repeated_rounds(tmp_path: Path) -> None:
    rows, _ = told(tmp_path / "lines", row("some", C, "green", 1, skipped=18, again=2))
    assert rows[1][1] == "green 5 (18 skipped, 2 again) 2030-01-01"
    rows, _ = told(tmp_path / "lines", row("some", C, "green", 1, rounds=0, skipped=3))
    assert rows[1][1] == "skipped (3 skipped) 2030-01-01"


@pytest.mark.parametrize("bad", ['{"part": "so', "", "<<<<<<< HEAD", "[]", row("some", "", "green", 2)])
def test_a_bad_line_is_named_and_the_others_count(tmp_path: Path, bad: str) -> None:
    rows, wrong = told(tmp_path / "lines", row("some", C, "green", 1), bad)
    assert rows[1][1] == "green 5 2030-01-01"
    assert wrong == [f"{tmp_path / 'lines'}:2: this is not the line of a run; mend or remove it"]


def test_a_commit_that_the_clone_lacks_is_told(tmp_path: Path) -> None:
    rows, wrong = told(tmp_path / "lines", row("some", GONE, "green", 1))
    assert rows[1] == ["some", "-", "-", "-", "-"] and "git fetch --unshallow" in wrong[0]


def test_a_line_is_appended_behind_a_line_without_a_newline(runner: long.Runner) -> None:
    runner._lines.write_text("{}")
    runner.run(Part("some", "a part", "{python} -c pass"))
    assert [line.get("result") for line in lines(runner)] == [None, "green"]
