"""Expiry: the active ends what is over by time.

    keys            whose ttl is over, or whose lease has ended
    leases          that were not refreshed in time
    transactions    that are idle for too long
    messages        that their topics keep no longer

A lease may have a million keys, and a million ttls may be over at one moment. Deleting all at once would hold up every
client for seconds. So a turn deletes at most `ending_keys_max` keys, and the next turn follows at once. If ended leases
have keys left, at least half of a turn's keys are theirs.

A client whose sets wait for their turn lives, and the refresh of its lease may wait behind them. So its leases get
their time again.

What is left to delete is part of the state: keys past their deadline, and leases in `ending`. So a successor goes on
where the active stopped, without a note in the journal.
"""

from __future__ import annotations

from collections import Counter

from chp import columns
from chp.batch import Segment
from chp.keys import CLIENT_BYTES

from .now import Now
from .updates.commit import Committer
from .updates.set_queue import SetQueue


class Expiry:
    """The deletion of what is over by time, in slices of a turn."""

    def __init__(self, committer: Committer, counts: Counter[str], waiting: SetQueue) -> None:
        self._committer, self._counts, self._waiting = committer, counts, waiting
        # True if the last slice was full, so that more is due at once.
        self.ready = False

    def step(self, now: Now, *, scan: bool) -> None:
        """End a slice of what is over. Leases, transactions and topics are checked only with `scan`, for its cost."""
        commits, state = self._committer, self._committer.committed.state
        over = state.map.next_deadline()
        if not (scan or self.ready or state.leases.ending) and (over is None or over > now.at):
            return
        # A set that came just before the end of its key's ttl replaces the ttl.
        commits.flush_chp1(now.arrival)
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
        """End the leases whose time is over; each counts as one key of the slice."""
        commits, leases = self._committer, self._committer.committed.state.leases
        alive = {session_id[:CLIENT_BYTES] for session_id in self._waiting.sessions}
        for lease_id in leases.expired(now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            if leases[lease_id].owner in alive:
                leases.refresh(lease_id, now)
                continue
            commits.ends_left -= 1
            commits.end_lease(lease_id, now)
            self._counts["expired_leases"] += 1

    def _messages(self, now: Now) -> None:
        """Drop the messages that their topics keep no longer."""
        commits = self._committer
        if due := commits.committed.state.topics.due(round(now.wall_s * 1000)):
            commits.add_segment(Segment([], [], {columns.TRIM: due}), now.at)

    def _transactions(self, now: float) -> None:
        commits = self._committer
        for transaction_id in commits.committed.state.staging.idle(now):
            commits.add_segment(Segment([], [], {columns.ABORT: transaction_id}), now)
            self._counts["expired_transactions"] += 1
