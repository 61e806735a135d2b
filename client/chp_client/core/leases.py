"""Own leases, and when each must be refreshed: at a third of its ttl, so that two refreshes may be lost.

A lease is one 16-byte name under which any number of keys live; one small batch refreshes it, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chp import columns
from chp.batch import Segment

NEVER = float("inf")
Handle = Callable[[], Any]


class LeaseRefresher:
    """The leases this client holds."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[int, float, Handle]] = {}  # ttl in ms, when to refresh, for whom

    def hold(self, lease: bytes, ttl_ms: int, now: float, handle: Handle = lambda: None) -> None:
        """Refresh this lease from now on; what `handle` makes is told how a refresh was answered."""
        self._held[lease] = (ttl_ms, now + ttl_ms / 3000, handle)

    def drop(self, lease: bytes) -> None:
        """Refresh it no more."""
        self._held.pop(lease, None)

    def all(self) -> list[bytes]:
        """Those that are refreshed."""
        return list(self._held)

    def next_due(self) -> float:
        """When the next refresh falls due."""
        return min([at for _, at, _ in self._held.values()]) if self._held else NEVER

    def due(self, now: float) -> list[tuple[Segment, Handle]]:
        """The batches that refresh what has fallen due, and for whom."""
        segments = []
        for lease, (ttl_ms, at, handle) in self._held.items():
            if at <= now:
                self._held[lease] = (ttl_ms, now + ttl_ms / 3000, handle)
                segments.append((Segment([], [], {columns.REFRESH: lease}), handle))
        return segments
