"""Tests that no mistake of an operator lets two histories pass for one. No server process ends with exit code 4.

covers: two primaries; another pair's data directory; a new disk; a side without a journal; a staging pair begun from a
backup of production; an empty server alone, and told to begin; `chp status` in all these cases
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import free_port
from tests.process.cluster import ProcessPair, ServerProcess
from tests.talk import WAIT_S, until

SOLO_S = 1.0
# A server that begins to serve after `solo_wait_s` has begun within this many seconds.
PATIENCE_S = 3 * SOLO_S
FLAGS = ("--solo-wait-s", str(SOLO_S))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ProcessPair]:
    """Return a pair that is not started."""
    made = ProcessPair(tmp_path, *FLAGS)
    yield made
    for server in made.both:
        server.kill()


def fill(servers: list[str], n: int, start: int = 0) -> None:
    with Clone(servers) as clone:
        clone.set_many({f"/{i}": b"%d" % i for i in range(start, start + n)})
        clone.flush(timeout=WAIT_S)


def held(servers: list[str]) -> dict[str, bytes]:
    with Clone(servers) as clone:
        clone.wait_until_synced(timeout=WAIT_S)
        return dict(clone.items())


def numbers(n: int) -> dict[str, bytes]:
    return {f"/{i}": b"%d" % i for i in range(n)}


def state(server: ServerProcess) -> str:
    said = server.status()
    return said["state"] if said else "silent"


def serves_nobody_for_a_while(server: ServerProcess) -> None:
    """Check that a server lives, and does not begin to serve for `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    until(server.status, "an answer")
    while time.monotonic() < end:
        assert state(server) not in ("active", "passive")
        time.sleep(0.1)
    assert server.process is not None and server.process.poll() is None


def end_code(server: ServerProcess) -> int:
    assert server.process is not None
    return server.process.wait(WAIT_S)


def status_of(*servers: ServerProcess) -> tuple[int, str]:
    """Return the exit code and the output of `chp status`."""
    addresses = ",".join(server.address for server in servers)
    done = subprocess.run(
        [sys.executable, "-m", "chp_client.cli", "status", "--servers", addresses],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def lone_store(place: Path, n: int) -> None:
    """Make the data directory of an unrelated server, with keys."""
    other = ServerProcess(place, "alone", f"tcp://127.0.0.1:{free_port()}", None).start()
    try:
        fill([other.address], n, start=1000)
    finally:
        other.kill()


def test_two_primaries_of_one_pair_end_with_exit_code_2(tmp_path: Path, pair: ProcessPair) -> None:
    """In 0.1 both served, and after the repair they were `in sync` although all five keys differed."""
    wrong = [
        ServerProcess(tmp_path / name, "primary", server.address, other.address, *FLAGS)
        for name, server, other in (("a", *pair.both), ("b", *pair.both[::-1]))
    ]
    for server in wrong:
        server.log.parent.mkdir()
        server.start()
    try:
        for server in wrong:
            assert end_code(server) == 2
            assert "both servers are --primary; start one of them as the other" in server.log.read_text()
    finally:
        for server in wrong:
            server.kill()
    for server in pair.both:
        server.start()
    pair.wait_in_sync()


def test_a_second_primary_does_not_end_the_primary_that_serves(tmp_path: Path, pair: ProcessPair) -> None:
    with pair:
        fill(pair.servers, 5)
        pair.backup.kill()
        wrong = ServerProcess(tmp_path / "wrong", "primary", pair.backup.address, pair.primary.address, *FLAGS)
        wrong.log.parent.mkdir()
        wrong.start()
        try:
            assert end_code(wrong) == 2
        finally:
            wrong.kill()
        assert state(pair.primary) == "active" and held(pair.servers) == numbers(5)
        assert "role peer" in pair.primary.log.read_text()


def test_a_server_with_the_data_directory_of_another_pair_does_not_serve(tmp_path: Path, pair: ProcessPair) -> None:
    """In 0.1 sets were acknowledged as `replicated`, while 20 of 31 keys differed."""
    (tmp_path / "other").mkdir()
    lone_store(tmp_path / "other", 20)
    with pair:
        fill(pair.servers, 10)
        pair.backup.kill()
        shutil.rmtree(pair.backup.data)
        shutil.copytree(tmp_path / "other" / "alone", pair.backup.data)
        pair.backup.start()
        serves_nobody_for_a_while(pair.backup)
        with Clone(pair.servers) as clone:
            assert clone.set("/new", b"1").wait(WAIT_S).durability == "journaled"
        assert held(pair.servers) == {**numbers(10), "/new": b"1"}
        ours, theirs = (server.status() for server in pair.both)
        assert ours and theirs and ours["store"] != theirs["store"]
        for said, other in ((ours, theirs), (theirs, ours)):
            assert said["misfit"]["kind"] == "foreign" and said["misfit"]["store"] == other["store"]
        code, text = status_of(*pair.both)
        assert code == 1 and ours["store"] in text and theirs["store"] in text and "empty data directory" in text
        pair.backup.kill()
        shutil.rmtree(pair.backup.data)  # the remedy
        pair.backup.start()
        pair.wait_in_sync()
        assert status_of(*pair.both)[0] == 0


@pytest.mark.parametrize("later", [40, 3])
def test_a_primary_with_an_empty_disk_waits_for_its_peer(later: int, pair: ProcessPair) -> None:
    """In 0.1 the server with the new disk took sets; then 80 keys differed, or the backup ended with exit code 4."""
    with pair:
        fill(pair.servers, 40 - later)
        for server in pair.both:
            server.kill()
        shutil.rmtree(pair.primary.data)
        pair.primary.start()
        serves_nobody_for_a_while(pair.primary)
        said = pair.primary.status()
        assert said and "--bootstrap" in said["waits_for"]
        code, text = status_of(pair.primary)
        assert code == 2 and "--bootstrap" in text
        assert "--bootstrap" in pair.primary.log.read_text()
        pair.backup.start()
        pair.wait_in_sync()
        fill(pair.servers, later, start=40 - later)
        pair.wait_in_sync()
        assert held(pair.servers) == numbers(40)


def test_a_server_in_memory_waits_for_its_peer_with_a_journal(tmp_path: Path) -> None:
    """In 0.1 the other server ended with exit code 4, `row 1.3 does not follow 1.41`."""
    pair = ProcessPair(tmp_path, *FLAGS)
    pair.primary = ServerProcess(
        tmp_path, "primary", pair.primary.address, pair.backup.address, "--store", "memory:", *FLAGS
    )
    pair.both = (pair.primary, pair.backup)
    with pair:
        fill(pair.servers, 40)
        for server in pair.both:
            server.kill()
        pair.primary.start()
        serves_nobody_for_a_while(pair.primary)
        pair.backup.start()
        pair.wait_in_sync()
        assert held(pair.servers) == numbers(40)
        assert all(server.process is not None and server.process.poll() is None for server in pair.both)


def test_a_staging_server_from_a_backup_is_no_peer_of_production(tmp_path: Path, pair: ProcessPair) -> None:
    """In 0.1 the staging server had production's store id, so its updates would have been replayed into production."""
    with pair:
        fill(pair.servers, 10)
        backup = tmp_path / "backup.db"
        asked = [sys.executable, "-m", "chp_client.cli", "backup", "--servers", ",".join(pair.servers)]
        assert subprocess.run(asked, timeout=WAIT_S, check=False).returncode == 0
        (written,) = [f for server in pair.both for f in server.data.rglob("backup-*.db")]
        shutil.copy(written, backup)
        pair.backup.kill()
        staging = ServerProcess(tmp_path / "s", "backup", pair.backup.address, pair.primary.address, *FLAGS)
        staging.data.mkdir(parents=True)
        shutil.copy(backup, staging.data / "journal.sqlite")
        staging.start()
        try:
            serves_nobody_for_a_while(staging)
            said = staging.status()
            assert said and said["misfit"]["kind"] == "foreign"
        finally:
            staging.kill()
        assert state(pair.primary) == "active" and held(pair.servers) == numbers(10)


def test_an_empty_server_of_a_pair_begins_alone_only_with_bootstrap(tmp_path: Path, pair: ProcessPair) -> None:
    pair.primary.start()
    serves_nobody_for_a_while(pair.primary)
    pair.primary.kill()
    told = ServerProcess(tmp_path, "primary", pair.primary.address, pair.backup.address, "--bootstrap", *FLAGS).start()
    try:
        until(lambda: state(told) == "active", "it to serve")
    finally:
        told.kill()
    # The server has a store now, so it may serve alone.
    pair.primary.start()
    until(lambda: state(pair.primary) == "active", "it to serve")


def test_servers_report_settings_that_differ_between_them(tmp_path: Path) -> None:
    pair = ProcessPair(tmp_path, *FLAGS)
    pair.backup = ServerProcess(
        tmp_path, "backup", pair.backup.address, pair.primary.address, "--replica-timeout-s", "7", *FLAGS
    )
    pair.both = (pair.primary, pair.backup)
    with pair:
        said = pair.primary.status()
        assert said and said["peer"]["settings_differ"]["replica_timeout_s"] == [2.0, 7.0]
        assert "settings differ" in pair.primary.log.read_text()
        assert "7.0 here, 2.0 there" in pair.backup.log.read_text()
