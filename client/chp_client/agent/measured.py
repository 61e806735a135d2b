"""What an application measures of a Clone: an object of its own, told by the agent; nothing is imported for it.

    class MyMetrics:                                        # docs/metrics.md has it for Prometheus
        def acknowledged(self, durability, seconds): ...    # a batch of sets
        def refused(self, code): ...                        # a batch; "closed" if nobody will ever answer
        def state(self, state): ...                         # CONNECTING, SYNCED, STALE, CLOSED
        def changes(self, n): ...                           # told to watches and callbacks, of one turn

They run on the agent's thread, between two turns, so they must be brief and never wait. One that raises is logged once,
and is told nothing more. A batch is what travels together, so they are called some thousand times a second at most.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ..core.events import Ack, Effects
from ..errors import Refused

log = logging.getLogger("chp_client")


class Metrics(Protocol):
    """See the module; `seconds` are from when a batch was closed, by the first set after it or by the agent."""

    def acknowledged(self, durability: str, seconds: float) -> None:
        """A batch of sets is *applied*, *journaled* or *replicated*."""

    def refused(self, code: str) -> None:
        """A batch was refused, with the code of `Refused`."""

    def state(self, state: str) -> None:
        """The state changed."""

    def changes(self, n: int) -> None:
        """So many changes went to watches."""


class MeasuredClone:
    """An application's metrics, kept from harming the agent."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Metrics | None = metrics

    def settled(self, result: Ack | Exception, seconds: float) -> None:
        """A batch was answered."""
        if self._metrics is None:
            return
        try:
            if isinstance(result, Ack):
                self._metrics.acknowledged(result.durability, seconds)
            else:
                self._metrics.refused(result.code if isinstance(result, Refused) else "closed")
        except Exception:
            self._failed()

    def told(self, effects: Effects) -> None:
        """What a turn did besides."""
        if self._metrics is None:
            return
        try:
            for state in effects.states:
                self._metrics.state(state.value)
            if effects.changes:
                self._metrics.changes(sum(len(each.keys) for each in effects.changes))
        except Exception:
            self._failed()

    def _failed(self) -> None:
        log.exception("metrics of a Clone raised, and are told nothing more")
        self._metrics = None
