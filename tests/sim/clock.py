"""Virtual time: one queue of things to do, and clocks that show it wrongly.

The world's own time is what an outsider with a perfect clock would see; only checkers use it. Each process has a
`LocalClock`: its monotonic clock runs at its own rate from an arbitrary start, and its wall clock may be set to
anything at any moment, as happens to real machines. Things due at the same time happen in the order asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """The queue of events and the present time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []  # a heap
        self._order = 0
        self.done = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do `what` at `when`, or now if that is past."""
        self._order += 1
        heapq.heappush(self.events, (max(when, self.now), self._order, what))

    def next_at(self) -> float:
        """When the next event is due; infinity if there is none."""
        return self.events[0][0] if self.events else float("inf")

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, what = heapq.heappop(self.events)
        self.done += 1
        what()

    def run_until(self, end: float) -> None:
        """Let everything happen that is due up to `end`, and move the time there."""
        events, step = self.events, self.step
        while events and events[0][0] <= end:
            step()
        self.now = max(self.now, end)


class LocalClock:
    """The clocks of one process."""

    def __init__(self, timeline: Timeline, base: float, rate: float = 1.0, wall: float = 1.8e9) -> None:
        self._timeline = timeline
        self._base, self._since, self.rate = base, timeline.now, rate
        self.wall_offset = wall

    def mono(self) -> float:
        """The monotonic clock."""
        return self._base + (self._timeline.now - self._since) * self.rate

    def wall(self) -> float:
        """The wall clock."""
        return self._timeline.now + self.wall_offset

    def true_time(self, mono: float) -> float:
        """The world's time at which the monotonic clock will show `mono`, if its rate stays."""
        return self._since + (mono - self._base) / self.rate

    def drift(self, rate: float) -> None:
        """From now on run at another rate."""
        self._base, self._since, self.rate = self.mono(), self._timeline.now, rate

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self.wall_offset += seconds
