"""The mark beside a journal: it tells how far the journal has been, so that a start notices if it was cut short.

    DIR/journal.sqlite.mark     "CHPMARK1", journal's id, boot, sync mode, CRC-32        made anew when it is opened
    DIR/postgresql-ID.mark      at octet 64: last number, CRC-32                         written at every commit

Checksums and the chain of rows verify a journal, but a chain that ends sooner is still a chain. A log that was cut,
removed, or put back from an earlier day leaves no trace in the journal. The mark shows such a loss. It is written after
the commit and before any acknowledgement, so it is never ahead of a sound journal. Before a commit that takes rows
back, the mark goes back first. It is synced only with the snapshots (16 octets into the page cache cost a microsecond).
So after a power cut it may be behind, which can hide a loss but never invents one. If the journal itself is not synced
(`interval`, `off`), a mark of an earlier boot may be ahead of what a power cut left, as these settings allow; so the
boot is part of the mark.

A mark appears whole, by rename, and is then written within one sector. So a mark that can't be read is damaged. A start
refuses it like a damaged journal, since it can't tell any more that nothing is missing. The mark of a store in
PostgreSQL lies in the server's data directory: it shows a database that was put back to an earlier day, or whose
standby took over with less.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from chp.numbers import describe

from ...core.state.journal import JournalDamaged, JournalError, Options
from .sqlite_files import sync_directory

_HEAD = struct.Struct(">8s16s16s8sI")
_NUMBER = struct.Struct(">QII")
_AT = 64
# A mark that seems damaged is read this many times.
LOOKS = 3
_MAGIC = b"CHPMARK1"
# This value stands in the place of the boot if another machine keeps the journal, whose boots are not known here.
_ELSEWHERE = b"\xff" * 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class HighWaterMark(NamedTuple):
    """The content of a mark: the journal has been at `number`; if `certain`, the disk must have all up to it."""

    store: bytes
    number: int
    certain: bool


def mark_path(path: Path) -> Path:
    """Return the path of the mark of the journal at `path`."""
    return Path(f"{path}.mark")


def read_mark(path: Path) -> HighWaterMark | None:
    """Return the mark of the journal at `path`, or None; raise `JournalDamaged` if the mark can't be read."""
    # A server may be writing the mark at this moment, so a mark that seems damaged is read again.
    for _ in range(LOOKS):
        try:
            data = mark_path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{mark_path(path)} can't be read ({error}); check the rights and the disk") from error
        if (mark := _mark_of(data)) is not None:
            return mark
    raise JournalDamaged(
        f"{mark_path(path)} is damaged, so nothing tells whether the journal ends where it should: let the other "
        "server send its state (start with an empty data directory), restore a backup, or accept the journal as it "
        "is, by one start with --recover prefix",
        "the mark",
    )


def _mark_of(data: bytes) -> HighWaterMark | None:
    """Return the content of a mark; None if it is damaged."""
    if len(data) < _AT + _NUMBER.size:
        return None
    magic, store, boot, sync, crc = _HEAD.unpack(data[: _HEAD.size])
    number, number_crc, _ = _NUMBER.unpack(data[_AT : _AT + _NUMBER.size])
    if magic != _MAGIC or crc != crc32(data[: _HEAD.size - 4]) or number_crc != _number_crc(store, number):
        return None
    return HighWaterMark(store, number, sync.rstrip() == b"always" or boot == _boot())


