"""The stores of URLs: `memory:`, `sqlite:PATH` (a directory or a file) or `postgresql://...[?schema=name]`.

This is the one module that knows all stores; a store knows only the interface in journal.py.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from ..core.state.journal import Journal, JournalError, Options
from ..settings.config import Config
from .memory_store import MemoryStore
from .sql.journal_mark import JournalMark
from .sql.sql_journal import SqlJournal
from .sql.sqlite import SqliteDatabase
from .sql.sqlite_files import database_path


def open_journal(url: str, *, beside: str | Path | None = None, **options_given: Any) -> Journal:
    """Open the journal at `url`; the keywords are those of `Options`.

    Rows that the snapshot covers are retained, for readers of changes, while all rows together are below `retain_bytes`
    and they are younger than `retain_s`, unless the disk is short (`Journal.press`). The next snapshot begins when the
    rows since the last one have its size. So the journal stays under four times the live state and what is to be
    retained. A store in memory keeps `retain_bytes` of rows, and nothing else.

    `store_id`, if given, must be the id of the store at `url`. A journal that was cut short is refused, unless there is
    a peer to `catch_up` from. A store that is no file has its mark in the directory `beside`, if that is given.
    """
    options = Options(**options_given)
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return MemoryStore(url, options)
    if scheme == "sqlite":
        return sqlite_journal(url, options)
    if scheme in ("postgresql", "postgres"):
        return postgres_journal(url, options, beside=beside)
    raise JournalError(f"no store for {url!r}; use memory:, sqlite:PATH or postgresql://...")


def journal_of(config: Config, *, beside: str | Path | None = None) -> Journal:
    """Open the journal that the settings of a server name."""
    return open_journal(
        config.store,
        sync=config.sync,
        recover=config.recover,
        retain_bytes=config.retain_memory_bytes if config.store.startswith("memory:") else config.retain_bytes,
        retain_s=config.retain_s,
        catch_up=config.peer is not None,
        reserve_log=config.sync == "always",
        beside=beside,
    )


def look_at(url: str) -> SqlJournal[Any]:
    """Open the journal at `url` for reading only."""
    if url.startswith("sqlite:"):
        path = database_path(url)
        if not path.exists():
            raise JournalError(f"{path} does not exist; nothing to look at")
        return sqlite_journal(url, Options(), writable=False)
    if url.startswith(("postgresql:", "postgres:")):
        return postgres_journal(url, Options(), writable=False)
    raise JournalError(f"{url!r} can't be looked at from outside; use sqlite:PATH or postgresql://...")


def sqlite_journal(url: str, options: Options, *, writable: bool = True) -> SqlJournal[SqliteDatabase]:
    """Open the journal in a file. With `writable=False`, only read it: a server may use it meanwhile."""
    database = SqliteDatabase(url, options, writable=writable)
    try:
        mark = JournalMark(database.place, database.path if options.mark else None, options, owned=writable)
    except BaseException:
        database.close()
        raise
    journal = SqlJournal(database, options, mark)
    if writable:
        journal.check_writable()
    return journal


def postgres_journal(
    url: str, options: Options, *, writable: bool = True, beside: str | Path | None = None
) -> SqlJournal[Any]:
    """Open the journal in a schema. With `writable=False`, only read it: a server may use it meanwhile."""
    from .sql.postgres import PostgresDatabase

    database = PostgresDatabase(url, options, writable=writable)
    path = Path(beside, f"postgresql-{_place_id(url, database.schema)}") if beside is not None and writable else None
    try:
        mark = JournalMark(database.place, path, options, owned=writable, same_host=False)
    except BaseException:
        database.close()
        raise
    return SqlJournal(database, options, mark)


def _place_id(url: str, schema: str) -> str:
    """Return an id of a schema of a database, in eight characters. It does not depend on the user in the URL."""
    parts = urlsplit(url)
    return f"{crc32(f'{parts.hostname}:{parts.port}{parts.path}/{schema}'.encode()):08x}"
