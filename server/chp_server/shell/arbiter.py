"""The arbiter: a lease in ZooKeeper that says who may be active (`--arbiter zk://host:2181/path`).

Two servers alone can't tell a dead peer from a cut link; a third party can. The lease is an ephemeral node, so it ends
with its holder's session. `until` is the time, on this machine's monotonic clock, up to which the lease is certainly
ours: each check that ZooKeeper answers proves that the session lived when the check was *sent*, so the lease holds for
a session's length from then, and nobody else can get it before. Whoever is past that time stops serving writes, also
after having been stopped itself; no two clocks need agree.

Beside it lies the set of the servers that have all that was acknowledged, in a node that outlives them
(arbitration.py decides what it is to be). Only the holder of the lease writes it, each time upon the version that it
knows, so that a write of a holder of before, which comes late, changes nothing.

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
SAFETY = 0.8  # of a session: what is left covers a clock that runs slow and a turn that runs long
START_TIMEOUT_S = 10.0
START_LOOK_S = 0.1  # whether the server is to end


class ArbiterError(ChpError):
    """The arbiter can't be used; the text says why and what to do."""


class Arbiter:
    """Holds the lease while it is wanted. `until` and `members` may be read from any thread, `until` first."""

    def __init__(self, url: str, name: str, on_news: Callable[[], None] = lambda: None) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        base = parts.path.rstrip("/") or "/chp"
        self._path, self._set_path = base + "/active", base + "/in_sync"
        self._on_news = on_news
        self._wish: Wish | None = None
        self._done = 0  # the serial of the last wish that was granted
        self.members: Members | None = None
        self._session_s = float(options.get("session_s", [SESSION_S])[0])
        self._name = name
        self._wanted = False
        self._ours = False  # whether the node may be ours: `until` ends earlier where the connection is in doubt
        self._closing = False
        self._wake = threading.Event()
        self.until = 0.0
        self._client = _client(parts.netloc, self._session_s)
        self._note_session()
        self._client.add_listener(self.on_connection)
        self._thread = threading.Thread(target=self._run, name="chp-arbiter", daemon=True)

    def start(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Connect; `ArbiterError` if nobody answers, or the server is told to end meanwhile."""
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
        """Ask for the lease and keep it, or let it go; and what the set is to be."""
        if wanted != self._wanted or wish != self._wish:
            self._wanted, self._wish = wanted, wish
            self._wake.set()

    def close(self) -> None:
        """Let the lease go, so that the other server need not wait for the session's end."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(START_TIMEOUT_S)
        self.until = 0.0
        self._client.stop()
        self._client.close()

    # -- kazoo's threads

    def _note_session(self) -> None:
        """ZooKeeper may grant shorter sessions than are asked for, and kazoo tells only itself, when it connects."""
        connect = self._client._connection._connect

        def noted(*host: Any) -> tuple[float, float]:
            read_ms, connect_ms = connect(*host)  # the first is two thirds of the session
            self._session_s = min(self._session_s, read_ms * 1.5 / 1000)
            return read_ms, connect_ms

        self._client._connection._connect = noted

    def on_connection(self, state: str) -> None:
        """kazoo's word for how the connection is."""
        if state != "CONNECTED":
            self.until = 0.0  # in doubt: nobody else can have it yet, and we stop at once
            if not self._closing:
                log.warning("arbiter in doubt", state=state.lower())
        self._wake.set()

    def _on_node(self, _event: object) -> None:
        self._wake.set()  # somebody's lease is over: look at once

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
        """Hold or let go of the lease, and look at the set, as is wanted."""
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
        except Exception as error:  # kazoo has many: each means that we can't be sure
            self.until = 0.0
            log.limited("arbiter", error=f"{type(error).__name__}: {error}")

        if (self.until > 0, self.members) != before:
            self._on_news()

    # -- the set

    def _look(self, *, current: bool = False) -> None:
        """Read the set; `current`: with all that was written before, as one has to who takes over."""
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
        """Write the set that is wished for, upon the version on which the wish stands."""
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
        """Whether the node is there and our session's; makes it if it is nobody's."""
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
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # it says a line a try; what matters is said here
    patient = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=1.0)
    return KazooClient(hosts=hosts, timeout=session_s, connection_retry=patient)
