"""A client process: a core (the production one or the model), its sockets, and a program that sets keys.

Each value that a program sets names its operation (`c1.7`), so a checker can tell where a value in a map or a record
comes from. `ops` keeps the operations with the times of call and answer, for the checkers. `read` asks a server for a
snapshot without the core, as a second client would.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from chp.batch import Segment
from chp.topics import pack_messages
from chp_client.core.core import ClientCore

from .clock import LocalClock
from .consumers import IDS as MEMBERS
from .consumers import Consuming
from .model_client import KTHXBAI, REFUSED, SYNC, ModelClient
from .network import Conn, Frames
from .scheduled import Scheduled

if TYPE_CHECKING:
    from .world import World

READ_ID = 1 << 30
# The topic that gets the messages of transactions.
STAGED = "staged"
# The interval at which consumers look for work.
CONSUME_S = 0.2


@dataclass(slots=True, eq=False)
class Op:
    """A call of a program, with its result."""

    name: str
    client: str
    # One of: set, del, cset, tx, retx, once, reonce, refresh, unlease, plain, read, pub, topic, sync.
    kind: str
    keys: list[str]
    value: bytes
    called: float
    expected: dict[str, int] | None = None
    ttl_ms: int = 0
    # The lease of a refresh or an unlease.
    lease: bytes = b""
    # True if a transaction has a message too.
    message: bool = False
    answered: float | None = None
    # ("ack", revision, durability), ("refused", code, detail) or ("read", revision, value, number)
    result: tuple[Any, ...] | None = None

    @property
    def acked(self) -> bool:
        """True if a set was acknowledged."""
        return self.result is not None and self.result[0] == "ack"


class Model(ModelClient):
    """The model client, with the methods that its host calls."""

    def put(self, keys: list[str], values: list[bytes], extras: dict[str, Any] | None, op: Op, now: float) -> None:
        """Submit one segment."""
        self.submit([keys, values, extras], op, now)

    def revision_of(self, key: str) -> int:
        """Return the revision of a key in this client's copies, or 0."""
        return self.revisions.get(key, 0)

    def older_than(self, keys: list[str], revision: int) -> list[str]:
        """Return no key: a model client settles a set when it hears the answer, and promises nothing about its copy."""
        return []

    @property
    def unsettled(self) -> int:
        """The number of batches without an answer."""
        return len(self.unacked)

    @property
    def times_reopened(self) -> int:
        """The number of new sessions that the client began because a server did not know the old one."""
        return self.reopened

    @staticmethod
    def outcome(result: Any) -> tuple[Any, ...]:
        """Return a result in the form of `Op.result`."""
        return tuple(result)


