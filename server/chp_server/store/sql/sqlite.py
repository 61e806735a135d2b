"""SQLite as the database of a journal: the default, one file and nothing to install.

Measured settings, and why:
- WAL with synchronous=FULL for sync="always": one fsync of the log a commit. "interval" commits without an fsync, and
  asks for one every `interval_s`; "off" never asks.
- Pages of 16 KiB: a row of 110 KB takes 7 of them, and a row of 200 bytes rewrites little. Pages of 4 and of 64 KiB
  were slower, each for one of the two kinds of rows.
- A checkpoint every 8 MiB of log: it takes about as long as one large commit, so no turn waits noticeably for it. The
  next commit begins the log anew in the same file. A server reserves its full size at the start.
- secure_delete off (some builds turn it on): cleaning up must not write zeros over what it deletes.
- auto_vacuum=incremental: when more than half the file is free, or the disk is short, each sync gives a piece of it
  back.
- No mmap: a file that is truncated must be an error, not the end of the process.

`recover="prefix"` writes the sound rows to a new file, keeps the damaged file whole under another name, and puts the
new file in its place with one rename. So a repair loses nothing, whatever happens meanwhile.
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from chp.numbers import describe

from ...core.state.journal import (
    MIB,
    JournalDamaged,
    JournalError,
    JournalFull,
    JournalLocked,
    JournalReadOnly,
    Options,
    WrongStore,
)
from ..journal_rows import FORMAT, wrong_format
from .database import Rows, Tables, errors
from .journal_mark import read_mark
from .sql_tables import COLUMNS
from .sqlite_files import (
    PAGE,
    LogTail,
    aside_path,
    database_path,
    is_locked,
    lock,
    log_tail,
    reserve_log,
    sync_directory,
    valid_frames,
)

# For each table the statement that adds a row with all columns.
INSERTIONS = {
    table: f"INSERT INTO {table} ({columns}) VALUES ({','.join('?' * len(columns.split(',')))})"
    for table, columns in COLUMNS.items()
}
# The number is "CHP2", in the file's header.
APPLICATION_ID = 0x43485032
# The log is checkpointed at this size, and on a small disk at this share of the disk. A checkpoint may make the journal
# longer by as much, which is a quarter of the least room that a server keeps free.
LOG_BYTES, LOG_SHARE = 8 * MIB, 64
# The cache of pages has room for the largest record. A journal appends, and reads little of what it wrote.
CACHE_BYTES = 16 * MIB
# One sync gives this many pages back, at most.
SHRINK_PAGES = 256
SHRINK_FROM = 16 * MIB // PAGE

SCHEMA = """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
    CREATE TABLE rows (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, prev INTEGER NOT NULL,
                       wrote INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE chunks (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL);
"""
MESSAGES = """IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, topic INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
    number INTEGER NOT NULL, wall INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL)"""
# SQLITE_IOERR_SHMSIZE is the lack of room for the index of the log, a file beside it.
_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT", "SQLITE_MISMATCH", "SQLITE_ERROR", "SQLITE_CONSTRAINT")


class SqliteDatabase:
    """A SQLite database; `writable=False` only reads a journal that a server may use."""

    driver_error: type[Exception] = sqlite3.Error

    def __init__(self, url: str, options: Options, *, writable: bool = True) -> None:
        self.path = database_path(url)
        self.place = str(self.path)
        self.options = options
        self.broken = self.note = ""
        self._shrinking = False
        # The connection's setting of `synchronous` for the next commit; "" if it is not known.
        self._level = ""
        self._lock: int | None = lock(self.path) if writable else None
        self._db: sqlite3.Connection | None = None
        try:
            with errors(self):
                self._look_first()
                self._db = create(self.path) if writable else read_only(self.path)
                if writable and options.reserve_log:
                    reserve_log(self.path, log_bytes(self.path))
                if not writable:
                    if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchall():
                        # An older journal has no table of messages, so an empty one is used.
                        self._db.execute(f"CREATE TEMP TABLE {MESSAGES}")
                    # From here on, all reads show the journal at one moment.
                    self._db.execute("BEGIN")
        except BaseException:
            self.close()
            raise

    # -- opening

    def _look_first(self) -> None:
        """Check before SQLite may change anything: the file is ours, and the log ends as after a crash."""
        if not self.path.exists() or not self.path.stat().st_size:
            self._look_beside()
            return
        # On closing, this connection leaves the log as it is.
        db = read_only(self.path)
        try:
            self._check_identity(db)
            log = Path(f"{self.path}-wal")
            # While a server uses the journal, an unfinished end of the log is growing, not torn.
            in_use = self._lock is None and is_locked(self.path)
            if in_use or not log.exists() or not log.stat().st_size:
                return
            tail = log_tail(self.path, valid_frames(self.path))
        finally:
            db.close()
        if tail.lost and self.options.sync == "always":
            self._lost_transactions(tail)
        elif tail.ignored:
            self.note = f"; the log ended in an unfinished transaction ({tail.ignored} frames ignored)"

    def _look_beside(self) -> None:
        """Check that no file beside a missing database tells that there was one."""
        log = Path(f"{self.path}-wal")
        strict, remedy = self.options.recover == "strict", "restore a backup, or start with --recover prefix without it"
        if log.exists() and log.stat().st_size:
            if strict:
                raise JournalDamaged(f"{self.place} is gone, and its log is here; {remedy}", "the file")
            # SQLite would take the old log for that of the new file.
            aside = Path(f"{aside_path(self.path)}-wal")
            os.rename(log, aside)
            self.note = f"; the database is gone, and its log was moved to {aside.name}"
        mark = read_mark(self.path) if self.options.mark and strict else None
        if mark and mark.number and strict and not self.options.catch_up:
            number = describe(mark.number)
            raise JournalDamaged(
                f"{self.place} is gone, and its mark says that it had been at {number}; {remedy}", "it"
            )

    def _lost_transactions(self, tail: LogTail) -> None:
        place = f"log frame {tail.valid + 1}"
        what = f"damaged, and at least {tail.lost} synced transactions behind it can't be read"
        if self.options.recover == "strict":
            raise JournalDamaged(
                f"{self.place}-wal: {place}: {what}; let the other server send its state, restore a backup, or start"
                " with --recover prefix to keep what is before it",
                place,
            )
        aside = Path(f"{aside_path(self.path)}-wal")
        # The log is copied, as SQLite is about to cut it short.
        with open(aside, "xb") as file:
            file.write(Path(f"{self.path}-wal").read_bytes())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(aside)
        self.note = f"; {place}: {what}; the log was copied to {aside.name}"

    def _check_identity(self, db: sqlite3.Connection) -> None:
        found = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if not found and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            if self._lock is None:
                raise self._holds_nothing()
            # The file is empty: the server that began to make it was stopped at once.
            return
        if found != APPLICATION_ID:
            raise WrongStore(f"{self.place} is a SQLite file, but not a journal of ours; use another path")
        if version != FORMAT:
            raise WrongStore(wrong_format(self.place, version))

    def _holds_nothing(self) -> JournalDamaged:
        what = f"{self.place} holds nothing: {self.place}-wal, its log, is missing or empty"
        return JournalDamaged(
            f"{what}; put that back, let the other server send its state, or restore a backup", "the log"
        )

    # -- the primitives

    @property
    def db(self) -> sqlite3.Connection:
        """The connection; the property raises `JournalError` if the journal was closed."""
        if self._db is None:
            raise JournalError(f"{self.place} is closed")
        return self._db

    def run(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Execute a statement."""
        return self.db.execute(sql, params)

    def insert(self, table: str, rows: Rows) -> None:
        """Add rows by a statement that is prepared once."""
        self.db.executemany(INSERTIONS[table], rows)

    def begin(self, durable: bool) -> None:
        """Begin a transaction; a setting of the connection says how its commit waits."""
        # A reader comes here only with an empty journal, for which `new_store` wants to write the first values.
        if self._lock is None:
            raise self._holds_nothing()
        level = "FULL" if durable else "NORMAL" if self.options.sync == "interval" else "OFF"
        if level != self._level:
            self.db.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self.db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, which some errors have ended already."""
        try:
            if self._db is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self.broken = f"rollback: {error}"

    def spare(self) -> int:
        """Return the bytes of the file's free pages."""
        with errors(self):
            return int(self.db.execute("PRAGMA freelist_count").fetchone()[0]) * PAGE

    def shrink(self, *, pressed: bool = False) -> bool:
        """Give some pages back, while more than half of the file is free, or if the disk is short."""
        self._shrinking = self._shrink(pressed)
        return self._shrinking

    def _shrink(self, pressed: bool) -> bool:
        free = self.db.execute("PRAGMA freelist_count").fetchone()[0]
        little = not pressed and free * 2 < self.db.execute("PRAGMA page_count").fetchone()[0]
        if free < SHRINK_FROM or little:
            if self._shrinking:
                # Only a checkpoint makes the file shorter.
                self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            return False
        # execute() would stop after one page.
        self.db.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")
        return int(self.db.execute("PRAGMA freelist_count").fetchone()[0]) < int(free)

    def size(self) -> int:
        """Return the bytes of the file and of those beside it."""
        files = (Path(f"{self.path}{end}") for end in ("", "-wal", "-shm"))
        return sum(file.stat().st_size for file in files if file.exists())

    def translate(self, error: Exception) -> JournalError:
        """Return the driver's error as ours; after an error of input or output nothing is written any more."""
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(_NO_ROOM):
            return JournalFull(f"{self.place}: no room ({error}); free some: the journal is as at its last sync")
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return JournalReadOnly(f"{self.place}: can't be opened or written to ({error}); check rights and mount")
        if name.startswith("SQLITE_BUSY"):
            return JournalLocked(f"{self.place}: another program holds it ({error}); stop that one")
        if name.startswith(_DAMAGED) or (not name and isinstance(error, sqlite3.DatabaseError)):
            text = f"{self.place}: SQLite can't read it ({error}), so nothing of it can be kept, with --recover prefix "
            text += "neither: move it and the files beside it away, and let the other server send its state or restore "
            return JournalDamaged(f"{text}a backup", "the file's structure")
        if name.startswith("SQLITE_IOERR"):
            self.broken = f"{name}: {error}"
        return JournalError(f"{self.place}: {name} {error}; look at the disk and its log")

    # -- damage

    def set_aside(self, floor: int, end: int, kept: Tables) -> int:
        """Write the kept rows to a new file, which takes the place of the damaged one."""
        db = self.db
        new = Path(f"{self.path}.rebuild")
        _remove(new)
        fresh = create(new)
        try:
            fill(fresh, kept)
        finally:
            fresh.close()
        count = _count(db, floor, end)
        self._swap(new)
        return count

    def _swap(self, new: Path) -> None:
        """Give the old file a second name, and put the new one in its place: a whole file is always there."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.db.close()
        self._db = None
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size:
            raise JournalDamaged(f"{self.place}: its log can't be written back; restore a backup", "wal")
        os.link(self.path, aside_path(self.path))
        os.replace(new, self.path)
        sync_directory(self.path)
        self._db, self._level = create(self.path), ""

    def close(self) -> None:
        """Close the database, and release the lock last."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- what only a file can do

    def make_one_file(self) -> None:
        """Write the log back, so that the file alone has everything: for a copy that is carried away."""
        with errors(self):
            self.db.execute("PRAGMA journal_mode=DELETE")

    def copy_to(self, path: Path) -> None:
        """Copy the database, as of one moment, to a new file."""
        with errors(self), closing(sqlite3.connect(path)) as copy:
            self.db.backup(copy)
            # The copy is one file, with nothing beside it.
            copy.execute("PRAGMA journal_mode=DELETE")

    def problems(self) -> list[str]:
        """Return what SQLite itself finds wrong with the file."""
        try:
            found = [str(text) for (text,) in self.db.execute("PRAGMA integrity_check(3)")]
        except sqlite3.Error as error:
            found = [str(error)]
        return [f"file structure: {text}" for text in found if text != "ok"]


