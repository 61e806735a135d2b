"""What a SQL journal asks of a database: ten primitives, which SQLite and PostgreSQL each have their own way of.

    run, insert                  statements with `?` for a value; rows into one of the tables (sql_tables.py)
    begin, commit, rollback      one transaction at a time
    translate                    the driver's errors, in a journal's words
    set_aside, shrink, size      damaged rows out of the way; room given back; how much is taken
    close

A database knows nothing of numbers, checksums or snapshots. It is connected, and owned, once it is constructed.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ...core.state.journal import JournalError

Rows = Iterable[tuple[Any, ...]]
Tables = Iterable[tuple[str, Rows]]  # each table's name, and all that is in it


class Database(Protocol):
    """See the module."""

    place: str  # what errors call it
    broken: str  # why nothing can be written any more
    note: str  # what opening found, for the report
    driver_error: type[Exception]

    def run(self, sql: str, params: Sequence[Any] = ()) -> Rows:
        """Execute a statement; its rows, to be walked at once."""

    def insert(self, table: str, rows: Rows) -> None:
        """Add rows, with all columns of the table in their order."""

    def begin(self, durable: bool) -> None:
        """Begin a transaction; with `durable`, its commit waits for the disk."""

    def commit(self) -> None:
        """Make it so."""

    def rollback(self) -> None:
        """Undo what `begin` began; never raises, but may find itself `broken`."""

    def translate(self, error: Exception) -> JournalError:
        """The driver's error as one of ours; the connection is `broken` after some."""

    def set_aside(self, floor: int, end: int, kept: Tables) -> int:
        """Move the rows but those with floor < first and last <= end out of the way, durably; how many, or -1.

        `kept` is all that remains, for a database that writes it anew.
        """

    def shrink(self) -> bool:
        """Give a bounded piece of free space back, after a sync; whether there may be more."""

    def size(self) -> int:
        """The bytes it takes."""

    def close(self) -> None:
        """Let go of it, and of what keeps others off. Twice is fine."""


@contextmanager
def errors(database: Database) -> Iterator[None]:
    """Turns the driver's errors into ours."""
    try:
        yield
    except database.driver_error as error:
        raise database.translate(error) from error


@contextmanager
def transaction(database: Database, durable: bool) -> Iterator[None]:
    """All or nothing."""
    try:
        with errors(database):
            database.begin(durable)
            yield
            database.commit()
    except BaseException:
        database.rollback()
        raise
