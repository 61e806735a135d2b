"""The reactor of a replica: that of a server, with upstream in the place of the peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

from chp.addresses import is_name
from chp.limits import DEFAULT, Limits

from .. import logs
from ..access.keyring import Keyring
from ..core.core_config import CoreConfig
from ..core.performing import ServerPort
from ..core.replica.core import ReplicaCore
from ..core.replica.upstream import TROUBLE_S
from ..core.state.journal import Journal
from ..ports.sockets import Frames
from ..ports.upstream import UpstreamSockets
from ..settings.config import Config
from .reactor import Server

log = logs.get_log(__name__)
CPU_S, LOOK_AGAIN_S = 1.0, 5.0
# Each connection for a client that asks the active takes FILES_A_CLIENT descriptors. All of these connections take at
# most one part in FILES_SHARE of the descriptors.
FILES_A_CLIENT, FILES_SHARE = 3, 4


class ReplicaServer(Server):
    """A replica: `bind`, then `run` until `stop`, then `close`."""

    core: ReplicaCore
    # A replica has a socket for each client that asks the active, and at most 256 for own channels at each server of
    # upstream.
    sockets_max = DEFAULT.passed_max + 4096

    def __init__(
        self, config: Config, journal: Journal, limits: Limits = DEFAULT, keyring: Keyring | None = None
    ) -> None:
        self._servers = config.upstreams
        super().__init__(config, journal, limits, keyring)
        places = range(len(self._servers))
        keys = [] if keyring is None else [(keyring.pair, keyring.upstream(place)) for place in places]
        self.upstream = UpstreamSockets(self._context, self._servers, self._limits, self.sockets.waiting, keys)
        files = self.sockets.users.most // (FILES_A_CLIENT * FILES_SHARE)
        self.core.upstream.passed_max = max(1, min(self._limits.passed_max, files))
        # After this time without an answer the replica connects anew: a server may know our key by then, and a name may
        # need the other kind of address.
        self._again_s = LOOK_AGAIN_S if keys or any(map(is_name, self._servers)) else inf
        self._heard_at = time.monotonic()
        # When this replica last served; and True if the log has said since then why it does not serve.
        self._served_at, self._said_trouble = self._heard_at, False
        # The time when the use of the processor was last measured, and the processor time at that moment.
        self._measured = time.monotonic(), time.process_time()

    def new_core(self, config: CoreConfig, run: bytes, now: float) -> ReplicaCore:
        """Return an empty core of a replica."""
        return ReplicaCore(config, run, now, self._limits, upstream=len(self._servers))

    def bind(self) -> None:
        """Take the ports, and connect to upstream."""
        super().bind()
        self.upstream.connect()
        log.info("following", upstream=",".join(self._servers))

    def turn(self, ready: set[Any]) -> None:
        """Take a turn, in which the messages of upstream have the place of those of the peer."""
        if self.upstream.ready(ready):
            ready.add(self.sockets.peer_in)
        before, used = self._measured
        now = time.monotonic()
        if now - before >= CPU_S:
            self._measured = now, time.process_time()
            self.core.cpu = round(1000 * (self._measured[1] - used) / (now - before))
        if self.core.active:
            self._heard_at = self._served_at = now
            self._said_trouble = False
        # A server answers. Its state may take long to come, so this replica does not connect anew meanwhile.
        elif self.core.upstream.source is not None:
            self._heard_at = now
        elif now - self._heard_at > self._again_s:
            self._heard_at = now
            self.upstream.connect_anew()
        if not self._said_trouble and now - self._served_at > TROUBLE_S and (why := self.core.upstream.trouble()):
            self._said_trouble = True
            log.warning("no upstream", upstream=",".join(self._servers), why=why)
        super().turn(ready)

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        """Hand over the messages at a port, or those of upstream."""
        if port is ServerPort.PEER:
            self.take_guarded(handle, self.upstream.take())
        else:
            super().take(port, handle)

    def to_peer(self, messages: list[Frames]) -> None:
        """Send messages to upstream."""
        self.upstream.send(messages)
        self.core.committer.counts["upstream_dropped"] = self.upstream.dropped

    def close(self) -> None:
        """Close the ports and the lines to upstream."""
        self.upstream.close()
        super().close()
