"""Real servers for the benchmarks: ours as processes, alone or as a pair, and Redis where it is installed."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zmq

from .roles import Process

_next_port = 31_000
WAIT_S = 30.0


def free_port(n: int = 4) -> int:
    """Return a port P such that P..P+n-1 are free on the loopback at this moment."""
    global _next_port
    while True:
        port, _next_port = _next_port, _next_port + n
        if all(_is_free(port + i) for i in range(n)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ChpServer(Process):
    """`chp-server` as an operator starts it; `settings` are its flags."""

    def __init__(self, port: int | None = None, store: str = "memory:", up_s: float = WAIT_S, **settings: Any) -> None:
        self.port = free_port() if port is None else port
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "chp_server.main", "--bind", self.address, *flags, "--log-level", "warning"]
        super().__init__(command + (["--store", store] if store else []), "chp-server")
        wait_until(lambda: connects(self.port) and connects(self.port + 2), self, up_s)

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"tcp://127.0.0.1:{self.port}"


class ChpPair:
    """A primary and a backup, each with a journal in a directory of its own unless `store` says otherwise."""

    def __init__(self, store: str = "", **settings: Any) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="chp-bench-")
        self.ports = [free_port(), free_port()]
        self._settings = {"store": store, **settings}
        self.servers = [self.start(0), self.start(1)]

    @property
    def addresses(self) -> list[str]:
        """The addresses of both servers, the primary's first."""
        return [f"tcp://127.0.0.1:{port}" for port in self.ports]

    def start(self, i: int) -> ChpServer:
        """Start server `i` of the pair on its own ports and directory; the other server may be running."""
        other = self.addresses[1 - i]
        role = ("primary", "backup")[i]
        data = str(Path(self._scratch.name) / role)
        return ChpServer(self.ports[i], role=role, peer=other, data=data, **self._settings)

    def restart(self, i: int) -> None:
        """Start a killed server again."""
        self.servers[i] = self.start(i)

    def close(self) -> None:
        """End both servers, and delete their data."""
        for server in self.servers:
            server.close()
        self._scratch.cleanup()


class ThreeCopies(ChpPair):
    """A pair with `--copies 3`, and a replica that confirms."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(copies=3, **settings)
        data, upstream = str(Path(self._scratch.name) / "replica"), ",".join(self.addresses)
        replica = ChpServer(store="", replica="yes", upstream=upstream, data=data, confirms="yes")
        self.servers.append(replica)
        wait_until(lambda: (status(self.addresses[0])["copies"] or {}).get("in_sync") == 3, replica)


class Redis(Process):
    """Debian's redis-server, on a port of its own, without persistence unless `flags` ask for it."""

    def __init__(self, *flags: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="redis-bench-")
        self.port = free_port(1)
        program = redis_program()
        assert program is not None, "ask redis_program() first"
        base = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._scratch.name]
        super().__init__([program, *base, "--loglevel", "warning", *flags], "redis-server", stdout=-3)
        wait_until(lambda: connects(self.port), self)

    def close(self) -> None:
        """End Redis, and delete its data."""
        super().close()
        self._scratch.cleanup()


def redis_program() -> str | None:
    """Return the path of redis-server, or None if it or redis-py is not installed."""
    try:
        import redis  # noqa: F401
    except ImportError:
        return None
    return shutil.which("redis-server")


def connects(port: int) -> bool:
    """Return whether a program listens on this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Any, process: Process, timeout_s: float = WAIT_S) -> None:
    """Wait until `condition()` is true; raise RuntimeError with the process's last words if it ends or is slow."""
    until = time.monotonic() + timeout_s
    while not condition():
        if process.child.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{process.name} did not come up\n{process.last_words()}")
        time.sleep(0.02)


def status(address: str, timeout_ms: int = 5000) -> dict[str, Any]:
    """Return what a server says of itself (the admin command `status`)."""
    import msgpack

    from chp.keys import ETX, STX

    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(address)
        dealer.send_multipart([b"ICANHAZ?", STX + b"status" + ETX, msgpack.packb({"chp": 3, "id": 1})])
        if not dealer.poll(timeout_ms):
            raise RuntimeError(f"{address} does not answer a status request")
        header = msgpack.unpackb(dealer.recv_multipart()[4])[0]
        answer: dict[str, Any] = header[2]
        return answer


def wait_in_sync(pair: ChpPair, timeout_s: float = 60.0) -> None:
    """Wait until one server is active and the other is in sync with it."""
    until = time.monotonic() + timeout_s
    while True:
        seen = []
        for address in pair.addresses:
            try:
                seen.append(status(address, 1000))
            except RuntimeError:
                pass
        if sorted(s["state"] for s in seen) == ["active", "passive"] and all(s["in_sync"] for s in seen):
            return
        if time.monotonic() > until:
            raise RuntimeError(f"the pair is not in sync: {seen}")
        time.sleep(0.05)
