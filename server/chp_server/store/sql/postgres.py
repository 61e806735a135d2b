"""PostgreSQL as the database of a journal, through psycopg 3: for operators who run it anyway, with its backups.

    postgresql://user@host/database?schema=chp_primary      (schema: "chp" unless given; each server has its own)

- A session-level advisory lock on the schema's name keeps other servers off; it ends with the connection. So a lost
  connection is final: another server may own the journal by now, and the object here stays broken until it is reopened.
- sync="always" is synchronous_commit=on. "interval" and "off" turn it off: the database then flushes by itself within
  three times its wal_writer_delay (0.6 s by default), and `durability` is 0.
- A silent database must not hold a server for ever. The server gives up after `silent_s` without a byte (30, or
  ?silent_s= in the URL), and the connection is lost; a shorter stall is only a pause. The database ends the session of
  a server that it can't reach after half of that time. Otherwise the session's lock would keep the server off when it
  returns, as the database's kernel alone takes two hours to notice a lost connection.
- COPY adds rows. Bodies are stored uncompressed (storage EXTERNAL), since they are checksummed and often dense.
- Damaged rows move to the table `aside`.
"""

import re
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ...core.state.journal import JournalDamaged, JournalError, JournalFull, JournalLocked, JournalReadOnly, Options
from .database import Rows, Tables, Transaction, errors
from .sql_tables import COLUMNS

try:
    import psycopg
except ImportError as missing:  # pragma: no cover
    raise JournalError(
        "a PostgreSQL journal needs psycopg; install the extra: pip install 'chp-clone[postgres]'"
    ) from missing

SCHEMA = """
    CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BYTEA NOT NULL, crc BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS rows (first BIGINT PRIMARY KEY, last BIGINT NOT NULL, prev BIGINT NOT NULL,
                                     wrote BIGINT NOT NULL, crc BIGINT NOT NULL, body BYTEA NOT NULL);
    CREATE TABLE IF NOT EXISTS chunks (id BIGINT PRIMARY KEY, crc BIGINT NOT NULL, body BYTEA NOT NULL);
    CREATE TABLE IF NOT EXISTS messages (id BIGINT PRIMARY KEY, topic BIGINT NOT NULL, first BIGINT NOT NULL,
                                         count BIGINT NOT NULL, number BIGINT NOT NULL, wall BIGINT NOT NULL,
                                         crc BIGINT NOT NULL, body BYTEA NOT NULL);
    CREATE INDEX IF NOT EXISTS messages_at ON messages (topic, first);
    CREATE TABLE IF NOT EXISTS aside (LIKE rows, moved TIMESTAMPTZ NOT NULL DEFAULT now());
    ALTER TABLE rows ALTER COLUMN body SET STORAGE EXTERNAL;
    ALTER TABLE chunks ALTER COLUMN body SET STORAGE EXTERNAL;
    ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
"""
LOCK_WAIT_MS = 2000
# The server waits this many seconds for a connection, unless the URL has a connect_timeout.
CONNECT_S = 10
SILENT_S = 30.0
_TYPES = {"rows": ["int8"] * 5 + ["bytea"], "chunks": ["int8", "int8", "bytea"], "meta": ["text", "bytea", "int8"],
          "messages": ["int8"] * 7 + ["bytea"]}  # fmt: skip


