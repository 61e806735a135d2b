"""covers: `chp keygen --pair`: a pair starts with what it wrote, by the commands that it prints."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import until

WAIT_S = 60.0
ENVIRON = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")} | {"NO_COLOR": "1"}
MODULES = {"chp": "chp_client.cli", "chp-server": "chp_server.main"}
Done = subprocess.CompletedProcess[str]


def argv_of(line: str) -> list[str]:
    """Return the arguments that run a printed command with this Python."""
    program, *words = shlex.split(line)
    return [sys.executable, "-m", MODULES[program], *words]


def run(line: str) -> Done:
    return subprocess.run(argv_of(line), env=ENVIRON, capture_output=True, text=True, timeout=WAIT_S, check=False)


def printed(said: str, *beginning: str) -> list[str]:
    """Return the printed commands that begin with these words."""
    return [line.strip() for line in said.splitlines() if line.startswith("    " + " ".join(beginning))]


@contextmanager
def started(lines: list[str], log: Path) -> Iterator[None]:
    with log.open("ab") as file:
        running = [subprocess.Popen(argv_of(line), env=ENVIRON, stderr=file) for line in lines]
    try:
        yield
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(WAIT_S)


def test_a_pair_starts_with_the_files_of_keygen(tmp_path: Path) -> None:
    pair = f"tcp://127.0.0.1:{free_port()},tcp://127.0.0.1:{free_port()}"
    made = run(f"chp keygen --pair {pair} --admin root {tmp_path}/keys")
    assert made.returncode == 0, made
    for folder in (tmp_path / "keys/a", tmp_path / "keys/b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        found = {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*.*")}
        assert found == {"server.secret": 0o600, "server.pub": 0o644, "peer.pub": 0o644, "clients/root.pub": 0o644}
    (status,) = printed(made.stdout, "chp --client-file")
    (more,) = printed(made.stdout, "chp keygen NAME")
    with started(printed(made.stdout, "chp-server"), tmp_path / "log"):
        until(lambda: run(status).returncode == 0, "a healthy pair")
        with Clone(client_file=tmp_path / "keys/root.toml") as clone:
            clone.set("/a", b"1").wait(WAIT_S)
        alice = run(more.replace("NAME", f"{tmp_path}/alice"))
        assert alice.returncode == 0, alice
        for name in ("a", "b"):
            (tmp_path / "keys" / name / "clients/alice.pub").write_bytes((tmp_path / "alice.pub").read_bytes())
        until(lambda: run(f"chp --client-file {tmp_path}/alice.toml get /a").stdout == "1", "another user")
    again = run(f"chp keygen --pair {pair} {tmp_path}/keys")
    assert again.returncode == 2 and "is there already" in again.stderr


def test_keygen_prints_the_copy_commands_for_two_hosts(tmp_path: Path) -> None:
    said = run(f"chp keygen --pair tcp://a:5556,tcp://b:5566 --admin ops {tmp_path}/keys").stdout
    copies = printed(said, "ssh")
    assert f"scp -r {tmp_path}/keys/a root@a:/etc/chp/keys" in copies[0]
    assert f"scp -r {tmp_path}/keys/b root@b:/etc/chp/keys" in copies[1]
    assert printed(said, "a$")[0].endswith(
        "chp-server --primary --bind 'tcp://*:5556' --peer tcp://b:5566 --data /var/lib/chp --keys /etc/chp/keys"
    )
    assert printed(said, "chp --client-file") == [f"chp --client-file {tmp_path}/keys/ops.toml status"]


def test_keygen_gives_two_servers_on_one_named_host_folders_of_their_own(tmp_path: Path) -> None:
    said = run(f"chp keygen --pair tcp://a:5556,tcp://a:5560 {tmp_path}/keys").stdout
    copies, starts = printed(said, "ssh"), printed(said, "a$")
    assert f"mkdir -p /etc/chp/keys && scp -r {tmp_path}/keys/a root@a:/etc/chp/keys/primary" in copies[0]
    assert f"mkdir -p /etc/chp/keys && scp -r {tmp_path}/keys/b root@a:/etc/chp/keys/backup" in copies[1]
    assert starts[0].endswith("--peer tcp://a:5560 --data /var/lib/chp/primary --keys /etc/chp/keys/primary")
    assert starts[1].endswith("--peer tcp://a:5556 --data /var/lib/chp/backup --keys /etc/chp/keys/backup")


def test_keygen_refuses_wrong_arguments_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    for words, text in (
        ("--pair tcp://a:5556 DIR", "the addresses of the primary and of the backup"),
        ("--pair tcp://a:5556,x/y DIR", "name a server's first port"),
        ("--pair a:1,b:1 --server tcp://a:1=f DIR", "give only one of them"),
        ("--pair tcp://a:5556,tcp://a:5558 DIR", "give ports 4 apart"),
        ("--pair tcp://127.0.0.1:5559,tcp://localhost:5556 DIR", "give ports 4 apart"),
        ("--admin root DIR", "--admin is for --pair"),
        ("--pair a:1,b:1 --admin a/b DIR", "'a/b' can't be the name of keys"),
    ):
        done = run(f"chp keygen {words.replace('DIR', str(tmp_path / 'keys'))}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and text in done.stderr, (words, done.stderr)
    assert list(tmp_path.iterdir()) == []
