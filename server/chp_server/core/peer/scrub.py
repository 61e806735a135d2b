"""The scrub: both servers compare their contents slice by slice, while they serve (SPEC.md, section 21).

    active                                                     passive
      SCRUB    pass, number, keys, a sum for each key   --->     compares the sums, if it is at that number
      SCRUBBED pass, count of keys, keys that differ    <---     answers; on a difference it asks for the whole state
      ... and so on for all keys
      SCRUB    pass, number, no keys, totals            --->     compares the number of keys, revisions and leases

When a pass begins, the active lists its keys. It sends a slice of them each heartbeat, so that a pass takes about
`scrub_s`. A slice goes right behind the records up to its number, when the passive is in sync and nothing else is left
to send. So the passive is at that number when the slice comes. A passive that is at another number, or is busy, does
not answer, and the slice is not counted.

A key's sum is a CRC-32 of its revision, its lease, its value, and whether it has a ttl. The time that is left of a ttl
is not compared, as each server measures it by its own clock. A key that only the passive has shows in the totals.

Both servers count a difference, and log it with some of the keys. Then the passive takes the active's whole state.
"""

from __future__ import annotations

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
    """This server's part in the scrub, as the active or as the passive."""

    def __init__(self, committed: Committed, scrub_s: float, heartbeat_s: float) -> None:
        self._committed = committed
        self._scrub = Scrub(scrub_s, heartbeat_s)

    def go_on(self, follower: Follower, turn: Turn, now: float) -> None:
        """Send the active's next slice if it is due, the passive is in sync, and all records were sent to it."""
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
        # The last part of a record has not come yet.
        if commits.followed != commits.state.number:
            return False
        answer, found = self._scrub.compare(commits.state, body, now)
        if answer is not None:
            # The answer goes before the WANT for the whole state.
            turn.to_peer.append(answer)
        if found is not None:
            self._tell(found, turn)
        return found is not None

    def on_scrubbed(self, body: bytes, turn: Turn, now: float) -> None:
        """Take the passive's answer to a slice; end the pass if it found a difference."""
        found = self._scrub.answered(body, now)
        if found is not None:
            self._tell(found, turn)
            self._scrub.stop()

    def _tell(self, found: ScrubResult, turn: Turn) -> None:
        self._committed.counts["scrub_differences"] += found.differences
        keys = ", ".join(found.named) or "keys that only one of the two has"
        number = describe(self._committed.state.number)
        turn.fact("contents differ", "warning", number=number, keys=keys, of=found.keys)

    def status(self, now: float) -> dict[str, Any]:
        """Return the facts for `chp status` and metrics."""
        return self._scrub.status(now)


SCRUB, SCRUBBED = b"SCRUB", b"SCRUBBED"
# A slice has at least the first number of keys, so that a small map takes only seconds. It has at most the second
# number, which takes some milliseconds of a turn.
SLICE_KEYS = (64, 4096)
# A slice takes no more keys once its values have this many bytes.
SLICE_BYTES = 1 << 20
# A report of a difference names at most this many keys.
NAMED_MAX = 10
# If there are more leases, only their number is compared.
LEASES_MAX = 10_000
# The sum of a key that is not there.
GONE = -1
# The number of keys, the sum of their revisions, the number of leases, and the sum of their checksums.
Totals = tuple[int, int, int, int]


def sums(state: ReplicatedState, keys: list[str]) -> list[int]:
    """Return a checksum for each key, over all that is compared."""
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
    """Return the totals of a state's keys and leases. They differ if two states have different keys or leases."""
    leases = state.leases
    total = 0
    if len(leases) <= LEASES_MAX:
        total = sum(crc32(b"%d" % lease.ttl_ms, crc32(name)) for name, lease in leases.items()) & 0xFFFFFFFF
    return *state.map.fingerprint(), len(leases), total


@dataclass(slots=True)
class ScrubResult:
    """The result of a pass, so far or at its end."""

    # The number of keys that were compared.
    keys: int = 0
    differences: int = 0
    named: list[str] = field(default_factory=list)
    ended: float | None = None

    def add(self, keys: int, differing: list[str], differences: int) -> None:
        """Add the result of a slice."""
        self.keys += keys
        self.differences += differences
        self.named += differing[: NAMED_MAX - len(self.named)]


class Scrub:
    """The pass under way, on either side, and the result of the last one."""

    def __init__(self, scrub_s: float, heartbeat_s: float) -> None:
        self._scrub_s, self._heartbeat_s = scrub_s, heartbeat_s
        # The keys of the pass that are still to be compared.
        self._names: Gathering | None = None
        # The keys that were taken from `_names` already. The last one of the list is compared next.
        self._keys: list[str] = []
        self._slice = 0
        self._due = 0.0
        self.passes = 0
        # The results of the pass under way, and of the last one.
        self.now = ScrubResult()
        self.last = ScrubResult()

    def stop(self) -> None:
        """End the pass under way."""
        self._names, self._keys = None, []

    # -- the active's side

    def due(self, now: float) -> bool:
        """Return True if it is time for the next slice."""
        return self._scrub_s > 0 and now >= self._due

    def next(self, state: ReplicatedState, now: float) -> list[bytes] | None:
        """Return the next slice, or the totals at the end of a pass; None while the keys of a large map are listed."""
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
        """Return the next keys that still exist, as many as a slice may have; none at the end of the pass."""
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
        """Take SCRUBBED; return the result of the pass if this slice had a difference."""
        number, keys, differing, differences, ended = unpackb(body, "SCRUBBED")
        if number != self.passes:
            return None
        most = SLICE_KEYS[1]
        if not all(type(n) is int and 0 <= n <= most for n in (keys, differences)) or type(differing) is not list:
            raise BadFrame(f"SCRUBBED has a pass, two numbers up to {most}, keys and whether it is the end")
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
        """Take SCRUB; return the answer (None at another number), and the result if something differs."""
        number, at, keys, theirs, *end = unpackb(body, "SCRUB")
        if at != state.number or state.deferred:
            return None, None
        if number != self.passes:
            self.passes, self.now = number, ScrubResult()
        ours = sums(state, keys)
        differing = [] if ours == theirs else [k for k, a, b in zip(keys, ours, theirs, strict=True) if a != b]
        differences = len(differing)
        if end and not self.now.differences and tuple(end[0]) != totals(state):
            # The totals do not tell which key differs.
            differences = 1
        found = self._record(len(keys), differing, differences, now if end else None)
        told = [number, len(keys), differing[:NAMED_MAX], differences, bool(end)]
        return [SCRUBBED, packb(told)], found

    # -- the status

    def status(self, now: float) -> dict[str, Any]:
        """Return the facts of the last pass that ended or found a difference."""
        last = self.last
        return {
            "on": self._scrub_s > 0,
            "passes": self.passes,
            "ended_s_ago": None if last.ended is None else round(now - last.ended, 3),
            "keys": last.keys,
            "differences": last.differences,
            "differing": list(last.named),
        }
