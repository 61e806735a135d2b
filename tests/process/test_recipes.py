"""covers: locks while holders and servers are killed and stopped; `chp lock` and `chp elect` as commands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import ProcessPair, wait_for
from .locker import TTL_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WORKERS = 4


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ProcessPair]:
    with ProcessPair(tmp_path) as started:
        yield started


class Locker:
    """A worker, started again when it was killed."""

    def __init__(self, pair: ProcessPair, name: str, path: Path) -> None:
        self._argv = [sys.executable, "-m", "tests.process.locker", ",".join(pair.servers), name, str(path)]
        self._log = path.with_suffix(f".{name}")
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, cwd=ROOT, stdout=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def rows(path: Path) -> list[tuple[int, str]]:
    return [(int(token), name) for token, name in (line.split() for line in path.read_text().splitlines())]


def more(path: Path, n: int = 10) -> None:
    """Wait until the resource was written to by holders of `n` more tokens."""
    before = len({token for token, _ in rows(path)})
    wait_for(f"{n} more holders", lambda: len({token for token, _ in rows(path)}) >= before + n)


@pytest.mark.timeout(600)
def test_no_two_holders_tokens_are_both_accepted(pair: ProcessPair, tmp_path: Path) -> None:
    path, chance = tmp_path / "resource", random.Random(1)
    path.write_text("")
    workers = [Locker(pair, f"w{i}", path) for i in range(WORKERS)]
    try:
        more(path)
        for round_ in range(6):
            victim = chance.choice(workers)
            if round_ % 2:
                victim.process.send_signal(signal.SIGSTOP)  # the holder, or one in the line: it wakes as a zombie
                time.sleep(2 * TTL_S)
                victim.process.send_signal(signal.SIGCONT)
            else:
                victim.kill()
                victim.start()
            if round_ in (2, 3):
                active = pair.active()
                assert active is not None
                active.kill()
                more(path, 3)
                active.start()
                pair.wait_in_sync()
            more(path)
    finally:
        for worker in workers:
            worker.kill()
    written = rows(path)
    assert [token for token, _ in written] == sorted(token for token, _ in written)
    holders: dict[int, set[str]] = {}
    for token, name in written:
        holders.setdefault(token, set()).add(name)
    assert all(len(names) == 1 for names in holders.values()), "a token is one holder's"
    assert {name for _, name in written} == {f"w{i}" for i in range(WORKERS)}, "each had its turn"


def chp(pair: ProcessPair, *args: str, **more: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CHP_SERVERS": ",".join(pair.servers)}
    argv = [sys.executable, "-m", "chp_client.cli", *args]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_a_command_runs_under_a_lock_and_its_exit_code_is_ours(pair: ProcessPair) -> None:
    done = chp(pair, "lock", "/locks/a", "--name", "me", "--", "sh", "-c", 'echo "$CHP_LOCK_TOKEN"; exit 7')
    assert done.returncode == 7 and int(done.stdout) > 0, done.stderr
    inner = [sys.executable, "-m", "chp_client.cli", "lock", "/locks/a"]
    shown = chp(pair, "lock", "/locks/a", "--name", "me", "--", *inner)
    assert (shown.returncode, shown.stdout) == (0, "me\thas it\n"), shown.stderr
    refused = chp(pair, "lock", "/locks/a", "--name", "me", "--", *inner, "--wait", "200ms", "--", "true")
    assert refused.returncode == 1 and "me has it" in refused.stderr
    assert chp(pair, "lock", "/locks/a").returncode == 1
    missing = chp(pair, "lock", "/locks/a", "--", "/no/such/command")
    assert missing.returncode == 1 and "/no/such/command" in missing.stderr
    wrong = chp(pair, "lock", "locks", "--", "true")
    assert wrong.returncode == 2 and "begins with '/'" in wrong.stderr


def test_who_is_elected_leads_until_its_command_ends(pair: ProcessPair) -> None:
    shown = [sys.executable, "-m", "chp_client.cli", "elect", "/leader", "--json"]
    done = chp(pair, "elect", "/leader", "--name", "host-1", "--", *shown)
    assert done.returncode == 0 and '"holder":"host-1"' in done.stdout.replace(" ", ""), done.stderr
