"""The times at which parts of the core have something to do.

    set      a part sets its next time, under its name; to act in this turn it sets the turn's own time
    first    the time when the next part is due; until then the shell need not wake, and a turn need not call `due`
    due      the end of a turn takes out the names that are due, and calls only these parts

There are few names, so a table with one time for each is enough. Pure.
"""

from __future__ import annotations

NEVER = float("inf")
NOTHING: frozenset[str] = frozenset()

# When HUGZ, STATE and the heartbeats of channels are to be sent. Other regular checks are done with them.
BEAT = "beat"
# When keys, leases or transactions end, or the slots of a group are to be given out.
EXPIRY = "expiry"
# When the active gives up a handover, because the passive has not taken over in time.
HANDOVER = "handover"
# When the link to the peer has to be looked at: something has changed there, other than how far records have come.
LINK = "link"


class Deadlines:
    """The time at which each part is due."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        # The time when the next part is due; `NEVER` if none is.
        self.first = NEVER
        # The time of the next heartbeats to the peer and on channels; HUGZ may be due before.
        self.next_beat = NEVER

    def set(self, name: str, at: float) -> None:
        """Set the time when a part is due. It replaces the part's earlier time."""
        before, self._at[name] = self._at.get(name), at
        if at <= self.first:
            self.first = at
        elif before == self.first:
            self._look()

    def beat_now(self, now: float) -> None:
        """Send heartbeats with the turn of this time: something has changed that the peer and clients want to know."""
        self.next_beat = now
        self.set(BEAT, now)

    def clear(self, name: str) -> None:
        """Remove the time of a part, so that the part is not due."""
        if self._at.pop(name, None) == self.first:
            self._look()

    def due(self, now: float) -> frozenset[str]:
        """Take out and return the names of the parts whose time has come."""
        found = frozenset(name for name, at in self._at.items() if at <= now)
        for name in found:
            del self._at[name]
        self._look()
        return found

    def _look(self) -> None:
        """Find the time when the next part is due."""
        self.first = min(self._at.values(), default=NEVER)
