"""The tools of tests with real faults: writers that note their acknowledgements, and checks of what must hold.

    with ProcessPair(path) as pair, Load(pair.servers) as load:
        pair.active().kill()
        load.go_on()                        # every writer is acknowledged again
        ...
        both_kept_all(pair, load)           # every acknowledged set is there, on servers that are equal

A writer sets its own keys, one batch at a time. So the longest gap between two acknowledgements is the outage that an
application sees. `AckEar` hears all acknowledgements that leave one server, for any client. `DyingServer` is a server
that kills itself at a point that the test names (dying_server.py).
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq

from chp_client import Clone, Refused
from chp_client.port.admin import Admin, AdminError
from tests.talk import WAIT_S, join_all, until

from .cluster import ProcessPair, ServerProcess

DYING_SERVER = Path(__file__).with_name("dying_server.py")
ACK = 6


class Writer(threading.Thread):
    """A thread that sets new keys until it is told to end, and notes acknowledged keys and their times."""

    def __init__(self, servers: Sequence[str], name: str, retried: str = "") -> None:
        super().__init__(name=name, daemon=True)
        # After a refusal with this code the writer goes on with its next batch.
        self.retried = retried
        self.clone = Clone(list(servers), subtree=f"/{name}/")
        self.acked: dict[str, bytes] = {}
        self.times: list[float] = []
        self.durabilities: list[str] = []
        self.error: Exception | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        n = 0
        while not self.ending.is_set():
            n += 1
            items = {f"/{self.name}/{n}-{i}": b"%d.%d" % (n, i) for i in range(1 + n % 5)}
            try:
                ack = self.clone.set_many(items).wait(timeout=WAIT_S)
            # Any error that an application meets is a failure.
            except Exception as error:
                if isinstance(error, Refused) and error.code == self.retried:
                    continue
                self.error = error
                return
            self.times.append(time.monotonic())
            self.durabilities.append(ack.durability)
            self.acked.update(items)


class Load:
    """Some writers. The end of the block ends them and closes their Clones."""

    def __init__(self, servers: Sequence[str], writers: int = 2, name: str = "w", retried: str = "") -> None:
        self.writers = [Writer(servers, f"{name}{i}", retried) for i in range(writers)]

    def check(self) -> None:
        """Check that no writer has met an error."""
        for writer in self.writers:
            assert writer.error is None, f"{writer.name} met {writer.error!r}"

    def go_on(self, batches: int = 3) -> None:
        """Wait until each writer has some more acknowledgements."""
        before = [len(writer.times) for writer in self.writers]

        def moved() -> bool:
            self.check()
            return all(len(w.times) >= b + batches for w, b in zip(self.writers, before, strict=True))

        until(moved, "the writers to go on")

    def end(self) -> None:
        """Let each writer finish its batch and end."""
        for writer in self.writers:
            writer.ending.set()
        join_all(*self.writers)
        self.check()

    def outage_s(self, since: float) -> float:
        """Return the longest gap between two acknowledgements of one writer, of which the later came after `since`."""
        gaps = [0.0]
        for writer in self.writers:
            times = writer.times[:]
            gaps += [b - a for a, b in pairwise(times) if b >= since]
        return max(gaps)

    @property
    def acked(self) -> dict[str, bytes]:
        """The keys and values that were acknowledged."""
        return {key: value for writer in self.writers for key, value in writer.acked.items()}

    def __enter__(self) -> Self:
        for writer in self.writers:
            writer.start()
        self.go_on(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for writer in self.writers:
            writer.ending.set()
            writer.clone.close(0.5)


def both_kept_all(pair: ProcessPair, load: Load) -> None:
    """End the load, wait until the pair is in sync, and check that nothing is lost."""
    load.end()
    pair.wait_in_sync()
    nothing_lost(pair.both, load)


def nothing_lost(servers: Sequence[ServerProcess], load: Load) -> None:
    """Check after `load.end()` that no acknowledged set is lost.

    A new client and the writers must hold all of them, and the servers must be equal.
    """
    expected = load.acked
    with Clone([server.address for server in servers]) as fresh:
        fresh.wait_until_synced(WAIT_S)
        lost = [key for key, value in expected.items() if fresh.get(key) != value]
        assert not lost, f"{len(lost)} of {len(expected)} acknowledged sets are lost, such as {lost[:3]}"
    for writer in load.writers:
        wrong = [key for key, value in writer.acked.items() if writer.clone.get(key) != value]
        assert not wrong, f"{writer.name}'s own map lost {len(wrong)} sets, such as {wrong[:3]}"
    equal(servers)


def equal(servers: Sequence[ServerProcess]) -> None:
    """Wait until the servers have the same contents at the same number."""

    def same() -> bool:
        said = [server.status() or {} for server in servers]
        return all(said) and len({(s["number"], s["fingerprint"], s["keys"]) for s in said}) == 1

    until(same, "the servers to be equal")


def other(pair: ProcessPair, server: ServerProcess) -> ServerProcess:
    """Return the other server of a pair."""
    return pair.backup if server is pair.primary else pair.primary


def wait_active(server: ServerProcess) -> dict[str, Any]:
    """Wait until a server is active, and return its status."""
    said: dict[str, Any] = {}

    def active() -> bool:
        said.update(server.status() or {})
        return said.get("state") == "active"

    until(active, f"{server.role} to be active")
    return said


def ended(server: ServerProcess) -> int:
    """Wait until a process has ended by itself, and return its exit code. A negative code is a signal."""
    process = server.process
    assert process is not None
    until(lambda: process.poll() is not None, f"{server.role} to end")
    server.process = None
    return process.returncode


class AckEar:
    """A SUB socket that hears each acknowledgement that leaves one server."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.rcvhwm = 0
        # The topic of each client's own channel begins with these bytes.
        self._socket.subscribe(b"\x02@")
        self._socket.connect(f"{host}:{int(port) + 1}")

    def heard(self) -> list[tuple[bytes, int]]:
        """Return the (topic, last batch of a run) pairs that have come since the last call."""
        found = []
        while self._socket.poll(0):
            topic, _, _, _, body = self._socket.recv_multipart()
            header = msgpack.unpackb(body)[0]
            if header[0] == ACK:
                found += [(topic, run[1]) for run in header[1]]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._context.destroy(linger=0)


