"""Tests of a damaged SQLite journal or a failing disk: one for each way, named as the rule that it tests."""

import os
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chp_server.core.state.journal import (
    Journal,
    JournalDamaged,
    JournalError,
    JournalFull,
    JournalLocked,
    JournalReadOnly,
    RetainedDamaged,
    WrongStore,
)
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.sql.journal_mark import MarkFile, read_mark
from chp_server.store.store_url import open_journal
from chp_server.tools.journal_tools import verify

EPOCH = 1 << 48
BODY = 5000


def row(n: int) -> LoggedRow:
    """Return the row of sequence `n`. A test can search the file for its body."""
    return LoggedRow(EPOCH | n, EPOCH | n, b"body %06d " % n + bytes(BODY))


def filled(place: Path, rows: int = 20, snapshot_at: int = 0, **options: Any) -> Path:
    """Make a closed journal of so many rows, and return its file."""
    journal = open_journal(f"sqlite:{place}", **options)
    journal.load()
    for n in range(1, rows + 1):
        journal.append([row(n)])
        journal.sync()
        if n == snapshot_at:
            journal.begin_snapshot(EPOCH | n)
            journal.put_snapshot(b"chunk one " + bytes(BODY))
            journal.put_snapshot(b"chunk two " + bytes(BODY))
            journal.commit_snapshot(0)
    journal.close()
    return place / "journal.sqlite"


def crashed(place: Path, rows: int) -> Path:
    """Make the journal of a killed process. All its rows are synced, and SQLite's log (-wal) still has them."""
    code = (
        "import os, sys; from tests.damage.test_sqlite_damage import *;"
        " j = open_journal('sqlite:' + sys.argv[1]); j.load();"
        " [(j.append([row(n)]), j.sync()) for n in range(1, int(sys.argv[2]) + 1)]; os._exit(0)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(place), str(rows)], check=True, cwd=root, timeout=60)
    return place / "journal.sqlite"


def marked(file: Path, n: int) -> None:
    """Put the mark back to row `n`, as if the process had died in a commit, before it moved the mark."""
    found = read_mark(file)
    assert found is not None
    MarkFile(file, found.store, "always", EPOCH | n).close()


def flip(file: Path, needle: bytes, offset: int = 100) -> None:
    """Flip one bit, `offset` bytes after the first occurrence of `needle`."""
    data = bytearray(file.read_bytes())
    at = data.index(needle)
    data[at + offset] ^= 0x10
    file.write_bytes(data)


def edit(file: Path, sql: str) -> None:
    """Change the file as a program that knows nothing of checksums would."""
    db = sqlite3.connect(file)
    db.execute(sql)
    db.commit()
    db.close()


def load(place: Path, **options: Any) -> tuple[int, list[int], str, Journal]:
    """Load a journal. Return the number of rows set aside, the sequences of its rows, the report, and the journal."""
    journal = open_journal(f"sqlite:{place}", **options)
    try:
        loaded = journal.load()
        list(loaded.snapshot)
        return loaded.rows_aside, [r.first & 0xFFFF for r in loaded.rows], loaded.report, journal
    finally:
        journal.close()


def refused(place: Path, match: str) -> JournalDamaged:
    """Check that a strict start is refused twice and that `verify` agrees, and return the error."""
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=match):
            load(place)
    report = verify(f"sqlite:{place}")
    assert not report.ok, report.line()
    with pytest.raises(JournalDamaged) as caught:
        load(place)
    return caught.value


def test_a_flipped_row_is_refused_with_its_place(tmp_path: Path) -> None:
    flip(filled(tmp_path), b"body 000013 ")
    error = refused(tmp_path, "checksum")
    assert error.place == f"row id {EPOCH | 13}, numbers 1.13..1.13"
    assert "--recover prefix" in str(error)


