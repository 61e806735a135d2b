"""The leases of this client, and the time when each must be refreshed.

A lease is one 16-byte name under which any number of keys live. One small batch refreshes it, however many keys it has.
It is sent at a third of the ttl, so two refreshes may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chp import columns
from chp.batch import Segment

NEVER = float("inf")
Handle = Callable[[], Any]


class LeaseRefresher:
    """The leases that this client holds."""

    def __init__(self) -> None:
        # Each lease has its ttl in ms, the time of its next refresh, and a function that makes a handle for the answer.
        self._held: dict[bytes, tuple[int, float, Handle]] = {}

    def hold(self, lease: bytes, ttl_ms: int, now: float, handle: Handle = lambda: None) -> None:
        """Refresh this lease from now on. `handle` makes the object that is told the answer to a refresh."""
        self._held[lease] = (ttl_ms, now + ttl_ms / 3000, handle)

    def drop(self, lease: bytes) -> None:
        """Stop refreshing this lease."""
        self._held.pop(lease, None)

    def all(self) -> list[bytes]:
        """Return the leases that are refreshed."""
        return list(self._held)

    def next_due(self) -> float:
        """Return the time when the next refresh is due."""
        return min([at for _, at, _ in self._held.values()]) if self._held else NEVER

    def due(self, now: float) -> list[tuple[Segment, Handle]]:
        """Return a batch and a function that makes its handle, for each lease whose refresh is due."""
        segments = []
        for lease, (ttl_ms, at, handle) in self._held.items():
            if at <= now:
                self._held[lease] = (ttl_ms, now + ttl_ms / 3000, handle)
                segments.append((Segment([], [], {columns.REFRESH: lease}), handle))
        return segments