def fill(db: sqlite3.Connection, tables: Tables) -> None:
    """Write all of a journal to an empty database."""
    db.execute("BEGIN")
    for table, rows in tables:
        db.executemany(INSERTIONS[table], rows)
    db.execute("COMMIT")


def write_file(path: Path, tables: Tables) -> None:
    """Write all of a journal to one new file."""
    with closing(create(path)) as db:
        fill(db, tables)
        # The copy is one file, with nothing beside it.
        db.execute("PRAGMA journal_mode=DELETE")


def log_bytes(path: Path) -> int:
    """Return the size at which the log of a journal at `path` is checkpointed."""
    disk = os.statvfs(path.parent)
    return min(LOG_BYTES, disk.f_blocks * disk.f_frsize // LOG_SHARE)


def create(path: Path) -> sqlite3.Connection:
    """Return a connection to the database at `path`, with its settings; a new database gets its tables."""
    db = sqlite3.connect(path, isolation_level=None, timeout=5.0, cached_statements=64, check_same_thread=False)
    try:
        db.execute(f"PRAGMA page_size={PAGE}")
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=OFF")
        db.execute("PRAGMA mmap_size=0")
        db.execute(f"PRAGMA wal_autocheckpoint={log_bytes(path) // PAGE}")
        db.execute(f"PRAGMA journal_size_limit={4 * log_bytes(path)}")
        db.execute(f"PRAGMA cache_size=-{CACHE_BYTES // 1024}")
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.executescript(
                f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; {SCHEMA} COMMIT;"
            )
        db.execute(f"CREATE TABLE {MESSAGES}")
        db.execute("CREATE INDEX IF NOT EXISTS messages_at ON messages (topic, first)")
        # This empties the log, so that no torn end of it stays from the last run.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def read_only(path: Path) -> sqlite3.Connection:
    """Return a connection to a journal that may be in use; it can't write, and does not even tidy up the log."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)


def _count(db: sqlite3.Connection, floor: int, end: int) -> int:
    """Return how many rows are not kept; -1 if the file is too damaged to tell."""
    try:
        return int(db.execute("SELECT count(*) FROM rows WHERE first > ? OR first <= ?", (end, floor)).fetchone()[0])
    except sqlite3.Error:
        return -1


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{end}").unlink(missing_ok=True)