class DyingServer(ServerProcess):
    """A server that kills itself with SIGKILL at the point that `arm` named."""

    def __init__(self, directory: Path, role: str, address: str, peer: str | None, *flags: str) -> None:
        super().__init__(directory, role, address, peer, *flags)
        self._argv = [sys.executable, str(DYING_SERVER), *self._argv[3:]]
        self._armed = directory / f"{role}.die-at"
        self.environ["DIE_WHEN"] = str(self._armed)

    def arm(self, point: str) -> None:
        """Let the server die at that point from now on."""
        draft = self._armed.with_suffix(".draft")
        draft.write_text(point)
        draft.replace(self._armed)

    def disarm(self) -> None:
        """Let the server live on."""
        self._armed.unlink(missing_ok=True)

    def died(self) -> None:
        """Wait until the server has killed itself."""
        assert ended(self) == -9
        self.disarm()


class DyingPair(ProcessPair):
    """A pair of servers that can kill themselves."""

    def __init__(self, directory: Path, *flags: str, heartbeat_s: float = 0.1, peer_timeout_s: float = 1.0) -> None:
        super().__init__(directory, *flags, heartbeat_s=heartbeat_s, peer_timeout_s=peer_timeout_s)
        times = ["--heartbeat-s", str(heartbeat_s), "--peer-timeout-s", str(peer_timeout_s), *flags]
        a, b = self.servers
        self.primary: DyingServer = DyingServer(directory, "primary", a, b, *times)
        self.backup: DyingServer = DyingServer(directory, "backup", b, a, *times)
        self.both = (self.primary, self.backup)


# -- faults of a whole round


def served_by(pair: ProcessPair) -> ServerProcess:
    """Return the active server, or the primary if no active server is known."""
    return pair.active() or pair.primary


def killed(pair: ProcessPair, chance: random.Random) -> None:
    """Kill a server, mostly the active, and start it again."""
    server = chance.choice((served_by(pair), served_by(pair), other(pair, served_by(pair))))
    server.kill()
    time.sleep(chance.choice((0.05, 0.5, 1.5)))
    server.start()


def stopped(pair: ProcessPair, chance: random.Random) -> None:
    """Stop a server for a while, mostly the active."""
    server = chance.choice((served_by(pair), served_by(pair), other(pair, served_by(pair))))
    server.signal(signal.SIGSTOP)
    time.sleep(chance.choice((0.3, 1.2, 2.5)))
    server.signal(signal.SIGCONT)


def switched(pair: ProcessPair, chance: random.Random) -> None:
    """Let the active hand over, if it can."""
    with Admin(pair.servers) as admin:
        try:
            admin.ask(chance.choice(pair.servers), "switch")
        # The other server is active already, or is not in sync.
        except (AdminError, Refused):
            return


def killed_both(pair: ProcessPair, chance: random.Random) -> None:
    """Kill both servers one after the other, and start them in any order."""
    for server in chance.sample(pair.both, 2):
        server.kill()
        time.sleep(chance.choice((0.0, 0.05, 0.5)))
    for server in chance.sample(pair.both, 2):
        server.start()


SERVER_FAULTS: tuple[Callable[[ProcessPair, random.Random], None], ...] = (killed, stopped, switched, killed_both)