class Production(ClientCore):
    """The production core, with the methods that its host calls."""

    def put(self, keys: list[str], values: list[bytes], extras: dict[str, Any] | None, op: Op, now: float) -> None:
        """Show a segment in the copy and submit it, as Clone does."""
        segment = Segment(list(keys), list(values), extras)
        shown = not (extras and {"c", "once"} & extras.keys())
        if shown:
            self.subscriptions.show(segment)
        self.submit(segment, op, now, shown=shown)

    def revision_of(self, key: str) -> int:
        """Return the revision of a key in this client's copies, or 0."""
        return max(channel.replica.map.revisions.get(key, 0) for channel in self.channels)

    def older_than(self, keys: list[str], revision: int) -> list[str]:
        """Return the keys that the copies hold only in a state before a revision."""
        if self.stats["histories_restarted"]:
            # After a restarted history the same number means another record.
            return []
        return [
            key
            for channel in self.channels
            for key in keys
            if key.startswith(channel.subtree) and channel.replica.map.revisions.get(key, channel.at) < revision
        ]

    def stage(self, op: Op, transaction: bytes, version: int, now: float) -> None:
        """Stage updates in two parts, and commit them as an application's version, as a Spark job does.

        The second part has a message if the operation asks for one.
        """
        message = {"publish": [[STAGED, 1, pack_messages(None, [op.value])]]} if op.message else {}
        for i, (keys, extras) in enumerate(((op.keys[::2], {}), (op.keys[1::2], message))):
            staged = {"stage": [transaction, f"{i}.0"], **extras}
            self.submit(Segment(keys, [op.value] * len(keys), staged), None, now, shown=False)
        commit = [transaction, op.client, version, [[f"{i}.0", 1] for i in range(2)], None]
        self.submit(Segment([], [], {"commit": commit}), op, now, shown=False)

    @property
    def unsettled(self) -> int:
        """The number of batches without an answer."""
        return len(self.outbox)

    @property
    def times_reopened(self) -> int:
        """The number of new sessions that the client began because a server did not know the old one."""
        return self.outbox.reopened

    @property
    def digest_mismatches(self) -> int:
        """The number of times that a channel's digest differed from the server's."""
        return self.stats["digest_mismatches"]

    @staticmethod
    def outcome(result: Any) -> tuple[Any, ...]:
        """Return a result in the form of `Op.result`."""
        if isinstance(result, Exception):
            return ("refused", type(result).__name__, str(result))
        return ("ack", result.revision, ("applied", "journaled", "replicated").index(result.durability))

    def views(self) -> list[tuple[str, int, bool, dict[str, bytes], dict[str, int], set[str]]]:
        """Return the copies in the form of `ModelClient.views`.

        A key with an own set that is not answered yet shows that set, so the key is not compared.
        """
        out = []
        own = {key for batch in self.outbox.batches.values() if batch.shown for key in batch.keys}
        for channel in self.channels:
            replica = channel.replica
            complete = channel.live and channel.sync is None
            hidden = replica.pending.keys() | replica.orphans | own
            out.append((channel.subtree, channel.at, complete, replica.shown, replica.map.revisions, hidden))
        return out


