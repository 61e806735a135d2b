"""Whether the other server had better serve: this one has little room left, or no set can be done here.

The active then hands over, if the passive is in sync and has room itself, and before sets have to be refused; if it
can't, it goes on as it can. What it tells of itself in STATE keeps the other from handing back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .binary_star import Event
from .room import Measured

if TYPE_CHECKING:
    from .core import ServerCore

FAILURES_MAX = 10  # sets in a row that fail: it is not one of them that is at fault
PACE_S = 30.0  # after a hand-over, before the next for want of room: both may be near their bounds


class Resting:
    """Asked at the end of each turn."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._told = ""
        self._handed_over_at = float("-inf")
        self.failures = 0  # sets that ended in a defect of ours, or for want of memory, and none done since

    @property
    def why(self) -> str:
        """Why the other server had better serve; "" if nothing speaks for it."""
        if self.failures >= FAILURES_MAX:
            return "no set can be done: see the log, and start this server again"
        return self._core.room.tight

    def set_failed(self) -> None:
        """A set ended in an exception that is not of its own making."""
        self.failures += 1

    def stepped(self, event: Event) -> None:
        """What has happened to this server."""
        if event is Event.HANDOVER:
            self._handed_over_at = self._core.now

    def measured(self, seen: Measured) -> None:
        """The shell has looked at memory and disk: what follows from it is done before a set is looked at."""
        core, before = self._core, self._core.room.read_only
        core.room.measured(seen)
        if before and not core.room.read_only:
            core.state.renew_leases(core.now)  # nobody could refresh one
        self.look()

    def look(self) -> None:
        """Tell when that changes, and hand over."""
        if self._core.room.ample and not (self.failures or self._told):
            return
        core, link, why = self._core, self._core.link, self.why
        if bool(why) != bool(self._told):
            core.turn.fact("little room" if why else "room again", "warning" if why else "info", why=why or self._told)
            core.beat_now()
        self._told = why
        paced = core.now - self._handed_over_at >= PACE_S
        ready = core.serving and link.in_sync() and core.arbitration.both
        if why and paced and ready and link.peer is not None and link.peer.room:
            link.switch()
