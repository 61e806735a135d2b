"""Tests of a damaged PostgreSQL journal, which follows the rules of SQLite, with a side table for discarded rows."""

import pytest

from chp_server.core.state.journal import Journal, JournalDamaged, JournalError
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.store_url import open_journal
from chp_server.tools.journal_tools import verify

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
EPOCH = 1 << 48


def filled(postgres: str, schema: str) -> str:
    """Make a closed journal of 20 rows, and return its URL."""
    url = f"{postgres}{'&' if '?' in postgres else '?'}schema={schema}"
    journal = open_journal(url)
    journal.load()
    journal.append([LoggedRow(EPOCH | n, EPOCH | n, b"body %d" % n) for n in range(1, 21)])
    journal.sync()
    journal.close()
    return url


def found(url: str, recover: str = "strict") -> tuple[int, list[int]]:
    journal = open_journal(url, recover=recover)
    try:
        loaded = journal.load()
        return loaded.rows_aside, [r.first & 0xFFFF for r in loaded.rows]
    finally:
        journal.close()


def test_a_changed_row_is_refused_and_prefix_moves_the_rest_to_a_side_table(postgres: str) -> None:
    url = filled(postgres, "changed")
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("UPDATE changed.rows SET body = 'other' WHERE first = %s", (EPOCH | 13,))
        with pytest.raises(JournalDamaged, match=r"1\.13.*checksum"):
            found(url)
        assert not verify(url).ok
        assert found(url, "prefix") == (8, list(range(1, 13)))
        assert db.execute("SELECT count(*) FROM changed.aside").fetchone() == (8,)
    assert found(url) == (0, list(range(1, 13)))


def test_a_missing_row_is_noticed(postgres: str) -> None:
    url = filled(postgres, "missing")
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("DELETE FROM missing.rows WHERE first = %s", (EPOCH | 13,))
    with pytest.raises(JournalDamaged, match="rows are missing"):
        found(url)


def test_a_journal_fails_for_good_after_a_lost_connection(postgres: str) -> None:
    url = filled(postgres, "lost")
    journal: Journal = open_journal(url)
    journal.load()
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'chp-server'")
    journal.append([LoggedRow(EPOCH | 21, EPOCH | 21, b"")])
    for _ in range(2):
        with pytest.raises(JournalError):
            journal.sync()
    with pytest.raises(JournalError, match="restart the server"):
        journal.append([LoggedRow(EPOCH | 21, EPOCH | 21, b"")])
    journal.close()
    assert found(url) == (0, list(range(1, 21)))
