"""Hosts in network namespaces, joined by a router that drops what a test tells it to, by direction.

         a  ---.       .--- c            a, b: the servers        c, d: clients
                router                   z: the arbiter
         b  ---'       `--- d            cut("a", "b"): nothing from a to b; the way back stays

A cut is a rule of the router that drops packets silently, as a broken switch does. Connections stay up until their own
timeouts. This needs root and the kernel's namespaces. `Net` raises `NoNet` if they are not available.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.process.cluster import ProcessPair, ServerProcess

HOSTS = ("a", "b", "c", "d", "z")
CLONE_NEWNET = 0x40000000
T = TypeVar("T")


class NoNet(Exception):
    """An error that says why namespaces are not available."""


def run(*argv: str) -> None:
    """Run a command, and raise `NoNet` if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNet(f"{' '.join(argv)}: {done.stderr.strip()}")


class Net:
    """The namespaces of all hosts, for the time of the block."""

    def __init__(self) -> None:
        self._name = f"chp{os.getpid()}"
        self._made: list[str] = []

    def address(self, host: str) -> str:
        """Return a host's IP address."""
        return f"10.213.{HOSTS.index(host) + 1}.2"

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return f"{self._name}{host}"

    def prefix(self, host: str) -> list[str]:
        """Return the words that go before a command to run it on a host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def __enter__(self) -> Self:
        if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
            raise NoNet("network namespaces need Linux, root, and the program ip")
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def _build(self) -> None:
        for host in ("r", *HOSTS):
            run("ip", "netns", "add", self.namespace(host))
            self._made.append(host)
            run(*self.prefix(host), "ip", "link", "set", "lo", "up")
        run(*self.prefix("r"), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for i, host in enumerate(HOSTS):
            here, there = f"v{i}", "eth0"
            peer = ("peer", "name", there, "netns", self.namespace(host))
            run(*self.prefix("r"), "ip", "link", "add", here, "type", "veth", *peer)
            run(*self.prefix("r"), "ip", "addr", "add", f"10.213.{i + 1}.1/24", "dev", here)
            run(*self.prefix("r"), "ip", "link", "set", here, "up")
            run(*self.prefix(host), "ip", "addr", "add", f"{self.address(host)}/24", "dev", there)
            run(*self.prefix(host), "ip", "link", "set", there, "up")
            run(*self.prefix(host), "ip", "route", "add", "default", "via", f"10.213.{i + 1}.1")
        self.cut("a", "b")
        self.heal()

    def _remove(self) -> None:
        for host in self._made:
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._remove()

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from source to target from now on."""
        self._rule("add", source, target)

    def cut_both(self, one: str, other: str) -> None:
        """Drop all packets between two hosts, both ways."""
        self.cut(one, other)
        self.cut(other, one)

    def _rule(self, what: str, source: str, target: str) -> None:
        way = ("from", self.address(source), "to", self.address(target), "blackhole")
        run(*self.prefix("r"), "ip", "rule", what, *way)

    def heal(self) -> None:
        """Make all links whole again."""
        for source in HOSTS:
            for target in HOSTS:
                try:
                    while source != target:
                        self._rule("del", source, target)
                except NoNet:
                    continue

    def on(self, host: str, work: Callable[[], T]) -> T:
        """Do some work on a host. The sockets and threads that it makes stay there."""
        made = Future[T]()

        def inside() -> None:
            try:
                with open(f"/run/netns/{self.namespace(host)}") as file:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(file.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                made.set_result(work())
            except BaseException as error:
                made.set_exception(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        return made.result()


class NetServer(ServerProcess):
    """A server on a host. Its status is asked for on the host too, so a test can look at it during a cut."""

    def __init__(self, net: Net, host: str, directory: Path, role: str, *flags: str) -> None:
        ports = {"primary": 5556, "backup": 5566}
        hosts = {"primary": "a", "backup": "b"}
        there = "backup" if role == "primary" else "primary"
        bind, peer = (f"tcp://{net.address(hosts[r])}:{ports[r]}" for r in (role, there))
        super().__init__(directory, role, bind, peer, "--insecure", *flags)
        self._argv = net.prefix(host) + self._argv
        self._net, self._host = net, host

    def status(self, timeout: float = 2.0) -> dict[str, Any] | None:
        """Return the status of the server."""
        ask = super().status
        return self._net.on(self._host, lambda: ask(timeout))


class NetPair(ProcessPair):
    """A pair on hosts a and b, whose active at first is the primary on a."""

    def __init__(self, net: Net, directory: Path, *flags: str) -> None:
        super().__init__(directory)
        times = ("--heartbeat-s", "0.1", "--peer-timeout-s", "1.0", *flags)
        self.primary = NetServer(net, "a", directory, "primary", *times)
        self.backup = NetServer(net, "b", directory, "backup", *times)
        self.both = (self.primary, self.backup)
        self.servers = [self.primary.address, self.backup.address]

    def states(self) -> tuple[str, ...]:
        """Return the states of both servers."""
        return tuple((status or {}).get("state", "") for status in self.statuses())
