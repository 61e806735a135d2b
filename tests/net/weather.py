"""Hosts whose packets are lost, late, reordered, doubled or slowed, for kernels that have no netem.

         a  ---.         .--- c        Each host's only interface is a TUN device. One process holds all devices,
                process                reads each packet, and writes it to its target, if and when the weather of
         b  ---'         `--- d        that direction lets it. The hosts' own TCP does the rest.

    with Weather() as net:
        net.set("a", "b", loss=0.05, delay_s=0.05, jitter_s=0.03)      # jitter reorders
        net.cut("a", "b"); net.heal()                                  # heal ends all weather

This needs root, the kernel's namespaces and /dev/net/tun. `Weather` raises `NoNet` if they are not available.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cutting import HOSTS, Net, NoNet, run

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# A packet waits at most this many seconds for a slow link. A packet that would wait longer is dropped.
QUEUE_S = 0.3
# At most this many packets are taken from one device at a time.
PACKETS = 64


@dataclass
class Sky:
    """The weather of one direction: what becomes of its packets."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    duplicate: float = 0.0
    # 0 means no limit.
    bytes_per_s: float = 0.0
    free_at: float = 0.0

    def departures(self, size: int, now: float, dice: random.Random) -> list[float]:
        """Return the times at which a packet arrives: none, one or two."""
        if dice.random() < self.loss:
            return []
        if self.bytes_per_s:
            if self.free_at - now > QUEUE_S:
                return []
            now = self.free_at = max(now, self.free_at) + size / self.bytes_per_s
        times = 2 if dice.random() < self.duplicate else 1
        return [now + self.delay_s + dice.uniform(-self.jitter_s, self.jitter_s) for _ in range(times)]


class Weather(Net):
    """The hosts, with fair weather at first. `mtu` is that of each host."""

    def __init__(self, mtu: int = 1500) -> None:
        super().__init__()
        self._mtu = mtu
        self._process: subprocess.Popen[str] | None = None

    def _build(self) -> None:
        if not Path("/dev/net/tun").exists():
            raise NoNet("there is no /dev/net/tun")
        for host in HOSTS:
            run("ip", "netns", "add", self.namespace(host))
            self._made.append(host)
            run(*self.prefix(host), "ip", "link", "set", "lo", "up")
        argv = [sys.executable, "-m", "tests.net.weather", self._name]
        here = Path(__file__).parents[2]
        self._process = subprocess.Popen(argv, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise NoNet("TUN devices can't be made here")
        for host in HOSTS:
            ip = [*self.prefix(host), "ip"]
            run(*ip, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            run(*ip, "link", "set", "eth0", "up", "mtu", str(self._mtu))
            run(*ip, "route", "add", "default", "dev", "eth0")

    def _remove(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
        super()._remove()

    def _tell(self, what: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def set(self, source: str, target: str, **sky: float) -> None:
        """Set the weather from source to target, with the fields of `Sky`."""
        self._tell([HOSTS.index(source), HOSTS.index(target), asdict(Sky(**sky))])

    def everywhere(self, hosts: str, others: str, **sky: float) -> None:
        """Set the weather between two groups of hosts, both ways."""
        for one in hosts:
            for other in others:
                if one != other:
                    self.set(one, other, **sky)
                    self.set(other, one, **sky)

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from source to target from now on."""
        self.set(source, target, loss=1.0)

    def heal(self) -> None:
        """Set fair weather everywhere."""
        self._tell(None)


# -- the process


def device(net: Net, host: str) -> int:
    """Open a host's interface, and return the file descriptor that reads and writes its packets."""

    def make() -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
        return fd

    return net.on(host, make)


class Carrier:
    """The carrier of packets from host to host."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds
        self._hosts = {fd: i for i, fd in enumerate(fds)}
        self._skies: dict[tuple[int, int], Sky] = {}
        self._dice = random.Random(1)
        self._late: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self) -> None:
        """Carry packets until the input ends."""
        ready: list[Any]
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready, _, _ = select.select([sys.stdin, *self._fds], [], [], wait)
            for fd in ready:
                if fd is not sys.stdin:
                    self._take(fd)
                elif not self._hear():
                    return
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._late)
                self._give(to, packet)

    def _hear(self) -> bool:
        line = sys.stdin.readline()
        said = json.loads(line) if line else None
        if said is None:
            self._skies.clear()
        else:
            self._skies[said[0], said[1]] = Sky(**said[2])
        return bool(line)

    def _take(self, fd: int) -> None:
        for _ in range(PACKETS):
            try:
                packet = os.read(fd, 65_536)
            except BlockingIOError:
                return
            # The third octet of the target's address tells the host.
            to = packet[18] - 1
            if packet[0] >> 4 != 4 or packet[16:18] != b"\x0a\xd5" or not 0 <= to < len(self._fds):
                continue
            sky = self._skies.get((self._hosts[fd], to))
            if sky is None:
                self._give(to, packet)
                continue
            for when in sky.departures(len(packet), time.monotonic(), self._dice):
                self._count += 1
                heapq.heappush(self._late, (when, self._count, to, packet))

    def _give(self, to: int, packet: bytes) -> None:
        try:
            os.write(self._fds[to], packet)
        except OSError:
            # The packet is lost, because the interface is not up or its queue is full.
            pass


def main() -> None:
    """Open the devices, and carry packets."""
    net = Net()
    net._name = sys.argv[1]
    carrier = Carrier([device(net, host) for host in HOSTS])
    print("ready", flush=True)
    carrier.run()


if __name__ == "__main__":
    main()
