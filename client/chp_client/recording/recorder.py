"""The recorder of a subtree's change feed into a directory (the Guide's Black Box); files.py describes the files.

- A file ends after `file_bytes` of keys and values, or `every_s` after its first row.
- The last number in the files' names is the state of the recording. A killed recorder goes on there at its next start,
  and asks again for the records of its unfinished file. So the servers must retain those records and all later ones
  (`--retain-bytes`, `--retain-s`). `_position` notes how far the recorder read a subtree without changes, so that the
  recorder does not ask for records that the log has dropped.
- If the servers no longer retain the next record, the recorder says so. It writes a row `gap` (key: the subtree) and a
  snapshot. So a reader sees where changes are missing, and a replay ends with the right map.
- A recording is of one store: each file, and `_position`, has the store's id. The recorder refuses servers with another
  store, at the beginning and later. A pair without a journal that was started anew is another store.
- The files also have the opener of their last number's epoch. If a split has ended the history of that number, the
  recorder writes a `gap`.

Needs pyarrow and numpy: pip install 'chp-clone[parquet]'.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from chp.errors import BadInput
from chp.limits import MIB
from chp.numbers import Revision, describe, epoch_of

from .. import checks, starts
from ..errors import NotRetained
from ..port.feed import Feed, FeedFacts, FeedRecord, OtherStore
from ..starts import KeyStart, key_start
from ..target import FilePath, Servers, servers_of
from .files import (
    FORMAT,
    GAP,
    LOCK,
    PART,
    POSITION,
    SCHEMA,
    SET,
    SNAPSHOT,
    RecordingFile,
    batch_of,
    file_name,
    files,
    need_parquet,
    opened,
    readable,
)  # fmt: skip

_, _, pq = need_parquet()
log = logging.getLogger("chp_client")

EVERY_S = 60.0
# Half of what servers with `--store memory` retain by default (16 MiB), so that they still have the records of a killed
# recorder's unfinished file.
FILE_BYTES = 8 * MIB
# The recorder writes a row group of a file at this many rows or bytes. This bounds its memory and the time of a write.
GROUP_ROWS = 65_536
GROUP_BYTES = 8 * MIB
IDLE_S = 0.25
# When it is stopped, the recorder waits at most this many seconds for a server that gives the last records.
FINISH_S = 2.0
Say = Callable[[str], object]


def record(
    servers: Servers | None,
    directory: str | Path,
    subtree: str = "",
    *,
    client_file: FilePath | None = None,
    start: KeyStart = "snapshot",
    every_s: float = EVERY_S,
    file_bytes: int = FILE_BYTES,
    stop: Event | None = None,
    say: Say | None = None,
    timeout_s: float | None = None,
) -> RecordingWriter:
    """Record until `stop` is set; return the writer with its counts.

    servers, client_file   those of `Clone`: with a client file `servers` is None
    start                  where to begin in an empty directory: "snapshot", "end", "begin" or a revision, as for a
                           watch; in another directory the recorder goes on after the last number there
    say                    a function that is called with each line about what happens
    timeout_s              how long to look for an active server at first (`TimeoutError`); later the recorder waits for
                           a server without a limit

    Raises `BadInput` if the servers hold another store than the directory, at the beginning or later.
    """
    checks.wait_s(timeout_s, "timeout_s")
    begin = key_start(start)
    folder = Path(directory)
    with Feed(servers_of(servers, client_file, subtree), subtree) as feed:
        if not folder.is_dir():
            # The directory is made only if a server answers.
            feed.facts(timeout_s)
            with _can_be_written(folder):
                folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            writer = RecordingWriter(folder, subtree, every_s, file_bytes)
            feed.facts(timeout_s)
            writer.be_of(feed.store)
            _until(stop or Event(), feed, writer, begin, say or log.warning)
            return writer


def _until(stop: Event, feed: Feed, writer: RecordingWriter, start: KeyStart, tell: Say) -> None:
    try:
        _begin(feed, writer, start, tell)
        _record(feed, writer, stop, tell)
    except OtherStore as other:
        writer.be_of(other.theirs)
    finally:
        writer.rotate(writer.reached)
        writer.holes = feed.stats["holes"]


def _record(feed: Feed, writer: RecordingWriter, ends: Event, tell: Say) -> None:
    while not ends.is_set():
        try:
            _follow(feed, writer, ends)
        except NotRetained as gap:
            writer.rotate(max(writer.reached, feed.complete))
            tell(f"GAP: {gap}")
            _snapshot(feed, writer, gap=True)
    _catch_up(feed, writer)


def _begin(feed: Feed, writer: RecordingWriter, start: KeyStart, tell: Say) -> None:
    if writer.reached:
        tell(f"goes on after {describe(writer.reached)}")
    elif start == starts.SNAPSHOT:
        _snapshot(feed, writer, gap=False)
        tell(f"begins with a snapshot at {describe(writer.reached)}, {writer.rows} keys")
    else:
        facts = feed.facts(None)
        writer.be_told(facts.oldest, facts.oldest_opener)
        writer.be_told(facts.newest, facts.opener)
        writer.begin(_first_of(facts, start))
        tell(f"begins after {describe(writer.reached)}")


def _first_of(facts: FeedFacts, start: KeyStart) -> int:
    """Return the number after which a recording begins."""
    if not isinstance(start, int):
        return facts.newest if start == starts.END else facts.oldest
    if start > facts.newest:
        raise BadInput(
            f"start={describe(start)} is above the servers' number, {describe(facts.newest)}: it is of another store, "
            "or of what this one lost; give 'end' or 'snapshot'"
        )
    return start


def _follow(feed: Feed, writer: RecordingWriter, stop: Event) -> None:
    for records in feed.follow(writer.reached, min(IDLE_S, writer.every_s), opener=writer.opener):
        writer.be_told(feed.complete, feed.opener)
        for each in records:
            writer.take(each)
        writer.reached = feed.complete
        writer.rotate_if_due()
        if stop.is_set():
            return


def _catch_up(feed: Feed, writer: RecordingWriter) -> None:
    """Take the last records of the store before the recorder ends. The next recorder asks for any that are missing."""
    try:
        for records in feed.fetch(writer.reached, FINISH_S, opener=writer.opener):
            writer.be_told(feed.complete, feed.opener)
            for each in records:
                writer.take(each)
        writer.be_told(feed.complete, feed.opener)
        writer.reached = feed.complete
    except (NotRetained, TimeoutError) as error:
        log.info("the recording ends at %s: %s", describe(writer.reached), error)


def _snapshot(feed: Feed, writer: RecordingWriter, gap: bool) -> None:
    found = feed.snapshot(None)
    if gap and found.number <= writer.reached:
        raise BadInput(
            f"{writer.folder} is recorded up to {describe(writer.reached)}, and its store is at "
            f"{describe(found.number)}: it lost what came between; record it into another directory"
        )
    now_ms = int(time.time() * 1000)
    try:
        if gap:
            row = FeedRecord(found.number, found.number, now_ms, [writer.subtree], [b""], [0])
            writer.add(row, GAP)
        for chunk, revisions in zip(found.chunks, found.revisions, strict=True):
            chunk.first = chunk.last = found.number
            chunk.wall_ms = now_ms
            writer.add(chunk, SNAPSHOT, revisions)
    except BaseException:
        # A replay of a part of a snapshot would delete the keys that the part lacks.
        writer.give_up()
        raise
    writer.be_told(found.number, found.opener)
    writer.begin(found.number)
    writer.rotate_if_due()


@contextmanager
def _can_be_written(folder: Path) -> Iterator[None]:
    """Add the directory and the remedy to an error of the system."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror}; give another directory"
        raise OSError(error.errno, why, str(folder)) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _can_be_written(folder):
        file = (folder / LOCK).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"somebody records into {folder} already; end that, or give another directory") from None
        yield


