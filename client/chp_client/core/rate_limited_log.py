"""What a Clone says in the log by itself, and when: that it reaches nobody, that its copy grows old, that it is back.

    CONNECTING for LOST_S     one WARNING, with the servers and how each looks
    STALE for STALE_S         one WARNING; a failover as it should be is over before that
    SYNCED after either       one WARNING too: who saw the first has to see that it is over

A program that says nothing else is understood by who runs it. Pure: the agent tells the state and the time.
"""

from __future__ import annotations

from .events import State

LOST_S = 3.0
STALE_S = 2.0
NEVER = float("inf")


class RateLimitedLog:
    """When there is something to say."""

    def __init__(self, now: float) -> None:
        self._state = State.CONNECTING
        self._since = now
        self._said = self._was_synced = False
        self.due = now + LOST_S

    def told(self, state: State, now: float) -> str:
        """The state is another; what is to be said at once, "" for nothing."""
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
        """What is to be said because it lasts; "" for nothing."""
        if now < self.due:
            return ""
        self._said, self.due = True, NEVER
        for_s = f"for {now - self._since:.1f} s"
        if self._state is State.STALE:
            return f"the copy is not known to be current {for_s}; it is served, and mended as soon as a server is heard"
        return f"no copy yet, {for_s}; trying on"
