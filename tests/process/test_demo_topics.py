"""The demo of topics as a newcomer runs it: `make demo ARGS=topics`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAST = re.compile(
    r"demo: 6000 orders, 6000 done once and in order, 1 put aside after 3 deaths, 0 lost, failover took [0-9.]+ s"
)


def test_each_order_is_done_once_while_clerks_and_the_active_are_killed() -> None:
    command = [sys.executable, "-m", "examples.rates.demo", "topics"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST.fullmatch(done.stdout.splitlines()[-1]), done.stdout