def test_prefix_keeps_rows_before_a_flipped_row_and_moves_the_rest_aside(tmp_path: Path) -> None:
    file = filled(tmp_path)
    flip(file, b"body 000013 ")
    damaged = file.read_bytes()
    aside, rows, report, _ = load(tmp_path, recover="prefix")
    assert (aside, rows) == (8, list(range(1, 13)))
    assert "8 rows set aside" in report and "1.13" in report
    assert b"body 000020" in (tmp_path / "journal.sqlite.damaged-1").read_bytes()
    assert len((tmp_path / "journal.sqlite.damaged-1").read_bytes()) == len(damaged)
    assert load(tmp_path)[1] == list(range(1, 13)), "a strict start is fine afterwards"
    assert verify(f"sqlite:{tmp_path}").ok


def test_a_journal_takes_new_rows_after_recover_prefix(tmp_path: Path) -> None:
    flip(filled(tmp_path), b"body 000013 ")
    journal = open_journal(f"sqlite:{tmp_path}", recover="prefix")
    assert journal.load().number == EPOCH | 12
    journal.append([LoggedRow(2 * EPOCH | 13, 2 * EPOCH | 13, b"new")])
    journal.sync()
    journal.close()
    assert load(tmp_path)[1] == [*range(1, 13), 13]


def test_epochs_that_were_set_aside_are_remembered(tmp_path: Path) -> None:
    """`prefix` sets aside all rows from the first damaged one on. Later starts still know the epochs of those rows."""
    journal = open_journal(f"sqlite:{tmp_path}")
    assert journal.load().seen_epoch == 0
    for n in range(1, 10):
        number = min(5, max(1, n - 3)) * EPOCH | n
        journal.append([LoggedRow(number, number, row(n).body)])
    journal.sync()
    journal.close()
    edit(tmp_path / "journal.sqlite", f"UPDATE rows SET body = x'00' WHERE first IN ({EPOCH | 3}, {5 * EPOCH | 9})")
    for recover in ("prefix", "strict", "strict"):
        journal = open_journal(f"sqlite:{tmp_path}", recover=recover)
        loaded = journal.load()
        journal.close()
        assert (loaded.number, loaded.seen_epoch) == (EPOCH | 2, 7)


def test_epochs_set_aside_are_remembered_if_the_meta_table_takes_no_insert(tmp_path: Path) -> None:
    """The list of free space in the index of meta values is damaged. Only an insert finds that."""
    file = filled(tmp_path)
    db = sqlite3.connect(file)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_meta_1'").fetchone()
    db.close()
    with open(file, "r+b") as damaged:
        damaged.seek((page - 1) * 16384 + 1)
        damaged.write(b"\xff\xf0")
    flip(file, b"body 000013 ")
    db = sqlite3.connect(file)
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        db.execute("INSERT INTO meta VALUES ('new', x'', 0)")
    db.close()
    journal = open_journal(f"sqlite:{tmp_path}", recover="prefix")
    assert journal.load().seen_epoch == 3
    journal.close()
    journal = open_journal(f"sqlite:{tmp_path}")
    loaded = journal.load()
    journal.close()
    assert (loaded.number, loaded.seen_epoch) == (EPOCH | 12, 3)


def test_a_row_whose_numbers_were_changed_is_refused(tmp_path: Path) -> None:
    edit(filled(tmp_path), f"UPDATE rows SET last = {EPOCH | 14} WHERE first = {EPOCH | 13}")
    refused(tmp_path, "checksum")


def test_a_row_of_another_type_is_refused(tmp_path: Path) -> None:
    edit(filled(tmp_path), f"UPDATE rows SET body = 'text' WHERE first = {EPOCH | 13}")
    refused(tmp_path, "not numbers and bytes")


def test_a_row_that_is_missing_is_noticed(tmp_path: Path) -> None:
    edit(filled(tmp_path), f"DELETE FROM rows WHERE first = {EPOCH | 13}")
    error = refused(tmp_path, "rows are missing")
    assert "1.14" in error.place
    assert load(tmp_path, recover="prefix")[1] == list(range(1, 13))


