"""Room for more, in memory and on the disk: looked at ten times a second, and what is done when the journal has none.

    look        measured.py's figures for the core, and the reserve (ballast.py) that is kept while there is room
    no_room     the journal could not be written: what is measured says so for a while, and the reserve is let go
    wait_s      until the journal is asked again

Nothing is judged here: that is core/room.py's.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ..core.core import ServerCore
from ..core.performing import is_spare
from ..core.state.journal import JournalError, JournalFull
from ..core.updates.resource_limits import ResourceUsage
from .gauges import Gauge

NAME = "reserve"
BYTES_MAX = 4 << 20  # more than a turn writes, but for a value of many MiB: there is no set of that size at this point


class DiskReserve:
    """It is there, or it is not."""

    def __init__(self, directory: Path | None, disk_free_min: int) -> None:
        self._path = None if directory is None else directory / NAME
        self._bytes = min(BYTES_MAX, disk_free_min // 4)
        self._wanted = disk_free_min + self._bytes  # free, for it to be made
        self._there = False

    def hold(self, disk_free: int | None) -> None:
        """Make it, if there is room for it."""
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
        """Take it away; whether it was there."""
        was, self._there = self._there, False
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        return was


MEASURE_S = 0.1  # between two looks; what sets take between them is added up
NO_ROOM_S = 10.0  # after the journal had none: sets are refused for so long, and no snapshot is begun; less if the
# disk was seen to be full then, and is seen to have room again: only a quota can't be seen
GONE = (
    "its file was removed, or another stands in its place, so it keeps nothing; the active has all that it had: see "
    "what became of --data, and start this server again, which catches up"
)
NO_ROOM_RETRY_S = 0.5  # until the journal is asked again whether it has room


class DiskMonitor:
    """What there is, and why a turn waits if it does."""

    def __init__(self, gauge: Gauge, now: float) -> None:
        self._gauge = gauge
        self._ballast = DiskReserve(gauge.directory, gauge.disk_free_min)
        self.tight = ""  # why there is little room for more
        self.full = JournalFull("")  # why a turn waits
        self._lighter = False  # some room has just been made
        self.due = now  # when to look again
        self._journal_full_until = self._read_only_until = now
        self._was_short = False  # the disk was full when the journal had no room

    def look(self, core: ServerCore, now: float) -> None:
        """Tell the core what there is. `JournalError` if the journal's file is gone and the other server has all."""
        seen = self._measured(time.monotonic())
        if seen.gone and is_spare(core):
            raise JournalError(GONE)
        self.tight = core.measured(seen)
        self._ballast.hold(seen.disk_free)
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
        """A turn waits for room; operators are told."""
        self.full = error
        self.due, self._journal_full_until = 0.0, now + NO_ROOM_S
        self._read_only_until = self._journal_full_until
        self._look_at_cause(now)
        core.measured(self._measured(now), aside=True)
        self._lighter = self._ballast.let_go()

    def no_room_to_clean(self, now: float) -> float:
        """The journal could not be cleaned up; until when it need not be tried again."""
        self.due, self._journal_full_until = 0.0, now + NO_ROOM_S
        self._look_at_cause(now)
        return self._journal_full_until

    def _look_at_cause(self, now: float) -> None:
        """See whether the disk is full, so that room on it can be seen too."""
        free = self._measure(now).disk_free
        self._was_short = free is not None and free < self._gauge.disk_free_min

    @property
    def wait_s(self) -> float:
        """How long a turn that waits for room does so."""
        return 0.0 if self._lighter else NO_ROOM_RETRY_S


def _has_room(seen: ResourceUsage, disk_free_min: int) -> bool:
    """Return True if the disk has more than what is to stay free, by a margin."""
    return seen.disk_free is not None and seen.disk_free >= disk_free_min + disk_free_min // 4
