"""What ends: keys whose ttl is over, leases, the keys of leases that have ended; and messages that are kept no more.

A lease may have a million keys, and a million ttls may be over at one moment; deleting them at once would hold up
everybody for seconds. So a turn deletes `ending_keys_max` keys at most, half of them for ttls if leases wait too, and
the next turn follows at once. What is still to go is a part of the state: keys beyond their deadline, and leases in
`ending`. So a successor goes on where the active stopped, and the journal needs nothing else.
"""

from __future__ import annotations

from chp import columns
from chp.batch import Segment

from .standing import Standing


class Endings:
    """The active's share of work that nobody asked for."""

    def __init__(self, here: Standing) -> None:
        self._here = here
        self.ready = False  # a slice was full: more is due now

    def end_turn(self) -> None:
        """The next turn has room again, of which clients who end leases take theirs first."""
        self._here.committer.ends_left = self._here.limits.ending_keys_max

    def step(self, *, scan: bool) -> None:
        """A slice; leases are looked at only if `scan`, as there may be many."""
        here, commits = self._here, self._here.committer
        over = here.state.map.next_deadline()
        if not (scan or self.ready or here.state.leases.ending) and (over is None or over > here.now):
            return
        commits.flush_chp1(here.arrival)  # a set that came just before the end of its key's ttl replaces the ttl
        self._keys()
        if scan or self.ready:
            self._leases()
        for lease_id in list(here.state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, here.now)
        if scan:
            self._transactions()
            self._messages()
        self.ready = commits.ends_left <= 0 or bool(here.state.leases.ending)

    def _keys(self) -> None:
        here, left = self._here, self._here.committer.ends_left
        keys, looked = here.state.map.expired(here.now, (left + 1) // 2 if here.state.leases.ending else left)
        here.committer.ends_left -= looked
        if keys:
            here.committer.add_ended(keys, here.now)
            here.counts["expired"] += len(keys)

    def _leases(self) -> None:
        """Leases whose time is over; each takes as much room as a key."""
        here, commits = self._here, self._here.committer
        for lease_id in here.state.leases.expired(here.now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            commits.ends_left -= 1
            commits.end_lease(lease_id, here.now)
            here.counts["expired_leases"] += 1

    def _messages(self) -> None:
        """What topics are to keep no more."""
        here = self._here
        if due := here.state.topics.due(round(here.wall * 1000)):
            here.committer.add_segment(Segment([], [], {columns.TRIM: due}), here.now)

    def _transactions(self) -> None:
        here = self._here
        for transaction_id in here.state.staging.idle(here.now):
            here.committer.add_segment(Segment([], [], {columns.ABORT: transaction_id}), here.now)
            here.counts["expired_transactions"] += 1
