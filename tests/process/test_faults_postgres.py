"""Tests of a database that dies, stops, cuts off, stalls or is full: the server whose journal it has ends or pauses.

The primary's journal is in PostgreSQL and the backup's in a file, so one of them can always serve.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.core.state.journal import JournalDamaged, JournalError
from chp_server.core.state.record_log import LoggedRow
from chp_server.exits import Exit
from chp_server.store.store_url import open_journal
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .faults import Load, both_kept_all, ended, wait_active
from .postgres import Postgres, private

pytestmark = pytest.mark.slow
EPOCH, MIB = 1 << 48, 1 << 20
SILENT = "&silent_s=2&connect_timeout=2"


@pytest.fixture(scope="module")
def running() -> Iterator[Postgres]:
    with private(Postgres) as made:
        yield made


@pytest.fixture
def database(running: Postgres) -> Iterator[Postgres]:
    """Return a database that answers and holds no journal."""
    yield running
    running.go_on()
    if not running.answers():
        running.start()
    running.run("DROP SCHEMA IF EXISTS chp CASCADE")


def pair_of(tmp_path: Path, database: Postgres, more: str = "") -> ProcessPair:
    """Return a pair whose primary keeps its journal in the database. It is not started yet."""
    pair = ProcessPair(tmp_path)
    pair.primary.environ["CHP_SERVER_STORE"] = database.url("chp") + more
    return pair


def primary_serves(pair: ProcessPair) -> None:
    """Make the primary the active one."""
    active = pair.active()
    if active is pair.backup:
        pair.backup.kill()
        wait_active(pair.primary)
        pair.backup.start()
        pair.wait_in_sync()


def ended_with_a_line(pair: ProcessPair, why: str) -> None:
    """Check that the primary ended by itself, and that its log has no defect and ends with reason and remedy."""
    assert ended(pair.primary) == Exit.DATA_NOT_WRITABLE
    log = pair.primary.log.read_text()
    assert "defect" not in log and "Traceback" not in log
    last = log.splitlines()[-1]
    assert why in last and "look at the database" in last and "exit=4" in last


FAULTS: dict[str, Callable[[Postgres], None]] = {
    "killed": Postgres.kill,
    "stopped": Postgres.stop,
    "cut-off": Postgres.cut_off,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_whose_database_goes_away_ends_and_the_other_takes_over(
    tmp_path: Path, database: Postgres, fault: str
) -> None:
    with pair_of(tmp_path, database) as pair, Load(pair.servers, 3) as load:
        primary_serves(pair)
        load.go_on(10)
        FAULTS[fault](database)
        ended_with_a_line(pair, "start this server again")
        load.go_on()
        if fault != "cut-off":
            # The database is not back yet, so the server can't start.
            pair.primary.start()
            assert ended(pair.primary) == Exit.DATA_NOT_WRITABLE
            database.start()
        pair.primary.start()
        pair.wait_in_sync()
        load.go_on()
        both_kept_all(pair, load)


def test_a_status_request_ends_an_idle_server_without_its_database(tmp_path: Path, database: Postgres) -> None:
    with pair_of(tmp_path, database) as pair:
        primary_serves(pair)
        database.cut_off()
        pair.primary.status()
        ended_with_a_line(pair, "start this server again")


def test_the_peer_takes_over_while_the_database_of_a_server_stalls(tmp_path: Path, database: Postgres) -> None:
    with pair_of(tmp_path, database) as pair, Load(pair.servers, 3) as load:
        primary_serves(pair)
        load.go_on(10)
        database.pause()
        load.go_on()
        assert wait_active(pair.backup)["state"] == "active"
        database.go_on()
        pair.wait_in_sync()
        assert pair.primary.process is not None and pair.primary.process.poll() is None
        assert pair.active() is pair.backup
        load.go_on()
        both_kept_all(pair, load)


def test_a_database_that_stays_silent_ends_the_server(tmp_path: Path, database: Postgres) -> None:
    with pair_of(tmp_path, database, SILENT) as pair, Load(pair.servers, 3) as load:
        primary_serves(pair)
        load.go_on(10)
        database.pause()
        ended_with_a_line(pair, "no answer from the database for 2 s")
        load.go_on()
        pair.primary.start()
        ended_with_a_line(pair, "can't start")
        database.go_on()
        pair.primary.start()
        pair.wait_in_sync()
        both_kept_all(pair, load)


@pytest.mark.parametrize("size", [100, 40 * MIB], ids=["small", "large"])
def test_a_journal_gives_up_on_a_silent_database(database: Postgres, size: int) -> None:
    """A large row stalls in the middle of being sent, a small one waits for the answer."""
    with closing(open_journal(database.url("chp") + SILENT)) as journal:
        journal.load()
        journal.append([LoggedRow(EPOCH | 1, EPOCH | 1, b"kept")])
        journal.sync()
        journal.append([LoggedRow(EPOCH | 2, EPOCH | 2, bytes(size))])
        database.pause()
        with pytest.raises(JournalError, match="no answer from the database for 2 s"):
            journal.sync()
        with pytest.raises(JournalError, match="restart the server"):
            journal.append([LoggedRow(EPOCH | 2, EPOCH | 2, b"")])
    database.go_on()
    with closing(open_journal(database.url("chp"))) as journal:
        assert [row.body for row in journal.load().rows][:1] == [b"kept"]


@pytest.fixture
def small(database: Postgres) -> Iterator[Path]:
    """Mount a small file system, where the database puts new tables."""
    place = database.directory / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        database.own(place)
        database.run(f"CREATE TABLESPACE small LOCATION '{place}'")
        database.run("ALTER ROLE postgres SET default_tablespace TO small")
        yield place
    finally:
        database.run("ALTER ROLE postgres RESET default_tablespace")
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_the_peer_serves_while_the_database_of_a_server_is_full(
    tmp_path: Path, database: Postgres, small: Path
) -> None:
    with pair_of(tmp_path, database) as pair, Load(pair.servers, 1) as load:
        primary_serves(pair)
        with Clone(pair.servers, None) as clone:
            for i in range(100):
                clone.set(f"/large/{i % 4}", bytes(100_000)).wait(WAIT_S)
                if "no room" in pair.primary.log.read_text():
                    break
        until(lambda: (pair.backup.status() or {}).get("state") == "active", "the other one to serve")
        assert "no room" in pair.primary.log.read_text()
        load.go_on()
        assert subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=False).returncode == 0
        pair.wait_in_sync()
        both_kept_all(pair, load)


def test_a_journal_refuses_a_database_put_back_to_an_earlier_state(tmp_path: Path, database: Postgres) -> None:
    """The mark in the data directory knows how far the journal had been."""

    def opened(**options: str) -> int:
        with closing(open_journal(database.url("chp"), beside=tmp_path, **options)) as journal:
            found = journal.load()
            if not found.number:
                journal.append([LoggedRow(EPOCH | 1, EPOCH | 1, b"kept"), LoggedRow(EPOCH | 2, EPOCH | 2, b"lost")])
                journal.sync()
            return found.number

    opened()
    assert opened() == EPOCH | 2
    database.run(f"DELETE FROM chp.rows WHERE first > {EPOCH | 1}")
    with pytest.raises(JournalDamaged, match=r"ends at 1\.1, and its mark says that it had been at 1\.2"):
        opened()
    assert opened(recover="prefix") == EPOCH | 1
    assert opened() == EPOCH | 1, "what was accepted once is not asked again"
    (mark,) = tmp_path.glob("postgresql-*.mark")
    mark.write_bytes(b"?")
    with pytest.raises(JournalDamaged, match="is damaged"):
        opened()
