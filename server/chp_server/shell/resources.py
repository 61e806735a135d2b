"""Memory and disk: this module measures how much is there and how much is used; `resource_limits.py` judges it.

    Gauge           measures this process and the disk of its journal
    DiskReserve     a file that is deleted when the disk is full
    DiskMonitor     tells the core ten times a second what there is, and says how long a turn waits for room

If the operator gives no bound on memory, it is MEMORY_SHARE of the least of what the control group, the limit on
address space and the machine let a process have. Libraries reserve more address space than they use, so it does not
measure memory. If address space is bounded, the gauge also tells how much of it is left. On the disk KEPT stays free,
or a sixteenth of the disk if that is less.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from .. import logs
from ..core.core import ServerCore
from ..core.state.journal import JournalError, JournalFull
from ..core.updates.resource_limits import MIB, RETAIN_TIMES, ResourceUsage
from ..store.sql.sqlite_files import database_path

log = logs.get_log(__name__)
MEMORY_SHARE = 0.8
ADDRESS_SHARE = 0.9
# A checkpoint writes the log into the journal, which may grow by the size of the log (sqlite.py). A clean-up needs room
# too.
KEPT, SHARE_KEPT = 64 * MIB, 16
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Gauge:
    """A gauge of this process and of the disk of its journal, if that is on a disk of this host.

    settings/config.py has the bounds.
    """

    def __init__(self, memory_max: int | None, disk_free_min: int | None, store: str) -> None:
        self._file = database_path(store) if store.startswith("sqlite:") else None
        self.directory = None if self._file is None else self._file.parent
        # The device and inode of the journal's file, once it is there.
        self._known: tuple[int, int] | None = None
        bound = address_max()
        self._address_max = None if bound is None or memory_max == 0 else int(bound * ADDRESS_SHARE)
        self._memory_max = int(min(bounds()) * MEMORY_SHARE) if memory_max is None else memory_max or None
        self._used = used()
        self.disk_free_min = self._kept() if disk_free_min is None else disk_free_min

    @property
    def impossible(self) -> str:
        """The reason why a server that holds nothing yet could do no set within these bounds; "" if it could."""
        _, resident = used()
        most = self._memory_max
        if most is not None and resident >= most - most // 20:
            least = 2 * resident // MIB
            figures = f"the server alone takes {resident // MIB} MiB; give {least} MiB, or more"
            return f"--max-memory {most / MIB:,.1f} MiB: {figures}"
        if self.directory is None:
            return ""
        disk = os.statvfs(self.directory)
        size, kept = disk.f_blocks * disk.f_frsize, self.disk_free_min
        if kept + kept // 4 < size:
            return ""
        return (
            f"--min-free-disk {kept / MIB:,.0f} MiB: the whole disk of {self.directory} has {size // MIB:,} MiB; "
            "give less, or another --data"
        )

    def _kept(self) -> int:
        if self.directory is None:
            return 0
        disk = os.statvfs(self.directory)
        return min(KEPT, disk.f_blocks * disk.f_frsize // SHARE_KEPT)

    def measure(self, *, journal_full: bool, read_only: bool = False) -> ResourceUsage:
        """Measure what is used and what is left."""
        address, resident = self.used()
        left = None if self._address_max is None else self._address_max - address
        free, gone = self._disk_free(), self._is_gone()
        return ResourceUsage(resident, self._memory_max, left, free, journal_full, read_only, gone)

    def used(self) -> tuple[int, int]:
        """Return address space and resident memory, in bytes; the last values while no descriptor is free."""
        try:
            self._used = used()
        except OSError as error:
            log.limited("no file can be opened: connections have all descriptors; raise LimitNOFILE", why=str(error))
        return self._used

    def _is_gone(self) -> bool:
        """Return True if the journal's file was removed or replaced."""
        if self._file is None:
            return False
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return self._known is not None
        except OSError:
            # The journal will say what is wrong.
            return False
        self._known = self._known or (found.st_dev, found.st_ino)
        return self._known != (found.st_dev, found.st_ino)

    def _disk_free(self) -> int | None:
        if self.directory is None:
            return None
        try:
            disk = os.statvfs(self.directory)
        except OSError:
            # The journal will say what is wrong.
            return None
        return disk.f_bavail * disk.f_frsize


