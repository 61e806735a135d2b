"""Tools of an operator for a journal: verify, back up, restore. A server may use the journal that is read.

    verify(url)         reads everything as a start would, changes nothing
    backup(url, path)   one SQLite file with the whole journal as of one moment, verified
    restore(path, url)  into an empty place only: what is there is never overwritten

A backup is itself a journal (`sqlite:PATH` opens it), whatever store it came from.
"""

import os
from pathlib import Path
from typing import Any

from ..core.state.journal import JournalDamaged, JournalError, Options, Report
from ..store.sql.sql_journal import SqlJournal
from ..store.sql.sqlite import SqliteDatabase, write_file
from ..store.sql.sqlite_files import database_path, sync_directory
from ..store.store_url import look_at, postgres_journal


def verify(url: str) -> Report:
    """Read the journal at `url` and report what is wrong with it; the journal may be in use."""
    report = Report(url)
    try:
        journal = look_at(url)
    except JournalError as error:
        report.problems.append(str(error))
        report.read = isinstance(error, JournalDamaged)
        return report
    try:
        if isinstance(journal.database, SqliteDatabase):
            report.problems += journal.database.problems()
        book, problems = journal.examine()
        report.problems += problems
        report.store_id = journal.store_id.hex()
        report.snapshot_number, report.snapshot_bytes = book.snapshot_number, book.snapshot_bytes
        report.rows, report.bytes, report.number = book.rows, book.row_bytes, book.last
    except JournalError as error:
        report.problems.append(str(error))
    finally:
        journal.close()
    return report


def backup(url: str, path: str) -> Report:
    """Write the present journal at `url` to the file `path`, and return the report of the copy."""
    target = Path(path)
    if target.exists():
        raise JournalError(f"{path} exists; a backup never overwrites: name another file")
    part = Path(f"{path}.part")
    part.unlink(missing_ok=True)
    journal = look_at(url)
    try:
        _copy(journal, part)
    finally:
        journal.close()
    os.replace(part, target)
    sync_directory(target)
    return verify(f"sqlite:{path}")


def restore(path: str, url: str) -> Report:
    """Restore the backup `path` to the empty place `url`, and return the report of the result."""
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


def _copy(journal: SqlJournal[Any], part: Path) -> None:
    if isinstance(journal.database, SqliteDatabase):
        journal.database.copy_to(part)
    else:
        write_file(part, journal.everything())


def _restore_postgres(path: str, url: str) -> None:
    journal = postgres_journal(url, Options())
    try:
        loaded = journal.load()
        if loaded.number or loaded.rows_aside:
            raise JournalError(f"{url} is not empty; use another ?schema=: restoring never overwrites")
        source = look_at(f"sqlite:{path}")
        try:
            journal.replace_all(source.everything())
        finally:
            source.close()
    finally:
        journal.close()
