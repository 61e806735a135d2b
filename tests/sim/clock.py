"""Virtual time: one queue of events, and the clocks of processes, which are wrong.

The world's own time is what an outsider with a perfect clock would see. Only checkers use it. Each process has a
`LocalClock`. Its monotonic clock runs at its own rate from an arbitrary start, and a command may set its wall clock to
anything. Events that are due at the same time happen in the order in which they were queued.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Timeline:
    """The queue of events and the present time."""

    def __init__(self) -> None:
        self.now = 0.0
        # (time, order, action) of each event that is to come, as a heap
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.done = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do `what` at `when`, or now if `when` is past."""
        self._order += 1
        heappush(self.events, (when if when > self.now else self.now, self._order, what))

    def next_at(self) -> float:
        """Return the time of the next event, or infinity if there is none."""
        return self.events[0][0] if self.events else float("inf")

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, what = heappop(self.events)
        self.done += 1
        what()

    def run_until(self, end: float) -> None:
        """Let each event up to `end` happen, and move the time there."""
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
        """Return the time of the monotonic clock."""
        return self._base + (self._timeline.now - self._since) * self.rate

    def wall(self) -> float:
        """Return the time of the wall clock."""
        return self._timeline.now + self.wall_offset

    def true_time(self, mono: float) -> float:
        """Return the world's time at which the monotonic clock will show `mono`, if its rate stays."""
        return self._since + (mono - self._base) / self.rate

    def drift(self, rate: float) -> None:
        """Run at another rate from now on."""
        self._base, self._since, self.rate = self.mono(), self._timeline.now, rate

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self.wall_offset += seconds
