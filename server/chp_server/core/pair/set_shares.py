"""The share of each session in the turns of the active: which sets a turn does, and which wait for another turn.

    queues    a large set waits in the queue; a small one is done at once, unless its session has sets there
    take      yields the sets of the queue that this turn has time for, one session after the other
    ready     says whether another turn would do more of them

While enough is under way to the passive (throttle.py), a turn takes nothing from the queue. Nor does a turn that has
something for other sessions: small sets, or acknowledgements that the passive has just confirmed. Such a turn is short,
and so is the wait of the others. The turn after it goes on with the queue.

The shell measures how long the turns take (`took`, `synced`). Before the first measurement a turn takes all. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from chp.limits import Limits

from ..updates.commit import Committer
from ..updates.set_queue import Frames, SetQueue, session_of
from .follow import Follower
from .throttle import Pace

# After this time without sets of other sessions, the sessions that write much get longer turns.
OTHERS_S = 1.0
# Small sets never wait while at most this many bytes are under way to the passive.
LITTLE_BYTES = 1 << 20


class SetShares:
    """The sets that wait, and the time that a turn has for them."""

    def __init__(self, limits: Limits, committer: Committer) -> None:
        self._limits, self._committer = limits, committer
        self.queue, self.pace = SetQueue(limits), Pace()
        # The time when sets last waited for the passive.
        self.throttled_at = float("-inf")
        # The time when another session than those with waiting sets was last served.
        self._others_at = float("-inf")
        # True if the last turn left the queue for the sake of other sessions.
        self._put_off = False
        # The bytes that this turn took from the queue, and the time of its sync.
        self.taken = 0
        self._sync_s = 0.0

    def queues(self, frames: Frames, follower: Follower | None) -> bool:
        """Return True if a set that came has to wait; it is in the queue then."""
        sessions = self.queue.sessions
        small = len(frames[-1]) <= self._limits.small_set_bytes and not (sessions and session_of(frames) in sessions)
        if small and follower is not None and follower.under_way > LITTLE_BYTES:
            small = not (follower.in_sync and follower.throttle.holds_all(follower.under_way))
        if not small:
            self.queue.add(frames)
        return not small

    def take(self, follower: Follower | None, now: float) -> Iterator[Frames]:
        """Yield the waiting sets that this turn does."""
        pace, before = self.pace, self.queue.bytes
        others = self._has_others(follower)
        if others:
            self._others_at = now
        pace.alone = now - self._others_at > OTHERS_S
        # Clients of the sessions in `bulk` are asked for smaller batches, because a turn takes whole batches.
        self._committer.acks.bulk = () if pace.alone else self.queue.sessions
        if not pace.byte_s:
            yield from self.queue.take_all()
        elif not self._waits(follower, now, others=others):
            yield from self.queue.take(min(pace.turn_bytes, self._limits.turn_bytes_max))
        self.taken += before - self.queue.bytes

    def _waits(self, follower: Follower | None, now: float, *, others: bool) -> bool:
        if follower is not None and follower.holds(now):
            self.throttled_at = now
            return True
        self._put_off = others and not self._put_off
        return self._put_off

    def _has_others(self, follower: Follower | None) -> bool:
        """Return True if this turn has something for sessions without waiting sets."""
        waiting, committer = self.queue.sessions.keys(), self._committer
        if not committer.open.origins.keys() <= waiting:
            return True
        if follower is None or not follower.in_sync:
            return False
        return any(not answers.keys() <= waiting for answers in committer.acks.confirmed_by(follower.confirmed))

    def ready(self, follower: Follower | None, now: float) -> bool:
        """Return True if another turn would do some of the sets that wait."""
        return not (follower is not None and follower.holds(now))

    # -- what the shell measures

    def synced(self, seconds: float) -> None:
        """Note how long the sync of this turn took."""
        self._sync_s = seconds
        self.pace.synced(seconds)

    def took(self, seconds: float) -> None:
        """Note how long this turn, which took sets from the queue, lasted."""
        self.pace.took(self.taken, seconds - self._sync_s)
        self.taken, self._sync_s = 0, 0.0
