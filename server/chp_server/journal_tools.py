"""What an operator does with a journal from outside: verify it, back it up, restore it. All work on a live one.

    verify(url)         reads everything as a start would, changes nothing
    backup(url, path)   one SQLite file with the whole journal as of one moment, verified
    restore(path, url)  into an empty place only: what is there is never overwritten

A backup is itself a journal (`sqlite:PATH` opens it), whatever store it came from.
"""

import os
import sqlite3
from pathlib import Path

from .journal import JournalDamaged, JournalError, Options, Report
from .opening import look_at
from .sql_store import SqlStore
from .sqlite_files import database_path, sync_directory
from .sqlite_store import SqliteStore, create


def verify(url: str) -> Report:
    """Read the journal at `url` and say what is wrong with it, if anything; it may be in use."""
    report = Report(url)
    try:
        store = look_at(url)
    except JournalError as error:
        report.problems.append(str(error))
        report.read = isinstance(error, JournalDamaged)
        return report
    try:
        if isinstance(store, SqliteStore):
            report.problems += _structure(store)
        book, problems = store.examine()
        report.problems += problems
        report.store_id = store.store_id.hex()
        report.snapshot_number, report.snapshot_bytes = book.snapshot_number, book.snapshot_bytes
        report.rows, report.bytes, report.number = book.rows, book.row_bytes, book.last
    except JournalError as error:
        report.problems.append(str(error))
    finally:
        store.close()
    return report


def backup(url: str, path: str) -> Report:
    """Write the journal at `url`, as of now, to the file `path`; the report is that of the copy."""
    target = Path(path)
    if target.exists():
        raise JournalError(f"{path} exists; a backup never overwrites: name another file")
    part = Path(f"{path}.part")
    part.unlink(missing_ok=True)
    store = look_at(url)
    try:
        _copy(store, part)
    finally:
        store.close()
    os.replace(part, target)
    sync_directory(target)
    return verify(f"sqlite:{path}")


def restore(path: str, url: str) -> Report:
    """Bring the backup `path` to the empty place `url`; the report is that of what is there then."""
    found = verify(f"sqlite:{path}")
    if not found.ok:
        raise JournalError(f"{path} can't be restored: {found.line()}")
    if url.startswith("sqlite:"):
        target = database_path(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise JournalError(f"{target} exists; move it away first: restoring never overwrites")
        backup(f"sqlite:{path}", str(target))
    else:
        _restore_postgres(path, url)
    return verify(url)


def _structure(store: SqliteStore) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    try:
        found = [str(text) for (text,) in store.db.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as error:
        found = [str(error)]
    return [f"file structure: {text}" for text in found if text != "ok"]


def _copy(store: SqlStore, part: Path) -> None:
    if isinstance(store, SqliteStore):
        copy = sqlite3.connect(part)
        with store.errors():
            store.db.backup(copy)
    else:
        copy = create(part)
        copy.execute("BEGIN")
        for table, rows in store.everything():
            marks = ", ".join("?" * (6 if table == "rows" else 3))
            copy.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        copy.execute("COMMIT")
    copy.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
    copy.close()


def _restore_postgres(path: str, url: str) -> None:
    from .postgres_store import PostgresStore

    store = PostgresStore(url, Options())
    try:
        loaded = store.load()
        if loaded.number or loaded.rows_aside:
            raise JournalError(f"{url} is not empty; use another ?schema=: restoring never overwrites")
        source = SqliteStore(f"sqlite:{path}", Options(), writable=False)
        try:
            store.replace_all(source.everything())
        finally:
            source.close()
    finally:
        store.close()
