"""Whether the other server had better serve: this one has little room left, or no set can be done here.

The active then hands over, if the passive is in sync and has room itself, and before sets have to be refused; if it
can't, it goes on as it can. What it tells of itself in STATE keeps the other from handing back.
"""

from __future__ import annotations

from ..context import ServerContext
from ..pair.binary_star import PairEvent
from ..updates.resource_limits import ResourceUsage

FAILURES_MAX = 10  # sets in a row that fail: it is not one of them that is at fault
PACE_S = 30.0  # after a hand-over, before the next for want of room: both may be near their bounds


class HealthCheck:
    """The check, which the core asks for while something speaks for a hand-over, or may do so."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self.told = ""  # why the other server had better serve, as it was told last
        self._handed_over_at = float("-inf")
        self.failures = 0  # sets that ended in a defect of ours, or for want of memory, and none done since

    @property
    def why(self) -> str:
        """Why the other server had better serve; "" if nothing speaks for it."""
        if self.failures >= FAILURES_MAX:
            return "no set can be done: see the log, and start this server again"
        return self._ctx.room.tight

    def stepped(self, event: PairEvent) -> None:
        """What has happened to this server."""
        if event is PairEvent.HANDOVER:
            self._handed_over_at = self._ctx.now

    def measured(self, seen: ResourceUsage) -> bool:
        """The shell has looked at memory and disk: what follows from it is done before a set is looked at."""
        ctx, before = self._ctx, self._ctx.room.read_only
        ctx.room.measured(seen)
        if before and not ctx.room.read_only:
            ctx.state.renew_leases(ctx.now)  # nobody could refresh one
        return self.look()

    def look(self) -> bool:
        """Report a change, and return True if the peer is to take over."""
        ctx, why = self._ctx, self.why
        if bool(why) != bool(self.told):
            ctx.turn.fact("little room" if why else "room again", "warning" if why else "info", why=why or self.told)
            ctx.beat_now()
        self.told = why
        paced = ctx.now - self._handed_over_at >= PACE_S
        ready = ctx.serving and ctx.in_sync() and ctx.arbitration.both
        return bool(why) and paced and ready and ctx.peer is not None and ctx.peer.room
