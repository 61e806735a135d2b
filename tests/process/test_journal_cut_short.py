"""covers: chp-server on a journal whose log is gone: exit code 6, `--recover prefix`, `chp check`, catching up."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import free_port
from chp_server.tools.check_command import DAMAGED, check
from tests.process.test_server_start import Running
from tests.talk import WAIT_S


def start(cwd: Path, name: str, *more: str) -> Running:
    return Running("--data", str(cwd / name), "--name", name, *more, cwd=cwd)


def filled(server: Running, address: str, keys: int) -> None:
    """Wait until the server is active, and set this many keys with acknowledgement."""
    server.wait_for("active")
    with Clone(address) as clone:
        clone.wait_until_synced(WAIT_S)
        for i in range(keys):
            clone.set(f"/k/{i}", b"%d" % i).wait(WAIT_S)


def test_a_server_refuses_a_journal_without_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    server = start(tmp_path, "a", "--bind", address)
    filled(server, address, 20)
    server.end(signal.SIGKILL)
    (tmp_path / "a" / "journal.sqlite-wal").unlink()
    again = start(tmp_path, "a", "--bind", address)
    assert "its mark says that it had been at 1.21" in again.wait_for("the journal failed")
    assert again.process.wait(WAIT_S) == 6
    assert check([str(tmp_path / "a")]) == DAMAGED and "its mark says" in capsys.readouterr().out
    accepted = start(tmp_path, "a", "--bind", address, "--recover", "prefix")
    accepted.wait_for("active")
    with Clone(address) as clone:
        clone.wait_until_synced(WAIT_S)
        assert len(clone) == 0
    assert accepted.end() == 0
    last = start(tmp_path, "a", "--bind", address)
    last.wait_for("active")
    assert last.end() == 0, "what was accepted once is not asked again"


def test_a_server_whose_log_is_gone_gets_the_keys_from_its_peer(tmp_path: Path) -> None:
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}

    def server(name: str) -> Running:
        role = "--primary" if name == "a" else "--backup"
        other = addresses["b" if name == "a" else "a"]
        # Each server waits for the other one, even if that server starts slowly.
        patient = "--solo-wait-s", str(WAIT_S)
        return start(tmp_path, name, role, "--bind", addresses[name], "--peer", other, *patient)

    a, b = server("a"), server("b")
    a.wait_for("in_sync")
    filled(a, addresses["a"], 20)
    a.end(signal.SIGKILL)
    b.end(signal.SIGKILL)
    (tmp_path / "a" / "journal.sqlite-wal").unlink()
    a = server("a")
    a.wait_for("was cut short")
    b = server("b")
    a.wait_for("in_sync")
    with Clone(list(addresses.values())) as clone:
        clone.wait_until_synced(WAIT_S)
        assert len(clone) == 20 and clone.active == addresses["b"]
    for each in (a, b):
        assert each.end() == 0
