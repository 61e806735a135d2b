"""What ends: keys whose ttl is over, leases, the keys of leases that have ended; and messages that are kept no more.

A lease may have a million keys, and a million ttls may be over at one moment; deleting them at once would hold up
everybody for seconds. So a turn deletes `ending_keys_max` keys at most, half of them for ttls if leases wait too, and
the next turn follows at once. What is still to go is a part of the state: keys beyond their deadline, and leases in
`ending`. So a successor goes on where the active stopped, and the journal needs nothing else.
"""

from __future__ import annotations

from collections import Counter

from chp import columns
from chp.batch import Segment

from .now import Now
from .updates.commit import Committer


class Expiry:
    """The active's share of work that nobody asked for."""

    def __init__(self, committer: Committer, counts: Counter[str]) -> None:
        self._committer, self._counts = committer, counts
        self.ready = False  # a slice was full: more is due now

    def step(self, now: Now, *, scan: bool) -> None:
        """End a slice of what is over; leases are looked at only if `scan`, as there may be many."""
        commits, state = self._committer, self._committer.committed.state
        over = state.map.next_deadline()
        if not (scan or self.ready or state.leases.ending) and (over is None or over > now.at):
            return
        commits.flush_chp1(now.arrival)  # a set that came just before the end of its key's ttl replaces the ttl
        self._keys(now.at)
        if scan or self.ready:
            self._leases(now.at)
        for lease_id in list(state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, now.at)
        if scan:
            self._transactions(now.at)
            self._messages(now)
        self.ready = commits.ends_left <= 0 or bool(state.leases.ending)

    def _keys(self, now: float) -> None:
        commits, state = self._committer, self._committer.committed.state
        left = commits.ends_left
        keys, looked = state.map.expired(now, (left + 1) // 2 if state.leases.ending else left)
        commits.ends_left -= looked
        if keys:
            commits.add_ended(keys, now)
            self._counts["expired"] += len(keys)

    def _leases(self, now: float) -> None:
        """End leases whose time is over; each takes as much room as a key."""
        commits = self._committer
        for lease_id in commits.committed.state.leases.expired(now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            commits.ends_left -= 1
            commits.end_lease(lease_id, now)
            self._counts["expired_leases"] += 1

    def _messages(self, now: Now) -> None:
        """Drop what topics are to keep no more."""
        commits = self._committer
        if due := commits.committed.state.topics.due(round(now.wall_s * 1000)):
            commits.add_segment(Segment([], [], {columns.TRIM: due}), now.at)

    def _transactions(self, now: float) -> None:
        commits = self._committer
        for transaction_id in commits.committed.state.staging.idle(now):
            commits.add_segment(Segment([], [], {columns.ABORT: transaction_id}), now)
            self._counts["expired_transactions"] += 1
