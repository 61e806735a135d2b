"""The decision whether this server has memory and disk for a batch, by what the shell measures.

    memory      resident memory, and the address space if that is bounded
    keys        the keys of the map
    disk        the free space where the journal is

Between two measurements the server counts the bytes that it takes. Without room it refuses as `full` all that would
make the map larger: sets, staged updates and their commit, new leases. Deletes, reads and heartbeats go on, in the
reserve that the bounds leave.

If half of the disk's reserve is used up, refusals leave no rows any more (refusals.py). The server becomes *read-only*
if only an eighth of the reserve is left, if the journal found no room at all, or if the journal's file was removed. A
read-only server writes nothing, so a disk without a free byte stops neither reads nor heartbeats.

Before all this, if less than RETAIN_TIMES the reserve is free, the shell lets the journal delete records that the
journal would otherwise retain.

Some way before a bound the server is *tight*: then the active hands over, if the passive is not tight. A
server that was full takes sets again only when it is not tight any more. So it does not change its mind
with every set. A passive refuses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chp import columns
from chp.batch import Segment

from ..state.state import ReplicatedState
from ..state.verdicts import Refusal

MIB = 1 << 20
# A set is stored this many times: on disk as a row and in the write-ahead log, in memory as a value and in its record.
COPIES = 2
ADDRESS_MARGIN = 16 * MIB
# The shares of the disk's reserve: below a half, refusals leave no rows; below an eighth, the server is read-only.
SPARING_SHARE, READ_ONLY_SHARE = 2, 8
# If less than this many times the reserve is free, the journal retains fewer records.
RETAIN_TIMES = 4
# Between two measurements, which are a second apart, no server takes as many bytes of sets as this.
AMPLE = 1024 * MIB


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """A measurement of the shell; None where there is nothing to measure."""

    memory: int = 0
    memory_max: int | None = None
    # What the bound on address space leaves.
    address_left: int | None = None
    disk_free: int | None = None
    # True if the journal could not be cleaned up a moment ago.
    journal_full: bool = False
    # True if the journal could not even be written to.
    read_only: bool = False
    # True if the journal's file was removed. Then a server that starts again would not find what is written now.
    gone: bool = False


class ResourceLimits:
    """The room that memory, disk and keys leave; each set is checked against it."""

    def __init__(self, *, keys_max: int | None = None, disk_free_min: int = 0) -> None:
        self._keys_max, self._disk_free_min = keys_max, disk_free_min
        self.full = False
        self.measured(ResourceUsage())

    def measured(self, seen: ResourceUsage) -> None:
        """Take over a measurement of the shell."""
        self._seen = seen
        # The bytes of sets that were done since the measurement.
        self.taken = 0
        # While at most this many bytes are taken, the server can't have become tight; 0 if this is not known.
        self.ample = 0
        self.full = self.full and bool(self.tight)
        if self._keys_max is None and not self.full and not self._short(AMPLE, margins=True):
            self.ample = AMPLE

    @property
    def measurement(self) -> ResourceUsage:
        """The last measurement."""
        return self._seen

    @property
    def read_only(self) -> str:
        """The reason why nothing at all is written, not even deletes; "" if something may be."""
        seen, free = self._seen, self._seen.disk_free
        if seen.gone:
            return (
                "read-only: the journal's file was removed or replaced, so all data are in memory only: save them "
                "(chp dump), look at --data, and start the server again"
            )
        if seen.read_only or (free is not None and free < self._disk_free_min // READ_ONLY_SHARE):
            figures = "" if free is None else f" ({_mib(free)} are free)"
            return f"read-only: disk full{figures}; free some, and sets are taken again by themselves"
        return ""

    @property
    def spares_disk(self) -> bool:
        """True if refusals must leave no row."""
        free = self._seen.disk_free
        return self._seen.journal_full or (free is not None and free < self._disk_free_min // SPARING_SHARE)

    @property
    def tight(self) -> str:
        """The reason why there will be no room soon, so that the active should hand over; "" if there is none.

        A full server takes sets again once this is "".
        """
        return self._short(margins=True)

    @property
    def short_of_disk(self) -> bool:
        """True if the server is tight because of its disk, and may still write."""
        free, kept = self._seen.disk_free, self._disk_free_min
        return free is not None and free < kept + kept // 4 and not self.read_only

    def has_disk_for(self, size: int) -> bool:
        """Return True if a snapshot of the journal of so many bytes may be written.

        The snapshot must leave the reserve free, or half of it if the server is `short_of_disk`.
        """
        free, kept = self._seen.disk_free, self._disk_free_min
        if self.short_of_disk and not self._seen.journal_full:
            return free is not None and free - size >= kept // SPARING_SHARE
        return not self.tight and (free is None or free - size >= kept)

    def why_not(self, size: int = 0) -> str:
        """Return why there is no room for `size` more bytes, with the figures and the remedy; "" if there is."""
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
            return f"disk: {_mib(free)} are free, and {_mib(kept)} must stay free (--min-free-disk); free some"
        return ""

    def status(self, keys: int) -> dict[str, Any]:
        """Return the figures for `chp status` and metrics; None where there is no bound."""
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
        """Raise `Refusal` if the segment would make the map larger, and there is no room for that."""
        if segment.extras is None and self.taken + size <= self.ample:
            return
        if why := self.read_only:
            raise Refusal("full", why)
        if grows(segment, state) and (why := self.why_not(size) or self._why_not_keys(segment.keys, state)):
            raise Refusal("full", why)

    def why_no_set(self, key: str, size: int, state: ReplicatedState) -> str:
        """Return why there is no room for one set of CHP/1; "" if there is."""
        return self.why_not(size) or self._why_not_keys([key], state)

    def take(self, segment: Segment, size: int, state: ReplicatedState) -> None:
        """Count a segment that is about to be done."""
        if grows(segment, state):
            self.taken += size

    def turned_away(self, size: int) -> None:
        """Note that there was no room for so many bytes."""
        self.full = self.full or (not self.read_only and bool(self._short(size)))

    def _why_not_keys(self, new: list[str], state: ReplicatedState) -> str:
        if self._keys_max is None or state.keys_at_most + len(new) <= self._keys_max:
            return ""
        keys = state.map.values
        return self._why_no_key(len(keys), sum(key not in keys for key in set(new)))

    def _why_no_key(self, keys: int, more: int) -> str:
        most = self._keys_max
        if most is None or keys + more <= most:
            return ""
        return f"keys: the map has {keys:,}, and may have {most:,}; delete some, or raise --max-keys"


def grows(segment: Segment, state: ReplicatedState) -> bool:
    """Return whether a segment may make the map larger: it does more than delete, refresh and end."""
    extras = segment.extras or {}
    if columns.STAGE in extras or columns.COMMIT in extras or columns.PUBLISH in extras:
        return True
    opens = columns.LEASE in extras and extras[columns.LEASE][0] not in state.leases
    return opens or len(segment.keys) > len(extras.get(columns.DELETES, ()))


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
