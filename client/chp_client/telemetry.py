"""Metrics of Clones for OpenTelemetry or Prometheus. Each of these packages is imported when its class is first used.

    Clone(metrics=telemetry.installed())            # OpenTelemetry, else Prometheus, else no metrics
    Clone(metrics=telemetry.OpenTelemetry())        Clone(metrics=telemetry.Prometheus())

    chp.client.ack       seconds from a batch to its acknowledgement, by durability; `sync` is a batch too
    chp.client.refused   batches that were refused, by code; "closed" if no answer will ever come
    chp.client.synced    how many Clones of this process are complete and current
    chp.client.changes   changes told to watches and callbacks

With OpenTelemetry a message carries the trace of the span in which it was published, in its headers. `Consumer.run`
calls its handler in a span of that trace, "process TOPIC".

In Prometheus the names have underscores in place of dots. All Clones of a process share the instruments. Each Clone
needs an object of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .agent.measured import Metrics
from .topics.reader import Message

SYNCED = "SYNCED"
WORDS = {
    "chp.client.ack": "from a batch of sets to its acknowledgement",
    "chp.client.refused": "batches of sets that were refused",
    "chp.client.synced": "Clones that are complete and current",
    "chp.client.changes": "changes told to watches and callbacks",
}


def installed() -> Metrics | None:
    """Return the metrics for OpenTelemetry, else for Prometheus, else None."""
    for package, made in (("opentelemetry", OpenTelemetry), ("prometheus_client", Prometheus)):
        if find_spec(package) is not None:
            try:
                return made()
            # The package is there, but not the part of it that the class needs.
            except ImportError:
                continue
    return None


class _Told(ABC):
    """A base class that counts its Clone among the synced Clones while the state of the Clone is SYNCED."""

    _synced = False

    def state(self, state: str) -> None:
        """Note a new state."""
        if (state == SYNCED) != self._synced:
            self._synced = state == SYNCED
            self._count_synced(1 if self._synced else -1)

    @abstractmethod
    def _count_synced(self, by: int) -> None: ...


class OpenTelemetry(_Told):
    """The metrics in the meter "chp_client" of the OpenTelemetry provider that the program has set up."""

    def __init__(self) -> None:
        self._ack, self._refused, self._clones, self._changes = _meter()

    def acknowledged(self, durability: str, seconds: float) -> None:
        """Note that a batch was acknowledged."""
        self._ack.record(seconds, {"durability": durability})

    def refused(self, code: str) -> None:
        """Note that a batch was refused."""
        self._refused.add(1, {"code": code})

    def changes(self, n: int) -> None:
        """Note that `n` changes went to watches and callbacks."""
        self._changes.add(n)

    def _count_synced(self, by: int) -> None:
        self._clones.add(by)

    def carried(self) -> dict[str, str]:
        """Return the headers that carry the current trace; none outside of a span."""
        headers: dict[str, str] = {}
        import_module("opentelemetry.propagate").inject(headers)
        return headers

    def handling(self, topic: str, group: str, message: Message) -> AbstractContextManager[object]:
        """Return the span in which a message is handled, as part of the trace that the message carries."""
        trace = import_module("opentelemetry.trace")
        told = {"messaging.system": "chp", "messaging.destination.name": topic, "messaging.operation.type": "process"}
        told |= {"messaging.consumer.group.name": group, "messaging.message.id": str(message.offset)}
        began = import_module("opentelemetry.propagate").extract(dict(message.headers))
        span: AbstractContextManager[object] = trace.get_tracer("chp_client").start_as_current_span(
            f"process {topic}", context=began, kind=trace.SpanKind.CONSUMER, attributes=told
        )
        return span


class Prometheus(_Told):
    """The metrics in Prometheus's default registry."""

    def __init__(self) -> None:
        self._ack, self._refused, self._clones, self._changes = _registered()

    def acknowledged(self, durability: str, seconds: float) -> None:
        """Note that a batch was acknowledged."""
        self._ack.labels(durability).observe(seconds)

    def refused(self, code: str) -> None:
        """Note that a batch was refused."""
        self._refused.labels(code).inc()

    def changes(self, n: int) -> None:
        """Note that `n` changes went to watches and callbacks."""
        self._changes.inc(n)

    def _count_synced(self, by: int) -> None:
        self._clones.inc(by)


@cache
def _meter() -> tuple[Any, Any, Any, Any]:
    meter = import_module("opentelemetry.metrics").get_meter("chp_client")
    ack, refused, synced, changes = WORDS
    return (
        meter.create_histogram(ack, unit="s", description=WORDS[ack]),
        meter.create_counter(refused, description=WORDS[refused]),
        meter.create_up_down_counter(synced, description=WORDS[synced]),
        meter.create_counter(changes, description=WORDS[changes]),
    )


@cache
def _registered() -> tuple[Any, Any, Any, Any]:
    client = import_module("prometheus_client")
    ack, refused, synced, changes = (name.replace(".", "_") for name in WORDS)
    words = list(WORDS.values())
    return (
        client.Histogram(f"{ack}_seconds", words[0], ["durability"]),
        client.Counter(refused, words[1], ["code"]),
        client.Gauge(synced, words[2]),
        client.Counter(changes, words[3]),
    )