class _Resident:
    """The memory of this process, from a file that stays open: every turn asks for it."""

    def __init__(self) -> None:
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        """Return the resident memory in bytes."""
        return int(os.pread(self._file, 64, 0).split(maxsplit=2)[1]) * _PAGE


resident_bytes = _Resident()


def used() -> tuple[int, int]:
    """Return the address space and the resident memory of this process, in bytes."""
    with open("/proc/self/statm", "rb") as file:
        address, resident, _ = file.read().split(maxsplit=2)
    return int(address) * _PAGE, int(resident) * _PAGE


def address_max() -> int | None:
    """Return the limit on address space, or None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def bounds() -> Iterator[int]:
    """Yield the bounds on the memory of this process."""
    yield os.sysconf("SC_PHYS_PAGES") * _PAGE
    if (address := address_max()) is not None:
        yield address
    for place in _GROUPS:
        try:
            text = Path(place).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


def give_back() -> None:
    """Let the allocator return free memory to the system. By itself it keeps free pieces, which count as in use.

    Only glibc has `malloc_trim`. Elsewhere this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# The server gives memory back only if its serving thread has used this much processor time since the last time.
BUSY_S = 1.0
# After that, the thread must use less than the share QUIET of a processor in QUIET_LOOKS looks, one after the other.
QUIET, QUIET_LOOKS = 0.05, 5
# Giving memory back takes some milliseconds of a turn, so at least this much time lies between two times.
GIVE_BACK_S = 60.0


class QuietMoments:
    """The moments in which a server gives memory back: it was busy, and is quiet for some seconds.

    A busy moment leaves free pieces in malloc, some 20 MiB, and the next busy moment would use them again. So a server
    that is always busy gives nothing back.
    """

    def __init__(self) -> None:
        # The time and the processor time at the last look, and when memory was given back.
        self._seen = self._given = (0.0, 0.0)
        self._quiet_looks = 0

    def look(self, now: float, cpu_s: float) -> bool:
        """Return True if memory is to be given back now. The caller tells its processor time about once a second."""
        (seen, seen_cpu_s), self._seen = self._seen, (now, cpu_s)
        self._quiet_looks = self._quiet_looks + 1 if cpu_s - seen_cpu_s < QUIET * (now - seen) else 0
        given, given_cpu_s = self._given
        if self._quiet_looks < QUIET_LOOKS or cpu_s - given_cpu_s < BUSY_S or now - given < GIVE_BACK_S:
            return False
        self._given = now, cpu_s
        return True


NAME = "reserve"
# The reserve has at most this many bytes. A turn writes less, except for a value of many MiB; the server takes no set
# of that size when the disk is nearly full.
BYTES_MAX = 4 << 20


class DiskReserve:
    """A reserve file that is deleted when the disk is full."""

    def __init__(self, directory: Path | None, disk_free_min: int) -> None:
        self._path = None if directory is None else directory / NAME
        self._bytes = min(BYTES_MAX, disk_free_min // 4)
        # The file is made if this much is free.
        self._wanted = disk_free_min + self._bytes
        self._there = False

    def hold(self, disk_free: int | None) -> None:
        """Make the file, if there is room for it."""
        if self._there or self._path is None or not self._bytes or disk_free is None or disk_free < self._wanted:
            return
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._bytes)
        except OSError:
            self.let_go()
        else:
            self._there = True

    def let_go(self) -> bool:
        """Delete the file; return True if it was there."""
        self._there = False
        if self._path is None:
            return False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