class ClientNode:
    """A client process: c1, c2 and so on."""

    def __init__(self, world: World, name: str, clock: LocalClock, kind: str, subtrees: list[str]) -> None:
        self.world, self.name, self.clock = world, name, clock
        self.kind, self.subtrees = kind, subtrees
        # The servers that the program is given: those of the pair, or replicas.
        self.servers = ["P", "B"]
        self.running = self.paused = False
        self.starts = 0
        # The key of the program, if clients have keys.
        self.key = ""
        self.ops: list[Op] = []
        # The operations that published messages (topics.py).
        self.published: list[Op] = []
        self.consuming = Consuming(self)
        self.scheduled: list[Scheduled] = []
        self._next_member = MEMBERS
        # The number of versions of this client's transactions.
        self.versions = 0
        # The number of versions of its batches with `once`.
        self.counted = 0
        self.last_once: Op | None = None
        self.core: Any = None
        self._next_op = 0
        self._next_read = READ_ID
        self._reads: dict[int, tuple[Op, dict[str, tuple[bytes, int]]]] = {}
        self._forget()

    def _forget(self) -> None:
        self._inbox: deque[tuple[Conn, Frames]] = deque()
        self._scheduled = False
        self._wake_at = float("inf")
        # A CHP/1 client subscribes like this.
        self._topics: list[dict[bytes, None]] = [{b"/p/": None} for _ in self.servers]
        self._reads.clear()
        self.leases: dict[bytes, tuple[int, float]] = {}
        self.last_tx: Op | None = None

    def start(self) -> None:
        """Start a new process with a new session."""
        self._forget()
        self.running, self.paused = True, False
        self.starts += 1
        self.key = self.world.key_files.key_of(self.name) if self.world.keyed else ""
        session = self.name.encode().ljust(8, b".") + self.starts.to_bytes(4, "big") + bytes(4)
        now = self.clock.mono()
        if self.kind == "model":
            self.core = Model(session, self.subtrees[0], 2, now)
        else:
            self.core = Production(session, self.subtrees, list(self.servers), now, limits=self.world.limits)
        for server in self.servers:
            for kind in ("upd", "set", "req"):
                self.world.net.connect(kind, self.name, server)
        self.world.checks.client_started(self)
        self.consuming.begin()
        self._perform()

    def crash(self) -> None:
        """End the process without any notice."""
        if self.running:
            self.running = self.paused = False
            self.world.trace(f"{self.name:10} crashes")
            self.world.net.died(self.name)

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.paused = self.running

    def resume(self) -> None:
        """Let the process go on, as SIGCONT does."""
        if self.paused:
            self.paused = False
            self._schedule(0.0)

    # -- what the network says

    def connected(self, conn: Conn) -> None:
        """Send the subscriptions of a connection that came up."""
        if conn.kind == "upd":
            for topic in self._topics[self.servers.index(conn.b)]:
                self.world.net.send(conn, "up", [b"\x01" + topic])

    def disconnected(self, conn: Conn) -> None:
        """Tell the XPUB of P+2 that its subscriber is gone."""
        if conn.kind == "set" and "set" not in self.world.queues_while_down:
            self.deliver(conn, [b"\x00"])

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """Take a message that has arrived at a socket."""
        self._inbox.append((conn, frames))
        self._schedule(self.world.turn_delay())

    # -- running

    def _schedule(self, after: float) -> None:
        if not self._scheduled and not self.paused:
            self._scheduled = True
            starts = self.starts
            self.world.time.at(self.world.time.now + after, lambda: self._turn(starts))

    def _turn(self, starts: int) -> None:
        if not self.running or self.starts != starts:
            return
        self._scheduled = False
        if self.paused:
            return
        now = self.clock.mono()
        if not (self._inbox or self.leases or self.consuming.members) and self.core.next_deadline() > now:
            # The process was woken for a time that was put off since.
            self._wake()
            return
        while self._inbox:
            self._take(*self._inbox.popleft(), now)
        if self.core.next_deadline() <= now:
            self.core.on_timer(now)
        self._refresh_leases(now)
        self.consuming.act(now)
        self._perform()

    def _take(self, conn: Conn, frames: Frames, now: float) -> None:
        i = self.servers.index(conn.b)
        if conn.kind == "upd":
            if frames[0][:1] == b"\x02" or frames[0] == b"HUGZ":
                self.core.on_update(i, frames, now)
        elif conn.kind == "set":
            self.core.on_link(i, frames[0] == b"\x01", now)
        elif not self.consuming.hear(i, frames, now) and not self._is_read(frames):
            self.core.on_reply(i, frames, now)

    def _perform(self) -> None:
        out, world = self.core.take(), self.world
        for i, topic in out.unsubscribe:
            if self._topics[i].pop(topic, 0) is None:
                self._send("upd", i, [b"\x00" + topic])
        for i, topic in out.subscribe:
            if topic not in self._topics[i]:
                self._topics[i][topic] = None
                self._send("upd", i, [b"\x01" + topic])
        for i, frames in out.request:
            self._send("req", i, frames)
        for i, frames in out.publish:
            self._send("set", i, frames)
        for op, result in out.settled:
            if op is not None:
                op.result, op.answered = self.core.outcome(result), world.time.now
                if op.kind == "sync":
                    world.checks.client_synced(self, op)
                elif op.acked:
                    # A repeated commit writes nothing. Its answer may have the revision at which the
                    # server decided so.
                    keys = [] if op.kind in ("tx", "retx", "reonce") else op.keys
                    world.checks.settled(self, op.name, self.core.older_than(keys, op.result[1]), op.result[1])
                world.trace_result(self, op)
        world.checks.client_turned(self)
        self._wake()

    def _send(self, kind: str, i: int, frames: Frames) -> None:
        conn = self.world.net.conns[kind, self.name, self.servers[i]]
        self.world.checks.access.asks(conn, frames)
        self.world.net.send(conn, "up", frames)

    def say(self, kind: str, i: int, frames: Frames) -> None:
        """Send a message to a server without the core."""
        self._send(kind, i, frames)

    def next_request(self) -> int:
        """Return the id of a question that is asked without the core."""
        self._next_member += 1
        return self._next_member

    def _wake(self) -> None:
        due = self.core.next_deadline()
        if self.consuming.members:
            due = min(due, self.clock.mono() + CONSUME_S)
        if self.leases:
            due = min(due, *(at for _, at in self.leases.values()))
        when = max(self.clock.true_time(due) + 1e-6, self.world.time.now)
        if when == float("inf"):
            return
        if when < self._wake_at or self._wake_at <= self.world.time.now:
            self._wake_at = when
            starts = self.starts
            self.world.time.at(when, lambda: self._wake_now(starts))

    def _wake_now(self, starts: int) -> None:
        if self.running and self.starts == starts:
            self._schedule(0.0)

    # -- the program

    def op(self, kind: str, keys: list[str], **more: Any) -> Op:
        """Return a new operation that is called now."""
        self._next_op += 1
        name = f"{self.name}.{self._next_op}"
        op = Op(name, self.name, kind, keys, name.encode(), self.world.time.now, **more)
        self.ops.append(op)
        return op

    def put(self, op: Op, extras: dict[str, Any] | None = None) -> None:
        """Hand an operation to the core and let the core act."""
        self._note_key(op)
        values = [b"" if op.kind == "del" else op.value] * len(op.keys)
        self.core.put(op.keys, values, extras, op, self.clock.mono())
        if not self.paused:
            self._perform()

    def _note_key(self, op: Op) -> None:
        if self.key:
            self.world.checks.access.calls(op.value, self.key)

    def sync(self) -> None:
        """Send an empty batch, as `Clone.sync` does. It changes nothing, so `ops` does not list it."""
        self._next_op += 1
        self.put(Op(f"{self.name}.{self._next_op}", self.name, "sync", [], b"", self.world.time.now))

    def transact(self, op: Op, version: int) -> None:
        """Commit the keys of an operation together, once for each version."""
        self._note_key(op)
        transaction = op.name.encode().rjust(16, b"t")
        self.core.stage(op, transaction, version, self.clock.mono())
        if not self.paused:
            self._perform()

    def put_plain(self, op: Op) -> None:
        """Send a KVSET of CHP/1 to both servers. No server acknowledges it."""
        uuid = op.value.rjust(16, b"u")
        for i in (0, 1):
            self._send("set", i, [op.keys[0].encode(), bytes(8), uuid, b"", op.value])

    def hold_lease(self, lease: bytes, ttl_ms: int) -> None:
        """Refresh a lease three times a ttl from now on."""
        self.leases[lease] = (ttl_ms, self.clock.mono() + ttl_ms / 3000)

    def _refresh_leases(self, now: float) -> None:
        for lease, (ttl_ms, at) in list(self.leases.items()):
            if at <= now:
                self.leases[lease] = (ttl_ms, now + ttl_ms / 3000)
                self.core.put([], [], {"lease": [lease, ttl_ms]}, self.op("refresh", [], lease=lease), now)

    # -- reads at a server

    def read(self, server: str, key: str) -> None:
        """Ask `server`, or the replica in its place, for a snapshot of everything, and keep the value of `key`."""
        self._next_read += 1
        op = self.op("read", [key])
        self._reads[self._next_read] = (op, {})
        options = {"chp": 3, "id": self._next_read, "from": 0, "session": bytes(16), "credit": 60}
        self._send("req", "PB".index(server), [b"ICANHAZ?", b"", msgpack.packb(options)])

    def _is_read(self, frames: Frames) -> bool:
        header, *items = msgpack.unpackb(frames[4])
        if header[1] not in self._reads:
            return isinstance(header[1], int) and header[1] > READ_ID
        op, found = self._reads[header[1]]
        if header[0] == SYNC:
            for keys, values, extras in items:
                column = [r for r, n in extras["r"] for _ in range(n)]
                found.update(zip(keys, zip(values, column, strict=True), strict=True))
        elif header[0] in (KTHXBAI, REFUSED):
            del self._reads[header[1]]
            op.answered = self.world.time.now
            value, revision = found.get(op.keys[0], (b"", 0))
            op.result = ("read", revision, value, header[2]) if header[0] == KTHXBAI else ("refused", header[2], "")
            self.world.trace_result(self, op)
        return True
