"""covers: `chp dev`, `chp doctor` and `chp watch --exec`, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import httpx
import pytest

from chp_client import Clone
from chp_server.testing import Pair, TestServer, free_port
from tests.talk import WAIT_S

ENVIRON = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")} | {"NO_COLOR": "1"}
CHP = [sys.executable, "-m", "chp_client.cli"]


class Running:
    """A command in the foreground, whose lines are read as they come."""

    def __init__(self, *args: str, before: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, *CHP, *args], env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.seen: list[str] = []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, words: str) -> str:
        while (line := self._lines.get(timeout=WAIT_S)) is not None:
            self.seen.append(line)
            if re.search(words, line):
                return line
        raise AssertionError(f"it ended before it said {words!r}: {self.seen}")


def ports() -> tuple[int, int]:
    """Return a port for the pair, with the backup's ten above, and one for the console.

    The ports of the pair lie below those that `free_port` returns, so no test beside this one takes them.
    """
    while True:
        port = random.randrange(12_000, 20_000, 20)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in [port + i for i in (0, 1, 2, 3, 10, 11, 12, 13)]:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port, free_port()


@pytest.fixture
def dev() -> Iterator[tuple[Running, list[str]]]:
    port, console = ports()
    running = Running("dev", "--verbose", "--port", str(port), "--console-port", str(console))
    try:
        yield running, [f"127.0.0.1:{port}", f"127.0.0.1:{port + 10}"]
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            running.process.wait(WAIT_S)


@pytest.mark.slow
def test_dev_runs_a_pair_and_starts_a_killed_server_again(dev: tuple[Running, list[str]]) -> None:
    running, servers = dev
    first = int(running.until(r"^primary \| process").split()[-1])
    running.until(r"^backup +\| process")
    running.until(r"^ready: .* and a backup \(process \d+\); Ctrl-C ends both$")
    assert f"a primary (process {first})" in running.seen[-1]
    assert not any(re.search(r"\bprimary\b.*\bprimary (starting|active)", line) for line in running.seen)
    url = running.until(r"^console: http://").split()[-1]
    assert running.until("export CHP_SERVERS=").split("=")[1].split(";")[0] == ",".join(servers)
    with httpx.Client(
        transport=httpx.HTTPTransport(retries=8, verify=False), trust_env=False, verify=False, timeout=WAIT_S
    ) as client:
        assert "<title>chp</title>" in client.get(url).text
    with Clone(servers) as clone:
        clone.wait_until_synced(WAIT_S)
        clone.set("/a", b"1").wait(WAIT_S)
        os.kill(first, signal.SIGKILL)
        clone.set("/a", b"2").wait(WAIT_S)
        second = int(running.until(r"^primary \| ended with -9; started again as process").split()[-1])
    assert second != first
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(WAIT_S) == 0
    running.until("ended, and its data are gone")
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


@pytest.mark.slow
def test_dev_prints_three_lines() -> None:
    port, _ = ports()
    running = Running("dev", "--port", str(port), "--no-console")
    running.until(r"^try: ")
    assert [line.partition(":")[0] for line in running.seen] == ["ready", "console", "try"]
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(WAIT_S) == 0


@pytest.mark.slow
def test_dev_shows_the_log_of_a_server_that_does_not_start() -> None:
    port, _ = ports()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        argv = [*CHP, "dev", "--port", str(port), "--no-console"]
        program = (
            "import sys; from chp_client.cli.servers import dev; from chp_client.cli.app import chp\n"
            "dev._check_free = lambda ports: None\nchp.main(sys.argv[1:], 'chp')"
        )
        taken.bind(("127.0.0.1", port))
        taken.listen()
        argv = [sys.executable, "-c", program, *argv[len(CHP) :]]
        done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 4 and done.stderr.startswith("chp dev: the primary ended with"), done
    assert any(line.startswith("primary |") and str(port) in line for line in done.stdout.splitlines()), done


def runs(pid: int) -> bool:
    """Return True if a process runs, and False if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_ended(pids: list[int]) -> None:
    for _ in range(int(WAIT_S * 20)):
        if not any(map(runs, pids)):
            return
        threading.Event().wait(0.05)
    left = [pid for pid in pids if runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"they run on: {left} of {pids}")


def children_told(seen: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?m)\| process (\d+)", seen)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the terminal", "the shell in it"])
def test_all_processes_of_dev_end_if_the_terminal_is_closed(how: str) -> None:
    port, console = ports()
    argv = [*CHP, "dev", "--verbose", "--port", str(port), "--console-port", str(console)]
    if how != "the terminal":
        argv = ["sh", "-c", '"$@"; exit 0', "sh", *argv]
    ours, theirs = pty.openpty()
    # Its standard input becomes the controlling terminal.
    argv = ["setsid", "--ctty", *argv]
    with subprocess.Popen(argv, env=ENVIRON, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = ""
        while len(children_told(seen)) < 3 or "serves" not in seen:
            seen += os.read(ours, 4096).decode()
        pids = [process.pid, *children_told(seen)]
        assert len(pids) == 4 and all(map(runs, pids))
        if how == "the terminal":
            os.close(ours)
        else:
            process.kill()
        until_ended(pids)
    if how != "the terminal":
        os.close(ours)


@pytest.mark.slow
def test_the_servers_and_the_gateway_end_if_dev_is_killed(dev: tuple[Running, list[str]]) -> None:
    running, servers = dev
    running.until(r"^gateway +\| .*http://")
    pids = children_told("".join(running.seen))
    assert len(pids) == 3
    with Clone(servers) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
    running.process.kill()
    until_ended(pids)


@pytest.mark.slow
def test_dev_outlives_the_terminal_under_nohup() -> None:
    port, _ = ports()
    running = Running("dev", "--port", str(port), "--no-console", before=["nohup"])
    running.until(r"^ready: ")
    running.process.send_signal(signal.SIGHUP)
    with Clone(f"127.0.0.1:{port}") as clone:
        clone.set("/a", b"1").wait(WAIT_S)
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(WAIT_S) == 0


def test_dev_names_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        argv = [*CHP, "dev", "--port", str(port)]
        done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2 and f"port {port} is not free" in done.stderr and "--port" in done.stderr


def test_doctor_names_the_killed_server_of_a_pair(pair: Pair) -> None:
    with Clone(pair.servers) as clone:
        clone.wait_until_synced(WAIT_S)
        clone.set("/a", b"1").wait(WAIT_S)
    ask = [*CHP, "--servers", ",".join(pair.servers), "doctor", "--json"]
    done = subprocess.run(ask, env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and not [each for each in told if each["level"] == "bad"], told
    pair.backup.kill()
    done = subprocess.run(ask, env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and any(pair.backup.address in each["what"] for each in told if each["level"] == "bad")


def test_watch_exec_runs_a_command_for_each_change(server: TestServer, tmp_path: Path) -> None:
    with Clone(server.address) as clone:
        clone.set("/c/a", b"1\n2").wait(WAIT_S)
        clone.set("/c/b", b"").wait(WAIT_S)
        path = tmp_path / "told"
        script = f'echo "$CHP_OP $CHP_KEY $(cat | wc -c)" >> {path}; test "$CHP_KEY" != /c/b'
        args = ["--servers", server.address, "watch", "/c/", "--from", "snapshot", "--count", "2", "--exec", script]
        done = subprocess.run([*CHP, *args], env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0 and done.stdout == ""
    assert path.read_text().splitlines() == ["set /c/a 3", "set /c/b 0"]
    assert "exit code 1, of /c/b" in done.stderr
