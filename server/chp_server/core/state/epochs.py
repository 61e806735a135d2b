"""Which epoch a server may open: above all that are known for certain, and above what others say as far as that goes.

    certain    those of the own history, and those that a repaired journal may have issued (`used`)
    hearsay    a peer's STATE or WANT, a client's resume: somebody of the same store has seen a higher epoch

What is served has to be above what clients have seen, or they take it for stale; so hearsay counts. But there are
32,767 epochs, for ever, and anybody can say a number. So hearsay is believed up to `JUMPS` epochs in all, which come
back one each `REGAIN_S`, and never beyond half of all epochs: at the worst pace that is months. What is not believed
does no lasting harm: clients that have seen a higher epoch hear nobody else of it for some seconds, and begin anew.

Pure: `now` is an argument.
"""

from __future__ import annotations

from chp.numbers import EPOCH_MAX

JUMPS = 64
REGAIN_S = 600.0


class Epochs:
    """What one run of a server knows of epochs beside its own history."""

    def __init__(self, now: float) -> None:
        self.used = 0  # certainly not to be opened, nor any below
        self._heard = 0
        self._clients_saw = 0
        self._left = float(JUMPS)
        self._at = now

    def hear(self, epoch: int) -> None:
        """Somebody of the same store tells of an epoch."""
        if self._heard < epoch <= EPOCH_MAX // 2:
            self._heard = epoch

    def client_saw(self, epoch: int) -> None:
        """A client of the same store tells of the epoch that it has seen."""
        if self._clients_saw < epoch <= EPOCH_MAX // 2:
            self._clients_saw = epoch

    def seen_above(self, ours: int) -> int:
        """Return the highest epoch that a client has seen, if it is above our history's and is believed; else 0."""
        certain = max(ours, self.used)
        return self._clients_saw if 0 < self._clients_saw - certain <= JUMPS else 0

    def above(self, ours: int, now: float) -> int:
        """The epoch that the next one has to be above."""
        certain = max(ours, self.used)
        left = min(JUMPS, self._left + (now - self._at) / REGAIN_S)
        return self._heard if 0 < self._heard - certain <= left else certain

    def spend(self, ours: int, now: float) -> int:
        """The same, for an epoch that is opened now: what was only said is paid for, and then forgotten."""
        certain, above = max(ours, self.used), self.above(ours, now)
        self._left = min(JUMPS, self._left + (now - self._at) / REGAIN_S) - (above - certain)
        self._at, self._heard = now, 0
        return above
