"""The arbiter: a lease in ZooKeeper that says which server may be active (`--arbiter zk://host:2181/path`).

Two servers alone can't tell a dead peer from a cut link; a third party can. The lease is an ephemeral node, so it ends
with its holder's session. `until` is the time, on this machine's monotonic clock, up to which the lease is certainly
ours. Each check that ZooKeeper answers proves that the session lived when the check was *sent*. So the lease holds for
a session's length from then, and the other server can't get it before. A server that is past that time stops serving
writes, also after it was stopped itself; no two clocks need agree.

Beside the lease lies the set of the servers that have all that was acknowledged, in a node that outlives them
(arbitration.py decides what it is to be). Only the holder of the lease writes the set, each time upon the version that
it knows. So a late write of a former holder changes nothing.

kazoo keeps the session. Needs the extra `zookeeper`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from chp.errors import ChpError
from chp.numbers import describe

from .. import logs
from ..core.pair.arbitration import Members, Wish

log = logs.get_log(__name__)
SESSION_S = 2.0
# Only this part of a session counts: the rest covers a clock that runs slow and a turn that runs long.
SAFETY = 0.8
START_TIMEOUT_S = 10.0
# A start looks so often whether the server is to end.
START_LOOK_S = 0.1


class ArbiterError(ChpError):
    """The arbiter can't be used; the text says why and what to do."""


