"""The freshness of a copy: its state, the time when it was last current, and the lag of messages.

The rows are the states, and the columns are what happens:

             heard, and complete    else         closed
CONNECTING   SYNCED                 -            CLOSED      the copy was never complete
SYNCED       -                      STALE        CLOSED      the copy is complete, and each channel hears the active
STALE        SYNCED                 -            CLOSED      the copy is still served
"""

from __future__ import annotations

from .events import State


class Freshness:
    """The state and the lag of a copy."""

    def __init__(self, max_lag_s: float | None) -> None:
        self.state = State.CONNECTING
        # The time when the copy was last known to be complete.
        self.current_at: float | None = None
        # The delay of the last message, beyond the smallest delay seen so far. The clocks of client and server need not
        # agree.
        self.lag_s = 0.0
        self._max_lag_s = max_lag_s
        self._base: float | None = None

    def told(self, current: bool, heard_at: float) -> State | None:
        """Note whether the copy is current, and when the server was last heard. Return the new state if it changed."""
        before = self.state
        if current:
            self.state, self.current_at = State.SYNCED, heard_at
        else:
            self.state = State.CONNECTING if self.current_at is None else State.STALE
        return None if self.state is before else self.state

    def measure(self, wall_ms: int, now: float) -> bool:
        """Measure the lag of a message that was sent at `wall_ms`. Return True if it exceeds the bound."""
        offset = now - wall_ms / 1000
        if self._base is None or offset < self._base:
            self._base = offset
        self.lag_s = offset - self._base
        return self._max_lag_s is not None and self.lag_s > self._max_lag_s

    def measure_age(self, age_s: float) -> bool:
        """Set the lag to the age of the active's last word at a replica. Return True if the lag exceeds the bound.

        The clock of the replica can't be compared with that of the active, which stamps the batches.
        """
        self.lag_s = age_s
        return self._max_lag_s is not None and self.lag_s > self._max_lag_s

    def measure_anew(self) -> None:
        """Forget the smallest delay, as another server sends now or the lag was reported."""
        self._base = None
