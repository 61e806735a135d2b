"""Expiry: the active ends what is over by time.

    keys            whose ttl is over, or whose lease has ended
    leases          that were not refreshed in time
    transactions    that are idle for too long
    messages        that their topics keep no longer

A lease may have a million keys, and a million ttls may be over at one moment. Deleting all at once would hold up every
client for seconds. So a turn deletes at most `ending_keys_max` keys, and the next turn follows at once. If ended leases
have keys left, at least half of a turn's keys are theirs.

What is left to delete is part of the state: keys past their deadline, and leases in `ending`. So a successor goes on
where the active stopped, without a note in the journal.
"""

from __future__ import annotations

from chp import columns
from chp.batch import Segment

from .updates.commit import Committer
from .updates.turn import CurrentTurn


class Expiry:
    """The deletion of what is over by time, in slices of a turn."""

    def __init__(self, turn: CurrentTurn, committer: Committer) -> None:
        self._turn, self._committer = turn, committer
        # True if the last slice was full, so that more is due at once.
        self.ready = False

    def step(self, *, scan: bool) -> None:
        """End a slice of what is over. Leases, transactions and topics are checked only with `scan`, for its cost."""
        commits, state, now = self._committer, self._committer.committed.state, self._turn.now
        over = state.map.next_deadline()
        if not (scan or self.ready or state.leases.ending) and (over is None or over > now):
            return
        # A set that came just before the end of its key's ttl replaces the ttl.
        commits.flush_chp1(self._turn.arrival)
        self._keys(now)
        if scan or self.ready:
            self._leases(now)
        for lease_id in list(state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, now)
        if scan:
            self._transactions(now)
            self._messages(now, self._turn.wall_s)
        self.ready = commits.ends_left <= 0 or bool(state.leases.ending)

    def _keys(self, now: float) -> None:
        commits, state = self._committer, self._committer.committed.state
        left = commits.ends_left
        keys, looked = state.map.expired(now, (left + 1) // 2 if state.leases.ending else left)
        commits.ends_left -= looked
        if keys:
            commits.add_ended(keys, now)
            self._committer.counts["expired"] += len(keys)

    def _leases(self, now: float) -> None:
        """End the leases whose time is over; each counts as one key of the slice."""
        commits = self._committer
        for lease_id in commits.committed.state.leases.expired(now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            commits.ends_left -= 1
            commits.end_lease(lease_id, now)
            self._committer.counts["expired_leases"] += 1

    def _messages(self, now: float, wall_s: float) -> None:
        """Drop the messages that their topics keep no longer."""
        commits = self._committer
        if due := commits.committed.state.topics.due(round(wall_s * 1000)):
            commits.add_segment(Segment([], [], {columns.TRIM: due}), now)

    def _transactions(self, now: float) -> None:
        commits = self._committer
        for transaction_id in commits.committed.state.staging.idle(now):
            commits.add_segment(Segment([], [], {columns.ABORT: transaction_id}), now)
            self._committer.counts["expired_transactions"] += 1
