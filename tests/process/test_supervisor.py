"""covers: the messages of a server process to systemd: READY, STATUS, WATCHDOG and STOPPING."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_server.shell.supervisor import Supervisor
from chp_server.testing import free_port
from tests.talk import until

from .cluster import ServerProcess


class Systemd:
    """The socket of systemd for one unit. `heard` has the lines that came."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{path[1:]}" if path.startswith("@") else path)
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def has(self, line: str) -> bool:
        """Return True if the supervisor has heard this line."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return line in self.heard

    def has_like(self, beginning: str) -> bool:
        """Return True if the supervisor has heard a line with this beginning."""
        self.has("")
        return any(line.startswith(beginning) for line in self.heard)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["/{}", "@{}"], ids=["path", "abstract"])
def systemd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Systemd]:
    path = str(tmp_path / "notify")
    made = Systemd(path if request.param == "/{}" else f"@{path}")
    yield made
    made.close()


def test_systemd_hears_ready_once_and_each_change_of_status(systemd: Systemd) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": systemd.path})
    for ready, line in ((False, "primary"), (False, "primary"), (True, "active"), (True, "active"), (False, "passive")):
        supervisor.stands(ready, line)
    supervisor.turned(1.0)
    supervisor.stopping()
    assert not systemd.has("WATCHDOG=1"), "nobody has asked for it"
    assert systemd.heard == ["STATUS=primary", "STATUS=active", "READY=1", "STATUS=passive", "STOPPING=1"]


def test_a_server_notifies_the_watchdog_three_times_in_its_period(systemd: Systemd) -> None:
    asked = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    supervisor = Supervisor(asked)
    for now in range(100, 130):
        supervisor.turned(float(now))
    assert systemd.has("WATCHDOG=1") and systemd.heard == ["WATCHDOG=1"] * 3
    supervisor.stopping()
    supervisor.turned(1000.0)
    assert systemd.has("STOPPING=1") and systemd.heard == ["WATCHDOG=1"] * 3 + ["STOPPING=1"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1"},
        {"NOTIFY_SOCKET": "/nobody/listens/here", "WATCHDOG_USEC": "1"},
        {"NOTIFY_SOCKET": "/nobody/listens/here", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "/" + "a" * 200},
    ],
)
def test_notices_to_a_missing_systemd_raise_no_error(environ: dict[str, str]) -> None:
    supervisor = Supervisor(environ)
    supervisor.turned(1.0)
    supervisor.stands(ready=True, line="active")
    supervisor.stopping()
    supervisor.close()
    supervisor.stopping()


def test_the_watchdog_of_another_process_is_not_notified(systemd: Systemd) -> None:
    Supervisor({"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).turned(1.0)
    assert not systemd.has("WATCHDOG=1")


@pytest.mark.slow
def test_the_servers_of_a_pair_tell_systemd_when_they_are_ready(tmp_path: Path) -> None:
    ports = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    told = {role: Systemd(str(tmp_path / f"{role}.socket")) for role in ("primary", "backup")}
    servers = {
        "primary": ServerProcess(tmp_path, "primary", ports[0], ports[1]),
        "backup": ServerProcess(tmp_path, "backup", ports[1], ports[0]),
    }
    for role, server in servers.items():
        server.environ = {"NOTIFY_SOCKET": told[role].path, "WATCHDOG_USEC": "300000"}
    primary, backup = told["primary"], told["backup"]
    try:
        servers["primary"].start()
        until(lambda: primary.has("WATCHDOG=1"), "a turn of the primary")
        until(lambda: primary.has_like("STATUS=primary, not in sync: it holds no store"), "its standing")
        assert "READY=1" not in primary.heard, "it waits for its peer"
        servers["backup"].start()
        until(lambda: primary.has("READY=1"), "the primary")
        until(lambda: backup.has("READY=1"), "the backup")
        until(lambda: primary.has("STATUS=active") and backup.has("STATUS=passive, in sync"), "both say what they are")
        servers["backup"].signal(signal.SIGSTOP)
        # Read the lines that came until now, and forget them.
        backup.has("")
        backup.heard.clear()
        time.sleep(1)
        assert not backup.has("WATCHDOG=1"), "systemd would end it"
        servers["backup"].signal(signal.SIGCONT)
        until(lambda: backup.has("WATCHDOG=1"), "a turn of the backup")
        for role, server in servers.items():
            server.signal(signal.SIGTERM)
            assert server.process is not None and server.process.wait(30) == 0
            assert told[role].has("STOPPING=1")
    finally:
        for server in servers.values():
            server.kill()
        for each in told.values():
            each.close()
