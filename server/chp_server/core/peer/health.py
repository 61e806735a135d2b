"""The health check: the rule by which an unhealthy active hands over to the passive.

A server is unhealthy if it has little memory or disk left, or if its sets fail one after the other. The active then
hands over before it has to refuse sets, if the passive is in sync and has room itself. Otherwise it goes on as well as
it can. STATE tells the peer that this server has little room, so the peer does not hand back. Pure.
"""

from __future__ import annotations

from ..pair.binary_star import PairEvent
from ..updates.resource_limits import ResourceLimits
from ..updates.turn import Turn

# After this many failed sets in a row the server itself is at fault, and not one of the sets.
FAILURES_MAX = 10
# The time between two hand-overs for lack of room. Both servers may be near their limits.
PACE_S = 30.0


class HealthCheck:
    """The health of this server, and the time when it last took over by a hand-over."""

    def __init__(self, room: ResourceLimits) -> None:
        self._room = room
        # The reason for a hand-over, as it was logged last; "" if there was none.
        self.told = ""
        self._handed_over_at = float("-inf")
        # The sets that failed by a defect, or for lack of memory, since the last set that was done.
        self.failures = 0

    @property
    def why(self) -> str:
        """The reason why the other server should serve; "" if this one is healthy."""
        if self.failures >= FAILURES_MAX:
            return "no set can be done: see the log, and start this server again"
        return self._room.tight

    def stepped(self, event: PairEvent, now: float) -> None:
        """Note an event of Binary Star: this server may have taken over by a hand-over."""
        if event is PairEvent.HANDOVER:
            self._handed_over_at = now

    def look(self, turn: Turn) -> bool:
        """Check again; log a change, and return True if there is one."""
        why, before = self.why, self.told
        self.told = why
        if bool(why) != bool(before):
            turn.fact("little room" if why else "room again", "warning" if why else "info", why=why or before)
        return bool(why) != bool(before)

    def wants_relief(self, now: float) -> bool:
        """Return True if this server is unhealthy, and did not take over by a hand-over just before."""
        return bool(self.told) and now - self._handed_over_at >= PACE_S
