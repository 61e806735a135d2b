"""`chp-server` as an operator meets it: how it starts, why it does not, and how it ends. Real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chp_client.port.admin import Admin
from chp_server.testing import free_port
from tests.talk import WAIT_S
from tests.wire.classic import ClassicClient

# The user's own settings are unset, and output is buffered, as by default.
UNSET = ("CHP_", "PYTHONUNBUFFERED")


def environ() -> dict[str, str]:
    """Return the environment of a started server."""
    return {name: text for name, text in os.environ.items() if not name.startswith(UNSET)}


class Running:
    """A server process, whose log is read as it comes."""

    def __init__(self, *argv: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chp_server.main", *argv],
            cwd=cwd, env=environ(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, words: str) -> str:
        """Wait for a line with these words, and return the first one."""

        def found() -> str | None:
            return next((line for line in self.lines if words in line), None)

        with self._changed:
            line = self._changed.wait_for(found, WAIT_S)
        assert line, f"no {words!r} in {self.lines}"
        return line

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def begin(*argv: str) -> Running:
            running = Running(*argv, cwd=tmp_path)
            stack.callback(running.process.wait, WAIT_S)
            stack.callback(running.process.kill)
            return running

        yield begin


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    command = [sys.executable, "-m", "chp_server.main", *argv]
    return subprocess.run(command, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=WAIT_S, check=False)


def local() -> str:
    """Return an address with four free ports."""
    return f"tcp://127.0.0.1:{free_port()}"


def test_help_and_version(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:" in done.stdout and "exit codes:" in done.stdout
    assert run("--version", cwd=tmp_path).stdout.startswith("chp-server ")
    assert not list(tmp_path.iterdir())


def test_show_config_starts_nothing(tmp_path: Path) -> None:
    done = run("--primary", "--peer", "tcp://127.0.0.1:5566", "--show-config", cwd=tmp_path)
    assert done.returncode == 0
    assert 'peer = "tcp://127.0.0.1:5566"' in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--help", "--show-config"])
def test_help_and_show_config_into_a_closed_pipe_succeed(tmp_path: Path, flag: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "chp_server.main", flag]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ(), stdout=writer, stderr=subprocess.PIPE, timeout=WAIT_S, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--primry"], "chp-server: unknown flag --primry; did you mean --primary?"),
        (["--sync", "often"], "chp-server: sync = often (from --sync): give one of always, interval, off"),
        (["--backup"], "--peer tcp://HOST:P"),
        (["--bind", "tcp://*:5556"], "--insecure"),
        (["--primary", "--peer", "tcp://b:5566"], "--insecure"),
    ],
)
def test_a_wrong_flag_gives_exit_code_2(tmp_path: Path, argv: list[str], words: str) -> None:
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-memory", "1"], "--max-memory 0.0 MiB: the server alone takes"),
        (["--max-memory", "10MiB"], "--max-memory 10.0 MiB: the server alone takes"),
        (["--min-free-disk", "100000TiB"], "give less, or another --data"),
    ],
)
def test_a_limit_without_room_for_a_set_gives_exit_code_2(tmp_path: Path, argv: list[str], words: str) -> None:
    done = run("--data", str(tmp_path), "--bind", local(), *argv, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_key_in_the_config_file_gives_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "chp.toml").write_text("hartbeat_s = 1\n")
    done = run("--config", "chp.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean heartbeat_s?" in done.stderr


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_taken_port_gives_exit_code_3(tmp_path: Path, offset: int) -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + offset))
        other.listen()
        done = run("--bind", f"tcp://127.0.0.1:{port}", "--store", "memory:", cwd=tmp_path)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert f"tcp://127.0.0.1:{port + offset} is taken, one of tcp://127.0.0.1:{port}" in line and "--bind" in line
    assert f"sport = {port + offset}" in line
    assert "Traceback" not in done.stderr


def test_an_address_of_another_machine_gives_exit_code_3(tmp_path: Path) -> None:
    done = run("--bind", "tcp://192.0.2.1:5556", "--insecure", "--store", "memory:", cwd=tmp_path)
    assert done.returncode == 3
    assert "can't be bound" in done.stderr and "Traceback" not in done.stderr


def test_a_data_directory_that_cannot_be_made_gives_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--bind", local(), "--data", str(tmp_path / "file" / "data"), cwd=tmp_path)
    assert done.returncode == 4
    assert str(tmp_path / "file" / "data") in done.stderr and "--data" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_directory_that_is_a_file_gives_exit_code_2(tmp_path: Path) -> None:
    done = run("--bind", local(), "--backup-dir", "/dev/null", cwd=tmp_path)
    assert done.returncode == 2
    assert "/dev/null is no directory; give another --backup-dir" in done.stderr and "Traceback" not in done.stderr


def test_a_data_directory_in_use_gives_exit_code_5(tmp_path: Path, start: Start) -> None:
    first = start("--bind", local(), "--data", "shared")
    first.wait_for(" active ")
    done = run("--bind", local(), "--data", "shared", cwd=tmp_path)
    assert done.returncode == 5
    assert "shared" in done.stderr and "Traceback" not in done.stderr
    assert first.end() == 0


def test_a_damaged_journal_gives_exit_code_6(tmp_path: Path, start: Start) -> None:
    endpoint = local()
    server = start("--bind", endpoint, "--data", "data")
    with ClassicClient([endpoint]) as client:
        client.until_ready()
        for i in range(2000):
            client.set(b"/key/%d" % i, os.urandom(100))
        client.until(lambda: sum(frames[1] != bytes(8) for frames in client.log) >= 2000)
    assert server.end() == 0
    file = tmp_path / "data" / "journal.sqlite"
    content = file.read_bytes()
    assert b"/key/" in content
    # Change every occurrence, because SQLite does not use some of that space any more.
    file.write_bytes(content.replace(b"/key/", b"/kez/"))
    done = run("--bind", endpoint, "--data", "data", cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_cleanly(tmp_path: Path, start: Start, number: signal.Signals) -> None:
    endpoint = local()
    server = start("--bind", endpoint)
    server.wait_for(" active ")
    with ClassicClient([endpoint]) as client:
        client.until_ready()
        client.set(b"/a", b"1")
        client.until(lambda: client.log)
    assert server.end(number) == 0
    server.wait_for(f" ending signal={number.name}")
    again = start("--bind", endpoint)
    with ClassicClient([endpoint]) as client:
        client.until(lambda: client.map == {b"/a": b"1"})
    assert again.end() == 0


def test_a_signal_ends_a_server_that_waits_for_its_peer(start: Start) -> None:
    peer = local()
    server = start("--primary", "--bind", local(), "--peer", peer, "--store", "memory:", "--solo-wait-s", "never")
    server.wait_for(f" waiting for the peer peer={peer} solo_wait_s=never")
    assert server.end() == 0


@pytest.mark.parametrize("scheme", ["zk", "etcd"])
def test_a_signal_ends_a_server_that_looks_for_its_arbiter(start: Start, scheme: str) -> None:
    if scheme == "zk":
        pytest.importorskip("kazoo", reason="kazoo is not installed")
    nobody = f"{scheme}://127.0.0.1:{free_port()}/chp"
    server = start("--primary", "--bind", local(), "--peer", local(), "--store", "memory:", "--arbiter", nobody)
    server.wait_for(" starting ")
    assert server.end() == 0
    assert not [line for line in server.lines if "ERROR" in line]


def test_a_primary_without_its_peer_serves_after_solo_wait_s(start: Start) -> None:
    endpoint = local()
    server = start(
        "--primary", "--bind", endpoint, "--peer", local(), "--store", "memory:", "--solo-wait-s", "0.5", "--bootstrap"
    )
    server.wait_for(" active ")
    with ClassicClient([endpoint]) as client:
        client.until_ready()
    assert server.end() == 0


def test_json_logs_are_one_object_a_line(start: Start) -> None:
    server = start("--bind", local(), "--store", "memory:", "--log-format", "json", "--name", "me")
    server.wait_for('"active"')
    assert server.end() == 0
    server.wait_for('"ended"')
    facts = [json.loads(line) for line in server.lines]
    assert {fact["server"] for fact in facts} == {"me"}
    assert {"time", "level", "event"} <= facts[0].keys()
    assert [fact["event"] for fact in facts][:1] == ["starting"]


def test_an_insecure_server_warns_in_its_log_and_status(start: Start) -> None:
    port = free_port()
    server = start("--bind", f"tcp://*:{port}", "--insecure", "--store", "memory:")
    assert "WARN" in server.wait_for(f"insecure bind=tcp://*:{port}")
    with Admin([f"tcp://127.0.0.1:{port}"], WAIT_S) as admin:
        assert admin.ask(f"tcp://127.0.0.1:{port}", "status").facts["insecure"] is True


def test_only_the_user_of_a_server_can_read_its_files(start: Start, tmp_path: Path) -> None:
    # Hosts where users share files have this mask.
    before = os.umask(0o002)
    try:
        bind = local()
        server = start("--bind", bind, "--data", "data")
        server.wait_for("active")
        with Admin([bind], WAIT_S) as admin:
            admin.ask(bind, "backup")
        assert server.end() == 0
    finally:
        os.umask(before)
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(made) > 2
    assert {path.stat().st_mode & 0o777 for path in made} <= {0o700, 0o600}