def test_a_journal_loads_with_a_damaged_row_before_its_snapshot(tmp_path: Path) -> None:
    """A start does not read such a row. A reader gets the rows around it; `prefix` sets it aside."""
    flip(filled(tmp_path, snapshot_at=10), b"body 000005 ")
    assert load(tmp_path)[:2] == (0, list(range(11, 21)))
    assert not verify(f"sqlite:{tmp_path}").ok
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    assert [r.first for r in journal.read_after(0, 1 << 20) or []] == [EPOCH | n for n in range(1, 5)]
    with pytest.raises(RetainedDamaged, match=r"checksum.*no data are lost"):
        journal.read_after(EPOCH | 4, 1 << 20)
    assert journal.read_after(EPOCH | 3, 1 << 20) is None and journal.oldest() == (EPOCH | 5, False)
    assert len(journal.read_after(EPOCH | 5, 1 << 20) or []) == 15
    shutil.copytree(tmp_path, tmp_path / "copy")
    journal.sync()
    journal.sync()
    assert journal.stats()["rows"] == 15, "what can't be read is deleted"
    journal.close()
    aside, rows, _, _ = load(tmp_path / "copy", recover="prefix")
    assert (aside, rows) == (10, list(range(11, 21)))


def test_a_journal_loads_with_a_row_of_another_type_before_its_snapshot(tmp_path: Path) -> None:
    edit(filled(tmp_path, snapshot_at=10), f"UPDATE rows SET last = 'text' WHERE first = {EPOCH | 10}")
    journal = open_journal(f"sqlite:{tmp_path}")
    assert len(list(journal.load().rows)) == 10
    with pytest.raises(RetainedDamaged, match="not numbers"):
        journal.read_after(EPOCH | 10, 1 << 20)
    assert journal.oldest() == (EPOCH | 10, False) and len(journal.read_after(EPOCH | 10, 1 << 20) or []) == 10
    journal.close()


def test_a_journal_loads_with_a_missing_row_before_its_snapshot(tmp_path: Path) -> None:
    edit(filled(tmp_path, snapshot_at=10), f"DELETE FROM rows WHERE first = {EPOCH | 5}")
    journal = open_journal(f"sqlite:{tmp_path}")
    assert len(list(journal.load().rows)) == 10
    assert [r.first for r in journal.read_after(0, 1 << 20) or []] == [EPOCH | n for n in range(1, 5)]
    with pytest.raises(RetainedDamaged, match="missing"):
        journal.read_after(EPOCH | 4, 1 << 20)
    assert journal.oldest() == (EPOCH | 5, False) and len(journal.read_after(EPOCH | 5, 1 << 20) or []) == 15
    journal.close()


def test_a_read_fails_at_a_damaged_row_after_the_snapshot(tmp_path: Path) -> None:
    """The file was damaged after the start."""
    journal = open_journal(f"sqlite:{filled(tmp_path, snapshot_at=10).parent}")
    journal.load()
    journal.close()
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    edit(tmp_path / "journal.sqlite", f"UPDATE rows SET body = x'00' WHERE first = {EPOCH | 15}")
    with pytest.raises(JournalDamaged, match=r"checksum.*restore a backup"):
        journal.read_after(EPOCH | 14, 1 << 20)
    journal.close()


def test_strict_and_prefix_refuse_a_flipped_snapshot(tmp_path: Path) -> None:
    flip(filled(tmp_path, snapshot_at=10), b"chunk two ")
    assert "chunk 1" in refused(tmp_path, "checksum").place
    with pytest.raises(JournalDamaged, match="snapshot can't be kept in part"):
        load(tmp_path, recover="prefix")


def test_a_snapshot_with_a_chunk_missing_is_refused(tmp_path: Path) -> None:
    edit(filled(tmp_path, snapshot_at=10), "DELETE FROM chunks WHERE id & 4294967295 = 1")
    refused(tmp_path, "missing, of 2")