# The time between two looks. Between them, the server adds up what sets take.
MEASURE_S = 0.1
# After the journal had no room, the server refuses sets for this long, and begins no snapshot. It stops earlier if the
# disk was seen to be full, and is then seen to have room again. A full quota can't be seen.
NO_ROOM_S = 10.0
GONE = (
    "its file was removed, or another stands in its place, so it keeps nothing; the active has all that it had: see "
    "what became of --data, and start this server again, which catches up"
)
# The time until the journal is asked again whether it has room.
NO_ROOM_RETRY_S = 0.5


class DiskMonitor:
    """The monitor of memory and disk. It measures them, and knows why a turn waits for room."""

    def __init__(self, gauge: Gauge, now: float) -> None:
        self._gauge = gauge
        self._reserve = DiskReserve(gauge.directory, gauge.disk_free_min)
        # The reason why there is little room for more.
        self.tight = ""
        # The reason why a turn waits.
        self.full = JournalFull("")
        # True if the reserve has just been deleted: the turn then tries again at once.
        self._lighter = False
        # The time of the next look.
        self.due = now
        self._journal_full_until = self._read_only_until = now
        # True if the disk was full when the journal had no room.
        self._was_short = False
        # The bytes that the disk lacks. The journal is to give up retained records for them.
        self.lacks = 0

    def look(self, core: ServerCore, now: float) -> None:
        """Tell the core how much memory and disk is there.

        Raise `JournalError` if the journal's file is gone and the other server has all data.
        """
        seen = self._measured(time.monotonic())
        if seen.gone and core.pair.passive_is_spare():
            raise JournalError(GONE)
        self.tight = core.measured(seen)
        self._reserve.hold(seen.disk_free)
        enough = RETAIN_TIMES * self._gauge.disk_free_min
        self.lacks = 0 if seen.disk_free is None else max(0, enough - seen.disk_free)
        self.due = now + MEASURE_S

    def _measured(self, now: float) -> ResourceUsage:
        seen = self._measure(now)
        if self._was_short and _has_room(seen, self._gauge.disk_free_min):
            self._was_short, self._journal_full_until, self._read_only_until = False, now, now
            seen = self._measure(now)
        return seen

    def _measure(self, now: float) -> ResourceUsage:
        return self._gauge.measure(journal_full=now < self._journal_full_until, read_only=now < self._read_only_until)

    def no_room(self, core: ServerCore, error: JournalFull, now: float) -> None:
        """Note that the journal had no room and a turn waits for some, and delete the reserve."""
        self.full = error
        self.due, self._journal_full_until = 0.0, now + NO_ROOM_S
        self._read_only_until = self._journal_full_until
        self._look_at_cause(now)
        core.measured(self._measured(now), aside=True)
        self._lighter = self._reserve.let_go()
        # The server can't see the disk of a database, or a quota. So it takes a fixed number of bytes as lacking.
        self.lacks = RETAIN_TIMES * (self._gauge.disk_free_min or KEPT)

    def no_room_to_clean(self, now: float) -> float:
        """Note that the journal could not be cleaned up; return when to try again."""
        self.due, self._journal_full_until = 0.0, now + NO_ROOM_S
        self._look_at_cause(now)
        return self._journal_full_until

    def _look_at_cause(self, now: float) -> None:
        """Note whether the disk is full. Only then a later look can tell that the disk has room again."""
        free = self._measure(now).disk_free
        self._was_short = free is not None and free < self._gauge.disk_free_min

    @property
    def wait_s(self) -> float:
        """The time for which a turn waits for room before it tries again."""
        return 0.0 if self._lighter else NO_ROOM_RETRY_S


def _has_room(seen: ResourceUsage, disk_free_min: int) -> bool:
    """Return True if the disk has more than what is to stay free, by a margin."""
    return seen.disk_free is not None and seen.disk_free >= disk_free_min + disk_free_min // 4
