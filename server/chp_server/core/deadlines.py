"""When the parts of the core have something to do, and what is due in this turn.

A part that has to act at a time sets it here, under its name; one that has to act in this turn sets the time of the
turn. `ServerCore.end_turn` takes out what is due, and calls nobody else. `next` is when the shell has to call again.

There are few names, so one table is enough: it holds one time a name, and forgets nothing and keeps nothing twice.
Pure.
"""

from __future__ import annotations

NEVER = float("inf")
NOTHING: frozenset[str] = frozenset()

BEAT = "beat"  # HUGZ, STATE and the heartbeats of channels; all that is looked at now and then goes with them
EXPIRY = "expiry"  # keys, leases and transactions that end, and groups whose slots are to be given out
HANDOVER = "handover"  # a passive that was asked to take over, and has not
LINK = "link"  # something about the peer has changed, beside records and their confirmations


class Deadlines:
    """The time at which each part is due."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._first = NEVER  # no part is due before this time

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
