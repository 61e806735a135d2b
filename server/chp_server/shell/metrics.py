"""Prometheus metrics (`--metrics [HOST:]PORT`), from the status that `chp status` shows, and two short answers.

    /metrics    for Prometheus
    /ready      200 if the server serves, or follows and is in sync; else 503. A line says which
    /health     200 if the server made a turn in the last ten seconds; else 503
    any other   404

docs/metrics.md lists the metrics; their names and meanings are those of `chp.facts`.

The reactor leaves its latest status here. A scrape reads that status, and never waits for the reactor. This module
needs the extra `metrics`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic
from typing import Any

from chp import facts
from chp.errors import ChpError

from ..settings.flags import program_version
from .turn_clock import Told, WaitTimes

# The server counts as unhealthy after this time without a report from its turns.
HEALTHY_S = 10.0
# A client that connects and says nothing is given up after this long.
REQUEST_S = 5.0
_OF_A_PAIR = ("in_sync", "peer.alive")


class MetricsError(ChpError):
    """The error that the metrics can't be served; its text says why and what to do."""


class MetricsServer:
    """An HTTP endpoint in a thread of its own."""

    def __init__(self, address: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError as error:
            raise MetricsError("--metrics needs prometheus_client: pip install 'chp-clone[metrics]'") from error
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self.status: dict[str, Any] = {}
        self.turns: Told = ([], 0.0)
        self.waits: WaitTimes | None = None
        self.subscribers = 0
        # The time when the reactor last left something here.
        self.told_at = monotonic()
        registry = CollectorRegistry()
        # The registry asks a collector only for `collect`.
        registry.register(self)
        ProcessCollector(registry=registry)
        try:
            self._server = _Server((host or "127.0.0.1", int(port)), partial(_MetricsHandler, self, registry))
        except OSError as error:
            text = f"--metrics {address} can't be served: {error.strerror}; give another HOST:PORT"
            raise MetricsError(text) from error
        self._thread = Thread(target=self._server.serve_forever, name="chp-metrics", daemon=True)
        self._thread.start()

    def tell(self, status: dict[str, Any], turns: Told, waits: WaitTimes | None = None, subscribers: int = 0) -> None:
        """Take the latest facts from the reactor, in each round of its housekeeping."""
        self.turns, self.waits, self.subscribers = turns, waits or self.waits, subscribers
        self.status, self.told_at = status, monotonic()

    def health(self) -> tuple[bool, str]:
        """Return whether the server makes turns, and a line that says so."""
        silent_s = monotonic() - self.told_at
        if silent_s > HEALTHY_S:
            return False, f"no turn for {silent_s:.0f} s"
        return True, "it makes turns"

    def ready(self) -> tuple[bool, str]:
        """Return whether a client or an upgrade may count on this server, and a line that says why."""
        healthy, line = self.health()
        if not healthy or not self.status:
            return False, line if not healthy else "it is starting"
        return readiness(self.status)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; prometheus_client calls this at each scrape."""
        status = self.status
        if not status:
            return
        # Alarms count the active servers of a pair. So a replica that serves readers does not count as active here.
        yield _family("chp_active", status["state"] == "active" and status.get("role") != "replica")
        yield from _gauges(status)
        yield _family("chp_events_total", {(kind,): count for kind, count in sorted(status["counts"].items())})
        if self.turns[0]:
            yield _family("chp_turn_seconds", self.turns)
        if (waits := self.waits) is not None:
            yield _family("chp_sync_seconds", waits.syncs.told())
            yield _family("chp_ack_seconds", waits.acks.told())
            yield _family("chp_catch_up_seconds", waits.copies.told())
            yield _family("chp_published_messages_total", waits.messages)
            yield _family("chp_published_bytes_total", waits.bytes)
            yield _family("chp_subscribers", self.subscribers)
            yield _family("chp_build_info", {(program_version(), platform.python_version()): 1})

    def close(self) -> None:
        """End the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a server with this status serves, or follows and is in sync, and a line that says which or why."""
    if status["state"] == "active":
        return True, "active"
    if status["state"] == "passive" and status["in_sync"]:
        return True, "passive, in sync"
    peer = status["peer"]
    heard = "has no peer" if peer is None else "hears its peer" if peer["alive"] else "does not hear its peer"
    return False, f"{status['state']}, not in sync: {status.get('waits_for') or f'it {heard}'}"


def _family(name: str, value: Any) -> Any:
    """Return one of `facts.MEASURES`: `value` is a number, numbers by labels, or the buckets and sum of a histogram."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    measure = facts.MEASURE[name]
    if measure.type == "histogram":
        buckets, total_s = value
        return HistogramMetricFamily(name, measure.help, buckets=buckets, sum_value=total_s)
    kind = CounterMetricFamily if measure.type == "counter" else GaugeMetricFamily
    family = kind(name.removesuffix("_total"), measure.help, labels=measure.labels)
    for labels, number in value.items() if measure.labels else [((), value)]:
        family.add_metric(labels, float(number))
    return family


def _gauges(status: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the facts of a status that are numbers. A lone server leaves out those that alarms of a pair use."""
    from prometheus_client.core import GaugeMetricFamily

    lone = status.get("role") in ("alone", "replica")
    for fact in facts.GAUGES:
        value = fact.of(status)
        if fact.path in _OF_A_PAIR:
            value = None if lone else bool(value)
        if value is not None:
            yield GaugeMetricFamily(fact.metric_name, fact.help, value=float(value))
    for fact in facts.GROUP_GAUGES if status["groups"] else ():
        family = GaugeMetricFamily(fact.metric_name, fact.help, labels=["topic", "group"])
        for group in status["groups"]:
            family.add_metric([group["topic"], group["group"]], float(group[fact.name]))
        yield family
    for fact in facts.REPLICA_GAUGES if status.get("replicas") else ():
        family = GaugeMetricFamily(fact.metric_name, fact.help, labels=["replica"])
        for replica in status["replicas"]:
            family.add_metric([replica["name"]], float(replica[fact.name]))
        yield family


class _Server(ThreadingHTTPServer):
    """A server with a thread for each connection; none of the threads keeps the process from ending."""

    daemon_threads = True
    allow_reuse_address = True


class _MetricsHandler(BaseHTTPRequestHandler):
    """The handler of one request."""

    timeout = REQUEST_S

    def __init__(self, metrics: MetricsServer, registry: Any, *rest: Any) -> None:
        self._metrics, self._registry = metrics, registry
        super().__init__(*rest)

    def do_GET(self) -> None:
        """Answer by the path."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

            self._say(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        elif path in ("/ready", "/health"):
            good, line = self._metrics.ready() if path == "/ready" else self._metrics.health()
            self._say(200 if good else 503, line.encode() + b"\n")
        else:
            self._say(404, b"there are /metrics, /ready and /health\n")

    def _say(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing: a scrape is no event."""
