"""The mark beside a journal: how far it had been, so that one that was cut short does not pass for whole.

    DIR/journal.sqlite.mark     "CHPMARK1", journal's id, boot, sync mode, CRC-32        written when it is opened
                                at octet 64: last number, CRC-32                         written at every commit

A journal is verified by its checksums and its chain, but a chain that ends sooner is a chain: a log that was cut,
removed, or put back from an earlier day shows nowhere in it. The mark does. It is written after the commit and before
anything is acknowledged, so it is never ahead of a sound journal; and before a commit that takes rows back, likewise.
It is not synced (16 octets into the page cache cost a microsecond) but with the snapshots: after a power cut it
may be behind, which hides a loss and never invents one. Where the journal itself is not synced (`interval`, `off`), a
mark of an earlier boot may be ahead of what a power cut left, as was agreed to; so the boot is part of it.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from chp.numbers import describe

from .journal import JournalDamaged, JournalError, Options

_HEAD = struct.Struct(">8s16s16s8sI")
_NUMBER = struct.Struct(">QII")
_AT = 64
_MAGIC = b"CHPMARK1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Mark(NamedTuple):
    """What a mark says: this journal had been at `number`, and that has to be on the disk if it is `certain`."""

    store: bytes
    number: int
    certain: bool


def mark_path(path: Path) -> Path:
    """The mark of the journal in the file `path`."""
    return Path(f"{path}.mark")


def read_mark(path: Path) -> Mark | None:
    """The mark of the journal at `path`; None if there is none, or it is damaged itself."""
    try:
        data = mark_path(path).read_bytes()
    except OSError:
        return None
    if len(data) < _AT + _NUMBER.size:
        return None
    magic, store, boot, sync, crc = _HEAD.unpack(data[: _HEAD.size])
    if magic != _MAGIC or crc != crc32(data[: _HEAD.size - 4]):
        return None
    number, crc, _ = _NUMBER.unpack(data[_AT : _AT + _NUMBER.size])
    if crc != _number_crc(store, number):
        return None
    return Mark(store, number, sync.rstrip() == b"always" or boot == _boot())


class MarkFile:
    """The mark of a journal that is open for writing."""

    def __init__(self, path: Path, store: bytes, sync: str, number: int) -> None:
        self.number = -1
        self.floor = 0  # a number that is still to be reached again: the mark does not go below it
        self._store = store
        self._place = str(mark_path(path))
        try:
            self._fd = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            head = _HEAD.pack(_MAGIC, store, _boot(), sync.encode().ljust(8), 0)[:-4]
            os.pwrite(self._fd, (head + crc32(head).to_bytes(4, "big")).ljust(_AT, b"\0"), 0)
        except OSError as error:
            raise JournalError(f"{self._place} can't be written ({error}); check the rights and the disk") from error
        self.write(number)
        self.sync()

    def write(self, number: int) -> None:
        """The journal is at `number`."""
        number = max(number, self.floor)
        if number == self.number:
            return
        try:
            os.pwrite(self._fd, _NUMBER.pack(number, _number_crc(self._store, number), 0), _AT)
        except OSError as error:
            raise JournalError(f"{self._place} can't be written ({error}); check the disk") from error
        self.number = number

    def sync(self) -> None:
        """What was written outlives a power cut."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise JournalError(f"{self._place} can't be synced ({error}); check the disk") from error

    def close(self) -> None:
        """Let go of the file; it stays."""
        os.close(self._fd)


class JournalMark:
    """The mark of one journal: as an earlier run left it, then (from `follow` on) as this one writes it.

    Without a `path` there is none. `owned` says that no other server writes it meanwhile.
    """

    def __init__(self, place: str, path: Path | None, options: Options, *, owned: bool) -> None:
        self.note = ""  # what is to be said of it, for the report
        self._place, self._path, self._options, self._owned = place, path, options, owned
        self._found = read_mark(path) if path else None
        self._file: MarkFile | None = None

    def beyond(self, store: bytes, last: int) -> int:
        """The number beyond `last` that journal `store` had been at; 0 if there is none.

        Without a sync at each commit, less than an earlier boot's mark is what a power cut may leave.
        """
        if self._file is not None:
            return self._file.number if self._file.number > last else 0
        found = self._found if self._owned or self._path is None else read_mark(self._path)
        if found is None or (found.store == store and found.number <= last) or not found.number:
            return 0
        if not found.certain:
            self.note += f"; after a power cut it lacks what came up to {describe(found.number)} (sync was not always)"
            return 0
        if found.store != store and last:
            self._of_another(found)
            return 0
        return found.number

    def _of_another(self, found: Mark) -> None:
        if self._options.recover == "strict":
            text = f"its mark is that of journal {found.store.hex()}, at {describe(found.number)}: one of the two was"
            text += f" put here from elsewhere; put the right one back, or remove {self._path}.mark to keep this"
            raise JournalDamaged(f"{self._place}: {text}", "the mark")
        self.note += f"; the mark was that of journal {found.store.hex()}"

    def follow(self, store: bytes, number: int, floor: int) -> None:
        """Write it from now on; it does not go below `floor`, which is to be reached again."""
        if self._path is not None and self._owned and self._file is None:
            self._file = MarkFile(self._path, store, self._options.sync, max(number, floor))
            self._file.floor = floor

    def move(self, last: int, *, committed: bool) -> None:
        """Follow the journal: forward after a commit, back before it."""
        if self._file is not None and (committed or last < self._file.number):
            self._file.write(last)

    def sync(self) -> None:
        """What was written outlives a power cut."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Let go of it; it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _number_crc(store: bytes, number: int) -> int:
    return crc32(number.to_bytes(8, "big"), crc32(store))


def _boot() -> bytes:
    """Which run of the operating system this is; zeros if it does not say."""
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
