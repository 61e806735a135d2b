"""The demo of replicas as a newcomer runs it: `make demo ARGS=replicas`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAST = re.compile(
    r"demo: [0-9]+ sets acknowledged, 8 readers agree, 0 lost, "
    r"a replica's death took [0-9.]+ s, a failover took [0-9.]+ s"
)


def test_readers_of_replicas_lose_nothing_while_a_replica_and_the_active_are_killed() -> None:
    command = [sys.executable, "-m", "examples.rates.demo", "replicas"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST.fullmatch(done.stdout.splitlines()[-1]), done.stdout
