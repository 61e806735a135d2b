"""When the parts of the core have something to do, and what is due in this turn.

A part that has to act at a time sets it here, under its name; one that has to act in this turn sets the time of the
turn. `ServerCore.end_turn` takes out what is due, and calls nobody else. `next` is when the shell has to call again.

There are few names, so one table is enough: it holds one time a name, and forgets nothing and keeps nothing twice.
Pure.
"""

from __future__ import annotations

NEVER = float("inf")
NOTHING: frozenset[str] = frozenset()

# HUGZ, STATE and the heartbeats of channels are sent. What is looked at now and then is looked at with them.
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
        self._first = NEVER

    def set(self, name: str, at: float) -> None:
        """Let a part be due at a time, in place of the time that was set for it before."""
        self._at[name] = at
        self._first = min(self._first, at)

    def clear(self, name: str) -> None:
        """Let a part be due no more."""
        self._at.pop(name, None)

    def due(self, now: float) -> frozenset[str]:
        """Take out and return the names of the parts whose time has come."""
        if now < self._first:
            return NOTHING
        found = frozenset(name for name, at in self._at.items() if at <= now)
        for name in found:
            del self._at[name]
        self._first = min(self._at.values(), default=NEVER)
        return found

    def next(self) -> float:
        """Return when the next part is due; `NEVER` if none is."""
        self._first = min(self._at.values(), default=NEVER)
        return self._first
