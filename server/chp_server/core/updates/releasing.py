"""When what is owed to clients may be told: at the end of a turn, and again at the moment when it would leave.

    end_turn      what the passive has confirmed, or nobody has to confirm
    may_leave     in the middle of performing: none after a stop in mid-turn, until the peer had its say; with an
                  arbiter, none either if the lease may have ended since the turn began
    clear         this server no longer serves: clients send what was not acknowledged to the one that does

What may not leave is deferred to a later turn. Pure.
"""

from __future__ import annotations

from ..standing import Standing
from ..turn import Frames


class Releasing:
    """Acknowledgements on their way out."""

    def __init__(self, here: Standing) -> None:
        self._here = here
        self._deferred: list[Frames] = []  # of a turn in the middle of which we were stopped

    def end_turn(self) -> None:
        """Put into the turn what may be told."""
        here, acks, arbitration = self._here, self._here.committer.acks, self._here.arbitration
        waiting = bool(acks.waiting or self._deferred)
        if not (waiting or arbitration.enabled) or not here.active or here.now < here.hold_until:
            return
        follower = here.follower
        confirmed = follower.confirmed if follower is not None and follower.in_sync else None
        if arbitration.enabled and not arbitration.agreed(confirmed, acks.told, waiting):
            return
        here.turn.acks += self._deferred
        self._deferred = []
        if confirmed is not None:
            acks.release(here.turn, confirmed, here.state.number)
        else:
            acks.release_alone(here.turn, here.state.number)

    def may_leave(self, acks: list[Frames], now: float) -> list[Frames]:
        """Those that may leave now."""
        here = self._here
        stopped = here.config.has_peer and now - here.now > here.config.peer_timeout_s / 2
        if not stopped and here.arbitration.leased(now):
            return acks
        self._deferred += acks
        return []

    def clear(self) -> None:
        """Tell none of it; also not what this turn was to tell: it may have begun with a peer's word of long ago."""
        self._here.turn.acks.clear()
        self._deferred = []
        self._here.committer.acks.waiting.clear()
