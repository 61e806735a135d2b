"""How much memory and disk there is and is used: looked at here, judged in `resource_limits.py`.

The bound on memory, if the operator gives none, is MEMORY_SHARE of the least of what the control group, the limit on
address space and the machine let a process have. Address space is no measure of memory, as libraries reserve more than
they use; so if it is bounded, what is left of it is told too. Of the disk SHARE_KEPT is kept, or KEPT if that is less.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from .. import logs
from ..core.updates.resource_limits import MIB, ResourceUsage
from ..store.sql.sqlite_files import database_path

log = logs.get_log(__name__)
MEMORY_SHARE = 0.8
ADDRESS_SHARE = 0.9
KEPT, SHARE_KEPT = 64 * MIB, 16  # what a journal writes ahead, and its clean-up; a sixteenth of a small disk
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Gauge:
    """Measures this process and the disk of its journal, if that is on one of ours; see config.py for the bounds."""

    def __init__(self, memory_max: int | None, disk_free_min: int | None, store: str) -> None:
        self._file = database_path(store) if store.startswith("sqlite:") else None
        self.directory = None if self._file is None else self._file.parent
        self._known: tuple[int, int] | None = None  # device and inode of the journal's file, once it is there
        bound = address_max()
        self._address_max = None if bound is None or memory_max == 0 else int(bound * ADDRESS_SHARE)
        self._memory_max = int(min(bounds()) * MEMORY_SHARE) if memory_max is None else memory_max or None
        self._used = used()
        self.disk_free_min = self._kept() if disk_free_min is None else disk_free_min

    @property
    def impossible(self) -> str:
        """Why no set could ever be done within these bounds, by a server that holds nothing yet; "" if some could."""
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
        """What is used, and what is left, now."""
        address, resident = self.used()
        left = None if self._address_max is None else self._address_max - address
        free, gone = self._disk_free(), self._is_gone()
        return ResourceUsage(resident, self._memory_max, left, free, journal_full, read_only, gone)

    def used(self) -> tuple[int, int]:
        """As `used`; as it was last while no file can be opened, since connections have taken all descriptors."""
        try:
            self._used = used()
        except OSError as error:
            log.limited("no file can be opened: connections have all descriptors; raise LimitNOFILE", why=str(error))
        return self._used

    def _is_gone(self) -> bool:
        """Whether the journal's file is not the one any more that was there."""
        if self._file is None:
            return False
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return self._known is not None
        except OSError:
            return False  # the journal will say what is wrong
        self._known = self._known or (found.st_dev, found.st_ino)
        return self._known != (found.st_dev, found.st_ino)

    def _disk_free(self) -> int | None:
        if self.directory is None:
            return None
        try:
            disk = os.statvfs(self.directory)
        except OSError:
            return None  # the journal will say what is wrong
        return disk.f_bavail * disk.f_frsize


class _Resident:
    """How much memory this process has, by a file that stays open: it is asked for in every turn."""

    def __init__(self) -> None:
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        """In bytes."""
        return int(os.pread(self._file, 64, 0).split(maxsplit=2)[1]) * _PAGE


resident_bytes = _Resident()


def used() -> tuple[int, int]:
    """Address space and resident memory of this process, in bytes."""
    with open("/proc/self/statm", "rb") as file:
        address, resident, _ = file.read().split(maxsplit=2)
    return int(address) * _PAGE, int(resident) * _PAGE


def address_max() -> int | None:
    """The limit on address space, if there is one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def bounds() -> Iterator[int]:
    """What may bound the memory of this process."""
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
    """Let the allocator return what is free to the system; it keeps pieces otherwise, and memory stays in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
