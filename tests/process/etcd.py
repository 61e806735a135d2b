"""A real etcd for tests: one member, plain, or by TLS with the certificates that it makes for itself."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from chp_server.testing import free_port
from tests.talk import until


class EtcdError(Exception):
    """An error that says why etcd can't run here."""


class Etcd:
    """An etcd process. `prefix` goes before its command (`ip netns exec ...`)."""

    def __init__(
        self, directory: Path, host: str = "127.0.0.1", prefix: Sequence[str] = (), *, tls: bool = False
    ) -> None:
        self.host, self.port, self._peer_port = host, free_port(), free_port()
        self._directory = directory / "etcd"
        self._prefix = list(prefix)
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "etcd.log"

    @property
    def ca(self) -> Path:
        """The certificate that etcd made for itself."""
        return self._directory / "fixtures" / "client" / "cert.pem"

    def url(self, path: str = "/chp/test", session_s: float = 2.0) -> str:
        """Return the URL for --arbiter."""
        return f"{'etcds' if self._tls else 'etcd'}://{self.host}:{self.port}{path}?session_s={session_s}"

    def flags(self, path: str = "/chp/test", session_s: float = 2.0) -> tuple[str, ...]:
        """Return the flags of a server that uses this etcd."""
        return ("--arbiter", self.url(path, session_s), *(("--arbiter-ca", str(self.ca)) if self._tls else ()))

    def start(self) -> Self:
        """Start etcd, and wait until it serves."""
        for needed, package in (("etcd", "etcd-server"), ("etcdctl", "etcd-client")):
            if shutil.which(needed) is None:
                raise EtcdError(f"the program {needed} is not installed (Debian: {package})")
        here = f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"
        peers = f"http://{self.host}:{self._peer_port}"
        argv = [
            *self._prefix, "etcd", "--data-dir", str(self._directory), "--listen-client-urls", here,
            "--advertise-client-urls", here, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}", "--log-level", "warn", *(["--auto-tls"] if self._tls else []),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        until(lambda: self._ended() or self._listens(), "etcd to serve")
        if self._ended():
            raise EtcdError(f"it does not start: {self.log.read_text(errors='replace')[-300:]}")
        return self

    def _listens(self) -> bool:
        """Return True if etcd answers, even if the answer only asks for a password."""
        said = self.control("endpoint", "health")
        return said.returncode == 0 or "user name is empty" in said.stderr

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run etcdctl."""
        scheme = "https" if self._tls else "http"
        trust = ["--cacert", str(self.ca)] if self._tls else []
        argv = ["etcdctl", "--endpoints", f"{scheme}://{self.host}:{self.port}", "--dial-timeout", "2s", *trust, *words]
        program = ["env", "ETCDCTL_API=3", *argv]
        return subprocess.run([*self._prefix, *program], capture_output=True, text=True, check=False)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
