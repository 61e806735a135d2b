"""covers: rate_limited_log.py, names.py: what a Clone logs when it reaches no server, and when it is back."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading

import pytest

from chp_client import Clone, State
from chp_client.agent.names import look_up, unresolved
from chp_client.core.rate_limited_log import LOST_S, NEVER, STALE_S, RateLimitedLog
from chp_client.port import feed as feed_module
from chp_client.port.feed import Feed
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until


class TestWhen:
    def test_the_log_tells_a_missing_copy_once_and_the_sync_once(self) -> None:
        voice = RateLimitedLog(100.0)
        assert voice.overdue(100.0 + LOST_S - 0.1) == "" and voice.due == 100.0 + LOST_S
        assert "no copy yet, for 3.0 s" in voice.overdue(100.0 + LOST_S)
        assert voice.overdue(200.0) == "" and voice.due == NEVER
        assert voice.told(State.SYNCED, 250.0) == "synced, after 150.0 s", "it was not before"
        assert voice.told(State.SYNCED, 251.0) == ""

    def test_a_quick_failover_logs_nothing(self) -> None:
        voice = RateLimitedLog(100.0)
        assert voice.told(State.SYNCED, 101.0) == "" and voice.due == NEVER
        assert voice.told(State.STALE, 200.0) == "" and voice.overdue(200.0 + STALE_S / 2) == ""
        assert voice.told(State.SYNCED, 200.0 + STALE_S / 2) == "" and voice.overdue(300.0) == ""

    def test_each_long_stale_time_of_a_copy_is_logged_once(self) -> None:
        voice = RateLimitedLog(100.0)
        for start in (200.0, 300.0):
            voice.told(State.SYNCED, start - 1)
            voice.told(State.STALE, start)
            assert "not known to be current for 2.0 s" in voice.overdue(start + STALE_S)
            assert voice.told(State.CONNECTING, start + 3) == "" and voice.overdue(start + 50) == ""
            assert voice.told(State.SYNCED, start + 60) == "synced again, after 60.0 s"

    def test_a_closed_client_logs_nothing(self) -> None:
        voice = RateLimitedLog(100.0)
        assert voice.told(State.CLOSED, 101.0) == "" and voice.overdue(1000.0) == ""


def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> str:
    found: list[str] = []

    def logged() -> bool:
        found[:] = [record.getMessage() for record in caplog.records if text in record.getMessage()]
        return bool(found)

    until(logged, lambda: f"{text!r} is logged: {caplog.text}")
    assert len(found) == 1 and all(r.name == "chp_client" for r in caplog.records)
    return found[0]


class TestAClone:
    def test_a_clone_warns_of_a_missing_copy_and_of_a_stale_copy(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        server = TestServer(name="lone", store="memory:", solo_wait_s=0.1)
        with Clone(server.address, name="mine") as clone, caplog.at_level(logging.WARNING, "chp_client"):
            line = until_logged(caplog, "no copy yet")
            assert "Clone mine" in line and f"{server.address} not heard from" in line
            with server:
                clone.wait_until_synced(WAIT_S)
                assert "active" in until_logged(caplog, "mine: synced, after")
                server.kill()
                assert "STALE" in until_logged(caplog, "not known to be current")
        assert capfd.readouterr().out == ""

    def test_a_warning_names_the_host_that_cannot_be_resolved(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nowhere(host: str, *rest: object) -> None:
            assert host == "db-1.example"
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", nowhere)
        with caplog.at_level(logging.WARNING, "chp_client"), Clone("tcp://db-1.example:5556") as clone:
            line = until_logged(caplog, "can't be resolved")
            assert "tcp://db-1.example:5556: the host name 'db-1.example'" in line and "Name or service" in line
            with pytest.raises(TimeoutError, match=r"host name 'db-1.example' can't be resolved"):
                clone.wait_until_synced(0.01)


def test_a_numeric_address_needs_no_name_lookup() -> None:
    told: list[int] = []
    before = threading.active_count()
    look_up(["tcp://127.0.0.1:5556"], lambda i, why: told.append(i))
    assert threading.active_count() == before and not told
    assert unresolved("tcp://localhost:1") == ""


def test_the_command_line_shows_a_warning_once_on_standard_error() -> None:
    program = (
        "import logging\nfrom chp_client.cli.out import show_warnings\nshow_warnings(); show_warnings()\n"
        "logging.getLogger('chp_client').warning('no copy yet: %s', 'tcp://a:1')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert run.stderr == "chp: no copy yet: tcp://a:1\n" and run.stdout == ""


def test_a_feed_without_a_server_warns_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "LOST_S", 0.05)
    server = TestServer(name="lone", store="memory:", solo_wait_s=0.1)
    with caplog.at_level(logging.WARNING, "chp_client"), Feed(server.address, "/a/") as feed:
        comes = feed.follow(0, idle_s=0.05)
        for _ in range(20):
            assert next(comes) == []
        assert server.address in until_logged(caplog, "no feed of '/a/'")
        with server:
            for _ in comes:
                if any("comes again" in record.getMessage() for record in caplog.records):
                    break
        assert len(caplog.records) == 2
