"""Whether this server has room for more: judged here by what the shell measures, between two measurements too.

    memory      resident, and the address space if that is bounded
    keys        of the map
    disk        what is free where the journal is

Without room, whatever would make the map larger is refused as `full`: sets, what is staged and its commit, new leases.
Deletes, reads and heartbeats go on, in the reserve that the bounds leave. When half of the disk's reserve is used up,
refusals leave no rows any more (refusals.py). When but an eighth of it is left, or the journal has found no room at
all, the server is *read-only*: it writes nothing, so the last byte may go and nothing stops. So it is, too, when its
journal's file was removed under it.

Some way before a bound it is *tight*: then the active hands over, if the passive is not. What was full has room again
when it is not tight any more, so that a server at its bound does not change its mind with every set. A passive refuses
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chp import columns
from chp.batch import Segment

from ..state.state import ReplicatedState
from ..state.verdicts import Refusal

MIB = 1 << 20
COPIES = 2  # what a set takes beside its bytes: a row and the log of writes ahead of it, a value and its record
ADDRESS_MARGIN = 16 * MIB
SPARING_SHARE, READ_ONLY_SHARE = 2, 8  # of the disk's reserve
AMPLE = 1024 * MIB  # bytes of sets that no server takes between two measurements, which are a second apart


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What the shell has seen; None where there is nothing to measure."""

    memory: int = 0
    memory_max: int | None = None
    address_left: int | None = None  # of the bound on address space
    disk_free: int | None = None
    journal_full: bool = False  # a moment ago it could not be cleaned up, or ...
    read_only: bool = False  # ... not even written to
    gone: bool = False  # the journal's file was removed: what is written to it nobody will find


class ResourceLimits:
    """What is left of memory, disk and keys; asked before each set."""

    def __init__(self, *, keys_max: int | None = None, disk_free_min: int = 0) -> None:
        self._keys_max, self._disk_free_min = keys_max, disk_free_min
        self.full = False
        self.measured(ResourceUsage())

    def measured(self, seen: ResourceUsage) -> None:
        """The shell has looked."""
        self._seen = seen
        self.taken = 0  # bytes of sets that were done since the measurement
        self.ample = 0  # while fewer than that are taken, nothing can have become tight
        self.full = self.full and bool(self.tight)
        if self._keys_max is None and not self.full and not self._short(AMPLE, margins=True):
            self.ample = AMPLE

    @property
    def measurement(self) -> ResourceUsage:
        """The last one."""
        return self._seen

    @property
    def read_only(self) -> str:
        """Why nothing at all is written, deletes included; "" if something may be."""
        seen, free = self._seen, self._seen.disk_free
        if seen.gone:
            return (
                "read-only: the journal's file was removed, or another stands in its place; what is held is in memory "
                "alone: save it (chp dump), see what became of --data, and start the server again"
            )
        if seen.read_only or (free is not None and free < self._disk_free_min // READ_ONLY_SHARE):
            figures = "" if free is None else f" ({_mib(free)} are free)"
            return f"read-only: disk full{figures}; free some, and sets are taken again by themselves"
        return ""

    @property
    def spares_disk(self) -> bool:
        """Whether what is refused is to leave no row."""
        free = self._seen.disk_free
        return self._seen.journal_full or (free is not None and free < self._disk_free_min // SPARING_SHARE)

    @property
    def tight(self) -> str:
        """Why there will be no room soon: time to hand over, and from the end of which on there is room again."""
        return self._short(margins=True)

    def why_not(self, size: int = 0) -> str:
        """Why `size` more bytes have no room, with the figures and the remedy; "" if they have."""
        return self._short(size) or (self.tight if self.full else "")

    def _short(self, size: int = 0, *, margins: bool = False) -> str:
        if why := self.read_only:
            return why
        seen, more = self._seen, COPIES * (self.taken + size)
        most, free, kept = seen.memory_max, seen.disk_free, self._disk_free_min
        if most is not None and seen.memory + more > most - margins * (most // 20):
            return f"memory: {_mib(seen.memory)} of {_mib(most)} are in use; delete keys, or raise --max-memory"
        if seen.address_left is not None and seen.address_left - more < margins * ADDRESS_MARGIN:
            return f"memory: at {_mib(seen.memory)} the process may take little more; raise its limit (ulimit -v)"
        if seen.journal_full:
            return "disk: a moment ago the journal had no room; free some"
        if free is not None and free - more < kept + margins * (kept // 4):
            return f"disk: {_mib(free)} are free, and {_mib(kept)} have to stay so (--min-free-disk); free some"
        return ""

    def status(self, keys: int) -> dict[str, Any]:
        """The figures, for `chp status` and metrics; None where there is no bound."""
        seen = self._seen
        return {
            "full": self.full and bool(self.tight),
            "why": self.tight or self._why_no_key(keys, 1),
            "read_only": bool(self.read_only),
            "memory": seen.memory,
            "memory_max": seen.memory_max,
            "disk_free": seen.disk_free,
            "disk_free_min": self._disk_free_min,
            "keys_max": self._keys_max,
        }

    def check(self, segment: Segment, size: int, state: ReplicatedState) -> None:
        """`Refusal` if the segment would make the map larger than there is room for."""
        if segment.extras is None and self.taken + size <= self.ample:
            return
        if why := self.read_only:
            raise Refusal("full", why)
        if grows(segment, state) and (why := self.why_not(size) or self._why_not_keys(segment.keys, state)):
            raise Refusal("full", why)

    def why_no_set(self, key: str, size: int, state: ReplicatedState) -> str:
        """The same of one set of CHP/1: why there is no room, "" if there is."""
        return self.why_not(size) or self._why_not_keys([key], state)

    def take(self, segment: Segment, size: int, state: ReplicatedState) -> None:
        """A segment is about to be done."""
        if grows(segment, state):
            self.taken += size

    def turned_away(self, size: int) -> None:
        """There was no room for so many bytes."""
        self.full = self.full or (not self.read_only and bool(self._short(size)))

    def _why_not_keys(self, new: list[str], state: ReplicatedState) -> str:
        keys = state.map.values
        if self._keys_max is None or len(keys) + len(new) <= self._keys_max:
            return ""
        return self._why_no_key(len(keys), sum(key not in keys for key in set(new)))

    def _why_no_key(self, keys: int, more: int) -> str:
        most = self._keys_max
        if most is None or keys + more <= most:
            return ""
        return f"keys: {keys:,} are here, and {most:,} may be; delete some, or raise --max-keys"


def grows(segment: Segment, state: ReplicatedState) -> bool:
    """Whether a segment may make the map larger: it is not only of deletes, refreshes and ends."""
    extras = segment.extras or {}
    if columns.STAGE in extras or columns.COMMIT in extras or columns.PUBLISH in extras:
        return True
    opens = columns.LEASE in extras and extras[columns.LEASE][0] not in state.leases
    return opens or len(segment.keys) > len(extras.get(columns.DELETES, ()))


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
