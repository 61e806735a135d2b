"""What ends: keys whose ttl is over, leases, and the keys of leases that have ended; a slice of them a turn.

A lease may have a million keys, and a million ttls may be over at one moment; deleting them at once would hold up
everybody for seconds. So a turn deletes `ending_keys_max` keys at most, half of them for ttls if leases wait too, and
the next turn follows at once. What is still to go is a part of the state: keys beyond their deadline, and leases in
`ending`. So a successor goes on where the active stopped, and the journal needs nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chp import columns
from chp.batch import Segment

if TYPE_CHECKING:
    from .core import ServerCore


class Endings:
    """The active's share of work that nobody asked for."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.ready = False  # a slice was full: more is due now

    def end_turn(self) -> None:
        """The next turn has room again, of which clients who end leases take theirs first."""
        self._core.commits.ends_left = self._core.limits.ending_keys_max

    def step(self, *, scan: bool) -> None:
        """A slice; leases are looked at only if `scan`, as there may be many."""
        core, commits = self._core, self._core.commits
        over = core.state.map.next_deadline()
        if not (scan or self.ready or core.state.leases.ending) and (over is None or over > core.now):
            return
        commits.flush_plain(core.arrival)  # a set that came just before the end of its key's ttl replaces the ttl
        self._keys()
        if scan or self.ready:
            self._leases()
        for lease_id in list(core.state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, core.now)
        if scan:
            self._transactions()
        self.ready = commits.ends_left <= 0 or bool(core.state.leases.ending)

    def _keys(self) -> None:
        core, left = self._core, self._core.commits.ends_left
        keys, looked = core.state.map.expired(core.now, (left + 1) // 2 if core.state.leases.ending else left)
        core.commits.ends_left -= looked
        if keys:
            core.commits.add_ended(keys, core.now)
            core.counts["expired"] += len(keys)

    def _leases(self) -> None:
        """Leases whose time is over; each takes as much room as a key."""
        core, commits = self._core, self._core.commits
        for lease_id in core.state.leases.expired(core.now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            commits.ends_left -= 1
            commits.end_lease(lease_id, core.now)
            core.counts["expired_leases"] += 1

    def _transactions(self) -> None:
        core = self._core
        for transaction_id in core.state.staging.idle(core.now):
            core.commits.add_segment(Segment([], [], {columns.ABORT: transaction_id}), core.now)
            core.counts["expired_transactions"] += 1