@dataclass(frozen=True, slots=True)
class _Position:
    """The content of the file `_position`: the recording of `subtree` has all rows after `start`, up to `number`.

    `subtree` is None if it is not known.
    """

    number: int = 0
    start: int = 0
    store: str = ""
    subtree: str | None = None


class RecordingWriter:
    """The writer of a recording's directory: it gathers rows, writes them in groups, and finishes files."""

    def __init__(self, folder: Path, subtree: str, every_s: float, file_bytes: int) -> None:
        """Find the files that are there; call `be_of` before the first row."""
        if every_s <= 0 or file_bytes < 1:
            raise BadInput(f"a file of {file_bytes} bytes or {every_s} s can't be; give more than 0")
        self.folder, self.subtree = folder, subtree
        self.every_s, self.file_bytes = every_s, file_bytes
        self.rows = self.bytes = self.finished = self.holes = 0
        self._pending: list[tuple[FeedRecord, int, list[int] | None]] = []
        self._pending_rows = self._pending_bytes = 0
        self._file: Any = None
        self._file_bytes = 0
        self._opened_at = self._noted_at = time.monotonic()
        # The servers that opened the last two epochs, by epoch.
        self._openers: dict[int, bytes] = {}
        done = files(folder)
        position = self._read_position()
        self.store = position.store
        # The next file begins at `_start`. All rows up to `reached` are added.
        self._start = done[-1].until if done else position.start
        self.reached = max(self._start, position.number)
        self._check(done, position.subtree)

    @property
    def opener(self) -> bytes:
        """The server that opened the epoch of `reached`; b"" if it is not known."""
        return self._openers.get(epoch_of(self.reached), b"")

    def be_told(self, number: int, opener: bytes) -> None:
        """Note the server that opened the epoch of a number."""
        if opener:
            self._openers.pop(epoch_of(number), None)
            self._openers = dict(list(self._openers.items())[-1:]) | {epoch_of(number): opener}

    def _check(self, done: list[RecordingFile], theirs: str | None) -> None:
        """Raise `BadInput` if the recording is of another subtree; `theirs` is that of the position."""
        if done:
            with readable(done[-1].path, "record into another directory"):
                metadata = opened(done[-1].path).metadata.metadata or {}
            self.store = metadata.get(b"chp.store", b"").decode()
            if self._start == self.reached:
                self.be_told(self._start, bytes.fromhex(metadata.get(b"chp.opener", b"").decode()))
            theirs = metadata.get(b"chp.subtree", b"").decode()
        if theirs not in (None, self.subtree):
            raise BadInput(f"{self.folder} is a recording of {theirs!r}, not of {self.subtree!r}; give another")

    def be_of(self, store: bytes) -> None:
        """Note the store of the rows to come; raise `BadInput` if the recording is of another store."""
        mine, theirs = f"the store {self.store}" if self.store else "no store that is known", store.hex()
        if self.reached and self.store != theirs:
            raise BadInput(
                f"{self.folder} is a recording of {mine}, and the servers hold the store {theirs}: they are "
                "other servers, or have no journal and were started anew. Record into another directory, or name the "
                "servers of this one"
            )
        self.store = theirs

    def begin(self, at: int) -> None:
        """Begin the recording at the number `at`, or begin it again there after a gap."""
        self.reached = at
        if not self._start or self._pending_rows or self._file:
            self._start = at

    def add(self, record: FeedRecord, operation: int = SET, revisions: list[int] | None = None) -> None:
        """Add a record's rows."""
        rows = len(record.keys)
        if not rows:
            return
        if not self._pending_rows and self._file is None:
            self._opened_at = time.monotonic()
        size = sum(map(len, record.values)) + sum(map(len, record.keys))
        self._pending.append((record, operation, revisions))
        self._pending_rows += rows
        self._pending_bytes += size
        self.rows += rows
        self.bytes += size
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group()

    def take(self, record: FeedRecord) -> None:
        """Add a record of the feed, and finish the file if it is large enough."""
        self.add(record)
        self.reached = record.last
        if self._file_bytes + self._pending_bytes >= self.file_bytes:
            self.rotate(self.reached)

    def rotate_if_due(self) -> None:
        """Finish the file if it is large or old enough; note the position of a quiet subtree."""
        now = time.monotonic()
        if not (self._pending_rows or self._file):
            if now - self._noted_at >= self.every_s and self.reached > self._start:
                self._write_position()
        elif self._file_bytes + self._pending_bytes >= self.file_bytes or now - self._opened_at >= self.every_s:
            self.rotate(self.reached)

    def rotate(self, until: int) -> None:
        """Write the rows that were added, finish the file, and give it its final name."""
        self._write_group()
        if self._file is None:
            return
        with self._writing():
            self._file.add_key_value_metadata({"chp.opener": self._openers.get(epoch_of(until), b"").hex()})
            self._file.close()
            self._file, self._file_bytes = None, 0
            part = self.folder / PART
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, self.folder / file_name(self._start, until))
            sync_folder(self.folder)
        self._start = until
        self.finished += 1

    def _write_group(self) -> None:
        if not self._pending_rows:
            return
        with self._writing():
            if self._file is None:
                schema = SCHEMA.with_metadata(
                    {"chp.format": str(FORMAT), "chp.subtree": self.subtree, "chp.store": self.store}
                )
                self._file = pq.ParquetWriter(
                    self.folder / PART, schema, compression="zstd",
                    use_dictionary=[name for name in SCHEMA.names if name != "value"],
                )  # fmt: skip
            self._file.write_batch(batch_of(self._pending))
        self._file_bytes += self._pending_bytes
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def give_up(self) -> None:
        """Drop the rows that were added, and the unfinished file. The next recorder asks for them again."""
        if self._file is not None:
            # Otherwise pyarrow would close the file once more when it frees the object, and fail.
            self._file.is_open = False
        self._file, self._file_bytes = None, 0
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Give up the unfinished file on an error, as on a full disk."""
        try:
            yield
        except OSError as error:
            self.give_up()
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, why, str(self.folder / PART)) from error

    def _read_position(self) -> _Position:
        try:
            found = json.loads((self.folder / POSITION).read_text())
            reached, store = int(Revision(str(found["number"]))), str(found["store"])
            # Older releases wrote neither a start nor a subtree.
            start = int(Revision(str(found.get("start", found["number"]))))
            subtree = found.get("subtree")
            if start > reached or not isinstance(subtree, str | None):
                return _Position()
            self.be_told(reached, bytes.fromhex(found.get("opener", "")))
            return _Position(reached, start, store, subtree)
        except (OSError, ValueError, KeyError, TypeError, BadInput):
            # The file is not there, or another program wrote it.
            return _Position()

    def _write_position(self) -> None:
        self._noted_at = time.monotonic()
        draft = self.folder / (POSITION + ".part")
        position = {
            "number": describe(self.reached), "start": describe(self._start), "subtree": self.subtree,
            "store": self.store, "opener": self.opener.hex(),
        }  # fmt: skip
        draft.write_text(json.dumps(position))
        os.replace(draft, self.folder / POSITION)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its renames last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
