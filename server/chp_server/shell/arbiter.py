"""The arbiter: a lease in ZooKeeper or etcd that says which server may be active (`--arbiter zk://` or `etcd://`).

Two servers alone can't tell a dead peer from a cut link; a third party can. `until` is the time, on this machine's
monotonic clock, up to which the lease is certainly ours. Each check that the store answers proves that the lease lived
when the check was *sent*. So the lease lasts for its length from that moment, and the other server can't get it before
its end. A server that is past `until` takes no sets. This holds even if its process was stopped for a while, and the
clocks of the servers need not agree.

The store also keeps the set of the servers that have all that was acknowledged. The set outlives these servers, and
arbitration.py decides its content. Only the holder of the lease writes the set, and each write names the version that
it replaces. So a late write of a former holder changes nothing.

    Arbiter        the thread: when to check, and how long the lease is certain
    LeaseStore     the interface of a store (lease_store.py); zookeeper.py and etcd.py implement it
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qs, unquote, urlsplit

from chp.numbers import describe

from .. import logs
from ..core.pair.arbitration import Members, Wish
from ..settings.config import Config
from .etcd import EtcdStore, tls_context
from .lease_store import START_TIMEOUT_S, ArbiterError, LeaseStore
from .zookeeper import ZooKeeperStore

__all__ = ["Arbiter", "ArbiterError", "open_store"]

log = logs.get_log(__name__)
# Only this part of a lease counts: the rest covers a clock that runs slow and a turn that runs long.
SAFETY = 0.8
SESSION_S = 2.0
# A server checks its own lease CHECKS times in the length of a lease, and while it waits for the peer's, LOOKS times.
CHECKS, LOOKS = 5, 20


class Arbiter:
    """A holder of the lease while it is wanted. Any thread may read `until` and `members`, `until` first."""

    def __init__(self, store: LeaseStore, on_news: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._on_news = on_news
        self._wish: Wish | None = None
        # The serial of the last wish that was granted.
        self._done = 0
        self.members: Members | None = None
        self._wanted = False
        # True if the lease may be ours. `until` ends earlier if the connection is in doubt.
        self._ours = False
        self._closing = False
        self._wake = threading.Event()
        self.until = 0.0
        self._thread = threading.Thread(target=self._run, name="chp-arbiter", daemon=True)

    def start(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Connect; raise `ArbiterError` if the arbiter does not answer, or if the server is told to end meanwhile."""
        self._store.start(self.doubt, self.look, stopping)
        self._thread.start()

    def want(self, wanted: bool, wish: Wish | None = None) -> None:
        """Say whether the lease is wanted, and what the set is to be."""
        if wanted != self._wanted or wish != self._wish:
            self._wanted, self._wish = wanted, wish
            self._wake.set()

    def close(self) -> None:
        """Release the lease, so that the other server need not wait for its end."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(START_TIMEOUT_S)
        self.until = 0.0
        self._store.close()

    # -- the store's threads, if it has any

    def doubt(self, why: str) -> None:
        """Count on no lease until the next check: this server stops at once, before the other can have the lease."""
        self.until = 0.0
        if not self._closing:
            log.warning("arbiter in doubt", state=why)
        self._wake.set()

    def look(self) -> None:
        """Check at once: something has changed in the store."""
        self._wake.set()

    # -- our thread

    def _run(self) -> None:
        while not self._closing:
            awaits = self._wanted and not self._ours
            self._wake.wait(self._store.lease_s / (LOOKS if awaits else CHECKS))
            self._wake.clear()
            if self._store.connected:
                self.check()
        self._wanted = False
        if self._store.connected:
            self.check()

    def check(self) -> None:
        """Hold or release the lease, as is wanted, and read or write the set."""
        before = self.until > 0, self.members
        try:
            if self._wanted:
                asked, had, self._ours = time.monotonic(), self._ours, True
                self._ours = self._store.hold()
                if self._ours and not had:
                    log.info("lease acquired")
                self._read(current=self._ours and self.until == 0)
                self.until = asked + self._store.lease_s * SAFETY if self._ours else 0.0
                if self._ours:
                    self._grant()
            else:
                if self._ours:
                    self.until = 0.0
                    if self._store.release():
                        log.info("lease released")
                    self._ours = False
                self._read()
        # A store can raise many errors. After each of them it is not certain that the lease is ours.
        except Exception as error:
            self.until = 0.0
            log.limited("arbiter", error=f"{type(error).__name__}: {error}")

        if (self.until > 0, self.members) != before:
            self._on_news()

    def _read(self, *, current: bool = False) -> None:
        """Read the set; `current` makes the read see all earlier writes, which a server that takes over needs."""
        found = self._store.read(current=current)
        if found is None:
            self.members = Members(-1, frozenset(), 0, self._done)
            return
        version, text = found
        said = json.loads(text)
        self.members = Members(version, frozenset(said["servers"]), int(said["number"]), self._done)

    def _grant(self) -> None:
        """Write the set of the wish, if the store still has the version that the wish names."""
        wish, members = self._wish, self.members
        if wish is None or members is None or wish.serial <= self._done or wish.base != members.version:
            return
        text = json.dumps({"servers": sorted(wish.names), "number": wish.number}).encode()
        version = self._store.write(text, wish.base)
        if version is None:
            self._read(current=True)
            return
        self._done = wish.serial
        self.members = Members(version, wish.names, wish.number, self._done)
        log.info("in-sync set", servers=" ".join(sorted(wish.names)), number=describe(wish.number))


def open_store(config: Config) -> LeaseStore:
    """Return the store that `--arbiter` names, not connected yet; raise `ArbiterError` if it can't be used here."""
    parts = urlsplit(config.arbiter or "")
    session_s = float(parse_qs(parts.query).get("session_s", [SESSION_S])[0])
    base = parts.path.rstrip("/") or "/chp"
    if parts.scheme == "zk":
        return ZooKeeperStore(parts.netloc, base, config.name, session_s)
    user, _, hosts = parts.netloc.rpartition("@")
    tls = None
    if parts.scheme == "etcds":
        tls = tls_context(config.arbiter_ca, config.arbiter_cert, config.arbiter_key)
    return EtcdStore(hosts.split(","), base, config.name, session_s, user=unquote(user), tls=tls)