class MarkFile:
    """The file of the mark of a journal that is open for writing."""

    def __init__(self, path: Path, store: bytes, sync: str, number: int, boot: bytes = b"") -> None:
        self.number = number
        # The mark does not go below this number, which the journal is still to reach again.
        self.floor = 0
        self._store = store
        self._place = str(mark_path(path))
        head = _HEAD.pack(_MAGIC, store, boot or _boot(), sync.encode().ljust(8), 0)[:-4]
        whole = (head + crc32(head).to_bytes(4, "big")).ljust(_AT, b"\0") + _packed(store, number)
        new = f"{self._place}.new"
        try:
            self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, whole, 0)
            os.fsync(self._fd)
            # The rename makes sure that there is never half a mark.
            os.replace(new, self._place)
            sync_directory(path)
        except OSError as error:
            raise JournalError(f"{self._place} can't be written ({error}); check the rights and the disk") from error

    def write(self, number: int) -> None:
        """Write that the journal is at `number`."""
        number = max(number, self.floor)
        if number == self.number:
            return
        try:
            os.pwrite(self._fd, _packed(self._store, number), _AT)
        except OSError as error:
            raise JournalError(f"{self._place} can't be written ({error}); check the disk") from error
        self.number = number

    def sync(self) -> None:
        """Make the mark outlive a power cut."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise JournalError(f"{self._place} can't be synced ({error}); check the disk") from error

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self._fd)


class JournalMark:
    """The mark of one journal: that of an earlier run, and from `follow` on the one that this run writes.

    Without a `path` there is no mark. `owned` says that no other server writes the mark meanwhile. `same_host` says
    that the journal loses no written data while this machine runs on.
    """

    def __init__(self, place: str, path: Path | None, options: Options, *, owned: bool, same_host: bool = True) -> None:
        # A note for the report.
        self.note = ""
        self._place, self._path, self._options, self._owned = place, path, options, owned
        self._boot = _boot() if same_host else _ELSEWHERE
        self._found = self._read() if owned else None
        self._file: MarkFile | None = None

    def _read(self) -> HighWaterMark | None:
        try:
            return read_mark(self._path) if self._path else None
        except JournalDamaged:
            if self._options.recover == "strict":
                raise
            self.note += f"; {mark_path(self._path or Path()).name} was damaged, and is made anew"
            return None

    def beyond(self, store: bytes, last: int) -> int:
        """Return the number beyond `last` at which journal `store` has been; 0 if there is none.

        Without a sync at each commit, a power cut may leave less than the mark of an earlier boot tells. Then the
        result is 0, with a note.
        """
        if self._file is not None:
            return self._file.number if self._file.number > last else 0
        found = self._found if self._owned else self._read()
        if found is None or (found.store == store and found.number <= last) or not found.number:
            return 0
        if not found.certain:
            self.note += f"; after a power cut it lacks what came up to {describe(found.number)} (sync was not always)"
            return 0
        if found.store != store and last:
            self._of_another(found)
            return 0
        return found.number

    def _of_another(self, found: HighWaterMark) -> None:
        if self._options.recover == "strict":
            text = f"its mark is that of journal {found.store.hex()}, at {describe(found.number)}: one of the two was"
            text += f" put here from elsewhere; put the right one back, or remove {self._path}.mark to keep this"
            raise JournalDamaged(f"{self._place}: {text}", "the mark")
        self.note += f"; the mark was that of journal {found.store.hex()}"

    def follow(self, store: bytes, number: int, floor: int) -> None:
        """Write the mark from now on; it stays at `floor` or above, which the journal is to reach again."""
        if self._path is not None and self._owned and self._file is None:
            self._file = MarkFile(self._path, store, self._options.sync, max(number, floor), self._boot)
            self._file.floor = floor

    def move(self, last: int, *, committed: bool) -> None:
        """Move the mark with the journal: forward after a commit, and back before a commit that drops rows."""
        if self._file is not None and (committed or last < self._file.number):
            self._file.write(last)

    def sync(self) -> None:
        """Make the mark outlive a power cut."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the mark, whose file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _packed(store: bytes, number: int) -> bytes:
    return _NUMBER.pack(number, _number_crc(store, number), 0)


def _number_crc(store: bytes, number: int) -> int:
    return crc32(number.to_bytes(8, "big"), crc32(store))


def _boot() -> bytes:
    """Return the id of this run of the operating system; zeros if it tells none."""
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