def test_a_changed_meta_value_is_refused(tmp_path: Path) -> None:
    edit(filled(tmp_path, snapshot_at=10), "UPDATE meta SET value = zeroblob(40) WHERE key = 'chp.book'")
    refused(tmp_path, "meta value 'chp.book'")


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
def test_a_truncated_file_is_refused_and_prefix_keeps_the_readable_rows(tmp_path: Path, share: float) -> None:
    file = filled(tmp_path, rows=200)
    os.truncate(file, int(file.stat().st_size * share) // 16384 * 16384)
    refused(tmp_path, "malformed|missing|disk image")
    try:
        _, rows, report, _ = load(tmp_path, recover="prefix")
    except JournalDamaged as error:
        assert "restore a backup" in str(error)
        return
    assert rows == list(range(1, len(rows) + 1)) and len(rows) < 200
    assert "set aside" in report
    assert load(tmp_path)[1] == rows


def test_a_file_of_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"garbage " * 10_000)
    refused(tmp_path, "not a database")


def wal_frames(file: Path) -> tuple[Path, int, int]:
    """Return the path of the -wal file of `file`, the size of a frame in it, and the number of frames."""
    wal = Path(f"{file}-wal")
    size = 24 + struct.unpack(">I", wal.read_bytes()[8:12])[0]
    return wal, size, (wal.stat().st_size - 32) // size


def test_synced_rows_survive_a_kill(tmp_path: Path) -> None:
    crashed(tmp_path, 30)
    assert load(tmp_path)[1] == list(range(1, 31))


def test_a_torn_last_transaction_of_the_log_is_dropped(tmp_path: Path) -> None:
    wal, size, frames = wal_frames(crashed(tmp_path, 30))
    os.truncate(wal, 32 + (frames - 1) * size + 300)
    marked(tmp_path / "journal.sqlite", 29)
    assert load(tmp_path)[1] == list(range(1, 30))


def test_an_unsynced_last_transaction_is_dropped_and_reported(tmp_path: Path) -> None:
    file = crashed(tmp_path, 30)
    flip(Path(f"{file}-wal"), b"body 000030 ")
    marked(file, 29)
    _, rows, report, _ = load(tmp_path)
    assert rows == list(range(1, 30))
    assert "unfinished transaction" in report


def test_a_log_damaged_before_its_end_is_refused(tmp_path: Path) -> None:
    file = crashed(tmp_path, 30)
    flip(Path(f"{file}-wal"), b"body 000012 ")
    before = Path(f"{file}-wal").read_bytes()
    error = refused(tmp_path, "synced transactions behind it")
    assert "log frame" in error.place
    assert Path(f"{file}-wal").read_bytes() == before, "refusing leaves it as it was"
    _, rows, report, _ = load(tmp_path, recover="prefix")
    assert rows == list(range(1, 12))
    assert "damaged-1-wal" in report
    assert (tmp_path / "journal.sqlite.damaged-1-wal").read_bytes() == before


def test_a_log_whose_header_is_damaged_is_refused(tmp_path: Path) -> None:
    file = crashed(tmp_path, 30)
    with open(f"{file}-wal", "r+b") as wal:
        wal.seek(17)
        wal.write(b"\x99")
    refused(tmp_path, "synced transactions behind it")


def test_another_store_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    with pytest.raises(WrongStore, match="point the server at its own"):
        open_journal(f"sqlite:{tmp_path}/a", store_id=bytes(16))


def test_a_row_of_another_store_is_refused(tmp_path: Path) -> None:
    ours, theirs = filled(tmp_path / "a"), filled(tmp_path / "b")
    db = sqlite3.connect(ours)
    db.execute("ATTACH ? AS b", (str(theirs),))
    db.execute("INSERT OR REPLACE INTO rows SELECT * FROM b.rows WHERE first = ?", (EPOCH | 13,))
    db.commit()
    db.close()
    assert "1.13" in refused(tmp_path / "a", "checksum").place


