"""The scrub: do both servers hold the same contents? Looked at slice by slice, while they serve (SPEC.md, section 21).

    active                                            passive
      SCRUB    pass, number, keys, a sum for each -->   my number is that one: the same sums of the same keys?
               ... until all keys had their turn
      SCRUB    pass, number, no keys, totals      -->   as many keys, the same sum of revisions, leases
      SCRUBBED pass, keys looked at, those that   <--   and if some differ: the whole state again, please (WANT)
               differ

The active goes through a list of its keys, made when a pass begins: a slice a heartbeat, so that a pass takes `scrub_s`
and the order of no dict matters. A slice goes out right behind the records up to its number, when the passive is in
sync and nothing is left to send, so the passive is at that number when it comes; one that is not, or is busy, says
nothing, and the slice is not counted. A key's sum is the CRC-32 of its revision, whether it has a ttl, its lease and
its value: what is left of a ttl goes by two clocks, so nobody compares that. A key that only the passive has shows in
the totals.

A difference is counted and told with some of the keys, on both sides; the passive takes the active's whole state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import Any
from zlib import crc32

from chp.batch import packb, unpackb
from chp.errors import BadFrame
from chp.numbers import describe

from ..pair.follow import Follower
from ..state.image import Gathering
from ..state.state import ReplicatedState
from ..updates.committed import Committed
from ..updates.turn import Turn


class Scrubber:
    """One server's part in it, whichever it is."""

    def __init__(self, committed: Committed, counts: Counter[str], scrub_s: float, heartbeat_s: float) -> None:
        self._committed, self._counts = committed, counts
        self._scrub = Scrub(scrub_s, heartbeat_s)

    def go_on(self, follower: Follower, turn: Turn, now: float) -> None:
        """Send the active's next slice, if one is due and the passive is, or will be, where we are when it comes."""
        state = self._committed.state
        if not follower.in_sync:
            self._scrub.stop()
        elif follower.position == state.number and not state.deferred and self._scrub.due(now):
            said = self._scrub.next(state, now)
            if said is not None:
                turn.to_peer.append(said)

    def on_scrub(self, body: bytes, turn: Turn, now: float) -> bool:
        """Compare the active's slice, on the passive; return True if our contents are not the active's."""
        commits = self._committed
        if commits.followed != commits.state.number:  # parts of a record are here, and its last is not
            return False
        answer, found = self._scrub.compare(commits.state, body, now)
        if answer is not None:
            turn.to_peer.append(answer)  # before the question for all
        if found is not None:
            self._tell(found, turn)
        return found is not None

    def on_scrubbed(self, body: bytes, turn: Turn, now: float) -> None:
        """Take what the passive made of a slice of ours."""
        found = self._scrub.answered(body, now)
        if found is not None:
            self._tell(found, turn)
            self._scrub.stop()

    def _tell(self, found: ScrubResult, turn: Turn) -> None:
        self._counts["scrub_differences"] += found.differences
        keys = ", ".join(found.named) or "keys that only one of the two has"
        number = describe(self._committed.state.number)
        turn.fact("contents differ", "warning", number=number, keys=keys, of=found.keys)

    def status(self, now: float) -> dict[str, Any]:
        """For `chp status` and metrics."""
        return self._scrub.status(now)


SCRUB, SCRUBBED = b"SCRUB", b"SCRUBBED"
SLICE_KEYS = (64, 4096)  # at least, so that a small map is through in seconds; at most: some milliseconds of a turn
SLICE_BYTES = 1 << 20  # of values, or one value
NAMED_MAX = 10  # keys that differ, as they are told
LEASES_MAX = 10_000  # beyond so many only their number is compared
GONE = -1  # the sum of a key that is not there
Totals = tuple[int, int, int, int]  # keys, sum of revisions, leases, their sum


def sums(state: ReplicatedState, keys: list[str]) -> list[int]:
    """A sum of what is held of each key."""
    values, revisions, deadlines, leases = state.map.values, state.map.revisions, state.map.deadlines, state.lease_of
    out = []
    for key in keys:
        if key in values:
            head = b"%d %d " % (revisions[key], key in deadlines) + leases.get(key, b"")
            out.append(crc32(values[key], crc32(head)))
        else:
            out.append(GONE)
    return out


def totals(state: ReplicatedState) -> Totals:
    """What shows that one of two states, whose common keys are equal, has more than the other."""
    leases = state.leases
    total = 0
    if len(leases) <= LEASES_MAX:
        total = sum(crc32(b"%d" % lease.ttl_ms, crc32(name)) for name, lease in leases.items()) & 0xFFFFFFFF
    return *state.map.fingerprint(), len(leases), total


