"""Own leases, and when each must be refreshed: at a third of its ttl, so that two refreshes may be lost.

A lease is one 16-byte name under which any number of keys live; one small batch refreshes it, however many there are.
"""

from __future__ import annotations

from chp import columns
from chp.batch import Segment

NEVER = float("inf")


class Leases:
    """The leases this client holds."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[int, float]] = {}  # ttl in ms, when to refresh

    def hold(self, lease: bytes, ttl_ms: int, now: float) -> None:
        """Refresh this lease from now on."""
        self._held[lease] = (ttl_ms, now + ttl_ms / 3000)

    def drop(self, lease: bytes) -> None:
        """Refresh it no more."""
        self._held.pop(lease, None)

    def next_due(self) -> float:
        """When the next refresh falls due."""
        return min([at for _, at in self._held.values()]) if self._held else NEVER

    def due(self, now: float) -> list[Segment]:
        """The batches that refresh what has fallen due."""
        segments = []
        for lease, (ttl_ms, at) in self._held.items():
            if at <= now:
                self._held[lease] = (ttl_ms, now + ttl_ms / 3000)
                segments.append(Segment([], [], {columns.LEASE: [lease, ttl_ms]}))
        return segments
