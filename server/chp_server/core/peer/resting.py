"""Whether the other server had better serve: this one has little room left, or no set can be done here.

The active then hands over, if the passive is in sync and has room itself, and before sets have to be refused; if it
can't, it goes on as it can. What it tells of itself in STATE keeps the other from handing back.
"""

from __future__ import annotations

from ..pair.binary_star import Event
from ..standing import Standing
from ..updates.room import Measured

FAILURES_MAX = 10  # sets in a row that fail: it is not one of them that is at fault
PACE_S = 30.0  # after a hand-over, before the next for want of room: both may be near their bounds


class Resting:
    """Asked at the end of each turn."""

    def __init__(self, here: Standing) -> None:
        self._here = here
        self._told = ""
        self._handed_over_at = float("-inf")
        self.failures = 0  # sets that ended in a defect of ours, or for want of memory, and none done since

    @property
    def why(self) -> str:
        """Why the other server had better serve; "" if nothing speaks for it."""
        if self.failures >= FAILURES_MAX:
            return "no set can be done: see the log, and start this server again"
        return self._here.room.tight

    def stepped(self, event: Event) -> None:
        """What has happened to this server."""
        if event is Event.HANDOVER:
            self._handed_over_at = self._here.now

    def measured(self, seen: Measured) -> bool:
        """The shell has looked at memory and disk: what follows from it is done before a set is looked at."""
        here, before = self._here, self._here.room.read_only
        here.room.measured(seen)
        if before and not here.room.read_only:
            here.state.renew_leases(here.now)  # nobody could refresh one
        return self.look()

    @property
    def calm(self) -> bool:
        """Whether nothing speaks for it, nor can before the shell has looked again."""
        return self._here.room.ample and not (self.failures or self._told)

    def look(self) -> bool:
        """Tell when that changes; whether to hand over."""
        if self.calm:
            return False
        here, why = self._here, self.why
        if bool(why) != bool(self._told):
            here.turn.fact("little room" if why else "room again", "warning" if why else "info", why=why or self._told)
            here.beat_now()
        self._told = why
        paced = here.now - self._handed_over_at >= PACE_S
        ready = here.serving and here.in_sync() and here.arbitration.both
        return bool(why) and paced and ready and here.peer is not None and here.peer.room
