"""`chp` against real servers: a pair of `chp-server` processes, and each command as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chp_server.testing import free_port
from tests.talk import WAIT_S, run, until
from tests.wire.classic import ClassicServer

# The user's own settings are unset, and output is buffered, as by default.
UNSET = ("CHP_", "PYTHONUNBUFFERED")
ENVIRON = {name: text for name, text in os.environ.items() if not name.startswith(UNSET)} | {"NO_COLOR": "1"}
Done = subprocess.CompletedProcess[bytes]


class RealPair:
    """A primary and a backup as processes, with journals, and `chp` told where they are."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = (free_port(), free_port())
        self.servers = [f"tcp://127.0.0.1:{port}" for port in self.ports]
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None]
        for i in (0, 1):
            self.start(i)

    def start(self, i: int) -> None:
        role = ("--primary", "--backup")[i]
        argv = [role, "--bind", self.servers[i], "--peer", self.servers[1 - i], "--data", str(self.data(i))]
        with open(self.home / f"log{i}", "ab") as log:
            argv = [sys.executable, "-m", "chp_server.main", *argv]
            self.processes[i] = subprocess.Popen(argv, env=ENVIRON, stderr=log)

    def data(self, i: int) -> Path:
        return self.home / f"data{i}"

    def kill(self, i: int, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes[i]
        if process is not None:
            process.send_signal(number)
            process.wait(WAIT_S)
            self.processes[i] = None

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-m", "chp_client.cli", *args], {**ENVIRON, "CHP_SERVERS": ",".join(self.servers)}

    def run(self, *args: str, stdin: bytes = b"") -> Done:
        """Run a command to its end."""
        argv, environ = self.command("--timeout", "20s", *args)
        return subprocess.run(argv, env=environ, input=stdin, capture_output=True, timeout=90, check=False)

    def ok(self, *args: str, stdin: bytes = b"") -> bytes:
        """Run a command that must succeed, and return its output."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, (args, done)
        return done.stdout

    def until(self, code: int, *args: str) -> Done:
        """Run a command again and again, until it has this exit code."""
        deadline = time.monotonic() + WAIT_S
        while (done := self.run(*args, "--timeout", "2s")).returncode != code:
            assert time.monotonic() < deadline, f"{args}: {done}\n{self.logs()}"
        return done

    def logs(self) -> str:
        """Return the last lines of both servers' logs."""
        return "\n--\n".join((self.home / f"log{i}").read_text()[-3000:] for i in (0, 1))

    def states(self) -> dict[str, str]:
        lines = map(json.loads, self.run("status", "--no-rates", "--json", "--timeout", "5s").stdout.splitlines())
        return {line["server"]: line["state"] for line in lines if "server" in line}

    def active(self) -> int:
        """Return the index of the active server."""
        states = self.states()
        return next(i for i in (0, 1) if states[self.servers[i]] == "ACTIVE")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPair]:
    made = RealPair(tmp_path_factory.mktemp("pair"))
    try:
        made.until(0, "status")
        yield made
    finally:
        for i in (0, 1):
            with contextlib.suppress(Exception):
                made.kill(i)


@pytest.fixture(autouse=True)
def healthy(pair: RealPair) -> None:
    """Bring both servers in sync, with an empty map, before each test."""
    for i in (0, 1):
        process = pair.processes[i]
        if process is None or process.poll() is not None:
            pair.start(i)
    servers = "--servers", ",".join(pair.servers)
    until(lambda: run(*servers, "status").exit_code == 0, pair.logs)
    cleared = run(*servers, "del", "--prefix", "", "--yes")
    assert cleared.exit_code == 0, cleared.output


def test_set_get_ls_del(pair: RealPair) -> None:
    binary = bytes(range(256))
    pair.ok("set", "/a/bin", "-", stdin=binary)
    assert pair.ok("get", "/a/bin") == binary
    done = json.loads(pair.ok("set", "/a/x", "1", "--if-revision", "0", "--json"))
    assert done["durability"] == "replicated"
    assert pair.run("set", "/a/x", "2", "--if-revision", "0").returncode == 4
    pair.ok("set", "/a/x", "2", "--if-revision", done["revision"], "--ttl", "1h")
    entry = json.loads(pair.ok("get", "--json", "/a/x"))
    assert entry["value"] == "2"
    assert 3000 < entry["ttl"] <= 3600
    assert pair.ok("ls", "/a") == b"/a/bin\n/a/x\n"
    pair.ok("del", "/a/x")
    missing = pair.run("get", "/a/x")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert missing.stderr == b"chp get: no key '/a/x'; `chp ls` lists what is there\n"


