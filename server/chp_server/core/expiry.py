"""What ends: keys whose ttl is over, leases, the keys of leases that have ended; and messages that are kept no more.

A lease may have a million keys, and a million ttls may be over at one moment; deleting them at once would hold up
everybody for seconds. So a turn deletes `ending_keys_max` keys at most, half of them for ttls if leases wait too, and
the next turn follows at once. What is still to go is a part of the state: keys beyond their deadline, and leases in
`ending`. So a successor goes on where the active stopped, and the journal needs nothing else.
"""

from __future__ import annotations

from chp import columns
from chp.batch import Segment

from .context import ServerContext


class Expiry:
    """The active's share of work that nobody asked for."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self.ready = False  # a slice was full: more is due now

    def step(self, *, scan: bool) -> None:
        """A slice; leases are looked at only if `scan`, as there may be many."""
        ctx, commits = self._ctx, self._ctx.committer
        over = ctx.state.map.next_deadline()
        if not (scan or self.ready or ctx.state.leases.ending) and (over is None or over > ctx.now):
            return
        commits.flush_chp1(ctx.arrival)  # a set that came just before the end of its key's ttl replaces the ttl
        self._keys()
        if scan or self.ready:
            self._leases()
        for lease_id in list(ctx.state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, ctx.now)
        if scan:
            self._transactions()
            self._messages()
        self.ready = commits.ends_left <= 0 or bool(ctx.state.leases.ending)

    def _keys(self) -> None:
        ctx, left = self._ctx, self._ctx.committer.ends_left
        keys, looked = ctx.state.map.expired(ctx.now, (left + 1) // 2 if ctx.state.leases.ending else left)
        ctx.committer.ends_left -= looked
        if keys:
            ctx.committer.add_ended(keys, ctx.now)
            ctx.counts["expired"] += len(keys)

    def _leases(self) -> None:
        """Leases whose time is over; each takes as much room as a key."""
        ctx, commits = self._ctx, self._ctx.committer
        for lease_id in ctx.state.leases.expired(ctx.now, max(0, commits.ends_left)):
            if commits.ends_left <= 0:
                break
            commits.ends_left -= 1
            commits.end_lease(lease_id, ctx.now)
            ctx.counts["expired_leases"] += 1

    def _messages(self) -> None:
        """What topics are to keep no more."""
        ctx = self._ctx
        if due := ctx.state.topics.due(round(ctx.wall * 1000)):
            ctx.committer.add_segment(Segment([], [], {columns.TRIM: due}), ctx.now)

    def _transactions(self) -> None:
        ctx = self._ctx
        for transaction_id in ctx.state.staging.idle(ctx.now):
            ctx.committer.add_segment(Segment([], [], {columns.ABORT: transaction_id}), ctx.now)
            ctx.counts["expired_transactions"] += 1
