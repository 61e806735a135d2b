"""Whether the other server had better serve: this one has little room left, or no set can be done here.

The active then hands over, if the passive is in sync and has room itself, and before sets have to be refused; if it
can't, it goes on as it can. What it tells of itself in STATE keeps the other from handing back.
"""

from __future__ import annotations

from ..pair.binary_star import PairEvent
from ..updates.resource_limits import ResourceLimits
from ..updates.turn import Turn

FAILURES_MAX = 10  # sets in a row that fail: it is not one of them that is at fault
PACE_S = 30.0  # after a hand-over, before the next for want of room: both may be near their bounds


class HealthCheck:
    """The check, which the core asks for while something speaks for a hand-over, or may do so."""

    def __init__(self, room: ResourceLimits) -> None:
        self._room = room
        self.told = ""  # why the other server had better serve, as it was told last
        self._handed_over_at = float("-inf")
        self.failures = 0  # sets that ended in a defect of ours, or for want of memory, and none done since

    @property
    def why(self) -> str:
        """The reason why the other server had better serve; "" if nothing speaks for it."""
        if self.failures >= FAILURES_MAX:
            return "no set can be done: see the log, and start this server again"
        return self._room.tight

    def stepped(self, event: PairEvent, now: float) -> None:
        """Note what has happened to this server."""
        if event is PairEvent.HANDOVER:
            self._handed_over_at = now

    def look(self, turn: Turn) -> bool:
        """Look again; report a change, and return True if there is one."""
        why, before = self.why, self.told
        self.told = why
        if bool(why) != bool(before):
            turn.fact("little room" if why else "room again", "warning" if why else "info", why=why or before)
        return bool(why) != bool(before)

    def wants_relief(self, now: float) -> bool:
        """Return True if the peer is to take over, as far as this server's health decides that."""
        return bool(self.told) and now - self._handed_over_at >= PACE_S
