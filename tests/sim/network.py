"""The network: TCP connections under ZeroMQ sockets, as far as programs notice them.

    kind   connects       binds       carries
    peer   server         server      DEALER -> ROUTER on P+3, one way; nothing is kept while it is not connected; a
                                      BEAT in a long turn has a connection of its own, in no order with this one
    upd    client         server      SUB <-> XPUB on P+1: subscriptions up, publications down
    set    client         server      XPUB <-> SUB on P+2: the server's subscription down, KVSETs up
    req    client         server      DEALER <-> ROUTER on P

Order holds within one direction of one connection, and nowhere else. A *cut* direction holds its messages, as TCP does,
and delivers them when healed. A *reset* connection loses the queued messages of both directions. It comes up again
later with a new identity, and sends its subscriptions anew. The server that made the peers' connection is told when it
comes up and when it breaks. It breaks if a process dies, and never because a process is stopped or a direction is cut.
Where ZeroMQ drops at a high-water mark (peer, upd down, set up), a message may be lost silently. A process that dies
loses the messages that it has not read. A first part of the messages that it sent may still arrive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import World

Frames = list[bytes]
LOSSY = {("peer", "up"), ("upd", "down"), ("set", "up")}
BACKLOG_MAX = 200


class Wire:
    """A direction of a connection."""

    __slots__ = ("conn", "dst", "due", "lossy", "queue", "src", "way")

    def __init__(self, conn: Conn, src: str, dst: str, way: str) -> None:
        self.conn, self.src, self.dst, self.way = conn, src, dst, way
        self.queue: deque[tuple[float, Frames]] = deque()
        self.due = 0.0
        self.lossy = (conn.kind, way) in LOSSY


class Conn:
    """A connection from `a`, which connects, to `b`, which binds."""

    def __init__(self, kind: str, a: str, b: str) -> None:
        self.kind, self.a, self.b = kind, a, b
        self.up = False
        # The time when the connection last came up.
        self.up_at = 0.0
        self.connecting = False
        self.identity = b""
        # The key that the client has shown, if it has one.
        self.key = ""
        # upd: at most this many publications wait here, and further ones are lost; 0 if there is no such bound.
        self.mark = 0
        # upd: the topics to which the XPUB knows this connection has subscribed.
        self.topics: dict[bytes, None] = {}
        # req, and set if it lingers: messages that are queued while there is no connection.
        self.backlog: deque[Frames] = deque()
        self.wires = {"up": Wire(self, a, b, "up"), "down": Wire(self, b, a, "down")}

    @property
    def name(self) -> str:
        """The name of the connection in commands and transcripts."""
        return f"{self.a}-{self.b}.{self.kind}"


class Network:
    """The connections of a world, and their faults."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.conns: dict[tuple[str, str, str], Conn] = {}
        self.of: dict[str, list[Conn]] = {}
        # The directions that are cut, such as "P>B" or "c1>P.set".
        self.cuts: set[str] = set()
        # direction -> the number of its next messages that are lost
        self.drops: dict[str, int] = {}
        self.lost = 0
        self._identities = 0

    # -- making connections

    def connect(self, kind: str, a: str, b: str, line: str = "") -> Conn:
        """Return a connection, which is made if it was not there, and try to bring it up.

        A program has several connections of a kind to a server if each has a `line`.
        """
        conn = self.conns.get((kind, a + line, b))
        if conn is None:
            conn = self.conns[kind, a + line, b] = Conn(kind, a, b)
            self.of.setdefault(a, []).append(conn)
            self.of.setdefault(b, []).append(conn)
        self.retry(conn, 0.0)
        return conn

    def retry(self, conn: Conn, after: float | None = None) -> None:
        """Try to bring a connection up after a delay."""
        if not conn.up and not conn.connecting:
            conn.connecting = True
            delay = self._world.reconnect_delay() if after is None else after
            self._world.time.at(self._world.time.now + delay, lambda: self._try(conn))

    def _try(self, conn: Conn) -> None:
        world = self._world
        if conn not in self.of[conn.a]:
            return
        conn.connecting = False
        if conn.up or not (world.runs(conn.a) and world.runs(conn.b)):
            return
        if conn.kind == "peer" and not all(world.nodes[name].shakes_hands for name in (conn.a, conn.b)):
            return
        if self.is_cut(conn.wires["up"]) or self.is_cut(conn.wires["down"]):
            return
        if world.keyed and conn.kind != "peer" and not world.nodes[conn.b].shown(conn):
            return
        conn.up, conn.up_at = True, world.time.now
        self._world.troubled(conn)
        self._identities += 1
        conn.identity = b"#%d" % self._identities
        world.nodes[conn.a].connected(conn)
        world.nodes[conn.b].connected(conn)
        while conn.backlog and conn.up:
            self.send(conn, "up", conn.backlog.popleft())

    def reset(self, conn: Conn, again: bool = True) -> None:
        """Break a connection, and lose its queued messages."""
        if not conn.up:
            return
        conn.up = False
        self._world.troubled(conn)
        for wire in conn.wires.values():
            wire.queue.clear()
        world = self._world
        world.trace(f"{conn.name:10} breaks")
        for name in (conn.a, conn.b):
            if world.runs(name):
                world.nodes[name].disconnected(conn)
        conn.topics.clear()
        if again:
            self.retry(conn)

    def died(self, name: str) -> None:
        """Break the connections of a process that died. A first part of its sent messages may still arrive."""
        for conn in self.of.get(name, []):
            if not conn.up:
                conn.backlog.clear() if conn.a == name else None
                continue
            wire = conn.wires["up" if conn.a == name else "down"]
            last_words = list(wire.queue)[: self._world.rng.randint(0, len(wire.queue))] if wire.queue else []
            other = conn.b if conn.a == name else conn.a
            if world_node := self._world.nodes.get(other):
                for _, frames in last_words:
                    if self._world.runs(other) and not self.is_cut(wire):
                        world_node.deliver(conn, frames)
            self.reset(conn, again=False)
            if conn.a == name:
                conn.backlog.clear()

    def close(self, kind: str, a: str, b: str, line: str) -> None:
        """End one of several connections, and lose its queued messages."""
        conn = self.conns.pop((kind, a + line, b), None)
        if conn is not None:
            self.of[a].remove(conn)
            self.of[b].remove(conn)
            # The connection may be about to come up. While it counts as connecting, no further attempt is made.
            conn.connecting = True
            self.reset(conn, again=False)

    # -- faults

    def is_cut(self, wire: Wire) -> bool:
        """Return True if this direction carries nothing at present."""
        if not self.cuts:
            return False
        way = f"{wire.src}>{wire.dst}"
        return way in self.cuts or f"{way}.{wire.conn.kind}" in self.cuts

    def cut(self, way: str) -> None:
        """Hold all messages of one direction ("P>B"), or of one socket in it ("c1>P.set")."""
        self.cuts.add(way)

    def heal(self, way: str) -> None:
        """Deliver the held messages of a direction; "*" heals all directions."""
        if way == "*":
            self.cuts.clear()
            self.drops.clear()
        self.cuts.discard(way)
        for conn in self.conns.values():
            for wire in conn.wires.values():
                if wire.queue and not self.is_cut(wire):
                    self._pump_at(wire, self._world.time.now)
            self.retry(conn)

    def drop_next(self, way: str, n: int) -> None:
        """Lose the next `n` messages of a direction that may lose messages."""
        self.drops[way] = n

    # -- messages

    def send(self, conn: Conn, way: str, frames: Frames) -> bool:
        """Send a message, and return False if there is no connection."""
        wire = conn.wires[way]
        if not conn.up:
            if way == "up" and conn.kind in self._world.queues_while_down and len(conn.backlog) < BACKLOG_MAX:
                conn.backlog.append(frames)
            return False
        if wire.lossy and self._loses(wire):
            self.lost += 1
            self._world.troubled(conn)
            self._world.trace_message(wire, frames, "-x")
            return True
        wire.due = max(wire.due, self._world.time.now + self._world.delay())
        wire.queue.append((wire.due, frames))
        if len(wire.queue) == 1 or wire.due > self._world.time.now:
            self._pump_at(wire, wire.due)
        return True

    def beat(self, src: str, dst: str, frames: Frames) -> None:
        """Send a BEAT in the middle of a turn, if the connection to the peer is up and not cut."""
        conn = self.conns.get(("peer", src, dst))
        if conn is not None and conn.up and not self.is_cut(conn.wires["up"]):
            self._world.time.at(self._world.time.now + self._world.delay(), lambda: self._beaten(conn, frames))

    def _beaten(self, conn: Conn, frames: Frames) -> None:
        if self._world.runs(conn.b):
            self._world.trace_message(conn.wires["up"], frames, "->")
            self._world.nodes[conn.b].deliver(conn, frames)

    def _loses(self, wire: Wire) -> bool:
        if wire.conn.mark:
            return len(wire.queue) >= wire.conn.mark and wire.way == "down" and not self.is_cut(wire)
        if self.drops:
            way = f"{wire.src}>{wire.dst}"
            for name in (way, f"{way}.{wire.conn.kind}"):
                if self.drops.get(name, 0) > 0:
                    self.drops[name] -= 1
                    return True
        return self._world.loss > 0 and self._world.rng.random() < self._world.loss

    def _pump_at(self, wire: Wire, when: float) -> None:
        self._world.time.at(when, lambda: self._pump(wire))

    def _pump(self, wire: Wire) -> None:
        now, queue = self._world.time.now, wire.queue
        while queue and queue[0][0] <= now and wire.conn.up and not self.is_cut(wire):
            _, frames = queue.popleft()
            node = self._world.nodes.get(wire.dst)
            if node is not None and node.running:
                self._world.trace_message(wire, frames, "->")
                node.deliver(wire.conn, frames)
