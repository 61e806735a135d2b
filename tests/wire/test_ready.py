"""covers: metrics.py: which servers are ready, and that a lone server causes no alarms about a pair."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from chp_server.shell import metrics as metrics_module
from chp_server.shell.metrics import MetricsError, MetricsServer
from chp_server.testing import Pair, TestServer, free_port
from tests.talk import WAIT_S, until

pytest.importorskip("prometheus_client")


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_active_and_an_in_sync_passive_are_ready() -> None:
    one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
    pair = Pair()
    pair.primary.config = replace(pair.primary.config, metrics=one)
    pair.backup.config = replace(pair.backup.config, metrics=two)
    pair.primary.start()
    try:
        until(lambda: get(one, "/health")[0] == 200)
        code, line = get(one, "/ready")
        assert code == 503 or line == "active\n"
        pair.backup.start()
        until(lambda: {get(one, "/ready"), get(two, "/ready")} == {(200, "active\n"), (200, "passive, in sync\n")})
        assert "chp_in_sync 1.0" in get(one, "/metrics")[1] and "chp_peer_alive 1.0" in get(one, "/metrics")[1]
        assert get(one, "/elsewhere")[0] == get(one, "/")[0] == get(one, "/metrics/x")[0] == 404
    finally:
        pair.primary.kill()
        pair.backup.kill()


def test_a_lone_server_shows_no_metrics_of_a_pair() -> None:
    address = f"127.0.0.1:{free_port()}"
    with TestServer(name="lone", store="memory:", solo_wait_s=0.1, metrics=address):
        until(lambda: get(address, "/ready") == (200, "active\n"))
        text = get(address, "/metrics")[1]
        assert "chp_active 1.0" in text and "chp_in_sync" not in text and "chp_peer_alive" not in text


STATUS = {"state": "passive", "in_sync": False, "peer": {"alive": True}, "waits_for": None}


@pytest.mark.parametrize(
    ("changed", "code", "line"),
    [
        ({}, 503, "passive, not in sync: it hears its peer"),
        ({"peer": {"alive": False}}, 503, "passive, not in sync: it does not hear its peer"),
        ({"state": "primary", "waits_for": "it holds no store"}, 503, "primary, not in sync: it holds no store"),
        ({"in_sync": True}, 200, "passive, in sync"),
    ],
)
def test_the_ready_page_says_why_a_server_is_not_ready(changed: dict[str, object], code: int, line: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    made = MetricsServer(address)
    try:
        assert get(address, "/ready") == (503, "it is starting\n")
        made.tell({**STATUS, **changed}, ([], 0.0))
        found = get(address, "/ready")
        assert found[0] == code and found[1].startswith(line)
    finally:
        made.close()


def test_a_server_that_makes_no_turns_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    made = MetricsServer(address)
    try:
        made.tell({**STATUS, "state": "active"}, ([], 0.0))
        assert get(address, "/health")[0] == 200
        monkeypatch.setattr(metrics_module, "HEALTHY_S", -1.0)
        assert get(address, "/health")[0] == get(address, "/ready")[0] == 503
        assert get(address, "/health")[1].startswith("no turn for")
    finally:
        made.close()


def test_the_metrics_server_binds_only_the_given_address() -> None:
    port = free_port()
    made = MetricsServer(f"127.0.0.2:{port}")
    try:
        assert get(f"127.0.0.2:{port}", "/health")[0] == 200
        with pytest.raises(urllib.error.URLError):
            get(f"127.0.0.1:{port}", "/health")
        with pytest.raises(MetricsError, match="give another HOST:PORT"):
            MetricsServer(f"127.0.0.2:{port}")
    finally:
        made.close()
