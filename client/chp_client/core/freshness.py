"""What the copy is worth: whether it is complete and current, since when it is not, and how late messages come.

             heard, and complete    not so        closed
CONNECTING   SYNCED                 -             CLOSED      nothing held yet
SYNCED       -                      STALE         CLOSED      complete, and the active is heard on each channel
STALE        SYNCED                 -             CLOSED      its copy is served all the same
"""

from __future__ import annotations

from .events import State


class Freshness:
    """The state, and the lag."""

    def __init__(self, max_lag_s: float | None) -> None:
        self.state = State.CONNECTING
        self.current_at: float | None = None  # when the copy was last known to be complete
        self.lag_s = 0.0  # how much later than at its best the last message came: clocks need not agree, only run
        self._max_lag_s = max_lag_s
        self._base: float | None = None

    def told(self, current: bool, heard_at: float) -> State | None:
        """Whether the copy is complete, and heard of at `heard_at`; the new state, if it is another."""
        before = self.state
        if current:
            self.state, self.current_at = State.SYNCED, heard_at
        else:
            self.state = State.CONNECTING if self.current_at is None else State.STALE
        return None if self.state is before else self.state

    def measure(self, wall_ms: int, now: float) -> bool:
        """A message came that was sent at `wall_ms`; whether that is later than is wanted."""
        offset = now - wall_ms / 1000
        if self._base is None or offset < self._base:
            self._base = offset
        self.lag_s = offset - self._base
        return self._max_lag_s is not None and self.lag_s > self._max_lag_s

    def measure_anew(self) -> None:
        """Messages come from another server, or the lag was told."""
        self._base = None
