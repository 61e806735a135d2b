"""The tools of the connector's fault tests: a job in its own process group, and checks of what must hold.

with Readers(servers, "/inc/", 1000) as readers, job("tests.spark.connector_job", folder, ...) as process:
    until(condition, "what", process, folder)
    finish(process, folder)
    readers.check()                                 # no reader ever saw a part of a write
    once(servers, "/inc/", {"/inc/1": b"1", ...}, 1000)   # each change once, each write one record
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from chp_client import Clone
from chp_client.port.ask import QuestionPort
from chp_client.spark.reading.changes import ChangePosition, read_changes
from tests.talk import join_all

ROOT = Path(__file__).parents[2]
GENEROUS_S = 400.0


class Job:
    """A Spark job in its own process group, which is killed as a whole at the end: driver, JVM and workers.

    Spark gives a Python worker ten seconds to start, which a busy machine may miss. A job that ends for that reason is
    started again, as an operator would do.
    """

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._log, self._out = folder / "log", folder / "out"
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 5

    def _start(self) -> None:
        with self._log.open("w") as log, self._out.open("w") as out:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=out, stderr=log, start_new_session=True)

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Kill the job with all its processes, and start it again."""
        self._kill()
        self._start()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the job runs."""
        deadline = time.monotonic() + GENEROUS_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {GENEROUS_S:.0f} s; {self._said()}"
            assert self._process is not None
            if self._process.poll() is not None and not condition():
                self._lives -= 1
                assert self._lives and "failed to connect back" in self._log.read_text(), f"{what}: {self._said()}"
                self._kill()
                self._start()
            threading.Event().wait(0.02)

    def finish(self) -> None:
        """Wait until the job says that it has finished."""
        self.until(lambda: "finished" in self._out.read_text(), "the job has finished")

    def _said(self) -> str:
        """Return the errors of the log, and its last lines."""
        lines = self._log.read_text().splitlines()
        errors = [line for line in lines if "Error" in line or "Exception" in line or "Failed" in line]
        return "\n".join([*errors[-10:], "...", *lines[-20:]])

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()


class Readers:
    """A Clone of each subtree that looks at how many keys it has, all the time and at each change of its watch."""

    def __init__(self, servers: list[str], subtrees: list[str], whole: int) -> None:
        self._whole = whole
        self._clones = {subtree: Clone(servers, subtree=subtree) for subtree in subtrees}
        self.seen: dict[str, set[int]] = {subtree: set() for subtree in subtrees}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, args=(subtree,), daemon=True)
            for subtree in subtrees
            for target in (self._look, self._watch)
        ]

    def _look(self, subtree: str) -> None:
        while not self._stop.wait(0.005):
            self.seen[subtree].add(len(self._clones[subtree]))

    def _watch(self, subtree: str) -> None:
        """Note the number of keys that a program finds when it acts on a change."""
        clone = self._clones[subtree]
        # The end closes the Clone.
        with suppress(Exception):
            for _ in clone.watch(subtree):
                self.seen[subtree].add(len(clone))

    def check(self) -> None:
        """Check that readers saw only whole writes at any time."""
        for subtree, seen in self.seen.items():
            parts = sorted(n for n in seen if n % self._whole)
            assert not parts, f"a part of a write was seen in {subtree}: {parts[:5]} of {self._whole} keys"
            assert len(seen) > 1, f"nobody saw anything in {subtree}"

    def __enter__(self) -> Self:
        for clone in self._clones.values():
            clone.wait_until_synced(60)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for clone in self._clones.values():
            clone.close(0)
        join_all(*self._threads)


def changes(servers: list[str], subtree: str) -> list[tuple[int, str, bytes | None]]:
    """Return the changes of a subtree as far back as the server knows: (record's number, key, value).

    A restarted server without a journal knows only the changes since it got the state of the other one.
    """
    with QuestionPort(servers, 60) as port:
        facts = port.ask("", **{"from": 0, "feed": True, "probe": 0})
        found: list[Any] = []
        for updates in read_changes(
            port, subtree, ChangePosition(facts["oldest"]), ChangePosition(facts["newest"]), facts["store"].hex()
        ):
            found += zip(updates.revisions.tolist(), updates.keys, updates.values, strict=True)
        return found


def once(servers: list[str], subtree: str, wanted: dict[str, bytes], whole: int) -> None:
    """Check that each key was written once, with its value, and that each record wrote a whole batch."""
    found = changes(servers, subtree)
    again = [key for key, times in Counter(key for _, key, _ in found).items() if times > 1]
    assert not again, f"{len(again)} keys were written more than once, such as {again[:3]}"
    assert {key: value for _, key, value in found}.items() <= wanted.items()
    with Clone(servers, subtree=subtree) as clone:
        clone.wait_until_synced(60)
        assert dict(clone) == wanted
    sizes = Counter(number for number, _, _ in found)
    assert set(sizes.values()) == {whole}, f"records of {sorted(set(sizes.values()))} keys"


def write_files(folder: Path, files: int, rows: int) -> None:
    """Write files of so many numbers into FOLDER/in, the older files first. Each is a micro-batch."""
    (folder / "in").mkdir()
    for i in range(files):
        path = folder / "in" / f"{i}.txt"
        path.write_text("".join(f"{n}\n" for n in range(i * rows, (i + 1) * rows)))
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def numbers(subtree: str, first: int, last: int, width: int = 0) -> dict[str, bytes]:
    """Return the contents that a job leaves which writes numbers under a subtree."""
    return {f"{subtree}{n}": b"%-*d" % (width, n) for n in range(first, last)}


def sum_of_increments(spark: Any, servers: list[str], subtree: str, folder: Path) -> int:
    """Return the sum by a job that adds up all changes of a subtree."""
    changes = spark.readStream.format("chp").options(
        servers=",".join(servers), subtree=subtree, startingOffsets="earliest"
    )
    total: list[int] = []

    def add(batch: Any, _: int) -> None:
        total.extend(row[0] or 0 for row in batch.selectExpr("sum(cast(cast(value as string) as long))").collect())

    writer = changes.load().writeStream.foreachBatch(add).option("checkpointLocation", f"{folder}/sum{subtree}")
    writer.trigger(availableNow=True).start().awaitTermination(120)
    return sum(total)
