"""A journal in SQL: what SQLite and PostgreSQL have in common, apart from opening, locking and errors.

    rows    first, last, prev, wrote, crc, body      one record each
    chunks  id = serial << 32 | part, crc, body      of the snapshot, of one being built, of old ones not yet deleted
    meta    key, value, crc                          "chp.store" (id), "chp.book" (journal_rows.Book), the server's own

This file has the ground floor: the primitives a database must give, meta values, transactions, and reading in pages.
What a turn gathers is kept in memory and written in one transaction. `_book` is the journal's state with the open
transaction, `_kept` without: an error puts `_kept` back, so what this object believes and what the database holds
never part. Readers go page by page, so none pins a transaction.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from time import perf_counter
from typing import Any
from zlib import crc32

from .journal import MIB, JournalDamaged, JournalError, Options, WrongStore
from .journal_mark import MarkFile
from .journal_rows import Book, StoredRow, meta_crc, stored_row

PAGE_BYTES = 4 * MIB  # read at a time
TOP = (1 << 63) - 1
FORMAT = 2  # of a journal, and of a backup; 0.1, which was never released, wrote 1

_META_SET = (
    "INSERT INTO meta (key, value, crc) VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc"
)
_ROWS = "SELECT first, last, prev, wrote, crc, body FROM rows WHERE first > ? AND first <= ? ORDER BY first LIMIT ?"
_CHUNKS = "SELECT id, crc, body FROM chunks WHERE id > ? AND id < ? ORDER BY id LIMIT 4"


def wrong_format(place: str, found: object) -> str:
    """What to say of a journal that another version wrote."""
    return (
        f"{place} has format {found}, and this program reads format {FORMAT}; start with an empty data directory and "
        "bring the keys over: `chp dump` with the release that wrote it, `chp load` with this one"
    )


class SqlBase(ABC):
    """See the module. Subclasses give the primitives below, and call `_start` once connected."""

    place = ""  # what errors call this store
    driver_error: type[Exception] = Exception

    def __init__(self, options: Options) -> None:
        self.options = options
        self.durability = int(options.sync == "always")
        self.broken = ""  # why nothing can be written any more
        self._seed = 0
        self._book, self._kept = Book(), Book()
        self._meta: dict[str, bytes] = {}
        self._loaded = False
        self._rows: list[StoredRow] = []
        self._chunks: list[tuple[int, int, bytes]] = []
        self._meta_set: dict[str, bytes] = {}
        self._chunk_bytes = 0
        self._building: Book | None = None
        self._serial = 0  # the highest snapshot serial ever used here
        self._stale_chunks = True
        self._shrinking = False
        self._note = ""  # what opening found, for the report
        self._oldest: tuple[int, int, int, int] | None = None
        self._mark: MarkFile | None = None
        self._unsynced = False
        self._last_durable = perf_counter()
        self._sync_s: deque[float] = deque(maxlen=1024)
        self._syncs = 0

    # -- what a database must do

    @abstractmethod
    def _run(self, sql: str, params: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]: ...

    @abstractmethod
    def _many(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None: ...

    @abstractmethod
    def _begin(self, durable: bool) -> None: ...

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _rollback(self) -> None:
        """Undo what `_begin` began; never raises."""

    @abstractmethod
    def _translate(self, error: Exception) -> JournalError: ...

    @abstractmethod
    def _set_aside(self, floor: int, end: int) -> int:
        """Keep the rows with floor < first and last <= end; move the others out of the way; how many, or -1."""

    @abstractmethod
    def _size(self) -> int: ...

    def _shrink(self) -> bool:
        """Give a bounded piece of free space back, after a sync; whether there may be more."""
        return False

    def _beyond(self, book: Book) -> int:
        """The number beyond what `book` tells that the journal had been at, as its mark says; 0 if there is none."""
        return 0

    def _write_mark(self, *, committed: bool) -> None:
        """The mark follows the journal: forward after a commit, back before it."""
        mark, last = self._mark, self._book.last
        if mark is not None and (committed or last < mark.number):
            mark.write(last)

    # -- opening

    def _start(self, new_id: bytes) -> None:
        """Read the meta values; for a store without any, write the first ones."""
        with self.errors():
            stored_meta = list(self._run("SELECT key, value, crc FROM meta"))
            if not stored_meta:
                self._seed = crc32(new_id)
                with self._transaction(True):
                    self._write_meta(
                        {"chp.store": new_id, "chp.book": Book().pack(), "chp.format": str(FORMAT).encode()}
                    )
                stored_meta = list(self._run("SELECT key, value, crc FROM meta"))
            self._read_meta(stored_meta)
            highest = list(self._run("SELECT id FROM chunks ORDER BY id DESC LIMIT 1"))
        self._book = Book.unpack(self._meta["chp.book"])
        self._kept = copy(self._book)
        self._serial = max(self._book.serial, highest[0][0] >> 32 if highest else 0)

    def _read_meta(self, stored_meta: list[tuple[Any, ...]]) -> None:
        values = {str(key): bytes(value) for key, value, _ in stored_meta if isinstance(value, bytes | memoryview)}
        if "chp.store" not in values or "chp.book" not in values:
            raise JournalDamaged(f"{self.place}: the journal's own meta values are missing; restore a backup", "meta")
        self._seed = crc32(values["chp.store"])
        for key, _, crc in stored_meta:
            if meta_crc(self._seed, str(key), values.get(str(key), b"")) != crc:
                raise JournalDamaged(
                    f"{self.place}: meta value {key!r}: its checksum does not match; restore a backup", f"meta {key}"
                )
        found = values.get("chp.format", b"1").decode()
        if found != str(FORMAT):
            raise WrongStore(wrong_format(self.place, found))
        wanted = self.options.store_id
        if wanted is not None and wanted != values["chp.store"]:
            raise WrongStore(
                f"{self.place} is store {values['chp.store'].hex()}, not {wanted.hex()}; point the server at its own"
            )
        self._meta = values

    # -- reading

    def _snapshot_chunks(self, book: Book) -> Iterator[tuple[int, int, bytes]]:
        key, end = (book.serial << 32) - 1, (book.serial + 1) << 32
        more = book.serial > 0
        while more:
            more = False
            with self.errors():
                for found in list(self._run(_CHUNKS, (key, end))):
                    more, key = True, found[0]
                    if not isinstance(found[2], bytes | memoryview):
                        raise JournalDamaged(f"{self.place}: chunk id {key}: its body is not bytes", f"chunk id {key}")
                    yield key, found[1], bytes(found[2])

    def _pages(self, after: int, end: int = TOP) -> Iterator[StoredRow]:
        """Rows with after < first <= end, in order, some megabytes at a time."""
        limit = 16
        while True:
            got = size = 0
            with self.errors():
                for record in self._run(_ROWS, (after, end, limit)):
                    row = stored_row(record)
                    after, got, size = row.first, got + 1, size + (len(row.body) if isinstance(row.body, bytes) else 0)
                    yield row
            if got < limit:
                return
            limit = max(8, min(4096, PAGE_BYTES * limit // (size + 1)))

    @property
    def store_id(self) -> bytes:
        """Which journal this is: made with it, kept in its backups."""
        return self._meta["chp.store"]

    def everything(self) -> Iterator[tuple[str, Iterable[tuple[Any, ...]]]]:
        """All that makes up the journal, table by table, for a copy."""
        book = Book.unpack(self._meta["chp.book"])
        meta = [(key, value, meta_crc(self._seed, key, value)) for key, value in self._meta.items()]
        yield "meta", meta
        yield "chunks", self._snapshot_chunks(book)
        yield "rows", self._pages(book.floor)

    # -- writing

    def _write_meta(self, values: dict[str, bytes]) -> None:
        for key, value in values.items():
            list(self._run(_META_SET, (key, value, meta_crc(self._seed, key, value))))
        self._meta |= values

    @contextmanager
    def _transaction(self, durable: bool) -> Iterator[None]:
        """All or nothing, in the database and in this object."""
        before = dict(self._meta), self._oldest, self._stale_chunks
        try:
            with self.errors():
                self._begin(durable)
                yield
                self._write_mark(committed=False)
                self._commit()
        except BaseException:
            self._meta, self._oldest, self._stale_chunks = before
            self._forget_pending()
            self._rollback()
            raise
        self._clear_pending()
        self._kept = copy(self._book)
        self._unsynced = not durable
        self._last_durable = perf_counter() if durable else self._last_durable
        self._write_mark(committed=True)

    def _forget_pending(self) -> None:
        self._clear_pending()
        self._book = copy(self._kept)
        self.abort_snapshot()

    def _clear_pending(self) -> None:
        self._rows, self._chunks, self._meta_set, self._chunk_bytes = [], [], {}, 0

    def abort_snapshot(self) -> None:
        """As the interface says; what was written of it goes with the next syncs."""
        if self._building is not None:
            self._building, self._chunks, self._chunk_bytes, self._stale_chunks = None, [], 0, True

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors into ours."""
        try:
            yield
        except self.driver_error as error:
            raise self._translate(error) from error

    def _usable(self) -> None:
        if self.broken:
            raise JournalError(f"{self.place} can't be trusted any more ({self.broken}); restart the server")
        if not self._loaded:
            raise JournalError(f"{self.place} was not loaded yet; call load before writing to it")
