"""The log lines that a Clone writes by itself: it reaches no server, its copy grows old, or it is synced again.

    CONNECTING for LOST_S     one WARNING, with the servers and the state of each
    STALE for STALE_S         one WARNING; a normal failover is over before that
    SYNCED after a warning    one more WARNING, so that a reader of the log sees that the trouble is over

So an operator understands even a program that logs nothing else. This module is pure: the agent passes in the state
and the time.
"""

from __future__ import annotations

from .events import State

LOST_S = 3.0
STALE_S = 2.0
NEVER = float("inf")


class RateLimitedLog:
    """The state of a Clone, and the time when a warning about it is due."""

    def __init__(self, now: float) -> None:
        self._state = State.CONNECTING
        self._since = now
        self._said = self._was_synced = False
        self.due = now + LOST_S

    def told(self, state: State, now: float) -> str:
        """Note a new state. Return the line to log at once, or ""."""
        if state in (State.SYNCED, State.CLOSED):
            again = "synced again" if self._was_synced else "synced"
            line = f"{again}, after {now - self._since:.1f} s" if self._said and state is State.SYNCED else ""
            self._said, self.due = False, NEVER
            self._was_synced |= state is State.SYNCED
        else:
            line = ""
            if self._state is State.SYNCED:
                self._since, self.due = now, now + STALE_S
        self._state = state
        return line

    def overdue(self, now: float) -> str:
        """Return the warning about a state that has lasted too long, or ""."""
        if now < self.due:
            return ""
        self._said, self.due = True, NEVER
        for_s = f"for {now - self._since:.1f} s"
        if self._state is State.STALE:
            return f"the copy is not known to be current {for_s}; it is served, and mended as soon as a server is heard"
        return f"no copy yet, {for_s}; trying on"