def test_dump_and_load_round_trip(pair: RealPair, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"key": f"/d/{i:05d}", "value": f"value {i}"} for i in range(5000)]
    lines += [{"key": "/d/bin", "base64": "AP8K"}, {"key": "/d/ttl", "value": "", "ttl": 3600}]
    source = "".join(json.dumps(line) + "\n" for line in lines).encode()
    said = json.loads(pair.ok("load", "--json", "-", stdin=source))
    assert (said["keys"], said["durability"]) == (5002, "replicated")
    file = tmp_path / "d.jsonl"
    pair.ok("dump", "/d/", "-o", str(file))
    pair.ok("del", "--prefix", "/d/", "--yes")
    assert pair.ok("ls", "--count", "/d/") == b"0\n"
    pair.ok("load", str(file))
    back = [json.loads(line) for line in pair.ok("dump", "/d/").splitlines()]
    strip = [{k: v for k, v in line.items() if k not in ("revision", "ttl")} for line in back]
    expected = [{k: v for k, v in line.items() if k != "ttl"} for line in lines]
    assert strip == sorted(expected, key=lambda line: str(line["key"]))
    assert [line["key"] for line in back if "ttl" in line] == ["/d/ttl"]


def start_watch(pair: RealPair, *args: str) -> tuple[subprocess.Popen[bytes], Callable[[], bytes]]:
    """Start a watch, and return it with a function that waits for its next line."""
    argv, environ = pair.command("watch", *args)
    process = subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (background jobs ignore it)
    )  # fmt: skip

    def next_line() -> bytes:
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        timer.cancel()
        return line

    return process, next_line


def test_watch_from_a_snapshot_through_a_failover(pair: RealPair) -> None:
    pair.ok("set", "/w/a", "1")
    process, next_line = start_watch(pair, "/w/", "--from", "snapshot")
    try:
        assert next_line() == b"set\t/w/a\t1\n"
        pair.ok("set", "/w/b", "2")
        assert next_line() == b"set\t/w/b\t2\n"
        pair.kill(pair.active())
        pair.ok("set", "/w/c", "3")
        assert next_line() == b"set\t/w/c\t3\n"
        pair.ok("del", "/w/a")
        assert next_line() == b"del\t/w/a\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out, err.strip()) == (130, b"", b"")
    finally:
        process.kill()
        process.wait()


def test_watch_with_count_1_ends_after_one_change(pair: RealPair) -> None:
    pair.ok("set", "/w/a", "1")
    out = json.loads(pair.ok("watch", "/w/", "--from", "snapshot", "--count", "1", "--json"))
    assert (out["op"], out["key"], out["value"]) == ("set", "/w/a", "1")


def test_dump_into_a_closed_pipe_prints_no_error(pair: RealPair) -> None:
    lines = [json.dumps({"key": f"/p/{i:06d}" + "x" * 500, "value": "v"}) for i in range(3000)]
    pair.ok("load", "-", stdin="\n".join(lines).encode())
    argv, environ = pair.command("dump", "/p/")
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b'{"key": "/p/000000')
    process.stdout.close()
    assert process.wait(WAIT_S) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_watch_ends_if_its_output_is_closed_even_without_changes(pair: RealPair) -> None:
    pair.ok("set", "/w/a", "1")
    argv, environ = pair.command("watch", "/w/", "--from", "snapshot")
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"set\t/w/a\t1\n"
    process.stdout.close()
    try:
        assert process.wait(WAIT_S) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.stderr.close()


def test_record_reports_in_one_line_a_directory_that_cannot_be_made(pair: RealPair) -> None:
    done = pair.run("record", "/proc/none/recording")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done
    assert b"No such file or directory" in done.stderr


def test_set_at_a_passive_warns_that_the_set_may_still_be_done(pair: RealPair) -> None:
    passive = pair.servers[1 - pair.active()]
    done = pair.run("set", "/a", "1", "--servers", passive, "--timeout", "1s")
    assert done.returncode == 3
    assert b"is PASSIVE; what was sent may still be done, see `chp status`" in done.stderr
    one = pair.run("switch", "--servers", passive)
    assert one.returncode == 2
    assert b"needs both servers of the pair; name them" in one.stderr


def test_a_command_reports_a_wrong_port_in_one_line(pair: RealPair) -> None:
    second, free = f"tcp://127.0.0.1:{pair.ports[0] + 1}", f"tcp://127.0.0.1:{free_port()}"
    for address, words in (
        (second, b"is not the first port of a server"),
        (free, b"start chp-server, or name the pair"),
    ):
        for command in (("get", "/a"), ("set", "/a", "1")):
            # The library warns after 3 s.
            done = pair.run(*command, "--servers", address, "--timeout", "4s")
            assert (done.returncode, done.stderr.count(b"\n")) == (3, 1), done
            assert words in done.stderr and b"may still be done" not in done.stderr


def test_status_while_two_one_or_no_servers_run(pair: RealPair) -> None:
    shown = pair.ok("status").decode()
    assert "ACTIVE" in shown
    assert "PASSIVE" in shown
    assert shown.splitlines()[-1] == "healthy: one active, one passive, in sync"
    passive = 1 - pair.active()
    pair.kill(passive)
    alone = pair.run("status", "--timeout", "2s")
    assert alone.returncode == 1
    assert f"{pair.servers[passive]} is away".encode() in alone.stdout
    pair.kill(1 - passive)
    none = pair.run("status", "--timeout", "1s")
    assert none.returncode == 3
    assert b"nobody listens there" in none.stdout
    write = pair.run("set", "/a", "1", "--timeout", "1s")
    assert write.returncode == 3
    assert write.stderr.count(b"\n") == 1
    assert b"start chp-server, or name the pair" in write.stderr