@dataclass(slots=True)
class ScrubResult:
    """What a pass has found so far, or did."""

    keys: int = 0  # that were compared
    differences: int = 0
    named: list[str] = field(default_factory=list)
    ended: float | None = None

    def add(self, keys: int, differing: list[str], differences: int) -> None:
        """A slice was compared."""
        self.keys += keys
        self.differences += differences
        self.named += differing[: NAMED_MAX - len(self.named)]


class Scrub:
    """Both sides: what the active goes through, and what was found of the last pass."""

    def __init__(self, scrub_s: float, heartbeat_s: float) -> None:
        self._scrub_s, self._heartbeat_s = scrub_s, heartbeat_s
        self._names: Gathering | None = None  # of the pass under way, those that are still to be looked at
        self._keys: list[str] = []  # of its last slice, the last one first
        self._slice = 0
        self._due = 0.0
        self.passes = 0
        self.now = ScrubResult()  # the pass under way
        self.last = ScrubResult()

    def stop(self) -> None:
        """There is nobody to compare with: the pass is over, and counts for nothing."""
        self._names, self._keys = None, []

    # -- the active's side

    def due(self, now: float) -> bool:
        """Whether the next slice should go out."""
        return self._scrub_s > 0 and now >= self._due

    def next(self, state: ReplicatedState, now: float) -> list[bytes] | None:
        """The next slice, or the totals at the end of a pass; None while the keys of a large map are listed."""
        self._due = now + self._heartbeat_s
        if self._names is None:
            self._begin(state)
        if self._names is None or not self._names.done:
            return None
        keys = self._take(state.map.values)
        told: list[Any] = [self.passes, state.number, keys, sums(state, keys)]
        if not keys:
            told.append(totals(state))
            self.stop()
        return [SCRUB, packb(told)]

    def _begin(self, state: ReplicatedState) -> None:
        self._names = state.names()
        least, most = SLICE_KEYS
        self._slice = min(most, max(least, ceil(len(state.map) * self._heartbeat_s / self._scrub_s)))
        self.passes += 1
        self.now = ScrubResult()

    def _take(self, values: dict[str, bytes]) -> list[str]:
        """The next keys that are still there, as many as a slice may have; none at the end of the pass."""
        keys: list[str] = []
        size = 0
        assert self._names is not None, "a pass is under way"
        while len(keys) < self._slice and size < SLICE_BYTES:
            if not self._keys:
                if not self._names.names:
                    break
                self._keys = list(self._names.names.pop())
            key = self._keys.pop()
            if key in values:
                keys.append(key)
                size += len(values[key])
        return keys

    def answered(self, body: bytes, now: float) -> ScrubResult | None:
        """SCRUBBED; the pass, if this slice had a difference."""
        number, keys, differing, differences, ended = unpackb(body, "SCRUBBED")
        if number != self.passes:
            return None
        if not all(type(n) is int and n >= 0 for n in (keys, differences)) or type(differing) is not list:
            raise BadFrame("SCRUBBED has a pass, two numbers, keys and whether it is the end")
        return self._record(keys, [str(key) for key in differing], differences, now if ended else None)

    def _record(self, keys: int, differing: list[str], differences: int, ended: float | None) -> ScrubResult | None:
        self.now.add(keys, differing, differences)
        if ended is not None:
            self.now.ended = ended
        if ended is not None or differences:
            self.last = self.now
        return self.now if differences else None

    # -- the passive's side

    def compare(self, state: ReplicatedState, body: bytes, now: float) -> tuple[list[bytes] | None, ScrubResult | None]:
        """SCRUB: the answer, None if our state is not at its number; and what differs, if something does."""
        number, at, keys, theirs, *end = unpackb(body, "SCRUB")
        if at != state.number or state.deferred:
            return None, None
        if number != self.passes:
            self.passes, self.now = number, ScrubResult()
        ours = sums(state, keys)
        differing = [] if ours == theirs else [k for k, a, b in zip(keys, ours, theirs, strict=True) if a != b]
        differences = len(differing)
        if end and not self.now.differences and tuple(end[0]) != totals(state):
            differences = 1  # whose, only the other keys' owners could tell
        found = self._record(len(keys), differing, differences, now if end else None)
        told = [number, len(keys), differing[:NAMED_MAX], differences, bool(end)]
        return [SCRUBBED, packb(told)], found

    # -- looking

    def status(self, now: float) -> dict[str, Any]:
        """For `chp status` and metrics: of the last pass that ended, or found something."""
        last = self.last
        return {
            "on": self._scrub_s > 0,
            "passes": self.passes,
            "ended_s_ago": None if last.ended is None else round(now - last.ended, 3),
            "keys": last.keys,
            "differences": last.differences,
            "differing": list(last.named),
        }
