"""kill -9 of what takes part in a write: each number of each file is in the store once, no reader saw half a batch."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_client.spark.snapshot_port import SnapshotPort
from chp_client.spark.stream import read_changes
from chp_server.testing import Pair, TestServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
A_FILE = 1000


def files(folder: Path, n: int) -> list[str]:
    """n files of A_FILE numbers, the older first; all the numbers."""
    (folder / "in").mkdir()
    for i in range(n):
        path = folder / "in" / f"{i}.txt"
        path.write_text("".join(f"{i * A_FILE + j}\n" for j in range(A_FILE)))
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
    return [str(number) for number in range(n * A_FILE)]


@contextmanager
def job(servers: list[str], folder: Path, faults: dict[int, str]) -> Iterator[subprocess.Popen[str]]:
    """The job in a process group of its own, which is killed as a whole at the end: driver, JVM and workers."""
    command = [sys.executable, "-m", "tests.spark.connector_job", ",".join(servers), str(folder), json.dumps(faults)]
    with open(folder / "log", "a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def until(condition: Callable[[], object], what: str, process: subprocess.Popen[str], folder: Path) -> None:
    for _ in range(9000):
        if condition():
            return
        if process.poll() is not None:
            break
        threading.Event().wait(0.02)
    raise AssertionError(f"{what}: not so; {(folder / 'log').read_text()[-3000:]}")


def finish(process: subprocess.Popen[str], folder: Path) -> None:
    out, _ = process.communicate(timeout=180)
    assert "finished" in out, (folder / "log").read_text()[-3000:]


@contextmanager
def reader(servers: list[str]) -> Iterator[set[int]]:
    """How many keys a Clone sees, whenever it looks."""
    seen: set[int] = set()
    stop = threading.Event()
    with Clone(servers, subtree="/inc/") as clone:
        clone.wait_until_synced(30)

        def look() -> None:
            while not stop.wait(0.001):
                seen.add(len(clone))

        looker = threading.Thread(target=look)
        looker.start()
        yield seen
        stop.set()
        looker.join()


def changes(servers: list[str]) -> list[tuple[str, bytes | None]]:
    """Everything that ever happened to the store's keys."""
    with SnapshotPort(servers, 60) as port:
        newest = port.ask("", **{"from": 0, "feed": True, "probe": 0})["newest"]
        found: list[Any] = []
        for updates in read_changes(port, "/inc/", 0, newest):
            found += zip(updates.keys, updates.values, strict=True)
        return found


def check(servers: list[str], numbers: list[str], seen: set[int]) -> None:
    assert sorted(changes(servers)) == sorted((f"/inc/{n}", n.encode()) for n in numbers), "each exactly once"
    assert {n % A_FILE for n in seen} == {0}, "a reader saw a part of a batch"


def test_the_driver_and_its_jvm_killed_between_staging_and_commit_and_after_commit(tmp_path: Path) -> None:
    numbers = files(tmp_path, 3)
    with TestServer(heartbeat_s=0.1) as server, reader([server.address]) as seen:
        faults = {0: "staged", 1: "committed"}
        for batch in (0, 1):
            with job([server.address], tmp_path, faults) as process:
                until((tmp_path / f"at.{batch}").exists, f"batch {batch} is {faults[batch]}", process, tmp_path)
        with job([server.address], tmp_path, faults) as process:
            finish(process, tmp_path)
        check([server.address], numbers, seen)
        counts = server.server.core.commits.counts
        assert counts["commits"] == 3 and counts["commits_repeated"] == 1


def test_a_worker_killed_in_a_task_and_the_active_while_staging_and_committing(tmp_path: Path) -> None:
    numbers = files(tmp_path, 4)
    with Pair(heartbeat_s=0.1, peer_timeout_s=1.0, solo_wait_s=1.0) as pair, reader(pair.servers) as seen:
        in_sync = lambda: any(  # noqa: E731
            s.server is not None and s.server.core.active and s.server.core.link.in_sync()
            for s in (pair.primary, pair.backup)
        )
        faults = {0: "worker", 1: "staging", 2: "staged"}
        with job(pair.servers, tmp_path, faults) as process:
            for batch, active, other in ((1, pair.primary, pair.backup), (2, pair.backup, pair.primary)):
                until((tmp_path / f"at.{batch}").exists, f"batch {batch} is {faults[batch]}", process, tmp_path)
                until(in_sync, "the pair is in sync", process, tmp_path)
                assert active.server.core.active
                if faults[batch] == "staged":
                    (tmp_path / f"go.{batch}").touch()  # the commit comes while the active goes
                active.kill()
                (tmp_path / f"go.{batch}").touch()
                until(lambda up=other: up.server.core.active, "the other has taken over", process, tmp_path)
                active.start()
            finish(process, tmp_path)
        assert (tmp_path / "at.0").exists(), "a worker was killed"
        check(pair.servers, numbers, seen)
