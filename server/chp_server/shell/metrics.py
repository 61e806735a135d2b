"""Prometheus metrics (`--metrics [HOST:]PORT`), from the same status that `chp status` shows; and two short answers.

    /metrics    for Prometheus
    /ready      200 if it serves, or follows and is in sync; else 503. What it is, in a line
    /health     200 if the server made a turn in the last ten seconds; else 503
    any other   404

    chp_active, chp_in_sync, chp_peer_alive     0 or 1: what an alarm looks at first; a lone server has but the first
    chp_epoch, chp_sequence, chp_keys, ...      gauges
    chp_events_total{kind="..."}                what the server counts: updates, garbage by port, refusals by kind, ...
    chp_journal_...                             sizes, and how long a sync takes
    chp_room_full, chp_room_memory, ...         1 while sets are refused; memory and disk in bytes, with their bounds
    chp_topics_...                              messages, their bytes, groups, readers and members, what is missing here
    chp_group_lag{topic="...",group="..."}      messages a group has yet to acknowledge; chp_group_oldest_s, how long
                                                the first of them has waited; chp_group_members. 100 groups at most
    chp_turn_seconds                            a histogram: how long turns hold up everybody
    chp_sync_seconds, chp_ack_seconds, chp_catch_up_seconds     histograms: what a turn waits for its journal; from sets
                                                to their answers, the passive's confirmation within; copies of Clones
    chp_published_messages_total, ..._bytes_total, chp_subscribers      once each, however many it goes to; connections
    chp_build_info{version="...",python="..."}, process_...     what is running; its processor time, memory, files

The reactor leaves its latest status here; a scrape reads it and never waits for the reactor. Needs the extra `metrics`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic
from typing import Any

from chp.errors import ChpError

from ..settings.flags import program_version
from .turn_clock import Told, WaitTimes

HEALTHY_S = 10.0  # longer than any turn may take: see what an operator does about long ones
REQUEST_S = 5.0  # for who connects and says nothing
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
    "chp1_subscriptions": "CHP/1 subscriptions",
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
_TOPICS = {
    "topics": "topics",
    "messages": "messages that topics keep",
    "bytes": "bytes of those",
    "groups": "groups of all topics",
    "readers": "who reads a topic without a group",
    "members": "members of groups that are connected",
    "missing": "messages that are known, and not in this journal",
}
_GROUPS = {
    "lag": "messages from the first on that the group has not acknowledged",
    "oldest_s": "seconds since the first of those came",
    "members": "members of the group",
}


_WAITS = {
    "sync": "what a turn waits until its journal is durable",
    "ack": "from the turn that takes sets to their answers, the passive's confirmation within",
    "catch_up": "from a Clone's request to the end of its copy, or of what it had missed",
}


class MetricsError(ChpError):
    """The metrics can't be served; the text says why and what to do."""


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
        self.told_at = monotonic()  # when the reactor last left something here
        registry = CollectorRegistry()
        registry.register(self)  # all it asks of a collector is `collect`
        ProcessCollector(registry=registry)
        try:
            self._server = _Server((host or "127.0.0.1", int(port)), partial(_MetricsHandler, self, registry))
        except OSError as error:
            text = f"--metrics {address} can't be served: {error.strerror}; give another HOST:PORT"
            raise MetricsError(text) from error
        self._thread = Thread(target=self._server.serve_forever, name="chp-metrics", daemon=True)
        self._thread.start()

    def tell(self, status: dict[str, Any], turns: Told, waits: WaitTimes | None = None, subscribers: int = 0) -> None:
        """The latest; by the reactor, in each round of its housekeeping."""
        self.turns, self.waits, self.subscribers = turns, waits or self.waits, subscribers
        self.status, self.told_at = status, monotonic()

    def health(self) -> tuple[bool, str]:
        """Whether the server makes turns, and a line that says so."""
        silent_s = monotonic() - self.told_at
        if silent_s > HEALTHY_S:
            return False, f"no turn for {silent_s:.0f} s"
        return True, "it makes turns"

    def ready(self) -> tuple[bool, str]:
        """Whether a client or an upgrade may count on this server, and a line that says why."""
        healthy, line = self.health()
        if not healthy or not self.status:
            return False, line if not healthy else "it is starting"
        return readiness(self.status)

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
        lone = status.get("role") == "alone"  # it raises no alarm of a pair
        for name, text in list(_FLAGS.items())[: 1 if lone else None]:
            yield GaugeMetricFamily(f"chp_{name}", text, value=float(flags[name]))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"chp_{name}", text, value=float(status[name]))
        for name, value in status.get("journal", {}).items():
            if isinstance(value, int | float):
                yield GaugeMetricFamily(f"chp_journal_{name}", f"journal: {name}", value=float(value))
        for name, value in status.get("scrub", {}).items():
            if name in _SCRUB and value is not None:
                yield GaugeMetricFamily(f"chp_scrub_{name}", _SCRUB[name], value=float(value))
        for name, value in status["room"].items():
            if isinstance(value, int | float):
                yield GaugeMetricFamily(f"chp_room_{name}", f"room for more: {name}", value=float(value))
        yield from _of_topics(status)
        events = CounterMetricFamily("chp_events", "what the server counted since it started", labels=["kind"])
        for kind, count in sorted(status["counts"].items()):
            events.add_metric([kind], float(count))
        yield events
        text = "processor time of the serving thread a turn: one above 50 ms is too long"
        buckets, total_s = self.turns
        if buckets:
            yield HistogramMetricFamily("chp_turn_seconds", text, buckets=buckets, sum_value=total_s)
        yield from self._of_waits()

    def _of_waits(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        if (waits := self.waits) is None:
            return
        for name, each in (("sync", waits.syncs), ("ack", waits.acks), ("catch_up", waits.copies)):
            buckets, total_s = each.told()
            yield HistogramMetricFamily(f"chp_{name}_seconds", _WAITS[name], buckets=buckets, sum_value=total_s)
        for name, count in (("messages", waits.messages), ("bytes", waits.bytes)):
            text = f"{name} published, each once however many it goes to"
            yield CounterMetricFamily(f"chp_published_{name}", text, value=float(count))
        text = "connections to the publishing socket"
        yield GaugeMetricFamily("chp_subscribers", text, value=float(self.subscribers))
        build = GaugeMetricFamily("chp_build_info", "1, with what is running", labels=["version", "python"])
        build.add_metric([program_version(), platform.python_version()], 1.0)
        yield build

    def close(self) -> None:
        """End the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a server of this status serves, or follows and is in sync; and a line that says so, or why not."""
    if status["state"] == "active":
        return True, "active"
    if status["state"] == "passive" and status["in_sync"]:
        return True, "passive, in sync"
    peer = status["peer"]
    heard = "has no peer" if peer is None else "hears its peer" if peer["alive"] else "does not hear its peer"
    return False, f"{status['state']}, not in sync: {status.get('waits_for') or f'it {heard}'}"


def _of_topics(status: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text in _TOPICS.items():
        yield GaugeMetricFamily(f"chp_topics_{name}", text, value=float(status["topics"][name]))
    for name, text in _GROUPS.items() if status["groups"] else ():
        family = GaugeMetricFamily(f"chp_group_{name}", text, labels=["topic", "group"])
        for group in status["groups"]:
            family.add_metric([group["topic"], group["group"]], float(group[name]))
        yield family


class _Server(ThreadingHTTPServer):
    """A thread a connection, none of which keeps the process."""

    daemon_threads = True
    allow_reuse_address = True


class _MetricsHandler(BaseHTTPRequestHandler):
    """One request."""

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
        """Nothing: a scrape is no event."""
