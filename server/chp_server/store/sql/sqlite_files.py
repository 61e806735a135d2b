"""The files beside a SQLite journal: the lock, the write-ahead log after a crash, and files that were set aside.

    DIR/journal.sqlite       the database, and its -wal and -shm
    DIR/journal.sqlite.lock  held with flock by the one server that uses it, with its pid inside
    DIR/journal.sqlite.damaged-1 ...   what `recover="prefix"` moved out of the way

**The log's tail.** After a crash SQLite takes the frames of the -wal file up to the last whole transaction and silently
ignores the rest. That is right for a tail that was never synced, which is at most one transaction. If a *later*
transaction lies behind the ignored one, it began after the ignored one had been synced. So the ignored transaction was
damaged afterwards, and acknowledged rows are lost. `log_tail` counts these transactions. The page "WAL-mode File
Format" of SQLite's documentation has the layout. The checksum of a frame continues that of the frame before. This tells
a frame that follows from an old frame that was left over.
"""

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...core.state.journal import JournalError, JournalLocked, JournalReadOnly

# The size of the pages of our databases.
PAGE = 16_384
# The log is reserved if the disk has this many times its size free.
RESERVED_OF = 16
_WAL_HEADER = 32
# Page, size of the database in a commit frame, salts, checksums.
_FRAME_HEADER = struct.Struct(">IIIIII")
_MASK = 0xFFFFFFFF
# SQLite allows these sizes of pages.
_PAGES = [1 << n for n in range(9, 17)]


def database_path(url: str) -> Path:
    """Return the database file of `sqlite:PATH`: PATH itself if it looks like a file, else one in that directory."""
    name = url.removeprefix("sqlite:")
    if name.startswith("//"):
        name = name[2:]
    if not name:
        raise JournalError(f"{url!r} names no path; write sqlite:/a/directory")
    path = Path(name)
    if path.is_file() or (path.suffix in (".sqlite", ".db") and not path.is_dir()):
        return path
    return path / "journal.sqlite"


def lock(path: Path) -> int:
    """Lock the journal at `path` until this process ends or closes the returned descriptor."""
    name = f"{path}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (PermissionError, OSError) as error:
        raise JournalReadOnly(f"{path}: can't write to its directory ({error}); check its rights") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise JournalLocked(f"{path} is in use by the server with pid {pid}; stop it, or use another path") from error
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # The disk is full: the lock holds without its note.
        pass
    return fd


def is_locked(path: Path) -> bool:
    """Return True if a server uses the journal at `path` now."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class LogTail(NamedTuple):
    """The frames in the log behind those that SQLite will use."""

    # The frames that SQLite will use.
    valid: int
    # The frames of the present log behind them.
    ignored: int = 0
    # The synced transactions among the ignored frames.
    lost: int = 0


def log_tail(path: Path, valid: int) -> LogTail:
    """Return the tail of the log of `path` behind its `valid` frames."""
    ignored = lost = 0
    with open(f"{path}-wal", "rb") as file:
        header = file.read(_WAL_HEADER)
        if len(header) < _WAL_HEADER:
            return LogTail(valid)
        order = ">" if header[3] & 1 else "<"
        page = int(struct.unpack(">I", header[8:12])[0])
        size = _FRAME_HEADER.size + (page if page in _PAGES else PAGE)
        first = file.read(_FRAME_HEADER.size)
        # The log is reserved, and nothing was written yet.
        if not any(header) and not any(first):
            return LogTail(valid)
        sound = struct.pack(">II", *_checksum(header[:24], (0, 0), order)) == header[24:]
        salt = header[16:24] if sound else first[8:16]
        # The checksum of a commit frame, which the next frame is to follow.
        before: tuple[int, int] | None = None
        file.seek(_WAL_HEADER + valid * size)
        while len(frame := file.read(size)) == size:
            _, commit, _, _, one, two = _FRAME_HEADER.unpack(frame[: _FRAME_HEADER.size])
            ours = frame[8:16] == salt
            if before and ours and _checksum(frame[:8] + frame[24:], before, order) == (one, two):
                lost += 1
            ignored += ours
            before = (one, two) if ours and commit else None
    return LogTail(valid, ignored, lost)


def _checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for left, right in zip(words[::2], words[1::2], strict=True):
        one = (one + left + two) & _MASK
        two = (two + right + one) & _MASK
    return one, two


def valid_frames(path: Path) -> int:
    """Return how many frames SQLite found whole: `mxFrame` in the -shm file, while a connection is open."""
    try:
        with open(f"{path}-shm", "rb") as file:
            return int(struct.unpack("=I", file.read(20)[16:])[0])
    # There is no such file if the log had no frames.
    except (OSError, struct.error):
        return 0


def reserve_log(path: Path, size: int) -> None:
    """Give an empty log its full size, so that no commit has to make the file longer and sync its new size.

    The file is zeros then, which SQLite takes for an empty log. Where the disk has little room, or can't reserve any,
    the log begins without reserved room.
    """
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < RESERVED_OF * size:
            return
        # "r+b" does not create the file, which SQLite has made.
        with open(f"{path}-wal", "r+b", buffering=0) as file:
            if not os.fstat(file.fileno()).st_size:
                os.posix_fallocate(file.fileno(), 0, size)


def aside_path(path: Path) -> Path:
    """Return an unused name for damaged files beside `path`."""
    n = 1
    while any(Path(f"{path}.damaged-{n}{end}").exists() for end in ("", "-wal")):
        n += 1
    return Path(f"{path}.damaged-{n}")


def sync_directory(path: Path) -> None:
    """Make a rename in the directory of `path` durable."""
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
