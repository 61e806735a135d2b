"""The times at which parts of the core have something to do.

    set      a part sets its next time, under its name; to act in this turn it sets the turn's own time
    first    most turns end before this time, and so need not ask what is due
    due      the end of a turn takes out the names that are due, and calls only these parts
    next     tells the shell when to take the next turn, if no message comes

There are few names, so a table with one time for each is enough. Pure.
"""

from __future__ import annotations

NEVER = float("inf")
NOTHING: frozenset[str] = frozenset()

# HUGZ, STATE and the heartbeats of channels are sent. Other regular checks are done with them.
BEAT = "beat"
# Keys, leases or transactions end, or the slots of a group are given out.
EXPIRY = "expiry"
# A passive that was asked to take over has not done so in time.
HANDOVER = "handover"
# Something about the peer has changed, other than how far records have come.
LINK = "link"


class Deadlines:
    """The time at which each part is due."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        # No part is due before this time.
        self.first = NEVER
        # The time of the next heartbeats to the peer and on channels; HUGZ may be due before.
        self.next_beat = NEVER

    def set(self, name: str, at: float) -> None:
        """Let a part be due at a time, in place of the time that was set for it before."""
        self._at[name] = at
        self.first = min(self.first, at)

    def beat_now(self, now: float) -> None:
        """Send heartbeats with the turn of this time: something has changed that the peer and clients want to know."""
        self.next_beat = now
        self.set(BEAT, now)

    def clear(self, name: str) -> None:
        """Let a part be due no more."""
        self._at.pop(name, None)

    def due(self, now: float) -> frozenset[str]:
        """Take out and return the names of the parts whose time has come."""
        found = frozenset(name for name, at in self._at.items() if at <= now)
        for name in found:
            del self._at[name]
        self.first = min(self._at.values(), default=NEVER)
        return found

    def next(self) -> float:
        """Return when the next part is due; `NEVER` if none is."""
        self.first = min(self._at.values(), default=NEVER)
        return self.first
