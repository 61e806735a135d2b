"""Tests of what one commit of a SQLite journal does: its statements, its pages, and the log that it writes into.

covers: store/sql/sql_journal.py, sqlite.py and sqlite_files.py: the cost of a commit, `reserve_log`
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from chp_server.core.state.journal import JournalDamaged, Options
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.sql import sqlite_files
from chp_server.store.sql.sql_journal import SqlJournal
from chp_server.store.sql.sqlite import LOG_BYTES, SqliteDatabase
from chp_server.store.sql.sqlite_files import PAGE
from chp_server.store.store_url import open_journal

EPOCH = 1 << 48
FRAME = PAGE + 24


def opened(place: Path, **options: Any) -> SqlJournal[SqliteDatabase]:
    """Return a journal that is loaded, in the directory `place`."""
    journal = open_journal(f"sqlite:{place}", **options)
    assert isinstance(journal, SqlJournal)
    journal.load()
    return journal


def commit(journal: SqlJournal[SqliteDatabase], n: int, body: bytes = b"body") -> None:
    """Commit the row of sequence `n`."""
    journal.append([LoggedRow(EPOCH | n, EPOCH | n, body)])
    journal.sync()


def log_of(place: Path) -> Path:
    """Return the log of the journal in `place`."""
    return place / "journal.sqlite-wal"


def statements(journal: SqlJournal[SqliteDatabase], n: int) -> list[str]:
    """Return the statements of the commit of row `n`, the first word of each."""
    said: list[str] = []
    journal.database.db.set_trace_callback(lambda text: said.append(text.split()[0]))
    commit(journal, n)
    journal.database.db.set_trace_callback(None)
    return said


def test_a_commit_of_a_record_is_three_statements_and_one_page(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    commit(journal, 1)
    before = log_of(tmp_path).stat().st_size
    assert statements(journal, 2) == ["BEGIN", "INSERT", "COMMIT"]
    assert log_of(tmp_path).stat().st_size == before + FRAME
    journal.close()


def test_a_commit_sets_the_sync_pragma_only_when_it_changes(tmp_path: Path) -> None:
    journal = opened(tmp_path, sync="off")
    commit(journal, 1)
    assert statements(journal, 2) == ["BEGIN", "INSERT", "COMMIT"]
    # A small value is saved durably.
    journal.save({"key": b"value"})
    assert statements(journal, 3)[0] == "PRAGMA"
    journal.close()


def test_a_commit_looks_for_free_pages_only_after_a_delete(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for n in (1, 2, 3):
        commit(journal, n)
    assert "PRAGMA" not in statements(journal, 4)
    journal.drop_after(EPOCH | 2)
    assert "PRAGMA" in statements(journal, 3)
    assert "PRAGMA" not in statements(journal, 4)
    journal.close()


def test_no_commit_makes_a_reserved_log_longer(tmp_path: Path) -> None:
    journal = opened(tmp_path, reserve_log=True)
    assert log_of(tmp_path).stat().st_size == LOG_BYTES
    # These are more pages than the log has, so it begins anew.
    for n in range(1, 40):
        commit(journal, n, os.urandom(20 * PAGE))
    assert LOG_BYTES <= log_of(tmp_path).stat().st_size < LOG_BYTES + 25 * FRAME
    journal.close()
    assert not log_of(tmp_path).exists()


@pytest.mark.parametrize("commits", [0, 1, 30])
def test_a_reserved_log_survives_a_kill(tmp_path: Path, commits: int) -> None:
    """A copy of the files is what a killed process leaves."""
    journal = opened(tmp_path / "a", reserve_log=True)
    for n in range(1, commits + 1):
        commit(journal, n)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    journal.close()
    again = opened(tmp_path / "b", reserve_log=True)
    loaded = again.load()
    assert [row.last for row in loaded.rows] == [EPOCH | n for n in range(1, commits + 1)]
    assert "unfinished" not in loaded.report
    again.close()


def test_a_reserved_log_without_a_commit_loads_as_empty(tmp_path: Path) -> None:
    opened(tmp_path).close()
    journal = SqliteDatabase(f"sqlite:{tmp_path}", Options(reserve_log=True))
    shutil.copytree(tmp_path, tmp_path / "b")
    journal.close()
    again = opened(tmp_path / "b")
    assert again.load().report.endswith(": empty")
    again.close()


@pytest.mark.parametrize("header", [True, False])
def test_damage_in_a_reserved_log_is_found(tmp_path: Path, header: bool) -> None:
    journal = opened(tmp_path / "a", reserve_log=True)
    for n in range(1, 31):
        commit(journal, n, b"body %06d " % n)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    journal.close()
    log = log_of(tmp_path / "b")
    data = bytearray(log.read_bytes())
    if header:
        data[:32] = bytes(32)
    else:
        data[data.index(b"body 000012 ")] ^= 1
    log.write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"synced transactions behind it|what came after is missing"):
        opened(tmp_path / "b")


def test_nothing_is_reserved_on_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "RESERVED_OF", 1 << 40)
    journal = opened(tmp_path, reserve_log=True)
    assert log_of(tmp_path).stat().st_size < LOG_BYTES
    journal.close()
