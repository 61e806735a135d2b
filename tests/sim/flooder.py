"""A flooder: a user with few rights that opens more sessions, applications and leases than the servers' tables hold.

    flooder     The servers' tables are made small, so that a flood of hundreds of sessions does what hundreds of
                thousands would do otherwise. The command is given before the servers start.
    flood 70    The user opens 70 sessions at both servers, as a client does, once there are rules. Then it tries to
                count the versions of the clients' applications up.

The other checkers must find no error: the flood does not harm a client that sends a batch again or counts a version
again. The pair may forget what it knows of the flooder, whose own batches and versions may count twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack

from chp.limits import Limits

from .network import Conn

if TYPE_CHECKING:
    from .world import World

FLOODER = "flooder"
RIGHTS = {"read": ["/f/"], "write": ["/f/"]}
# In a run, the programs of a client use less than a quarter of these sessions and applications. They have fewer
# refusals and leases than the flooder.
SMALL = {"sessions_max": 64, "applications_max": 16, "refusals_max": 120, "leases_max": 40}
LEASE_MS = 1500


class Flooder:
    """A user that floods the tables of both servers."""

    def __init__(self, world: World) -> None:
        self._world, self._made = world, 0

    @staticmethod
    def limits(limits: Limits) -> Limits:
        """Return limits with small tables."""
        return replace(limits, **SMALL)

    def floods(self, count: int) -> None:
        """Open `count` sessions. Each counts a version and has a batch refused, and some open a lease."""
        nodes = [node for node in self._world.servers if node.running and not node.foreign]
        if not any(node.core.active and node.core.state.access.rules is not None for node in nodes):
            return
        batches: list[tuple[bytes, int, list[Any]]] = []
        for _ in range(count):
            session, name = self._next_session(), f"{FLOODER}.{self._made}"
            value = [["/f/1"], [name.encode()]]
            batches += [(session, 1, [*value, {"once": [name, 1, False]}]), (session, 2, [*value, {"c": [[0], [0]]}])]
            if self._made % 4 == 0:
                batches.append((session, 3, [[], [], {"lease": [session, LEASE_MS]}]))
        for client in self._world.clients:
            batches.append((self._next_session(), 1, [[], [], {"once": [f"{client.name}.once", 1000, False]}]))
        for node in nodes:
            line = Conn("set", FLOODER, node.name)
            line.up = True
            for session, no, segment in batches:
                node.deliver(line, [b"\x02\x03", no.to_bytes(8, "big"), session, b"", msgpack.packb(segment)])

    def _next_session(self) -> bytes:
        """Return a session of a new client, which the first 12 bytes name."""
        self._made += 1
        return b"F%011d" % self._made + bytes(4)
