"""When what is owed to clients may be told: at the end of a turn, and again at the moment when it would leave.

    end_turn      what the passive has confirmed, or nobody has to confirm
    may_leave     in the middle of performing: none after a stop in mid-turn, until the peer had its say; with an
                  arbiter, none either if the lease may have ended since the turn began
    clear         this server no longer serves: clients send what was not acknowledged to the one that does

What may not leave is deferred to a later turn. Pure.
"""

from __future__ import annotations

from .pair.arbitration import Arbitration
from .updates.acks import Acks
from .updates.turn import Frames, Turn

Answers = list[tuple[bytes, list[Frames]]]  # on P, by the connection that asked


class AckRelease:
    """Acknowledgements on their way out."""

    def __init__(self, acks: Acks, arbitration: Arbitration, stopped_s: float) -> None:
        self._acks, self._arbitration = acks, arbitration
        self._stopped_s = stopped_s  # a server that takes so long between deciding and sending was stopped
        self._deferred: list[Frames] = []  # of a turn in the middle of which we were stopped
        self._promises: Answers = []  # the same, of what is said on P

    @property
    def waits(self) -> bool:
        """True if something was deferred."""
        return bool(self._deferred or self._promises)

    def end_turn(self, turn: Turn, confirmed: int | None, number: int) -> None:
        """Put into the turn what may be told; `confirmed` is what a passive in sync has, and None if there is none."""
        acks, arbitration = self._acks, self._arbitration
        waiting = bool(acks.waiting or self.waits)
        if arbitration.enabled and not arbitration.agreed(confirmed, acks.answered, waiting):
            return
        turn.acks += self._deferred
        turn.promises += self._promises
        self._deferred, self._promises = [], []
        if confirmed is not None:
            acks.release(turn, confirmed, number)
        else:
            acks.release_alone(turn, number)

    def may_leave(self, acks: list[Frames], began: float, now: float) -> list[Frames]:
        """Return the acknowledgements that may leave now, of a turn that began at `began`."""
        if self._in_time(began, now):
            return acks
        self._deferred += acks
        return []

    def may_be_promised(self, promises: Answers, began: float, now: float) -> Answers:
        """Return the answers on P, to admin commands that are as sets, that may leave now."""
        if self._in_time(began, now):
            return promises
        self._promises += promises
        return []

    def _in_time(self, began: float, now: float) -> bool:
        return now - began <= self._stopped_s and self._arbitration.leased(now)

    def clear(self, turn: Turn) -> None:
        """Tell none of it; also not what this turn was to tell: it may have begun with a peer's word of long ago."""
        turn.acks.clear()
        turn.promises.clear()
        self._deferred, self._promises = [], []
        self._acks.waiting.clear()
