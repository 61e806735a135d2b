"""A real ZooKeeper for tests: one server from the jars of PySpark, on a Java that is found or comes with a wheel.

Its ticks are 200 ms, so that sessions may be as short as half a second and end soon after their client.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from chp_server.testing import free_port
from tests.talk import until

CONFIG = """\
tickTime=200
dataDir={data}
clientPort={port}
clientPortAddress={host}
minSessionTimeout=400
maxSessionTimeout=20000
admin.enableServer=false
"""
ASK = """\
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2) as line:
    line.sendall(b"ruok")
    print(line.recv(4).decode(), end="")
"""


class ZooKeeperError(Exception):
    """An error that says why ZooKeeper can't run here."""


def command(config: Path) -> list[str]:
    """Return the command that starts ZooKeeper."""
    try:
        import pyspark

        from chp_client.spark.java import NoJava, find_java
    except ImportError as error:
        raise ZooKeeperError(f"its jars come with PySpark, which is not installed ({error})") from error
    jars = Path(pyspark.__file__).parent / "jars"
    if not list(jars.glob("zookeeper-3*.jar")):
        raise ZooKeeperError(f"no ZooKeeper among {jars}")
    try:
        java = find_java()
    except NoJava as error:
        raise ZooKeeperError(str(error)) from error
    flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.4lw.commands.whitelist=*"]
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    return [str(java.home / "bin" / "java"), *flags, "-cp", f"{jars}/*", main, str(config)]


class ZooKeeper:
    """A ZooKeeper process. `prefix` goes before its command (`ip netns exec ...`)."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        self.host, self.port = host, free_port()
        self._directory = directory / "zookeeper"
        self._prefix = list(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "zookeeper.log"

    def url(self, path: str = "/chp/test", session_s: float = 1.0) -> str:
        """Return the URL for --arbiter."""
        return f"zk://{self.host}:{self.port}{path}?session_s={session_s}"

    def flags(self, path: str = "/chp/test", session_s: float = 1.0) -> tuple[str, ...]:
        """Return the flags of a server that uses this ZooKeeper."""
        return ("--arbiter", self.url(path, session_s))

    def start(self) -> Self:
        """Start ZooKeeper, and wait until it serves."""
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "zoo.cfg"
        config.write_text(CONFIG.format(data=self._directory, port=self.port, host=self.host))
        with self.log.open("ab") as log:
            argv = self._prefix + command(config)
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._directory)
        until(lambda: self._ended() or self._serves(), "ZooKeeper to start")
        if self._ended():
            raise ZooKeeperError(f"it does not start: {self._said()[-300:]}")
        return self

    def _said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _serves(self) -> bool:
        asked = subprocess.run(
            [*self._prefix, sys.executable, "-c", ASK, self.host, str(self.port)], capture_output=True, check=False
        )
        return asked.stdout == b"imok"

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
