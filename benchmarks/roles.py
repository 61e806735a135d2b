"""The processes of a benchmark: how they are started, spoken to, and what processor time they used.

A role is a function `role(pipe, **options)` in one of the benchmark modules. It runs in a process of its own, is told
what to do by `pipe.hear()` and answers by `pipe.say(...)`: one JSON line each. If a role dies, the benchmark fails and
shows the last output of the role.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
# These folders of a tree hold its packages.
PACKAGES = ("chp", "server", "client")
_tree = ROOT


@contextmanager
def programs_of(tree: Path) -> Iterator[None]:
    """Let programs started inside the block run the product of `tree`. The benchmark's own code stays this tree's."""
    global _tree
    before, _tree = _tree, tree
    try:
        yield
    finally:
        _tree = before


def chosen_tree() -> Path:
    """Return the tree whose programs are started now."""
    return _tree


def _environment() -> dict[str, str]:
    paths = [str(_tree / package) for package in PACKAGES]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


class Pipe:
    """A role's side of the conversation."""

    def say(self, **words: Any) -> None:
        """Tell the parent something."""
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    def hear(self) -> dict[str, Any]:
        """Return the parent's next message. End the process if there will be none."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        words: dict[str, Any] = json.loads(line)
        return words

    def waiting(self) -> bool:
        """Return whether the parent has sent a message."""
        return bool(select.select([0], [], [], 0)[0])


class Process:
    """A child process of any program; its log is kept in case the program fails."""

    def __init__(self, command: list[str], name: str, **popen: Any) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self.child = subprocess.Popen(command, cwd=ROOT, env=_environment(), stderr=self._log, **popen)

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self.child.pid

    def cpu_s(self) -> float:
        """Return the processor seconds used so far, user and system, by all living threads.

        No thread of ours ends before its program. The scheduler counts nanoseconds, if the kernel tells them; otherwise
        the figure is in ticks of ten milliseconds.
        """
        try:
            return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{self.pid}/task").glob("*/schedstat")) / 1e9
        except (OSError, IndexError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_bytes(self) -> int:
        """Return the memory of the process itself: PSS, or RSS where the kernel has no PSS."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup")
        try:
            lines = rollup.read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def last_words(self) -> str:
        """Return the end of what the child wrote to standard error."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]

    def kill(self) -> None:
        """Send SIGKILL, and wait until the child has ended."""
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        """Ask the child to end; kill it after a while."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Role(Process):
    """A child that runs one of our role functions."""

    def __init__(self, role: Callable[..., None], **options: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.roles", f"{role.__module__}:{role.__name__}", json.dumps(options)]
        super().__init__(command, role.__name__, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def say(self, **words: Any) -> None:
        """Send the role a message."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(words).encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def hear(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Return the next message of the role; raise RuntimeError if the role ended or takes too long."""
        assert self.child.stdout is not None
        ready, _, _ = select.select([self.child.stdout], [], [], timeout_s)
        if not ready:
            raise RuntimeError(f"{self.name} said nothing for {timeout_s:.0f} s\n{self.last_words()}")
        line = self.child.stdout.readline()
        if not line:
            raise self._gone()
        words: dict[str, Any] = json.loads(line)
        return words

    def ask(self, timeout_s: float = 120.0, **words: Any) -> dict[str, Any]:
        """Send the role a message, and return its answer."""
        self.say(**words)
        return self.hear(timeout_s)

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"{self.name} ended with {self.child.wait()}\n{self.last_words()}")


class Meter:
    """The processor time of some processes between `start` and `read`."""

    def __init__(self, **processes: Process) -> None:
        self._processes = processes
        self._before: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """Count from here."""
        self._before = {name: process.cpu_s() for name, process in self._processes.items()}

    def read(self, updates: int) -> dict[str, float]:
        """Return the processor time of each process since `start`, in microseconds for each update."""
        return {
            f"{name}_cpu_us": (process.cpu_s() - self._before[name]) / updates * 1e6
            for name, process in self._processes.items()
        }


@contextmanager
def closing_all() -> Iterator[Callable[[Any], Any]]:
    """Yield `keep(thing)`: everything that is kept is closed at the end, last first."""
    kept: list[Any] = []

    def keep(thing: Any) -> Any:
        kept.append(thing)
        return thing

    try:
        yield keep
    finally:
        for thing in reversed(kept):
            thing.close()


def _main() -> None:
    module, _, name = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), name)(Pipe(), **json.loads(sys.argv[2]))


if __name__ == "__main__":
    _main()