def test_status_shows_a_stopped_server_as_unreachable(pair: RealPair) -> None:
    passive = 1 - pair.active()
    process = pair.processes[passive]
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        stopped = pair.run("status", "--timeout", "2s")
        told = pair.run("status", "--timeout", "1s", "--json", "--no-rates")
    finally:
        process.send_signal(signal.SIGCONT)
    assert stopped.returncode == 1
    assert b"UNREACHABLE" in stopped.stdout
    assert b"is its process stopped" in told.stdout


def test_switch_hands_over_and_loses_nothing(pair: RealPair) -> None:
    before = pair.active()
    pair.ok("set", "/s", "1")
    said = json.loads(pair.ok("switch", "--json"))
    assert (said["active"], said["was"]) == (pair.servers[1 - before], pair.servers[before])
    pair.until(0, "status")
    assert pair.active() == 1 - before
    assert pair.ok("get", "/s") == b"1"


def test_switch_without_a_passive_is_refused(pair: RealPair) -> None:
    passive = 1 - pair.active()
    pair.kill(passive)
    refused = pair.run("switch")
    assert refused.returncode == 4
    assert b"no hand-over without one active and one passive" in refused.stderr


def test_top_in_a_pipe(pair: RealPair) -> None:
    lines = pair.ok("top", "--count", "2", "--interval", "100ms", "--json").splitlines()
    verdicts = [json.loads(line)["verdict"] for line in lines if b"verdict" in line]
    assert verdicts == ["healthy", "healthy"]


def test_bench_measures_and_cleans_up(pair: RealPair) -> None:
    pair.ok("set", "/keep", "1")
    figures = [json.loads(line) for line in pair.ok("bench", "--json", "--seconds", "300ms").splitlines()]
    assert [f["quantity"] for f in figures] == [
        "set, one key a call", "set_many of 1,000", "one set awaited", "update to watcher, 1,000/s"
    ]  # fmt: skip
    assert all(f["per_s"] > 0 for f in figures[:2])
    assert all(0 < f["p50_us"] <= f["p99_us"] for f in figures[2:])
    assert figures[3]["n"] == 300
    assert pair.ok("ls") == b"/keep\n"
    assert pair.run("bench", "--prefix", "/").returncode == 2


def test_an_interrupted_bench_leaves_no_keys(pair: RealPair) -> None:
    argv, environ = pair.command("bench", "--json", "--seconds", "60s")
    process = subprocess.Popen(
        argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (background jobs ignore it)
    )  # fmt: skip
    deadline = time.monotonic() + WAIT_S
    # Interrupt the benchmark only once all its keys exist.
    while pair.ok("ls", "--count", "/chp-bench-") != b"10000\n":
        assert time.monotonic() < deadline, pair.logs()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said.strip()) == (130, b"")
    assert pair.ok("ls") == b""


def test_backup_and_restore_of_a_live_pair(pair: RealPair) -> None:
    pair.ok("set", "/keep", "1")
    file = "copy.db"
    assert b"sound" in pair.ok("check", json.loads(pair.ok("backup", file, "--json"))["path"])
    pair.ok("set", "/extra", "1")
    pair.ok("set", "/keep", "2")
    unasked = pair.run("restore", file)
    assert unasked.returncode == 2
    assert b"add --yes" in unasked.stderr
    restored = pair.ok("restore", file, "--yes")
    assert b"1 keys" in restored and b"what was there is kept as before-restore-" in restored
    assert pair.ok("dump").count(b"\n") == 1
    assert pair.ok("get", "/keep") == b"1"
    again = pair.run("backup", file)
    assert again.returncode == 4
    assert b"never overwrites" in again.stderr


def test_get_set_and_ls_work_with_a_chp1_server() -> None:
    with ClassicServer() as server:
        server.put(b"/old", b"1")

        def run(*args: str) -> Done:
            argv = [sys.executable, "-m", "chp_client.cli", "--servers", server.endpoint, "--timeout", "20s", *args]
            return subprocess.run(argv, env=ENVIRON, capture_output=True, timeout=90, check=False)

        assert run("get", "/old").stdout == b"1"
        status = run("status")
        assert status.returncode == 1
        assert b"CHP/1 only" in status.stdout
        assert run("set", "/new", "2").returncode == 0
        assert run("ls").stdout == b"/new\n/old\n"
        assert run("switch").returncode == 4
        # A request with more frames would stop the old servers.
        assert all(len(frames) == 2 for frames in server.requests)


def test_check_of_a_journal_in_use(pair: RealPair) -> None:
    pair.ok("set", "/a", "1")
    for i in (0, 1):
        assert b"sound" in pair.ok("check", str(pair.data(i)))
    assert pair.run("check", str(pair.home / "none")).returncode == 1
