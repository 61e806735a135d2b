"""The edges of the shell: descriptors that are not its any more, files that have to last, hosts that vanished."""

import os
import stat
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chp.errors import BadInput
from chp_client import Clone
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import Options
from chp_server.core.updates.turn import Save
from chp_server.settings.config import Config
from chp_server.shell.reactor import Server, write_updates
from chp_server.shell.resources import DiskMonitor
from chp_server.store.sql.sql_journal import SqlJournal
from chp_server.store.sql.sqlite import SqliteDatabase
from chp_server.store.sql.sqlite_files import LogTail
from chp_server.store.store_url import open_journal
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until
from tests.wire.hand import Hand, receive


def test_stop_after_close_does_not_write_to_a_reused_descriptor() -> None:
    server = Server(Config(), open_journal("memory:"))
    wake = server._wake_out
    server.close()
    reader, writer = os.pipe()
    os.dup2(writer, wake)
    os.set_blocking(reader, False)
    server.stop()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    for descriptor in {reader, writer, wake}:
        os.close(descriptor)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets True for each synced directory and False for each synced file."""
    found: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda fd: found.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    return found


def test_a_damaged_log_that_is_set_aside_is_synced(tmp_path: Path, synced: list[bool]) -> None:
    path = tmp_path / "journal.sqlite"
    Path(f"{path}-wal").write_bytes(b"log")
    store = SimpleNamespace(path=path, place=str(path), options=Options(recover="prefix"), note="")
    SqliteDatabase._lost_transactions(store, LogTail(valid=1, ignored=2, lost=1))  # type: ignore[arg-type]
    assert Path(f"{path}.damaged-1-wal").read_bytes() == b"log" and synced == [False, True]


def test_the_file_of_a_suffix_and_its_directory_are_synced(tmp_path: Path, synced: list[bool]) -> None:
    write_updates(str(tmp_path), Save("suffix-1.2", []))
    assert synced == [False, True]


def test_a_server_that_runs_is_not_started_again() -> None:
    with TestServer() as server:
        with pytest.raises(BadInput, match=rf"^server {server.address} is started already; use restart\(\) to kill it"):
            server.start()
        assert server.restart() is server
        server.kill()
        assert server.start().server is not None


def test_silent_connections_have_a_keepalive_timer() -> None:
    """The kernel finds it out: a keepalive timer (2) runs on each silent connection."""
    with TestServer(heartbeat_s=0.1) as server, Hand(server.address) as hand:
        hand.collector()
        dealer = hand.dealer()
        hand.ask(dealer, b"\x02status\x03")
        receive(dealer)
        port = int(server.address.rpartition(":")[2])
        until(lambda: timers(port) == timers(port + 2) == {2}, "both are kept alive")


def test_the_disk_is_measured_before_each_chunk_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets and a snapshot once counted the same free bytes. So a flood filled a disk of 32 MiB to the last byte."""
    done: list[str] = []
    look, put_next = DiskMonitor.look, Snapshotter._put_next

    def looks(*given: Any) -> None:
        done.append("look")
        look(*given)

    def puts(*given: Any) -> bool:
        done.append("chunk")
        return put_next(*given)

    monkeypatch.setattr(DiskMonitor, "look", looks)
    monkeypatch.setattr(Snapshotter, "_put_next", puts)
    with TestServer(store=f"sqlite:{tmp_path / 'journal.sqlite'}") as server, Clone(server.address) as clone:
        clone.set_many({f"/{i}": b"x" * 100_000 for i in range(30)}).wait(WAIT_S)
        monkeypatch.setattr(SqlJournal, "snapshot_due", lambda _: "chunk" not in done)
        until(lambda: done.count("chunk") > 20, "the snapshot")
    chunks = [i for i, each in enumerate(done) if each == "chunk"]
    assert all("look" in done[one:other] for one, other in pairwise(chunks))


def timers(port: int) -> set[int]:
    """Return the kinds of timers that run on the established connections to a local port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [line for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"]
    return {int(line[5].partition(":")[0]) for line in ours}
