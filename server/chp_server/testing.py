"""Servers inside your test process: the same code as `chp-server`, on free ports of the loopback, in threads.

    with Pair() as pair, Clone(pair.servers) as clone:
        clone["/a"] = b"1"
        pair.primary.kill()                     # the backup takes over
        clone.set("/b", b"2").wait(timeout=10)

A server here keeps no journal unless it is given a `store`. `kill` ends a server between two turns without a message,
which looks from outside like kill -9. To see what a real kill does to a process, test with processes.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from types import TracebackType
from typing import Any, Self

from chp.errors import BadInput
from chp.limits import DEFAULT, Limits

from .access.keyring import Keyring
from .core.performing import ServerPort
from .core.updates.turn import Frames
from .cores import Cores
from .settings.config import Config
from .shell.reactor import Server
from .shell.replica import ReplicaServer
from .store.store_url import journal_of

__all__ = ["Cores", "Pair", "TestServer", "free_port"]
# The two servers of a pair get in sync, or one of them becomes active, within this time. They need much less, on a busy
# machine too.
MEET_S = 30.0
# The number of places for a server's four ports.
PORTS = 2750


def ports_from(place: int) -> Iterator[int]:
    """Yield a port P for each server: one after the other, from the given place in their list on."""
    return islice(cycle(range(21_000, 32_000, 4)), place % PORTS, None)


# Test runs begin at different places.
_PORTS = ports_from(os.getpid() * 97)
_PORTS_LOCK = threading.Lock()


def free_port() -> int:
    """Return a port P of which P..P+3 are free on the loopback at this moment."""
    with _PORTS_LOCK:
        for port in islice(_PORTS, PORTS):
            if all(_is_free(port + i) for i in range(4)):
                return port
    raise OSError("no four free ports in a row between 21000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class CutOff(Server):
    """A server whose link to its peer a test can cut: it drops the peer's messages without a word."""

    cut = False

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        """Hand over the messages of a port; those of the peer are dropped while the link is cut."""
        super().take(port, (lambda frames: None) if self.cut and port is ServerPort.PEER else handle)


class TestServer:
    """One server in a thread, which can be started, killed and started again on the same ports.

    Keyword arguments are settings of `chp-server`, by the names of `Config`: times in seconds, sizes in bytes.
    """

    # This class is no test case, whatever its name.
    __test__ = False

    def __init__(self, limits: Limits = DEFAULT, **settings: Any) -> None:
        settings.setdefault("bind", f"tcp://127.0.0.1:{free_port()}")
        self.config = replace(Config(), **settings)
        self.limits = limits
        self.server: Server | None = None
        # True while the messages of the peer are dropped.
        self.cut = False
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return self.config.bind

    def start(self) -> Self:
        """Bind and serve; raise `JournalError` or `OSError` if that fails, `BadInput` if it runs already."""
        if self._thread is not None and self._thread.is_alive():
            raise BadInput(f"server {self.address} is started already; use restart() to kill it and start it again")
        config = self.config
        keyring = Keyring(config.keys, has_peer=config.peer is not None) if config.keys else None
        journal = journal_of(config)
        server: Server
        if config.replica:
            server = ReplicaServer(config, journal, self.limits, keyring)
        else:
            server = CutOff(config, journal, self.limits, keyring)
            server.cut = self.cut
        try:
            server.bind()
        # Open sockets would keep the server's ZeroMQ context from ending, for ever.
        except BaseException:
            server.close()
            journal.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(server, journal), name=config.name, daemon=True)
        self.server = server
        self._thread.start()
        return self

    @staticmethod
    def _run(server: Server, journal: Any) -> None:
        try:
            server.run()
        finally:
            server.close()
            journal.close()

    def kill(self) -> None:
        """Stop between two turns; the state in memory is lost, the journal stays."""
        if self.server is not None and self._thread is not None:
            self.server.stop()
            self._thread.join()
            self.server = None

    def restart(self) -> Self:
        """Kill the server, and start it with the same settings."""
        self.kill()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class Pair:
    """A primary and a backup that are joined; keyword arguments are settings of both, as for `TestServer`.

    `store` is "memory:" for both, or a tuple of two URLs, the primary's first, as two servers can't share a journal.
    """

    def __init__(self, limits: Limits = DEFAULT, **settings: Any) -> None:
        primary, backup = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        store = settings.pop("store", "memory:")
        stores = store if isinstance(store, tuple) else (store, store)
        self.primary = TestServer(
            limits, role="primary", bind=primary, peer=backup, name="primary", store=stores[0], **settings
        )
        self.backup = TestServer(
            limits, role="backup", bind=backup, peer=primary, name="backup", store=stores[1], **settings
        )

    @property
    def servers(self) -> list[str]:
        """The two addresses, the primary's first."""
        return [self.primary.address, self.backup.address]

    @property
    def active(self) -> TestServer | None:
        """The server that is active at this moment, or None."""
        both = (self.primary, self.backup)
        return next((each for each in both if each.server is not None and each.server.core.active), None)

    def kill(self) -> TestServer:
        """Kill the active server, as soon as there is one, and return it; the other takes over when a client asks."""
        until = time.monotonic() + MEET_S
        while (active := self.active) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"no server was active within {MEET_S:g} s")
            threading.Event().wait(0.005)
        active.kill()
        return active

    def cut(self) -> None:
        """Cut the link between the two servers, as if a cable were out; clients reach both.

        The link stays cut until `mend`, also for a server that is started again meanwhile.
        """
        self._cut(True)

    def mend(self) -> None:
        """Let the two servers hear each other again."""
        self._cut(False)

    def _cut(self, cut: bool) -> None:
        for each in (self.primary, self.backup):
            each.cut = cut
            if isinstance(each.server, CutOff):
                each.server.cut = cut

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            self.backup.start()
            self._meet()
        except BaseException:
            self.primary.kill()
            self.backup.kill()
            raise
        return self

    def _meet(self) -> None:
        """Wait until the two servers are in sync: before, the backup holds no store, and can't take over."""
        cores = [server.server.core for server in (self.primary, self.backup) if server.server is not None]
        until = time.monotonic() + MEET_S
        while not any(core.active and core.pair.in_sync() for core in cores):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the pair was not in sync within {MEET_S:g} s: {[str(c.pair.bstate.name) for c in cores]}"
                )
            threading.Event().wait(0.005)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.primary.kill()
        self.backup.kill()
