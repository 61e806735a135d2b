"""The demo's processes: started together, read line by line, and ended with the demo, however the demo ends.

Each process has a session of its own. So Ctrl-C in the terminal reaches only the demo, which then ends the processes.
`Family` ends all processes, and what these started (Spark's JVM). First it closes their standard input and sends
SIGTERM. After a while it sends SIGKILL to the whole process group.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

# A process has this long to end by itself.
END_S = 8.0


class Failed(Exception):
    """The failure of a step of the demo; `said` is the last output of one process, or of all."""

    def __init__(self, text: str, said: str = "") -> None:
        super().__init__(text)
        self.said = said


class Process:
    """A child process: its lines of output as they come, and orders and signals to it."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._lines: list[tuple[float, str]] = []
        self._came = threading.Condition()
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._came:
                self._lines.append((time.monotonic(), line.rstrip("\n")))
                self._came.notify_all()

    def said(self, start: str) -> list[tuple[float, str]]:
        """Return every line so far that begins with `start`, each with the moment it came."""
        with self._came:
            return [(at, line) for at, line in self._lines if line.startswith(start)]

    def order(self, text: str) -> None:
        """Write one line to the standard input of the process."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(text + "\n")
            self._popen.stdin.flush()
        except OSError:
            raise Failed(f"{self.name} has ended", self.tail()) from None

    def running(self) -> bool:
        """Return whether the process still runs."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Send SIGKILL now, and wait until the process has ended."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def terminate(self) -> None:
        """Ask the process to end: close its standard input, and send SIGTERM. It has to end its own children."""
        try:
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        except OSError:
            pass
        self._popen.terminate()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            pass

    def end(self, timeout_s: float = END_S) -> int:
        """Wait until the process ends, or force its end when it takes too long; return its exit status."""
        try:
            self._popen.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            pass
        # This also ends what the process left behind in its group.
        self._signal(signal.SIGKILL)
        return self._popen.wait()

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its output and of its log, for a message."""
        with self._came:
            own = [line[:200] for _, line in self._lines[-lines:]]
        return "\n".join(
            f"  {self.name}: {line}" for line in own + self._log.read_text(errors="replace").splitlines()[-lines:]
        )


class Family:
    """All processes of one run; a context manager that leaves none behind."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._all: list[Process] = []

    def start(self, name: str, command: list[str]) -> Process:
        """Start one more process."""
        process = Process(name, command, self.logs / f"{name}.log")
        self._all.append(process)
        return process

    def python(self, name: str, module: str, *arguments: str) -> Process:
        """Start a module of ours with this Python."""
        return self.start(name, [sys.executable, "-m", module, *arguments])

    def dead(self, but: set[str]) -> list[Process]:
        """Return the processes that have ended, except those named. Only the newest process of a name counts."""
        newest = {process.name: process for process in self._all}
        return [process for name, process in newest.items() if name not in but and not process.running()]

    def tails(self) -> str:
        """Return the last lines of the output of each process."""
        return "\n".join(process.tail(5) for process in self._all)

    def __enter__(self) -> "Family":
        _adopt_orphans()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._all:
            process.terminate()
        deadline = time.monotonic() + END_S
        for process in self._all:
            process.end(deadline - time.monotonic())
        _bury_orphans(time.monotonic() + 2)


def _adopt_orphans() -> None:
    """On Linux, become the parent of a process (a JVM) that outlives its own parent, so that we can wait for it."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _bury_orphans(deadline: float) -> None:
    """Wait for adopted children, so that not even their entries in the process table stay."""
    try:
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
    except ChildProcessError:
        # No child is left.
        pass


def free_ports(count: int, taken: set[int]) -> int:
    """Return the first of `count` neighbouring unused ports, below the range that the system assigns by itself."""
    for _ in range(1000):
        first = random.randrange(20_000, 32_000 - count)
        wanted = set(range(first, first + count))
        if not wanted & taken and all(map(_is_free, wanted)):
            taken |= wanted
            return first
    raise Failed(f"no {count} neighbouring free ports between 20000 and 32000 on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def server_command() -> list[str]:
    """Return the command of the `chp-server` that is installed beside this Python."""
    script = Path(sys.executable).with_name("chp-server")
    return [str(script)] if script.exists() else [sys.executable, "-m", "chp_server.main"]
