"""covers: agent/measured.py: the calls of `metrics=`, whose errors do no harm; the example of docs/metrics.md."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from chp_client import AsyncClone, Clone, Closed, Conflict, telemetry
from chp_server.testing import TestServer
from tests.talk import WAIT_S

ROOT = Path(__file__).parents[2]


class Told:
    """A metrics object that keeps the arguments of all calls."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.seconds: list[float] = []

    def acknowledged(self, durability: str, seconds: float) -> None:
        self.rows.append(("acknowledged", durability))
        self.seconds.append(seconds)

    def refused(self, code: str) -> None:
        self.rows.append(("refused", code))

    def state(self, state: str) -> None:
        self.rows.append(("state", state))

    def changes(self, n: int) -> None:
        self.rows.append(("changes", n))


def test_metrics_are_told_acknowledgements_refusals_states_and_changes(server: TestServer) -> None:
    told = Told()
    with Clone(server.address, metrics=told) as clone:
        clone.wait_until_synced(WAIT_S)
        with clone.watch() as watch:
            clone.set_many({"/a": b"1", "/b": b"2"}).wait(WAIT_S)
            assert [watch.get(WAIT_S).key for _ in range(2)] == ["/a", "/b"]
        with pytest.raises(Conflict):
            clone.set("/a", b"2", if_revision=0).wait(WAIT_S)
    states = [value for what, value in told.rows if what == "state"]
    assert (states[0], states[-1]) == ("SYNCED", "CLOSED")
    assert ("acknowledged", "applied") in told.rows and ("refused", "revision") in told.rows
    assert sum(n for what, n in told.rows if what == "changes") == 2
    assert all(0 <= each < WAIT_S for each in told.seconds) and told.seconds


def test_metrics_errors_are_logged_once_and_stop_no_set(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Told):
        def acknowledged(self, durability: str, seconds: float) -> None:
            raise ZeroDivisionError

    with Clone(server.address, metrics=Wrong()) as clone:
        for _ in range(3):
            clone.set("/a", b"1").wait(WAIT_S)
    assert caplog.text.count("metrics of a Clone raised") == 1


def test_an_async_clone_reports_to_its_metrics_too(server: TestServer) -> None:
    told = Told()

    async def main() -> None:
        async with AsyncClone(server.address, metrics=told) as clone:
            await clone.set("/a", b"1", timeout=WAIT_S)

    asyncio.run(main())
    assert ("acknowledged", "applied") in told.rows


def test_the_example_of_the_metrics_page_works(server: TestServer) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    with Clone(server.address, metrics=names["Told"]()) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
        clone.wait_until_synced(WAIT_S)
    shown = prometheus.generate_latest().decode()
    assert 'clone_ack_seconds_count{durability="applied"} 1.0' in shown


def test_batches_left_at_close_are_reported_as_refused() -> None:
    told = Told()
    with Clone("tcp://127.0.0.1:1", metrics=told) as clone:
        ticket = clone.set("/a", b"1")
        clone.close(0.0)
    assert isinstance(ticket.error, Closed)
    assert told.rows.count(("refused", "closed")) == 1 and ("state", "CLOSED") in told.rows


def test_clones_of_one_process_share_prometheus_metrics(server: TestServer) -> None:
    client = pytest.importorskip("prometheus_client")
    # The second Clone uses the metrics that the first one registered.
    for _ in range(2):
        with Clone(server.address, metrics=telemetry.Prometheus()) as clone:
            clone.wait_until_synced(WAIT_S)
            clone.set("/a", b"1").wait(WAIT_S)
            assert "chp_client_synced 1.0" in client.generate_latest().decode()
    shown = client.generate_latest().decode()
    assert 'chp_client_ack_seconds_count{durability="applied"} 2.0' in shown and "chp_client_synced 0.0" in shown


def test_the_installed_opentelemetry_gets_acknowledgements(server: TestServer) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    with Clone(server.address, metrics=telemetry.installed()) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
    shown = reader.get_metrics_data().to_json()
    assert '"chp.client.ack"' in shown and '"durability": "applied"' in shown


def test_a_fake_opentelemetry_gets_sync_state_and_acks(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake OpenTelemetry, which needs no installation, notes the instruments that are made and what they record."""
    rows: list[tuple[str, Any, Any]] = []

    class Instrument:
        def __init__(self, name: str) -> None:
            self.name = name

        def record(self, amount: float, attributes: Any = None) -> None:
            rows.append((self.name, amount, attributes))

        add = record

    class Meter:
        def __getattr__(self, made: str) -> Any:
            assert made in ("create_histogram", "create_counter", "create_up_down_counter")
            return lambda name, **_: Instrument(name)

    module = types.ModuleType("opentelemetry.metrics")
    module.get_meter = lambda name: Meter()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", types.ModuleType("opentelemetry"))
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", module)
    telemetry._meter.cache_clear()
    try:
        with Clone(server.address, metrics=telemetry.OpenTelemetry()) as clone:
            clone.wait_until_synced(WAIT_S)
            clone.set("/a", b"1").wait(WAIT_S)
    finally:
        telemetry._meter.cache_clear()
    assert [row[1] for row in rows if row[0] == "chp.client.synced"] == [1, -1]
    assert any(name == "chp.client.ack" and told == {"durability": "applied"} for name, _, told in rows)


def test_no_telemetry_is_found_without_a_metrics_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    assert telemetry.installed() is None
