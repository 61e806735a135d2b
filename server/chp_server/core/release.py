"""The release of acknowledgements: when the answers that clients wait for may leave the server.

    end_turn                       puts answers into the turn: those that the passive has confirmed, or all if there is
                                   no passive in sync
    may_leave, may_be_promised     check again when the shell is about to send the answers
    clear                          drops all answers, because this server no longer serves

Between the decision and the sending, the process may have been stopped, and the peer may have become active. So this
server defers answers that would leave too late until it has heard the peer. With an arbiter, it also defers answers if
its lease may have ended since the turn began. Clients send unacknowledged sets again, to the other server.

`CopiesRelease` takes the place of `AckRelease` on a server with `--copies` above 2. There an answer also waits for
replicas that confirm, while enough of these replicas are in sync. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from chp.headers import REPLICATED

from .pair.arbitration import Arbitration
from .questions.replicas import Replicas
from .updates.acks import Acks, CountedAcks
from .updates.turn import Frames, Turn

# Answers on port P, each with the connection that asked.
Answers = list[tuple[bytes, list[Frames]]]


class AckRelease:
    """The acknowledgements and answers that are about to leave, and those that were deferred."""

    def __init__(self, acks: Acks, arbitration: Arbitration, stopped_s: float) -> None:
        self._acks, self._arbitration = acks, arbitration
        # If this much time passes between deciding and sending, the process was stopped.
        self._stopped_s = stopped_s
        # The acknowledgements that were deferred.
        self._deferred: list[Frames] = []
        # The answers on P that were deferred.
        self._promises: Answers = []

    @property
    def waits(self) -> bool:
        """True if something was deferred."""
        return bool(self._deferred or self._promises)

    def end_turn(self, turn: Turn, confirmed: int | None, number: int) -> None:
        """Put into the turn the answers that may leave; `confirmed` is the number of a passive in sync, or None."""
        acks = self._acks
        if self._arbitration.enabled and not self._is_agreed(confirmed):
            return
        if self._deferred or self._promises:
            turn.acks += self._deferred
            turn.promises += self._promises
            self._deferred, self._promises = [], []
        if confirmed is None:
            acks.release_alone(turn, number)
        else:
            acks.release(turn, confirmed, number)

    def _is_agreed(self, confirmed: int | None) -> bool:
        """Return True if the arbiter knows which other server has the records that this server acknowledges."""
        acks = self._acks
        return self._arbitration.agreed(confirmed, acks.answered, bool(acks.waiting or self.waits))

    def may_leave(self, acks: list[Frames], began: float, now: float) -> list[Frames]:
        """Return the acknowledgements that may leave now; defer the others. Their turn began at `began`."""
        if self._in_time(began, now):
            return acks
        self._deferred += acks
        return []

    def may_be_promised(self, promises: Answers, began: float, now: float) -> Answers:
        """Return the answers on P that may leave now; defer the others. All are answers to replicated commands."""
        if self._in_time(began, now):
            return promises
        self._promises += promises
        return []

    def _in_time(self, began: float, now: float) -> bool:
        return now - began <= self._stopped_s and self._arbitration.leased(now)

    def clear(self, turn: Turn) -> None:
        """Drop all answers, also those of this turn: a stale message of the peer may have released them."""
        turn.acks.clear()
        turn.promises.clear()
        self._deferred, self._promises = [], []
        self._acks.waiting.clear()


class CopiesRelease(AckRelease):
    """The release of answers that wait for the passive, and for replicas that confirm."""

    def __init__(
        self,
        acks: CountedAcks,
        arbitration: Arbitration,
        replicas: Replicas,
        stopped_s: float,
        *,
        copies: int,
        passive_has: Callable[[int], bool],
    ) -> None:
        super().__init__(acks, arbitration, stopped_s)
        self._counted, self._replicas = acks, replicas
        # The replicas that have to confirm, beside the active and the passive.
        self._needed = copies - 2
        # Tells whether the passive has confirmed a number.
        self._passive_has = passive_has
        acks.copies_of = self._copies_of

    def end_turn(self, turn: Turn, confirmed: int | None, number: int) -> None:
        """Put into the turn the answers that may leave.

        If too few replicas are in sync, answers wait for the passive alone, and do not say *replicated*.
        """
        bound = self._replicas.confirmed_by(self._needed)
        self._counted.worth = self._counted.durability if bound is None else REPLICATED
        if confirmed is not None and bound is not None:
            confirmed = min(confirmed, bound)
        super().end_turn(turn, confirmed, number)

    def _copies_of(self, number: int) -> int:
        """Return how many servers have everything up to a number on disk."""
        return 1 + self._passive_has(number) + self._replicas.copies_of(number)
