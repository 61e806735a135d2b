"""Expiry: the active ends what is over by time.

    keys            whose ttl is over, or whose lease has ended
    leases          that were not refreshed in time
    transactions    that are idle for too long
    messages        that their topics keep no longer
    schedules       messages whose time has come, which are published then

A lease may have a million keys, and a million ttls may be over at one moment. Deleting all at once would hold up every
client for seconds. So a turn deletes at most `ending_keys_max` keys, and the next turn follows at once. While ended
leases have keys left, at least half of these deletes are for keys of leases.

A client whose sets wait in the server's queue is alive, and the refresh of its lease may wait behind these sets. So the
server gives the leases of this client their full time again.

The keys past their deadline and the leases in `ending` are part of the state, so the state tells what is left to
delete. A successor goes on where the active stopped, without a note in the journal.
"""

from __future__ import annotations

from chp import columns
from chp.batch import Segment
from chp.keys import CLIENT_BYTES
from chp.topics import Counts, add_counts

from .state.schedule import Place
from .updates.authorizer import unscheduled
from .updates.commit import Committer
from .updates.set_queue import SetQueue
from .updates.turn import CurrentTurn


class Expiry:
    """The deletion of what is over by time, in slices of a turn."""

    def __init__(self, turn: CurrentTurn, committer: Committer, waiting: SetQueue) -> None:
        self._turn, self._committer, self._waiting = turn, committer, waiting
        # True if the last slice was full, so that more is due at once.
        self.ready = False

    def step(self, *, scan: bool) -> None:
        """End a slice of what is over by time.

        Transactions and topics are checked only with `scan`, because the check is costly. Leases are checked with
        `scan`, or if the last slice was full.
        """
        commits, state, now = self._committer, self._committer.committed.state, self._turn.now
        over = self.next_at()
        if not (scan or self.ready or state.leases.ending) and (over is None or over > now):
            return
        # A set that came just before the end of its key's ttl replaces the ttl.
        commits.flush_chp1(self._turn.arrival)
        self._keys(now)
        more = bool(state.topics.schedule.count) and self._schedule(scan=scan)
        if scan or self.ready:
            self._leases(now)
        for lease_id in list(state.leases.ending):
            if commits.ends_left <= 0:
                break
            commits.delete_ended(lease_id, now)
        if scan:
            self._transactions(now)
            self._messages(now, self._turn.wall_s)
        self.ready = more or commits.ends_left <= 0 or bool(state.leases.ending)

    def next_at(self) -> float | None:
        """Return when the next key or scheduled message is due, by the monotonic clock; None if there is none."""
        state = self._committer.committed.state
        at, due_s = state.map.next_deadline(), state.topics.schedule.next_s()
        if due_s is None:
            return at
        due_at = self._turn.now + max(0.0, due_s - self._turn.wall_s)
        return due_at if at is None else min(at, due_at)

    def _schedule(self, *, scan: bool) -> bool:
        """Publish a slice of the scheduled messages that are due; return True if more are due at once."""
        commits = self._committer
        limits, state = commits.limits, commits.committed.state
        schedule = state.topics.schedule
        if scan:
            schedule.retry()
        found = schedule.due(round(self._turn.wall_s * 1000), limits.fired_max)
        if found and commits.open.full(limits.part_bytes):
            # The open record has no room. The next turn makes another.
            return True
        taken, dropped, full, counts, size = [], list[Place](), list[Place](), Counts(), 0
        for place, message in found:
            if size > limits.part_bytes:
                break
            topic, length = place[0], len(message.body)
            messages, held = counts.get(topic, (0, 0))
            if why := unscheduled(state.access, message.user, topic, message.unless):
                dropped.append(place)
                self._turn.effects.fact("denied", "warning", user=message.user, what=why)
            elif state.topics.by_name[topic].full(messages + 1, held + length):
                full.append(place)
            else:
                taken.append((place, message))
                add_counts(counts, topic, 1, length)
                size += length
        schedule.wait(full)
        if taken or dropped:
            commits.fire(taken, dropped, self._turn)
            commits.counts["scheduled_published"] += len(taken)
            commits.counts["scheduled_denied"] += len(dropped)
        return len(found) >= limits.fired_max or size > limits.part_bytes

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
