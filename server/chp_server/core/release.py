"""When what is owed to clients may be told: at the end of a turn, and again at the moment when it would leave.

    end_turn      what the passive has confirmed, or nobody has to confirm
    may_leave     in the middle of performing: none after a stop in mid-turn, until the peer had its say; with an
                  arbiter, none either if the lease may have ended since the turn began
    clear         this server no longer serves: clients send what was not acknowledged to the one that does

What may not leave is deferred to a later turn. Pure.
"""

from __future__ import annotations

from .context import ACTIVE, ServerContext
from .updates.turn import Frames


class AckRelease:
    """Acknowledgements on their way out."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx
        self._deferred: list[Frames] = []  # of a turn in the middle of which we were stopped
        self._promises: list[tuple[bytes, list[Frames]]] = []  # the same, of what is said on P

    @property
    def waits(self) -> bool:
        """True if something was deferred."""
        return bool(self._deferred or self._promises)

    def end_turn(self) -> None:
        """Put into the turn what may be told."""
        ctx, acks, arbitration = self._ctx, self._ctx.committer.acks, self._ctx.arbitration
        waiting = bool(acks.waiting or self.waits)
        if ctx.bstate is not ACTIVE or ctx.now < ctx.hold_until:
            return
        follower = ctx.follower
        confirmed = follower.confirmed if follower is not None and follower.in_sync else None
        if arbitration.enabled and not arbitration.agreed(confirmed, acks.answered, waiting):
            return
        ctx.turn.acks += self._deferred
        ctx.turn.promises += self._promises
        self._deferred, self._promises = [], []
        if confirmed is not None:
            acks.release(ctx.turn, confirmed, ctx.commits.state.number)
        else:
            acks.release_alone(ctx.turn, ctx.commits.state.number)

    def may_leave(self, acks: list[Frames], now: float) -> list[Frames]:
        """Those that may leave now."""
        if self._in_time(now):
            return acks
        self._deferred += acks
        return []

    def may_be_promised(
        self, promises: list[tuple[bytes, list[Frames]]], now: float
    ) -> list[tuple[bytes, list[Frames]]]:
        """Those answers on P, of an admin command that is as a set, that may leave now."""
        if self._in_time(now):
            return promises
        self._promises += promises
        return []

    def _in_time(self, now: float) -> bool:
        ctx = self._ctx
        stopped = ctx.config.has_peer and now - ctx.now > ctx.config.peer_timeout_s / 2
        return not stopped and ctx.arbitration.leased(now)

    def clear(self) -> None:
        """Tell none of it; also not what this turn was to tell: it may have begun with a peer's word of long ago."""
        self._ctx.turn.acks.clear()
        self._ctx.turn.promises.clear()
        self._deferred, self._promises = [], []
        self._ctx.committer.acks.waiting.clear()
