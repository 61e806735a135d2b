"""The bound on what is under way to the passive, by time.

    Pace        how long the sets of a turn take this server, by their bytes
    Throttle    whether the active takes more sets, by what the passive has not confirmed yet

Without a bound a client that writes much fills the way to the passive, and all other clients wait behind its sets. With
it the active takes no more than the passive confirms, and the client's sets wait in the client's own window.

The bytes under way are counted as the time that the active needs for them. To keep the passive busy, the passive needs
one turn's work at hand, another one on its way, and as much more as fits into its latency: its sync, and the way there
and back. So the active takes more sets while the bytes under way are worth less than `under_way_s` plus twice the
latency. The latency is measured with a record that was sent while nothing else was under way, less the work that the
record takes. The lowest value of the last moments counts. If no record travelled alone for PROBE_S, the active lets the
way drain once.

The active takes small sets until `AHEAD` times as much is under way, because their clients did not cause the wait.

Pure: `now` is an argument.
"""

from __future__ import annotations

# The work of one turn beside a batch of 1,000 keys: two such batches are under way, so that the passive always has one.
UNDER_WAY_S = 0.003
# A turn takes as many sets as need this many seconds of work, or as long as a sync if that is longer.
TURN_S = 0.001
# While no other session waits, a turn takes this many seconds of work, and twice as much may be under way: so fewer
# syncs do the same work.
ALONE_S = 0.005
AHEAD = 20
# The latency is measured anew after this many seconds.
PROBE_S = 10.0
# The latency is measured at most once in this many seconds.
MEASURE_S = 0.1
# For a measurement, large sets wait at most this many seconds.
DRAIN_S = 0.05
# A passive is too slow if it confirms less than this part of what the active could do.
SLOW_PART = 0.1
# The weight of the last turn in the average pace.
NEWEST = 0.2
# One turn counts at most this many times the average: the process may have been stopped in it.
OUTLIER = 4.0


class Pace:
    """The time that a byte of sets takes this server, and the time that a sync takes."""

    def __init__(self) -> None:
        self.byte_s = 0.0
        self.sync_s = 0.0
        # True if only sessions that write much were served lately.
        self.alone = False

    def took(self, size: int, seconds: float) -> None:
        """Note how long a turn with `size` bytes of sets took, without its sync."""
        if size > 0:
            self.byte_s = _average(self.byte_s, max(0.0, seconds) / size)

    def synced(self, seconds: float) -> None:
        """Note how long a sync took."""
        self.sync_s = _average(self.sync_s, seconds)

    @property
    def turn_bytes(self) -> float:
        """The bytes of sets that a turn takes."""
        turn_s = ALONE_S if self.alone else TURN_S
        return max(turn_s, self.sync_s) / self.byte_s if self.byte_s else float("inf")

    @property
    def under_way_s(self) -> float:
        """The work that may be under way to the passive, beside its latency."""
        return 2 * ALONE_S if self.alone else UNDER_WAY_S


def _average(before: float, newest: float) -> float:
    if not before:
        return newest
    return before + NEWEST * (min(newest, OUTLIER * before) - before)


class Throttle:
    """The bound on what is under way to one passive."""

    def __init__(self, pace: Pace, slow_s: float) -> None:
        self._pace, self._slow_s = pace, slow_s
        # The record that travels alone: its number, its bytes, and when it was sent.
        self.alone: tuple[int, int, float] | None = None
        # From this time on, the next record that travels alone is measured.
        self.probe_at = float("-inf")
        # The lowest latency of this and of the last span of PROBE_S.
        self._latency_s, self._latency_before_s = float("inf"), float("inf")
        self._span_began = self._measured_at = float("-inf")
        # Until this time the way to the passive drains; None if it does not.
        self._drains_until: float | None = None
        # The time since which sets wait for the passive, and what it had confirmed then.
        self._waits_since: float | None = None
        self._confirmed_then = 0

    @property
    def latency_s(self) -> float:
        """The latency of the passive, beside its work; 0 as long as it is not known."""
        latency_s = min(self._latency_s, self._latency_before_s)
        return latency_s if latency_s < float("inf") else 0.0

    def sent_alone(self, number: int, size: int, now: float) -> None:
        """Note a record that was sent while nothing was under way, and its bytes."""
        self.alone, self._drains_until = (number, size, now), None

    def confirmed(self, number: int, now: float) -> None:
        """Note that the passive has confirmed a number."""
        if self.alone is not None and self.alone[0] <= number:
            _, size, sent_at = self.alone
            self.alone, self.probe_at = None, now + MEASURE_S
            # The record took the active about as long before it left as it took the passive.
            self._note(max(0.0, now - sent_at - 2 * size * self._pace.byte_s), now)

    def _note(self, latency_s: float, now: float) -> None:
        self._measured_at = now
        if now - self._span_began > PROBE_S:
            self._latency_before_s, self._latency_s, self._span_began = self._latency_s, latency_s, now
        else:
            self._latency_s = min(self._latency_s, latency_s)

    def holds(self, under_way: int, now: float) -> bool:
        """Return True if the active takes no large sets while `under_way` bytes are under way."""
        if not under_way:
            return False
        if self._drains_until is None and self.alone is None and now - self._measured_at > PROBE_S:
            self._drains_until = now + DRAIN_S
        if self._drains_until is not None:
            if now < self._drains_until:
                return True
            # The way did not drain, because small sets of many clients are always under way. The next try comes later.
            self._drains_until, self._measured_at = None, now
        return under_way * self._pace.byte_s >= self._pace.under_way_s + 2 * self.latency_s

    def holds_all(self, under_way: int) -> bool:
        """Return True if the active takes no sets at all."""
        return under_way * self._pace.byte_s >= AHEAD * (self._pace.under_way_s + 2 * self.latency_s)

    def is_slow(self, now: float, confirmed: int, *, waits: bool) -> bool:
        """Return True if sets waited for `slow_s`, and the passive confirmed much less than the active could have done.

        `confirmed` counts the bytes of all that the passive has confirmed.
        """
        if not waits or self._waits_since is None:
            self._waits_since, self._confirmed_then = (now if waits else None), confirmed
            return False
        waited_s = now - self._waits_since
        if waited_s < self._slow_s:
            return False
        slow = (confirmed - self._confirmed_then) * self._pace.byte_s < SLOW_PART * waited_s
        self._waits_since, self._confirmed_then = now, confirmed
        return slow

    def excuse(self) -> None:
        """Measure the passive anew, because this server itself was not running."""
        self._waits_since = self.alone = None
