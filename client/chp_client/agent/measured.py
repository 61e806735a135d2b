"""The metrics that an application takes of a Clone. The agent calls the application's own object, and imports nothing.

    class MyMetrics:                                        # docs/metrics.md has it for Prometheus
        def acknowledged(self, durability, seconds): ...    # a batch of sets
        def refused(self, code): ...                        # a batch; "closed" if no answer will ever come
        def state(self, state): ...                         # CONNECTING, SYNCED, STALE, CLOSED
        def changes(self, n): ...                           # changes that watches and callbacks got in one turn

The agent calls these methods on its thread between two turns. So they must be brief and never wait. If one raises, that
is logged, and the object is told nothing more. They are called for batches, so a few thousand times a second at most.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ..core.events import Ack, Effects
from ..errors import Refused

log = logging.getLogger("chp_client")


@runtime_checkable
class Metrics(Protocol):
    """The methods that an application's metrics object has.

    `seconds` count from when a batch was closed, by the first set after it or by the agent.
    """

    def acknowledged(self, durability: str, seconds: float) -> None:
        """Note that a batch of sets is *applied*, *journaled* or *replicated*."""

    def refused(self, code: str) -> None:
        """Note that a batch was refused, with the code of `Refused`."""

    def state(self, state: str) -> None:
        """Note a new state."""

    def changes(self, n: int) -> None:
        """Note that `n` changes went to watches and callbacks."""


@runtime_checkable
class Tracing(Protocol):
    """Two more methods of an object that also carries traces, as `telemetry.OpenTelemetry` does."""

    def carried(self) -> dict[str, str]:
        """Return the headers that carry the current trace to the consumers of a message."""

    def handling(self, topic: str, group: str, message: Any) -> AbstractContextManager[object]:
        """Return the context in which `Consumer.run` calls its handler with a message."""


class MeasuredClone:
    """An application's metrics. Its errors do no harm to the agent."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Metrics | None = metrics

    def settled(self, result: Ack | Exception, seconds: float) -> None:
        """Tell the answer to a batch."""
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
        """Tell the new states and the number of changes of a turn."""
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
