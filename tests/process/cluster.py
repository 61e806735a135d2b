"""A pair of real `chp-server` processes that a test can kill, stop, continue and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chp_client import Refused
from chp_client.port.admin import Admin, AdminError
from chp_server.testing import free_port
from tests.talk import until


class ServerProcess:
    """A server, with the same ports and data directory in all its runs."""

    def __init__(
        self,
        directory: Path,
        role: str,
        address: str,
        peer: str | None,
        *flags: str,
        program: Sequence[str] = ("chp_server.main",),
    ) -> None:
        self.address, self.role, self.log = address, role, directory / f"{role}.log"
        self.data = directory / role
        argv = [sys.executable, "-m", *program, "--role", role, "--bind", address, "--data", str(self.data)]
        if peer is not None:
            argv += ["--peer", peer]
        self._argv = [*argv, *flags]
        self.process: subprocess.Popen[bytes] | None = None
        self.environ: dict[str, str] = {}

    def start(self) -> Self:
        """Start the server, which appends to its log."""
        environ = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stderr=log, env={**environ, **self.environ})
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def status(self, timeout: float = 2.0) -> dict[str, Any] | None:
        """Return the status of the server, or None if it does not answer."""
        with Admin([self.address], timeout_s=timeout) as admin:
            try:
                return admin.ask(self.address, "status").facts
            except (AdminError, Refused):
                return None


class ProcessPair:
    """A primary and a backup with journals. Further flags go to both. `program` runs in the place of `chp-server`."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        heartbeat_s: float = 0.1,
        peer_timeout_s: float = 1.0,
        program: Sequence[str] = ("chp_server.main",),
    ) -> None:
        addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        times = ["--heartbeat-s", str(heartbeat_s), "--peer-timeout-s", str(peer_timeout_s), *flags]
        self.primary = ServerProcess(directory, "primary", addresses[0], addresses[1], *times, program=program)
        self.backup = ServerProcess(directory, "backup", addresses[1], addresses[0], *times, program=program)
        self.both = (self.primary, self.backup)
        self.servers = addresses

    def statuses(self) -> list[dict[str, Any] | None]:
        """Return the status of each server, or None for one that does not answer."""
        return [server.status() if server.process is not None else None for server in self.both]

    def active(self) -> ServerProcess | None:
        """Return the active server, or None if there is none or there are two."""
        states = zip(self.both, self.statuses(), strict=True)
        found = [server for server, status in states if status and status["state"] == "active"]
        return found[0] if len(found) == 1 else None

    def in_sync(self) -> bool:
        """Return True if one server is active and the other one has everything."""
        statuses = self.statuses()
        return all(s is not None and s["in_sync"] for s in statuses) and self.active() is not None

    def wait_in_sync(self) -> None:
        """Wait until the pair is in sync."""
        until(self.in_sync, "the pair is in sync")

    def __enter__(self) -> Self:
        try:
            for server in self.both:
                server.start()
            self.wait_in_sync()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for server in self.both:
            server.kill()
            if error is not None and server.log.exists():
                print(f"--- {server.role}\n{server.log.read_text()[-3000:]}", file=sys.stderr)