class _Connection(psycopg.Connection[tuple[Any, ...]]):  # type: ignore[misc]  # Any: mypy does not read psycopg
    """A connection that doesn't wait for ever."""

    silent_s = SILENT_S
    # The text of the error if the database is silent.
    silence = ""

    def wait(self, gen: Generator[Any, Any, Any], interval: float = 0.1) -> Any:
        return super().wait(self._in_time(gen), interval)

    def _in_time(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        since, ready = monotonic(), None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as done:
                return done.value
            # The wait returns nothing after each interval in which the socket was not ready.
            ready = yield wanted
            if ready:
                since = monotonic()
            elif monotonic() - since > self.silent_s:
                self.silence = f"no answer from the database for {self.silent_s:g} s"
                self.close()
                raise psycopg.OperationalError(self.silence)


class PostgresDatabase:
    """A PostgreSQL database; `writable=False` only reads a journal that a server may use."""

    driver_error: type[Exception] = psycopg.Error

    def __init__(self, url: str, options: Options, *, writable: bool = True) -> None:
        self.options = options
        self.broken = self.note = ""
        conninfo, self.schema, silent_s = split_url(url)
        self.place = f"postgresql schema {self.schema}"
        self._db: _Connection | None = None
        try:
            with errors(self):
                self._db = _Connection.connect(conninfo, autocommit=True, application_name="chp-server")
                self._db.silent_s = silent_s
                self._prepare(writable, silent_s)
        except BaseException:
            self.close()
            raise

    def _prepare(self, writable: bool, silent_s: float) -> None:
        if writable:
            for name, value in _lost_after(silent_s / 2).items():
                self.run("SELECT set_config(name, ?, false) FROM pg_settings WHERE name = ?", (str(value), name))
            self._own()
            # The name is quoted, as primary is a word of SQL.
            self.run(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
        self.run(f'SET search_path TO "{self.schema}"')
        if not writable:
            # An older journal has no table of messages, so an empty one is used.
            if next(iter(self.run("SELECT to_regclass('messages')::text")))[0] is None:
                told = "id, topic, first, count, number, wall, crc".replace(",", " BIGINT,")
                self.run(f"CREATE TEMP TABLE messages ({told} BIGINT, body BYTEA)")
            # From here on, all reads show the journal at this moment.
            self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        self.run(f"SET synchronous_commit TO {'on' if self.options.sync == 'always' else 'off'}")
        self.run("SET client_min_messages TO warning")
        self.db.execute(SCHEMA)

    def _own(self) -> None:
        key = f"chp:{self.schema}"
        # The database gets a moment to notice that a server was just killed.
        try:
            self.run(f"SET lock_timeout TO {LOCK_WAIT_MS}")
            self.run("SELECT pg_advisory_lock(hashtextextended(?, 0))", (key,))
            return
        except psycopg.errors.LockNotAvailable:
            pass
        held = list(
            self.run(
                "SELECT pid, client_addr::text FROM pg_stat_activity JOIN pg_locks USING (pid)"
                " WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint)"
                " = hashtextextended(?, 0)",
                (key,),
            )
        )
        who = ", ".join(f"database session {pid} from {address or 'this host'}" for pid, address in held) or "a session"
        raise JournalLocked(f"{self.place} is in use by {who}; stop that server, or use another ?schema=")

    # -- the primitives

    @property
    def db(self) -> _Connection:
        """The connection; the property raises `JournalError` if the journal was closed."""
        if self._db is None:
            raise JournalError(f"{self.place} is closed")
        return self._db

    def run(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Execute a statement."""
        cursor = self.db.execute(sql.replace("?", "%s"), params or None, binary=True)
        return cursor if cursor.description else ()

    def insert(self, table: str, rows: Rows) -> None:
        """Add rows by COPY."""
        into = f"COPY {table} ({COLUMNS[table]}) FROM STDIN (FORMAT BINARY)"
        with self.db.cursor() as cursor, cursor.copy(into) as copy:
            copy.set_types(_TYPES[table])
            for row in rows:
                copy.write_row(row)

    def begin(self, durable: bool) -> None:
        """Begin a transaction; a setting of the transaction says how its commit waits."""
        self.run("BEGIN")
        if durable and self.options.sync != "always":
            self.run("SET LOCAL synchronous_commit TO on")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction; a lost connection has nothing to undo."""
        try:
            if self._db is not None and not self._db.closed:
                self.run("ROLLBACK")
        except psycopg.Error as error:
            self.broken = f"rollback: {error}"

    def spare(self) -> int:
        """Return 0, as the database does not tell."""
        return 0

    def shrink(self, *, pressed: bool = False) -> bool:
        """Return False, as the database gives room back by itself."""
        return False

    def size(self) -> int:
        """Return the bytes of the tables with their indexes."""
        with errors(self):
            found = self.run(
                "SELECT sum(pg_total_relation_size(t))"
                " FROM unnest(ARRAY['rows','chunks','meta','messages']::regclass[]) AS t"
            )
            return int(next(iter(found))[0])

    def translate(self, error: Exception) -> JournalError:
        """Return the driver's error as ours; after a lost connection nothing is written any more."""
        text = (self._db.silence if self._db else "") or " ".join(str(error).split())
        if isinstance(error, psycopg.errors.DiskFull):
            return JournalFull(f"{self.place}: no room ({text}); free some: the journal is as at its last sync")
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction | psycopg.errors.InsufficientPrivilege):
            return JournalReadOnly(f"{self.place}: can't be written to ({text}); check the role's rights")
        if isinstance(error, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
            return JournalDamaged(f"{self.place}: {text}; restore a backup", "the database")
        if self._db is None or self._db.closed or self._db.broken:
            self.broken = f"connection: {text}"
            return JournalError(f"{self.place}: {text}; look at the database and its log, then start this server again")
        return JournalError(f"{self.place}: {text}; look at the database and its log")

    def set_aside(self, floor: int, end: int, kept: Tables) -> int:
        """Move rows to the table `aside`; the kept rows stay where they are."""
        with Transaction(self, True):
            moved = self.run(
                "WITH gone AS (DELETE FROM rows WHERE first > ? OR first <= ? RETURNING *),"
                " kept AS (INSERT INTO aside SELECT * FROM gone RETURNING 1) SELECT count(*) FROM kept",
                (end, floor),
            )
            return int(next(iter(moved))[0])

    def close(self) -> None:
        """Close the connection, which ends the lock."""
        if self._db is None:
            return
        # The lock is released at once, as the database needs a moment to notice that a connection is gone.
        try:
            self.run("SELECT pg_advisory_unlock_all()")
        except psycopg.Error:
            pass
        self._db.close()
        self._db = None


def split_url(url: str) -> tuple[str, str, float]:
    """Return the URL for psycopg, the schema, and how long the database may be silent."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    schema = query.pop("schema", "chp")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise JournalError(f"schema={schema!r} is not a name; use small letters, digits and _, beginning with a letter")
    silent = query.pop("silent_s", f"{SILENT_S:g}")
    if not re.fullmatch(r"[0-9]{1,4}", silent) or int(silent) < 2:
        raise JournalError(f"silent_s={silent!r} is not a number of seconds; use a whole one from 2 to 9999")
    query.setdefault("connect_timeout", str(CONNECT_S))
    return urlunsplit(parts._replace(query=urlencode(query))), schema, float(silent)


def _lost_after(seconds: float) -> dict[str, int]:
    """Return settings by which the database notices a lost connection; older versions do not have all of them."""
    probes = max(1, int(seconds / 3))
    return {
        "tcp_keepalives_idle": probes,
        "tcp_keepalives_interval": probes,
        "tcp_keepalives_count": 2,
        "tcp_user_timeout": int(seconds * 1000),
    }
