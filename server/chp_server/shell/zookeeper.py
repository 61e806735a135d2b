"""The arbiter's lease and set in ZooKeeper (`--arbiter zk://host:2181/path`).

The lease is an ephemeral node, so it ends with the session of the server that made it. kazoo keeps the session alive.
This module needs the extra `zookeeper`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from .lease_store import START_LOOK_S, START_TIMEOUT_S, ArbiterError


class ZooKeeperStore:
    """A lease and a set below one path of a ZooKeeper."""

    def __init__(self, hosts: str, base: str, name: str, session_s: float) -> None:
        self._path, self._set_path = base + "/active", base + "/in_sync"
        self._name = name
        self.lease_s = session_s
        self._look: Callable[[], None] = lambda: None
        self._client = _client(hosts, session_s)
        self._note_session()

    @property
    def connected(self) -> bool:
        """True while kazoo has a connection."""
        return bool(self._client.connected)

    def start(self, doubt: Callable[[str], None], look: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Connect; raise `ArbiterError` if ZooKeeper does not answer, or if the server is told to end meanwhile."""
        self._look = look

        def on_connection(state: str) -> None:
            look() if state == "CONNECTED" else doubt(state.lower())

        self._client.add_listener(on_connection)
        live, until = self._client.start_async(), time.monotonic() + START_TIMEOUT_S
        while not live.wait(START_LOOK_S):
            if stopping() or time.monotonic() > until:
                self.close()
                hosts = ",".join(f"{host}:{port}" for host, port in self._client.hosts)
                tried = f"{START_TIMEOUT_S:.0f} s"
                raise ArbiterError(f"ZooKeeper at {hosts} does not answer within {tried}; check --arbiter")

    def close(self) -> None:
        """End the session."""
        self._client.stop()
        self._client.close()

    def _note_session(self) -> None:
        """Wrap kazoo's connect, to learn the granted session's length; it may be shorter than what was asked for."""
        connect = self._client._connection._connect

        def noted(*host: Any) -> tuple[float, float]:
            # `read_ms` is two thirds of the session's length.
            read_ms, connect_ms = connect(*host)
            self.lease_s = min(self.lease_s, read_ms * 1.5 / 1000)
            return read_ms, connect_ms

        self._client._connection._connect = noted

    def _on_node(self, _event: object) -> None:
        self._look()

    # -- the lease

    def hold(self) -> bool:
        """Return True if the node is our session's; make the node if there is none."""
        from kazoo.exceptions import NodeExistsError

        try:
            self._client.create(self._path, self._name.encode(), ephemeral=True, makepath=True)
        except NodeExistsError:
            stat = self._client.exists(self._path, watch=self._on_node)
            return stat is not None and stat.ephemeralOwner == self._client.client_id[0]
        return True

    def release(self) -> bool:
        """Delete the node if it is our session's."""
        from kazoo.exceptions import NoNodeError

        try:
            stat = self._client.exists(self._path)
            if stat is None or stat.ephemeralOwner != self._client.client_id[0]:
                return False
            self._client.delete(self._path)
        except NoNodeError:
            return False
        return True

    # -- the set

    def read(self, *, current: bool) -> tuple[int, bytes] | None:
        """Return the version and the text of the set's node, and watch it."""
        from kazoo.exceptions import NoNodeError

        if current:
            self._client.sync(self._set_path)
        try:
            text, stat = self._client.get(self._set_path, watch=self._on_node)
        except NoNodeError:
            self._client.exists(self._set_path, watch=self._on_node)
            return None
        return stat.version, text

    def write(self, text: bytes, base: int) -> int | None:
        """Write the set's node if its version is `base`; return the new version, or None if the version is another."""
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        try:
            if base < 0:
                self._client.create(self._set_path, text, makepath=True)
                return 0
            return int(self._client.set(self._set_path, text, version=base).version)
        except (BadVersionError, NodeExistsError, NoNodeError):
            return None


def _client(hosts: str, session_s: float) -> Any:
    try:
        from kazoo.client import KazooClient
        from kazoo.retry import KazooRetry
    except ImportError as error:
        raise ArbiterError("--arbiter zk:// needs kazoo: pip install 'chp-clone[zookeeper]'") from error
    # kazoo would log a line for each try. The server logs what matters itself.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    patient = KazooRetry(max_tries=-1, delay=0.1, backoff=1.5, max_delay=1.0)
    return KazooClient(hosts=hosts, timeout=session_s, connection_retry=patient)