def test_a_sqlite_file_of_another_program_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    before = (tmp_path / "journal.sqlite").read_bytes()
    with pytest.raises(WrongStore, match="not a journal of ours"):
        open_journal(f"sqlite:{tmp_path}")
    assert (tmp_path / "journal.sqlite").read_bytes() == before


def test_a_journal_in_use_is_refused_with_the_pid_of_its_process(tmp_path: Path) -> None:
    filled(tmp_path)
    code = (
        "import sys; from chp_server.store.store_url import open_journal;"
        " j = open_journal('sqlite:' + sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline() == b"open\n"
        with pytest.raises(JournalLocked, match=f"pid {other.pid}"):
            open_journal(f"sqlite:{tmp_path}")
        assert verify(f"sqlite:{tmp_path}").ok, "looking is allowed"
        other.kill()
    assert len(load(tmp_path)[1]) == 20, "the lock ends with its process"


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked child, which may give up rights for good. The test fails if the child does."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def let_others_in(place: Path) -> None:
    """Open pytest's directories for other users, because `give_up_root` changes to another user."""
    for parent in (place, *place.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and str(parent) != tempfile.gettempdir():
            parent.chmod(0o755)


def give_up_root() -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def test_a_file_that_is_read_only_is_refused_with_the_reason(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    place = tmp_path / "data"
    file = filled(place)
    place.chmod(0o777)
    (place / "journal.sqlite.lock").chmod(0o666)
    file.chmod(0o444)

    def work() -> None:
        give_up_root()
        with pytest.raises(JournalReadOnly, match="check rights"):
            load(place)

    in_child(work)
    # SQLite gives its -wal and -shm files the rights of the journal.
    for each in place.glob("journal.sqlite*"):
        each.chmod(0o644)
    assert len(load(place)[1]) == 20


def test_a_directory_that_is_read_only_is_refused_with_the_reason(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    # Root ignores these rights, so the test runs as another user.
    tmp_path.chmod(0o555)

    def work() -> None:
        give_up_root()
        with pytest.raises(JournalError, match="rights"):
            open_journal(f"sqlite:{tmp_path}/data")

    try:
        in_child(work)
    finally:
        tmp_path.chmod(0o755)


def fill_until_refused(journal: Journal) -> tuple[int, JournalError]:
    """Append until the disk refuses, and return the number of synced rows and the error."""
    for n in range(1, 100_000):
        try:
            journal.append([row(n)])
            journal.sync()
        except JournalError as error:
            return n - 1, error
    raise AssertionError("the disk never filled up")


def test_a_file_size_limit_is_an_error_and_loses_nothing_synced(tmp_path: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        journal = open_journal(f"sqlite:{tmp_path}")
        journal.load()
        synced, error = fill_until_refused(journal)
        assert str(tmp_path) in str(error)
        (tmp_path / "synced").write_text(str(synced))

    in_child(work)
    synced = int((tmp_path / "synced").read_text())
    assert synced > 10
    assert load(tmp_path)[1] == list(range(1, synced + 1))


def test_a_full_disk_is_an_error_and_service_goes_on_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        journal = open_journal(f"sqlite:{disk}")
        journal.load()
        synced, error = fill_until_refused(journal)
        assert synced > 10
        assert isinstance(error, JournalFull), str(error)
        assert journal.stats()["rows"] == synced and journal.stats()["number"] == EPOCH | synced
        with pytest.raises(JournalError):
            journal.begin_snapshot(EPOCH | synced)
            journal.put_snapshot(bytes(3 << 20))
            journal.commit_snapshot(0)
        ballast.unlink()
        journal.append([row(synced + 1)])
        journal.sync()
        assert [r.first & 0xFFFF for r in journal.load().rows] == list(range(1, synced + 2))
        journal.close()
        assert load(disk)[1] == list(range(1, synced + 2))
    finally:
        # The unmount is lazy, because a failed test may hold the disk open.
        subprocess.run(["umount", "-l", disk], check=True)
