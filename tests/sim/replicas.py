"""A replica process: the production core of a replica, with its lines to the servers of the pair.

    replica R1 [R2 ...]      a replica of the pair, or of another replica
    replica R1 P B confirms  a replica that confirms what its journal has, which is a further copy (copies.py)
    at c1 R1 R2              from its next start on, a client has these servers in place of P and B

Its clients are checked as any others are: a complete copy is that of its number, its number never goes down, and its
digests are those of the server. So a reader's history is a prefix of the one order, whichever servers it visited. A
replica journals what it follows, so the checkers also compare each of its records with the active's.

With keys, each replica is a user of its own name that may vouch. What it sends to a client is judged by the rules at
its own number (access.py), or at the number of the answer if the active has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chp_server.core.core import CoreConfig
from chp_server.core.replica.core import ReplicaCore
from chp_server.core.replica.upstream import QUESTIONS, SETS, UPDATES

from .clock import LocalClock
from .disk import KEPT, Disk
from .network import Conn, Frames
from .servers import ServerNode

if TYPE_CHECKING:
    from .world import World

# The kind of the connection for each line.
KINDS = {QUESTIONS: "req", UPDATES: "upd", SETS: "set"}
LINES = {"req": QUESTIONS, "upd": UPDATES}


class ReplicaNode(ServerNode):
    """A replica: R1, R2 and so on."""

    def __init__(
        self, world: World, name: str, clock: LocalClock, upstream: list[str], *, confirms: bool = False
    ) -> None:
        super().__init__(world, name, clock, Disk())
        self.upstream, self.confirms = upstream, confirms
        # The topics that the replica subscribes to at each server. Its sockets send them again when they connect.
        self._topics: list[dict[bytes, None]] = []
        # connection -> the line of the client whose questions the replica passes by this connection
        self._passed: dict[Conn, bytes] = {}

    @property
    def is_replica(self) -> bool:
        """True: it is no server of the pair."""
        return True

    def start(self) -> None:
        """Recover from the journal and take the ports."""
        self._topics = [{b"HUGZ": None} for _ in self.upstream]
        for conn in list(self._passed):
            self._close(conn)
        super().start()

    def new_core(self, server: bytes, now: float) -> ReplicaCore:
        """Return an empty core of a replica."""
        settings = {name: value for name, value in self.world.server_settings.items() if name.endswith("_s")}
        config = CoreConfig(
            replica=True, name=self.name, durability=self.disk.durability, disk_free_min=KEPT,
            confirms=self.confirms, keyed=self.world.keyed, **settings,
        )  # fmt: skip
        return ReplicaCore(config, server, now, self.world.limits, upstream=len(self.upstream))

    def connected(self, conn: Conn) -> None:
        """Note a client, or send the subscriptions of a connection to upstream."""
        if conn.a != self.name:
            super().connected(conn)
        elif conn.kind == "upd":
            for topic in self._topics[self.upstream.index(conn.b)]:
                self.world.net.send(conn, "up", [b"\x01" + topic])

    def disconnected(self, conn: Conn) -> None:
        """Note that a client is gone."""
        if conn.a != self.name:
            super().disconnected(conn)

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """Take a message of a client or of upstream."""
        if conn.a != self.name:
            super().deliver(conn, frames)
        elif conn.kind in LINES:
            line = self._passed.get(conn) or LINES[conn.kind] + bytes([self.upstream.index(conn.b)])
            self.inbox["peer"].append((conn, line, frames))
            self.schedule(self.world.turn_delay())

    def to_peer(self, messages: list[Frames]) -> None:
        """Send messages to upstream."""
        for line, *frames in messages:
            if (kind := KINDS.get(line[:1])) is None:
                self._pass(line, frames)
                continue
            if kind == "upd":
                topics, topic = self._topics[line[1]], frames[0][1:]
                if frames[0][:1] == b"\x01":
                    topics[topic] = None
                else:
                    topics.pop(topic, None)
            self.world.net.send(self.world.net.conns[kind, self.name, self.upstream[line[1]]], "up", frames)

    def _pass(self, line: bytes, frames: Frames) -> None:
        """Pass a client's question by a connection of its own, or end this connection if there are no frames."""
        server, name = self.upstream[line[1]], line.hex()
        conn = self.world.net.conns.get(("req", self.name + name, server))
        if not frames:
            if conn is not None:
                self._close(conn)
            return
        if conn is None:
            conn = self.world.net.connect("req", self.name, server, name)
            self._passed[conn] = line
        self.world.net.send(conn, "up", frames)

    def _close(self, conn: Conn) -> None:
        self.world.net.close("req", self.name, conn.b, self._passed.pop(conn).hex())
