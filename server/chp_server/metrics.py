"""Prometheus metrics (`--metrics [HOST:]PORT`), from the same status that `chp status` shows.

    chp_active, chp_in_sync, chp_peer_alive     0 or 1: what an alarm looks at first
    chp_epoch, chp_sequence, chp_keys, ...      gauges
    chp_events_total{kind="..."}                what the server counts: updates, garbage by port, refusals by kind, ...
    chp_journal_...                             sizes, and how long a sync takes
    chp_turn_seconds                            a histogram: how long turns hold up everybody

The reactor leaves its latest status here; a scrape reads it and never waits for the reactor. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chp.errors import ChpError

_FLAGS = {
    "active": "1 while this server serves",
    "in_sync": "1 while the passive has everything that is acknowledged",
    "peer_alive": "1 while the peer is heard",
}
_GAUGES = {
    "epoch": "the epoch of the last update",
    "sequence": "how many updates the store has seen",
    "keys": "keys in the map",
    "sessions": "clients whose last batch is remembered",
    "leases": "open leases",
    "transactions": "staged transactions that wait for their commit",
    "staged_bytes": "bytes that wait for their commit",
    "plain_subscriptions": "CHP/1 subscriptions",
    "syncs": "snapshots and resumes under way",
    "pending": "sets a passive holds until it has seen them published",
    "pending_bytes": "bytes of those",
    "log_records": "records kept in memory for clients that come back",
    "log_bytes": "bytes of those",
    "waiting_acks": "turns whose acknowledgements wait for the passive",
    "uptime_s": "seconds since the server started",
    "since_s": "seconds since its state last changed",
}

_SCRUB = {
    "passes": "times that the contents of the two servers were gone through",
    "keys": "keys that the last pass compared",
    "differences": "how many of them differed",
    "ended_s_ago": "seconds since a pass was complete",
}


class MetricsError(ChpError):
    """The metrics can't be served; the text says why and what to do."""


class Metrics:
    """An HTTP endpoint in a thread of its own."""

    def __init__(self, address: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise MetricsError("--metrics needs prometheus_client: pip install 'chp-clone[metrics]'") from error
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self.status: dict[str, Any] = {}
        self.turns: tuple[list[tuple[str, float]], float] = ([], 0.0)
        registry = CollectorRegistry()
        registry.register(self)  # all it asks of a collector is `collect`
        try:
            self._server, self._thread = start_http_server(int(port), host or "127.0.0.1", registry)
        except OSError as error:
            text = f"--metrics {address} can't be served: {error.strerror}; give another HOST:PORT"
            raise MetricsError(text) from error

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        status = self.status
        if not status:
            return
        flags = {
            "active": status["state"] == "active",
            "in_sync": bool(status["in_sync"]),
            "peer_alive": bool(status["peer"] and status["peer"]["alive"]),
        }
        for name, text in _FLAGS.items():
            yield GaugeMetricFamily(f"chp_{name}", text, value=float(flags[name]))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"chp_{name}", text, value=float(status[name]))
        for name, value in status.get("journal", {}).items():
            if isinstance(value, int | float):
                yield GaugeMetricFamily(f"chp_journal_{name}", f"journal: {name}", value=float(value))
        for name, value in status.get("scrub", {}).items():
            if name in _SCRUB and value is not None:
                yield GaugeMetricFamily(f"chp_scrub_{name}", _SCRUB[name], value=float(value))
        events = CounterMetricFamily("chp_events", "what the server counted since it started", labels=["kind"])
        for kind, count in sorted(status["counts"].items()):
            events.add_metric([kind], float(count))
        yield events
        text = "processor time of the serving thread a turn: one above 50 ms is too long"
        buckets, total_s = self.turns
        yield HistogramMetricFamily("chp_turn_seconds", text, buckets=buckets, sum_value=total_s)

    def close(self) -> None:
        """End the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
