"""Two servers, some clients, the network between them and the time they share; driven by commands, one a line.

    start P | crash P [at publish] | pause P [at sync] | resume P | wipe P | shorten P 3 | wall P 3600 | drift P 1.05
    busy P 3 at sync | recover P 4 (the next start of P takes 4 s)
    cut P>B | heal P>B | heal * | reset P-B.peer | drop P>c1 3 | crash P, start P ...
    set c1 /a [/b ...] [ttl=500] [lease=L] | lease c1 L 1500 | unlease c1 L | forsake c1 L | del c1 /a
    schedule c1 orders 2.5 [/a] | unschedule c1 (scheduled.py)
    publish c1 orders 3 | topic c1 orders [10] (topics.py)
    consume c1 orders billing | leave c1 | slow c1 | quick c1 (consumers.py)
    tx c1 [+message] /a /b | retx c1 | once c1 /a | reonce c1 | cset c1 /a [=0] | sync c1 | read c1 P /a | switch P
    plain c1 /a
    arbiter | doubt P | trust P | bootstrap P | scrub 1 | forge P
    keyed | access open | access grant c1 read /a/   (access.py) | unkey c1 (keys.py) | flooder | flood 70 (flooder.py)
    intruder takes | intrude (intruder.py) | crowd 6 (crowd.py)
    feed f1 (feedreader.py) | images i1 (imagereader.py)
    renew P | foreign P 7 | bereave P | home P | misplace P   (mistakes.py)
    replica R1 [R2] | at c1 R1 P   (replicas.py) | copies 3 | lose P R1   (copies.py)
    split c1=P c2=B | rejoin c1 B (c1 hears B from now on, and P no more)
    tick 0.5 | deliver | settle 15 | show | chatter on | loss 0.05

In a scenario's world every delay is zero. Nothing moves unless a command says so, and the clock moves only on `tick`.
In a random run one seeded generator makes the delays, losses and crash points, and `tick` between commands moves time.
A failing run is therefore given by its seed, or by the list of its commands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from chp.headers import DURABILITY_NAMES
from chp.limits import Limits
from chp.numbers import describe as number_text

from . import copies, describe, mistakes, scheduled, topics
from .access import OPERATOR, Operator
from .arbiter import LeaseService
from .checks import Checks
from .clients import ClientNode
from .clock import LocalClock, Timeline
from .consumers import QUICK, SLOW, Member
from .crowd import Crowd
from .disk import FREE, Disk
from .feedreader import FeedReader
from .flooder import Flooder
from .imagereader import ImageReader
from .intruder import IDENTITY, Intruder
from .keys import KeyFiles
from .network import Conn, Frames, Network, Wire
from .oracle import Wrong
from .replicas import ReplicaNode
from .servers import POINTS, ServerNode
from .stranger import Stranger

EVENTS_AT_ONCE = 20_000
# In a pair without faults, each change of the active is over within this time.
CALM_S = 5.0
# The commands of programs, and those that move time or print. All other commands make faults or heal them.
HARMLESS = frozenset({
    "set", "del", "cset", "tx", "retx", "once", "reonce", "plain", "sync", "read", "publish", "topic", "schedule",
    "unschedule", "lease", "unlease", "forsake", "consume", "leave", "slow", "quick", "flood", "intrude", "forge",
    "tick", "deliver", "show", "chatter",
})  # fmt: skip


class World:
    """The world: all processes, their network and their time."""

    def __init__(self, seed: int = 0, *, random_delays: bool = False, tracing: bool = True) -> None:
        self.rng = random.Random(seed)
        self.time = Timeline()
        self.tracing, self.chatter = tracing, False
        self.lines: list[str] = []
        self.loss = 0.0
        self.delays = (0.0005, 0.02) if random_delays else (0.0, 0.0)
        self.turns = (0.0, 0.004) if random_delays else (0.0, 0.0)
        self.syncs = (0.0, 0.01) if random_delays else (0.0, 0.0)
        # The seconds that a server takes for each byte of large sets; 0 if turns do not bound such sets.
        self.set_byte_s = 0.0
        self.reconnects = (0.02, 0.4) if random_delays else (0.05, 0.05)
        self.queues_while_down: set[str] = {"req"}
        # True if there are no cuts, pauses and drift. Then the acknowledgements of a lone server also count for
        # linearizability.
        self.gentle = False
        self.limits = Limits()
        self.server_settings: dict[str, Any] = {
            "has_peer": True, "heartbeat_s": 0.25, "peer_timeout_s": 1.0, "solo_wait_s": 3.0, "replica_timeout_s": 1.0,
            "scrub_s": 0.0,
        }  # fmt: skip
        self.net = Network(self)
        self.checks = Checks(self)
        self.nodes: dict[str, Any] = {}
        self.servers = [self._server("P"), self._server("B")]
        self.replicas: list[ReplicaNode] = []
        self.clients: list[ClientNode] = []
        self.readers: list[FeedReader] = []
        self.arbiter: LeaseService | None = None
        self.stranger = Stranger()
        self.flooder: Flooder | None = None
        self.intruder: Intruder | None = None
        self.crowd: Crowd | None = None
        self.key_files = KeyFiles()
        self.operator = Operator(self)
        # identity -> the function that takes the answers to a user without a connection
        self.outsiders: dict[bytes, Callable[[ServerNode, Frames], None]] = {OPERATOR: self.operator.answered}
        # The servers that are told to open a store.
        self.bootstrapped: set[str] = set()
        # The servers whose line to the arbiter is cut; "P.up" and "P.down" are one way each.
        self.doubted: set[str] = set()
        # True if clients have keys. Otherwise there are no rules.
        self.keyed = self.walls_were_set = False
        self.disks_lost = self.topics_removed = False
        # The times when two disks of three were lost.
        self.disasters: list[float] = []
        # The time of the last fault, or of its end.
        self.fault_at = 0.0
        # How often members of the group that counts deliveries ended for another reason than a bad message.
        self.accidents = 0
        self.trouble: dict[tuple[str, str], float] = {}

    def _server(self, name: str) -> ServerNode:
        clock = LocalClock(self.time, 1000.0 if name == "P" else 77_000.0)
        node = self.nodes[name] = ServerNode(self, name, clock, Disk())
        return node

    # -- what nodes ask

    def runs(self, name: str) -> bool:
        """Return True if a process is there. It may be paused."""
        node = self.nodes.get(name)
        return node is not None and node.running

    def _between(self, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * self.rng.random() if high > low else low

    def delay(self) -> float:
        """Return the seconds that a message takes."""
        return self._between(self.delays)

    def turn_delay(self) -> float:
        """Return the seconds until a process takes its input."""
        return self._between(self.turns)

    def sync_s(self) -> float:
        """Return the seconds that a sync takes."""
        return self._between(self.syncs)

    def reconnect_delay(self) -> float:
        """Return the seconds until a broken connection is tried again."""
        return self._between(self.reconnects)

    def connect_server(self, node: ServerNode) -> None:
        """Connect a server that has taken its ports."""
        if isinstance(node, ReplicaNode):
            for server in node.upstream:
                for kind in ("req", "upd", "set"):
                    self.net.connect(kind, node.name, server)
        else:
            self.net.connect("peer", node.name, "B" if node.name == "P" else "P")
        for conn in self.net.of.get(node.name, []):
            self.net.retry(conn)

    def whole_since(self, src: str, dst: str) -> float:
        """Return the time since which the peers' link has lost nothing in this direction, or infinity if it is down."""
        conn = self.net.conns.get(("peer", src, dst))
        if conn is None or not conn.up or self.net.is_cut(conn.wires["up"]) or not self.runs(src):
            return float("inf")
        return self.trouble.get((src, dst), 0.0)

    def troubled(self, conn: Conn) -> None:
        """Note that a fault or a change hit a connection."""
        self.trouble[conn.a, conn.b] = self.time.now

    def faulty(self, seconds: float = 0.0) -> None:
        """Note a fault that lasts this many seconds from now on."""
        self.fault_at = max(self.fault_at, self.time.now + seconds)

    def is_calm(self, since: float) -> bool:
        """Return True if there was no fault for `CALM_S` before `since`, and none after `since`."""
        return not self.loss and not self.doubted and not self.net.cuts and self.fault_at < since - CALM_S

    # -- the transcript

    def trace(self, line: str) -> None:
        """Add a line to the transcript."""
        if self.tracing:
            self.lines.append(line.rstrip())

    def trace_message(self, wire: Wire, frames: Frames, arrow: str) -> None:
        """Add a message that arrives or is lost."""
        if self.tracing:
            text = describe.message(wire.conn.kind, wire.way, frames, self.chatter)
            if text is not None:
                self.trace(f"{wire.src + ' ' + arrow + ' ' + wire.dst:10} {text}")

    def trace_journal(self, node: ServerNode, op: Any) -> None:
        """Add an operation on a server's journal."""
        if self.tracing:
            self.trace(f"{node.name:10} {describe.journal(op)}")

    def trace_fact(self, node: ServerNode, fact: Any) -> None:
        """Add a fact that a server reports."""
        if self.tracing:
            text = describe.fact(fact.event, fact.fields)
            if text is not None:
                self.trace(f"{node.name:10} {text}")

    def trace_result(self, node: ClientNode, op: Any) -> None:
        """Add the answer to a call."""
        if self.tracing:
            kind, *rest = op.result
            if kind == "ack":
                said = f"acknowledged #{number_text(rest[0])} {DURABILITY_NAMES[rest[1]]}"
            elif kind == "read":
                said = f"read {op.keys[0]}={rest[1].decode()} at {number_text(rest[2])}"
            else:
                said = f"refused: {rest[0]} {rest[1]}"
            self.trace(f"{node.name:10} {op.name} {said}")

    # -- commands

    def do(self, line: str) -> None:
        """Perform one command."""
        verb, *words = line.split()
        handler = getattr(self, "_do_" + verb, None)
        if handler is None:
            raise ValueError(f"no such command: {line!r}")
        if verb not in HARMLESS:
            self.faulty()
        handler(*words)

    def _do_client(self, name: str, kind: str, *subtrees: str) -> None:
        clock = LocalClock(self.time, 500.0 * (len(self.clients) + 1))
        node = ClientNode(self, name, clock, kind, ["" if s == "all" else s for s in subtrees] or [""])
        self.nodes[name] = node
        self.clients.append(node)

    def _do_replica(self, name: str, *upstream: str) -> None:
        clock = LocalClock(self.time, 7000.0 * (len(self.replicas) + 1))
        servers = [each for each in upstream if each != "confirms"]
        confirms = len(servers) < len(upstream)
        node = self.nodes[name] = ReplicaNode(self, name, clock, servers or ["P", "B"], confirms=confirms)
        self.replicas.append(node)

    def _do_copies(self, count: str) -> None:
        self.server_settings["copies"] = int(count)

    def _do_lose(self, *names: str) -> None:
        copies.lose(self, *names)

    def _do_at(self, name: str, *servers: str) -> None:
        self.nodes[name].servers = list(servers)

    def _do_feed(self, name: str) -> None:
        reader = self.nodes[name] = FeedReader(self, name)
        self.readers.append(reader)
        reader.start()

    def _do_images(self, name: str) -> None:
        reader = self.nodes[name] = ImageReader(self, name)
        reader.start()

    def _do_start(self, name: str) -> None:
        node = self.nodes[name]
        if not node.running:
            node.start()
        elif isinstance(node, ServerNode):
            # The server has not reached the step at which it was to crash, so it does not crash there any more.
            node.crash_at = ""

    def _do_crash(self, name: str, at: str = "", point: str = "") -> None:
        node = self.nodes[name]
        if point:
            assert point in POINTS, f"a server can crash at {', '.join(POINTS)}"
            node.crash_at = point
        else:
            node.crash()

    def _do_pause(self, name: str, at: str = "", point: str = "") -> None:
        if point:
            assert point in POINTS[:-1], f"a server can be paused at {', '.join(POINTS[:-1])}"
            self.nodes[name].pause_at = point
        else:
            self.nodes[name].pause()

    def _do_busy(self, name: str, seconds: str, _at: str, point: str) -> None:
        """Make a server take this many seconds for its next step of a kind, without stopping it."""
        assert point in POINTS[:-1], f"a server can be busy at {', '.join(POINTS[:-1])}"
        self.nodes[name].busy_at, self.nodes[name].busy_s = point, float(seconds)

    def _do_recover(self, name: str, seconds: str) -> None:
        """Make the next start of a server take this many seconds. The server hears no process meanwhile."""
        self.nodes[name].recovery_s = float(seconds)

    def _do_resume(self, name: str) -> None:
        self.nodes[name].resume()

    def _do_wipe(self, name: str) -> None:
        self.nodes[name].crash()
        self.nodes[name].disk.wipe()
        self.disks_lost = True

    def _do_disk(self, name: str, free: str) -> None:
        assert free in FREE, f"a disk has {', '.join(FREE)}"
        self.nodes[name].disk.free = free

    def _do_shorten(self, name: str, rows: str) -> None:
        """Crash a server and cut its journal short, if the other server's disk has all of it.

        Otherwise an operator would have to decide.
        """
        node, other = self.nodes[name], self.nodes["B" if name == "P" else "P"]
        node.crash()
        if self.checks.oracle.on_path(node.disk.mark, other.disk.number):
            node.disk.shorten(int(rows))
            self.disks_lost = True

    def _do_renew(self, name: str) -> None:
        mistakes.renew(self, name)

    def _do_foreign(self, name: str, count: str) -> None:
        mistakes.foreign(self, name, count)

    def _do_home(self, name: str) -> None:
        mistakes.home(self, name)

    def _do_bereave(self, name: str) -> None:
        mistakes.bereave(self, name)

    def _do_misplace(self, name: str) -> None:
        mistakes.misplace(self, name)

    def _do_wall(self, name: str, seconds: str) -> None:
        self.nodes[name].clock.jump(float(seconds))
        self.walls_were_set = True

    def _do_drift(self, name: str, rate: str) -> None:
        self.nodes[name].clock.drift(float(rate))

    def _do_cut(self, way: str) -> None:
        self.net.cut(way)
        self._note_way(way)

    def _do_heal(self, way: str) -> None:
        self.net.heal(way)
        self._note_way(way)

    def _do_split(self, *sides: str) -> None:
        """Cut the peers' link, and let each client hear only the server that is named with it: `split c1=P c2=B`."""
        self._do_cut("P>B")
        self._do_cut("B>P")
        for name, side in (each.split("=") for each in sides):
            self._hears_only(name, side)

    def _do_rejoin(self, name: str, side: str) -> None:
        """Let a client hear only the named server from now on."""
        self._hears_only(name, side)

    def _hears_only(self, name: str, side: str) -> None:
        """Heal a client's link to the named server. Cut its link to the other server, and lose its messages there."""
        other = "B" if side == "P" else "P"
        for way in (f"{name}>{other}", f"{other}>{name}"):
            self.net.cut(way)
        for kind in ("upd", "set", "req"):
            if conn := self.net.conns.get((kind, name, other)):
                self.net.reset(conn)
        for way in (f"{name}>{side}", f"{side}>{name}"):
            self.net.heal(way)

    def _note_way(self, way: str) -> None:
        for pair in (("P", "B"), ("B", "P")):
            if way == "*" or way.startswith(">".join(pair)):
                self.trouble[pair] = self.time.now

    def _do_arbiter(self) -> None:
        self.arbiter = LeaseService(self)
        self.server_settings["has_arbiter"] = True

    def _do_bootstrap(self, name: str) -> None:
        """Let a server open a store from its next start on, if it has none and hears no peer."""
        self.bootstrapped.add(name)

    def _do_scrub(self, seconds: str) -> None:
        self.server_settings["scrub_s"] = float(seconds)

    def _do_doubt(self, name: str) -> None:
        self.doubted.add(name)

    def _do_trust(self, name: str) -> None:
        self.doubted -= {name, f"{name}.up", f"{name}.down"}

    def _do_drop(self, way: str, n: str = "1") -> None:
        self.net.drop_next(way, int(n))

    def _do_reset(self, name: str) -> None:
        ends, kind = name.split(".")
        a, b = ends.split("-")
        self.net.reset(self.net.conns[kind, a, b])

    def _do_set(self, name: str, *words: str) -> None:
        node = self.nodes[name]
        keys = [w for w in words if w.startswith("/")]
        options = dict(w.split("=") for w in words if not w.startswith("/"))
        extras: dict[str, Any] = {}
        if "ttl" in options:
            extras["t"] = int(options["ttl"])
        if "lease" in options:
            extras["l"] = _lease_id(options["lease"])
        if node.running and not self._full(node):
            op = node.op("set", keys, ttl_ms=extras.get("t", 0))
            node.put(op, extras or None)

    @staticmethod
    def _full(node: ClientNode) -> bool:
        return bool(node.core.unsettled > 200)

    def _do_del(self, name: str, *keys: str) -> None:
        node = self.nodes[name]
        if node.running:
            node.put(node.op("del", list(keys)), {"d": list(range(len(keys)))})

    def _do_tx(self, name: str, *keys: str) -> None:
        node = self.nodes[name]
        if node.running and node.kind != "model":
            message = keys[0] == "+message"
            node.last_tx = node.op("tx", list(keys[message:]), message=message)
            node.versions += 1
            node.transact(node.last_tx, node.versions)

    def _do_retx(self, name: str) -> None:
        """Repeat the last transaction, as a job does that was killed before it heard of the commit."""
        node = self.nodes[name]
        if node.running and node.last_tx is not None:
            op = node.op("retx", node.last_tx.keys, message=node.last_tx.message)
            op.value = node.last_tx.value
            node.transact(op, node.versions)

    def _do_once(self, name: str, *keys: str) -> None:
        """Set keys and publish a message in a batch that counts a version."""
        node = self.nodes[name]
        if node.running and not self._full(node):
            topics.once(node, list(keys))

    def _do_reonce(self, name: str) -> None:
        """Repeat the last version, as a program does that was killed before it heard the answer."""
        node = self.nodes[name]
        if node.running and node.last_once is not None and not self._full(node):
            topics.once(node, node.last_once.keys, again=node.last_once)

    def _do_publish(self, name: str, topic: str, count: str = "1") -> None:
        topics.publish(self.nodes[name], topic, int(count))

    def _do_schedule(self, name: str, topic: str, delay_s: str, key: str | None = None) -> None:
        scheduled.schedule(self.nodes[name], topic, float(delay_s), key)

    def _do_unschedule(self, name: str) -> None:
        scheduled.cancel(self.nodes[name])

    def members_of(self, topic: str, group: str) -> Iterator[Member]:
        """Yield the members of a group whose programs run."""
        for node in self.clients:
            if node.running:
                yield from (each for each in node.consuming.members if (each.topic, each.group) == (topic, group))

    def _do_slow(self, name: str) -> None:
        self.nodes[name].consuming.eager = SLOW

    def _do_quick(self, name: str) -> None:
        self.nodes[name].consuming.eager = QUICK

    def _do_consume(self, name: str, topic: str, group: str) -> None:
        self.nodes[name].consuming.want(topic, group)

    def _do_leave(self, name: str) -> None:
        self.nodes[name].consuming.leave()

    def _do_topic(self, name: str, topic: str, most: str = "") -> None:
        """Make a topic that keeps at most `most` messages, or remove the topic if `most` is empty."""
        self.topics_removed |= not most
        told = {"keep": "size", "max_messages": int(most)} if most else None
        topics.settings(self.nodes[name], topic, told)

    def _do_plain(self, name: str, key: str) -> None:
        node = self.nodes[name]
        if node.running:
            node.put_plain(node.op("plain", [key]))

    def _do_cset(self, name: str, key: str, expected: str = "") -> None:
        node = self.nodes[name]
        if node.running:
            revision = int(expected[1:]) if expected else node.core.revision_of(key)
            op = node.op("cset", [key], expected={key: revision})
            node.put(op, {"c": [[0], [revision]]})

    def _do_sync(self, name: str) -> None:
        """Let a client sync. A model client, which promises nothing about its copy, does nothing."""
        node = self.nodes[name]
        if node.running and node.kind != "model":
            node.sync()

    def _do_lease(self, name: str, lease: str, ttl_ms: str) -> None:
        node = self.nodes[name]
        if node.running:
            node.hold_lease(_lease_id(lease), int(ttl_ms))
            node.put(node.op("refresh", [], lease=_lease_id(lease)), {"lease": [_lease_id(lease), int(ttl_ms)]})

    def _do_forsake(self, name: str, lease: str) -> None:
        self.nodes[name].leases.pop(_lease_id(lease), None)

    def _do_unlease(self, name: str, lease: str) -> None:
        node = self.nodes[name]
        if node.running and node.leases.pop(_lease_id(lease), None):
            node.put(node.op("unlease", [], lease=_lease_id(lease)), {"unlease": _lease_id(lease)})

    def _do_read(self, name: str, server: str, key: str) -> None:
        if self.nodes[name].running:
            self.nodes[name].read(server, key)

    def _do_forge(self, name: str) -> None:
        if self.nodes[name].running:
            self.stranger.acts(self.nodes[name])

    def _do_keyed(self) -> None:
        self.server_settings["keyed"] = self.keyed = True

    def _do_unkey(self, name: str) -> None:
        self.key_files.remove(name, self.time.now)

    def _do_flooder(self) -> None:
        self.flooder, self.limits = Flooder(self), Flooder.limits(self.limits)

    def _do_flood(self, count: str) -> None:
        if self.flooder is not None:
            self.flooder.floods(int(count))

    def _do_intruder(self, kind: str) -> None:
        self.intruder = Intruder(self, kind)
        self.outsiders[IDENTITY] = self.intruder.answered

    def _do_intrude(self) -> None:
        if self.intruder is not None:
            self.intruder.tries()

    def _do_crowd(self, count: str) -> None:
        self.crowd, self.limits = Crowd(self, int(count)), Crowd.limits(self.limits)
        self.nodes[self.crowd.name] = self.crowd
        self.crowd.start()

    def _do_access(self, *words: str) -> None:
        self.operator.does(list(words))

    def _do_switch(self, name: str) -> None:
        node = self.nodes[name]
        if node.running:
            admin = Conn("req", "admin", name)
            admin.up, admin.identity = True, b"admin"
            node.deliver(admin, [b"ICANHAZ?", b"\x02switch\x03", b"\x82\xa3chp\x03\xa2id\x01"])

    def _do_force(self, name: str) -> None:
        """Force a server to serve although it waits because a client has seen a higher epoch."""
        node = self.nodes[name]
        if node.running and not (node.foreign or node.misplaced or node.recovering) and node.core.link.later_epoch:
            admin = Conn("req", "admin", name)
            admin.up, admin.identity = True, b"admin"
            options = msgpack.packb({"chp": 3, "id": 1, "force": True})
            node.deliver(admin, [b"ICANHAZ?", b"\x02switch\x03", options])

    def _do_tick(self, seconds: str) -> None:
        self._run(self.time.now + float(seconds))

    def _do_deliver(self) -> None:
        self._run(self.time.now)

    def _run(self, end: float) -> None:
        time, events, step, at_once, last = self.time, self.time.events, self.time.step, 0, self.time.now
        while events and events[0][0] <= end:
            step()
            if time.now != last:
                at_once, last = 0, time.now
                continue
            at_once += 1
            if at_once > EVENTS_AT_ONCE:
                raise Wrong("the world spins: 20,000 events without the clock moving")
        time.now = max(time.now, end)

    def _do_loss(self, share: str) -> None:
        self.loss = float(share)

    def _do_chatter(self, on: str) -> None:
        self.chatter = on == "on"

    def _do_show(self) -> None:
        for node in (*self.servers, *self.replicas):
            self.trace(f"{node.name:10} {_show_server(node)}")
        for client in self.clients:
            self.trace(f"{client.name:10} {_show_client(client)}")

    def _do_fail(self, name: str, seconds: str) -> None:
        """Crash one server of a healthy pair for good. The other must serve all clients within this many seconds."""
        self.nodes[name].crash()
        other = self.nodes["B" if name == "P" else "P"]
        end = self.time.now + float(seconds)
        while self.checks.not_served_by(other):
            if self.time.now >= end:
                raise Wrong(f"{seconds} s after {name} was gone: {self.checks.not_served_by(other)}")
            self._run(min(end, self.time.now + 0.25))

    def _do_settle(self, seconds: str) -> None:
        """Heal everything, and expect all nodes to be in sync within this many seconds."""
        self.loss = 0.0
        self.doubted.clear()
        self.do("home P")
        self.do("home B")
        self.do("heal *")
        for node in self.nodes.values():
            node.resume()
            if isinstance(node, ServerNode):
                node.crash_at = node.pause_at = node.busy_at = ""
                node.clock.drift(1.0)
        for client in self.clients:
            if client.key in self.key_files.removed:
                client.crash()
        for node in self.nodes.values():
            if not node.running:
                node.start()
        # A long turn can't be healed, so the time counts from its end.
        end = max(self.time.now, self.fault_at) + float(seconds)
        while self.time.now < end:
            self._run(min(end, self.time.now + 0.25))
            self._start_again()
            if not all(map(self.operator.is_open, self.servers)):
                self.do("access open")
            elif not self.checks.quiet():
                break
        else:
            raise Wrong(f"not in sync {seconds} s after all was healed: {self.checks.quiet()}")
        self.checks.end()

    def _start_again(self) -> None:
        """Start a server again that ended because its journal was cut short and its peer was not there."""
        for node, other in zip(self.servers, reversed(self.servers), strict=True):
            if not node.running and node.core.pair.cut_short and other.running and not other.recovering:
                node.start()


def _lease_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def _show_server(node: ServerNode) -> str:
    if not node.running:
        return "is down"
    core = node.core
    sync = " in sync" if core.active and core.pair.in_sync() else ""
    items = " ".join(f"{k}={v.decode()}" for k, v in sorted(core.state.map.values.items()))
    return f"{core.pair.bstate.name} {number_text(core.state.number)}{sync}: {items}"


def _show_client(node: ClientNode) -> str:
    if not node.running:
        return "is down"
    parts = []
    for subtree, at, complete, values, _, _ in node.core.views():
        items = " ".join(f"{k}={v.decode()}" for k, v in sorted(values.items()) if k.startswith(subtree))
        parts.append(f"'{subtree}' {'complete' if complete else 'incomplete'} at {number_text(at)}: {items}")
    return "; ".join(parts)
