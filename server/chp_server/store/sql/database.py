"""The interface of a database for a SQL journal: eleven primitives, which SQLite and PostgreSQL implement differently.

    run, insert                  statements with `?` for a value; rows into one of the tables (sql_tables.py)
    begin, commit, rollback      one transaction at a time
    translate                    the driver's errors, as errors of a journal
    set_aside, close             move damaged rows aside; end the connection
    spare, shrink, size          return the free bytes inside; give room back; return the bytes that are taken

A database knows nothing of numbers, checksums or snapshots. Its constructor connects, and takes the lock.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ...core.state.journal import JournalError

Rows = Iterable[tuple[Any, ...]]
# The name of each table, and all its rows.
Tables = Iterable[tuple[str, Rows]]


class Database(Protocol):
    """A connection to a database, as the module describes it."""

    # The name of the database in errors.
    place: str
    # The reason why nothing can be written any more.
    broken: str
    # The text for the report about what the start found.
    note: str
    driver_error: type[Exception]

    def run(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Execute a statement, and return its rows, which are to be read at once."""

    def insert(self, table: str, rows: Rows) -> None:
        """Add rows, with all columns of the table in their order."""

    def begin(self, durable: bool) -> None:
        """Begin a transaction; with `durable`, its commit waits for the disk."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Undo the transaction; this never raises, but may leave the database `broken`."""

    def translate(self, error: Exception) -> JournalError:
        """Return the driver's error as one of ours; the connection is `broken` after some."""

    def set_aside(self, floor: int, end: int, kept: Tables) -> int:
        """Move all rows aside, durably, except those with floor < first and last <= end.

        Return how many rows were moved, or -1 if that is not known. `kept` is all that remains, for a database that
        writes a new file.
        """

    def spare(self) -> int:
        """Return the bytes that deletes have made free, and that the database has not given back."""

    def shrink(self, *, pressed: bool = False) -> bool:
        """Give a bounded piece of free space back, after a sync; return True if there may be more.

        `pressed` says that the disk is short, so that the database keeps little for later.
        """

    def size(self) -> int:
        """Return the bytes that the database takes."""

    def close(self) -> None:
        """Close the connection and release its lock. A second call does nothing."""


@contextmanager
def errors(database: Database) -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except database.driver_error as error:
        raise database.translate(error) from error


class Transaction:
    """A transaction in a `with` block: all of it is committed, or nothing. The driver's errors become ours.

    This is a class, since each turn has one: a generator with a decorator takes three times as long.
    """

    __slots__ = ("_database", "_durable")

    def __init__(self, database: Database, durable: bool) -> None:
        self._database, self._durable = database, durable

    def __enter__(self) -> None:
        try:
            self._database.begin(self._durable)
        except BaseException as error:
            self._undo(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._undo(error)
            return
        try:
            self._database.commit()
        except BaseException as failed:
            self._undo(failed)
            raise

    def _undo(self, error: BaseException) -> None:
        """Roll back, and raise the driver's error as ours."""
        database = self._database
        ours = database.translate(error) if isinstance(error, database.driver_error) else None
        database.rollback()
        if ours is not None:
            raise ours from error