class Arbiter:
    """A holder of the lease while it is wanted. Any thread may read `until` and `members`, `until` first."""

    def __init__(self, url: str, name: str, on_news: Callable[[], None] = lambda: None) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        base = parts.path.rstrip("/") or "/chp"
        self._path, self._set_path = base + "/active", base + "/in_sync"
        self._on_news = on_news
        self._wish: Wish | None = None
        # The serial of the last wish that was granted.
        self._done = 0
        self.members: Members | None = None
        self._session_s = float(options.get("session_s", [SESSION_S])[0])
        self._name = name
        self._wanted = False
        # Whether the node may be ours: `until` ends earlier if the connection is in doubt.
        self._ours = False
        self._closing = False
        self._wake = threading.Event()
        self.until = 0.0
        self._client = _client(parts.netloc, self._session_s)
        self._note_session()
        self._client.add_listener(self.on_connection)
        self._thread = threading.Thread(target=self._run, name="chp-arbiter", daemon=True)

    def start(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Connect; raise `ArbiterError` if ZooKeeper does not answer, or if the server is told to end meanwhile."""
        live, until = self._client.start_async(), time.monotonic() + START_TIMEOUT_S
        while not live.wait(START_LOOK_S):
            if stopping() or time.monotonic() > until:
                self._client.stop()
                self._client.close()
                hosts = ",".join(f"{host}:{port}" for host, port in self._client.hosts)
                tried = f"{START_TIMEOUT_S:.0f} s"
                raise ArbiterError(f"ZooKeeper at {hosts} does not answer within {tried}; check --arbiter")
        self._thread.start()

    def want(self, wanted: bool, wish: Wish | None = None) -> None:
        """Say whether the lease is wanted, and what the set is to be."""
        if wanted != self._wanted or wish != self._wish:
            self._wanted, self._wish = wanted, wish
            self._wake.set()

    def close(self) -> None:
        """Release the lease, so that the other server need not wait for the session's end."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(START_TIMEOUT_S)
        self.until = 0.0
        self._client.stop()
        self._client.close()

    # -- kazoo's threads

    def _note_session(self) -> None:
        """Learn the length of the session that ZooKeeper grants; it may be shorter than asked, and kazoo hides it."""
        connect = self._client._connection._connect

        def noted(*host: Any) -> tuple[float, float]:
            # The first time is two thirds of the session.
            read_ms, connect_ms = connect(*host)
            self._session_s = min(self._session_s, read_ms * 1.5 / 1000)
            return read_ms, connect_ms

        self._client._connection._connect = noted

    def on_connection(self, state: str) -> None:
        """Take the state of the connection, as kazoo names it."""
        if state != "CONNECTED":
            # The lease is in doubt: the other server can't have it yet, and we stop at once.
            self.until = 0.0
            if not self._closing:
                log.warning("arbiter in doubt", state=state.lower())
        self._wake.set()

    def _on_node(self, _event: object) -> None:
        # A lease is over, so look at once.
        self._wake.set()

    # -- our thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._session_s / 5)
            self._wake.clear()
            if self._client.connected:
                self.check()
        self._wanted = False
        if self._client.connected:
            self.check()

    def check(self) -> None:
        """Hold or release the lease, as is wanted, and read or write the set."""
        before = self.until > 0, self.members
        try:
            if self._wanted:
                asked, self._ours = time.monotonic(), True
                self._ours = self._hold()
                self._look(current=self._ours and self.until == 0)
                self.until = asked + self._session_s * SAFETY if self._ours else 0.0
                if self._ours:
                    self._grant()
            else:
                if self._ours:
                    self._release()
                self._look()
        # kazoo has many errors: each means that we can't be sure.
        except Exception as error:
            self.until = 0.0
            log.limited("arbiter", error=f"{type(error).__name__}: {error}")

        if (self.until > 0, self.members) != before:
            self._on_news()

    # -- the set

    def _look(self, *, current: bool = False) -> None:
        """Read the set; `current` waits for all writes before, as a server that takes over has to."""
        from kazoo.exceptions import NoNodeError

        if current:
            self._client.sync(self._set_path)
        try:
            text, stat = self._client.get(self._set_path, watch=self._on_node)
        except NoNodeError:
            self._client.exists(self._set_path, watch=self._on_node)
            self.members = Members(-1, frozenset(), 0, self._done)
            return
        said = json.loads(text)
        self.members = Members(stat.version, frozenset(said["servers"]), int(said["number"]), self._done)

    def _grant(self) -> None:
        """Write the wanted set, upon the version on which the wish stands."""
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        wish, members = self._wish, self.members
        if wish is None or members is None or wish.serial <= self._done or wish.base != members.version:
            return
        text = json.dumps({"servers": sorted(wish.names), "number": wish.number}).encode()
        try:
            if wish.base < 0:
                self._client.create(self._set_path, text, makepath=True)
                version = 0
            else:
                version = self._client.set(self._set_path, text, version=wish.base).version
        except (BadVersionError, NodeExistsError, NoNodeError):
            self._look(current=True)
            return
        self._done = wish.serial
        self.members = Members(version, wish.names, wish.number, self._done)
        log.info("in-sync set", servers=" ".join(sorted(wish.names)), number=describe(wish.number))

    # -- the lease

    def _hold(self) -> bool:
        """Return True if the node is our session's; make the node if there is none."""
        from kazoo.exceptions import NodeExistsError

        try:
            self._client.create(self._path, self._name.encode(), ephemeral=True, makepath=True)
        except NodeExistsError:
            stat = self._client.exists(self._path, watch=self._on_node)
            return stat is not None and stat.ephemeralOwner == self._client.client_id[0]
        log.info("lease acquired", path=self._path)
        return True

    def _release(self) -> None:
        from kazoo.exceptions import NoNodeError

        self.until = 0.0
        try:
            stat = self._client.exists(self._path)
            if stat is not None and stat.ephemeralOwner == self._client.client_id[0]:
                self._client.delete(self._path)
                log.info("lease released", path=self._path)
        except NoNodeError:
            pass
        self._ours = False


def _client(hosts: str, session_s: float) -> Any:
    try:
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry
    except ImportError as error:
        raise ArbiterError("--arbiter needs kazoo: pip install 'chp-clone[zookeeper]'") from error
    # kazoo logs a line a try; what matters is logged here.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    patient = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=1.0)
    return KazooClient(hosts=hosts, timeout=session_s, connection_retry=patient)
