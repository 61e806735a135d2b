"""The number of the next epoch: it must be above every epoch that is known, and above those that others report.

    certain    the epochs of the server's own history, and those that a repaired journal may have issued (`used`)
    hearsay    a peer's STATE or WANT, or a client's resume, reports a higher epoch of the same store

A server must serve numbers above those that clients have seen, or the clients take its updates for stale. So a server
considers hearsay. But there are only 32,767 epochs, for ever, and any peer or client can report any number. So hearsay
may raise the epoch by `JUMPS` in all; each `REGAIN_S` seconds give back one of these. Reports above half of all epochs
are ignored. At the worst pace the epochs last for months.

An ignored report does no lasting harm: clients that have seen a higher epoch wait some seconds, and then begin anew.

Pure: `now` is an argument.
"""

from __future__ import annotations

from chp.numbers import EPOCH_MAX

JUMPS = 64
REGAIN_S = 600.0


class Epochs:
    """The epochs that one run of a server knows of beside its own history."""

    def __init__(self, now: float) -> None:
        # The highest epoch that may have been issued; the next one must be above it.
        self.used = 0
        self._heard = 0
        self._clients_saw = 0
        self._left = float(JUMPS)
        self._at = now

    def hear(self, epoch: int) -> None:
        """Note an epoch that a server of the same store reports."""
        if self._heard < epoch <= EPOCH_MAX // 2:
            self._heard = epoch

    def client_saw(self, epoch: int) -> None:
        """Note an epoch that a client of the same store has seen."""
        if self._clients_saw < epoch <= EPOCH_MAX // 2:
            self._clients_saw = epoch

    def seen_above(self, ours: int) -> int:
        """Return the highest epoch that a client has seen, if it is above our history's and is believed; else 0."""
        certain = max(ours, self.used)
        return self._clients_saw if 0 < self._clients_saw - certain <= JUMPS else 0

    def above(self, ours: int, now: float) -> int:
        """Return the epoch above which the next epoch of this server must be."""
        certain = max(ours, self.used)
        left = min(JUMPS, self._left + (now - self._at) / REGAIN_S)
        return self._heard if 0 < self._heard - certain <= left else certain

    def spend(self, ours: int, now: float) -> int:
        """Return the epoch above which an epoch that is opened now must be.

        A raise by hearsay alone is taken from the budget of `JUMPS`. Then the hearsay is forgotten.
        """
        certain, above = max(ours, self.used), self.above(ours, now)
        self._left = min(JUMPS, self._left + (now - self._at) / REGAIN_S) - (above - certain)
        self._at, self._heard = now, 0
        return above
