"""covers: examples/rates/demo.py. Its help, its progress, and a last line that fits a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples.rates import demo
from examples.rates.display import Plain

ROOT = Path(__file__).parents[2]


def test_the_help_option_prints_the_usage() -> None:
    command = [sys.executable, "-m", "examples.rates.demo", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert run.stdout.startswith("usage: make demo") and "takes about a minute" in run.stdout
    assert run.stderr == ""


def test_an_option_that_is_not_there_is_an_error() -> None:
    command = [sys.executable, "-m", "examples.rates.demo", "--fast"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert run.returncode == 2 and "--fast" in run.stderr


def test_a_wait_shows_that_it_goes_on(monkeypatch: object) -> None:
    said: list[str] = []

    class Shown(Plain):
        def say(self, text: str) -> None:
            said.append(text)

    class Family:
        def dead(self, but: object) -> list[object]:
            return []

    waits = demo.Demo.__new__(demo.Demo)
    waits.shown, waits.family, waits.expected_dead = Shown(), Family(), set()  # type: ignore[assignment]
    demo.PROGRESS_S, demo.EVERY_S = 0.0, 0.001
    rounds = iter([False, False, True])
    waits.wait(lambda: next(rounds), "the Spark job to start")
    assert said == ["waiting for the Spark job to start (0 s)"] * 2


def test_the_readme_line_of_the_demo_is_right_and_fits_eighty_columns() -> None:
    (line,) = [each.strip() for each in (ROOT / "README.md").read_text().splitlines() if each.startswith("    demo: ")]
    assert len(line.replace("312", "1,000").replace("0.9", "10.9")) <= 80
    source = (ROOT / "examples/rates/demo.py").read_text()
    assert "published, {agree} applications agree" in source and "published, 3 applications agree" in line
