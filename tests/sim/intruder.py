"""An intruder: a user that tries to take what other users' members of groups have in hand.

    intruder reads    There is an intruder that may read each topic, and consume by no group. Given before the start.
    intruder takes    There is an intruder that may also consume by each group, as a member with a lease of its own.
    intrude           The intruder tries everything at both servers, once there are rules.

The intruder knows the names of all groups, members and leases, as a reader of everything does. It asks for the messages
of each member. With the member's lease it joins, acknowledges and gives messages back, and it refreshes and ends this
lease. An intruder that only reads also makes, resets and removes groups.

What must hold is that no server gives the intruder messages of a group, and that no record has one of these batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from chp.keys import public_session
from chp.versions import VERSION

from .network import Conn, Frames
from .oracle import Node, Oracle

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World

INTRUDER = "intruder"
IDENTITY = INTRUDER.encode()
TOPICS = "/.chp/topics/"
# The further rights of each client if there is an intruder. Once rules name `consume` for one user, all others need it.
OF_CLIENTS = {"consume": [TOPICS]}
RIGHTS = {"reads": {"read": [TOPICS]}, "takes": {"read": [TOPICS], "consume": [TOPICS]}}
# The acts of the intruder that no record may have. `unlease` is missing, because a server does a batch that ends an
# already ended lease. Such a batch changes nothing.
ACTS = {"group", "join", "ack", "nack", "refresh"}
ALL = bytes([255]) * 32
MESSAGES = 11


class Intruder:
    """A user that knows everything, and may do little."""

    def __init__(self, world: World, kind: str) -> None:
        self._world, self.rights, self._made = world, RIGHTS[kind], 0
        self._sessions: set[bytes] = set()

    def tries(self) -> None:
        """Try everything with each member and each lease of the clients."""
        nodes = [node for node in self._world.servers if node.running and not node.foreign]
        if not any(node.core.active and node.core.state.access.rules is not None for node in nodes):
            return
        members = [m for client in self._world.clients for m in client.consuming.members if m.joined and not m.left]
        batches = [batch for m in members for batch in self._on_a_member(m.topic, m.group, _bytes(m.lease))]
        leases = [lease for client in self._world.clients for lease in client.leases]
        batches += [batch for lease in leases for batch in ({"refresh": _bytes(lease)}, {"unlease": _bytes(lease)})]
        sets = [[self._next_session(), msgpack.packb([[], [], extras])] for extras in batches]
        for node in nodes:
            for member in members:
                self._asks(node, member.topic, member.group, _bytes(member.lease))
            line = Conn("set", INTRUDER, node.name)
            line.up = True
            for session, segment in sets:
                node.deliver(line, [b"\x02\x03", (1).to_bytes(8, "big"), session, b"", segment])

    def _on_a_member(self, topic: str, group: str, lease: bytes) -> list[dict[str, Any]]:
        whose = [topic, group, lease]
        out: list[dict[str, Any]] = [{"join": [*whose, INTRUDER]}, {"ack": [[*whose, [[ALL, 0, 3]]]]}]
        out.append({"nack": [[*whose, [[ALL, 0, 1, "intruder"]]]]})
        if "consume" not in self.rights:
            out += [{"group": [topic, "own", {"start": 0}]}, {"group": [topic, group, {"start": 0, "again": True}]}]
            out.append({"group": [topic, group, None]})
        return out

    def _asks(self, node: ServerNode, topic: str, group: str, lease: bytes) -> None:
        self._made += 1
        line = Conn("req", INTRUDER, node.name)
        line.up, line.identity = True, IDENTITY
        options = {"chp": VERSION, "id": self._made, "topic": topic, "group": group, "member": lease, "credit": 3}
        node.deliver(line, [b"ICANHAZ?", b"", msgpack.packb(options)])

    def _next_session(self) -> bytes:
        """Return a session of a new client, which the first 12 bytes name."""
        self._made += 1
        session = b"I%011d" % self._made + bytes(4)
        self._sessions.add(public_session(session))
        return session

    def answered(self, node: ServerNode, frames: Frames) -> None:
        """Check that an answer gives no messages of a group."""
        header = msgpack.unpackb(frames[4], strict_map_key=False)[0]
        if header[0] == MESSAGES and node.core.state.access.rules is not None:
            self._world.checks.fail(f"{node.name} gives the messages of a group to the intruder")

    def commits(self, node: ServerNode, record: Node) -> None:
        """Check that a record has nothing that the intruder did."""
        for session, extras in _origins(self._world.checks.oracle, record):
            if session in self._sessions and not ACTS.isdisjoint(extras):
                self._world.checks.fail(f"{node.name} lets the intruder do {sorted(ACTS & extras.keys())}")


def _bytes(lease: str | bytes) -> bytes:
    return lease.encode() if isinstance(lease, str) else lease


def _origins(oracle: Oracle, record: Node) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the session and the columns of each segment of a record, once its last part has come."""
    parts = [record]
    while oracle.nodes[parts[0].prev].parts:
        parts.insert(0, oracle.nodes[parts[0].prev])
    found = [msgpack.unpackb(part.body, strict_map_key=False) for part in parts]
    header = found[-1][0]
    if header[0] != 1 or header[6]:
        return []
    origins: list[list[Any]] = []
    for (_, _, _, _, _, some, *_), *_ in found:
        origins += [origin for origin in some if origin not in origins]
    segments = [segment for _, *some in found for segment in some]
    whose = header[7] if len(header) > 7 and header[7] else [[int(bool(origins)), 0, len(segments)]]
    out, at = [], 0
    for place, _, n in whose:
        out += [(origins[place - 1][0], extras or {}) for _, _, extras in segments[at : at + n] if place]
        at += n
    return out
