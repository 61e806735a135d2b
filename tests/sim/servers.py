"""A server process: the production core with a simulated network, clock and `Disk`, behind the reactor's interfaces.

Recovery and the order of inputs and effects are those of `chp_server.core.performing`, which runs one step at a time.
With a slow disk the process is busy from the appends to the end of the sync, and a crash there may lose its memory.
The process dies or is stopped just before the step that `crash_at` or `pause_at` names. The step that `busy_at` names
takes long. Meanwhile the thread beside the turns sends BEAT (core/pair/beat.py), unless the process is stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.throttle import Pace
from chp_server.core.performing import (
    ServerPort,
    Step,
    read_journal,
    recover,
    short_port,
    short_turn,
    steps,
    take_inputs,
)
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import JournalError, JournalFull
from chp_server.core.updates.authorizer import Signed
from chp_server.core.updates.resource_limits import ResourceUsage
from chp_server.core.updates.turn import Copy, Fact, JournalRead, Save, Turn

from . import mistakes
from .access import Door, user_of
from .arbiter import Line
from .clock import LocalClock
from .disk import FREE, KEPT, Disk
from .keys import KeyCheck
from .network import Conn, Frames

if TYPE_CHECKING:
    from .world import World

# A process can die or be stopped before a step that has something to do, or after all steps.
POINTS = (*Step, "end")
SPIN_TURNS = 2000
# A step that takes longer than this counts as a fault.
SHORT_S = 0.1
MEASURE_S, NO_ROOM_RETRY_S, NO_ROOM_S = 0.1, 0.5, 10.0
KINDS = {ServerPort.PEER: "peer", ServerPort.UPDATES: "upd", ServerPort.COLLECTOR: "set", ServerPort.SNAPSHOT: "req"}


class FixedPace(Pace):
    """A pace at which a byte of sets takes a fixed time, because a simulated turn takes no time except for its sync."""

    def __init__(self, byte_s: float) -> None:
        super().__init__()
        self.byte_s = byte_s

    def took(self, size: int, seconds: float) -> None:
        """Measure nothing."""


class ServerNode:
    """A server process: P or B."""

    def __init__(self, world: World, name: str, clock: LocalClock, disk: Disk) -> None:
        self.world, self.name, self.clock, self.disk = world, name, clock, disk
        self.primary = name == "P"
        # True if the server has a disk of another pair; True if it has the other server's role (mistakes.py).
        self.foreign = self.misplaced = False
        # True if the server starts on the disk of a replica (copies.py).
        self.promotes = False
        # True once a finished turn has heard the right server, since the server got its wrong disk or role.
        self.met = False
        # The server's own disk, while it has a foreign one.
        self.own_disk: Disk | None = None
        # The last disk that was replaced by a new one.
        self.lost_disk: Disk | None = None
        self.running = self.paused = self.busy = False
        self.starts = 0
        # The times when the process started, and when it had read its journal.
        self.started_at = self.listens_at = 0.0
        self.core: Any = None
        # The line to the arbiter, if there is one.
        self.line: Line | None = None
        # The admission of subscriptions on P+1, if clients have keys.
        self.door: Door | None = None
        self.keys: KeyCheck | None = None
        self.crash_at = self.pause_at = self.busy_at = ""
        self.busy_s = 0.0
        # The duration of the next recovery, during which the server hears no process.
        self.recovery_s = 0.0
        self.recovering = False
        self.turns = 0
        self._anew: tuple[int, ServerCore] | None = None
        self._resume: list[Callable[[], None]] = []
        self._steps: Iterator[Step] = iter(())
        # The time when a stranger last posed as the peer while the peer was heard.
        self.stranger_spoke_at = float("-inf")
        # True if this turn lacked room, so that the server sends nothing until the turn is done.
        self.lacked_room = False
        # True while the server waits for its disk, which takes no processor time.
        self.waits = False
        self.performed = Turn()
        self._took = 0
        self._forget()

    def _forget(self) -> None:
        self.inbox: dict[str, deque[tuple[Conn, bytes, Frames]]] = {k: deque() for k in ("peer", "upd", "set", "req")}
        self._scheduled = False
        self._wake_at = float("inf")
        self._measure_due = float("-inf")
        self._identities: dict[bytes, Conn] = {}
        self._spins = self._pending = 0
        # True once a STATE of the peer has arrived, and once a turn has taken one.
        self._heard = self._hears = False
        # The changes of the connection to the peer's port since the last turn.
        self._connection: list[bool] = []
        # The time when the connection to the peer's port first came up.
        self.connected_at: float | None = None

    # -- starting and ending

    def start(self) -> None:
        """Recover from the journal and take the ports."""
        self._forget()
        self.running, self.paused, self.busy = True, False, False
        self.crash_at = self.pause_at = self.busy_at = ""
        self.starts += 1
        self.started_at = self.world.time.now
        server = self.name.encode() + self.starts.to_bytes(16 - len(self.name), "big")
        now = self.clock.mono()
        self.core = self.new_core(server, now)
        arbiter = None if self.is_replica else self.world.arbiter
        self.line = Line(self, arbiter) if arbiter is not None else None
        self.door = Door(self) if self.core.pair.config.keyed else None
        self.keys = KeyCheck(self) if self.core.pair.config.keyed else None
        recover(self.core, self.disk, now, self.clock.wall())
        self.snapshotter = Snapshotter(self.disk, self.world.limits)
        self.world.checks.recovered(self)
        takes, self.recovery_s, starts = self.recovery_s, 0.0, self.starts
        if takes:
            self.recovering = True
            self.world.time.at(self.world.time.now + takes, lambda: self._listen(starts))
        else:
            self._listen(starts)

    def _listen(self, starts: int) -> None:
        """Take the ports, once the journal is read."""
        if self.running and self.starts == starts:
            self.recovering, self.listens_at = False, self.world.time.now
            self.world.connect_server(self)
            self.schedule(0.0)

    def new_core(self, server: bytes, now: float) -> ServerCore:
        """Return an empty core with this server's settings."""
        config = CoreConfig(
            primary=self.primary is not self.misplaced, name=self.name, durability=self.disk.durability,
            bootstrap=self.name in self.world.bootstrapped, disk_free_min=KEPT, secret=server[::-1],
            promote=self.promotes,
            **self.world.server_settings,
        )  # fmt: skip
        made = ServerCore(config, server, now, self.world.limits)
        if self.world.set_byte_s:
            made.link.sets.pace = FixedPace(self.world.set_byte_s)
        return made

    def recovered_anew(self) -> ServerCore:
        """Return a second core, recovered from the disk as a restart would do. It is kept until the next event."""
        if self._anew is None or self._anew[0] != self.world.time.done:
            now = self.clock.mono()
            core = self.new_core(bytes(16), now)
            recover(core, self.disk, now, self.clock.wall())
            self._anew = self.world.time.done, core
        return self._anew[1]

    def crash(self) -> None:
        """End the process. Its memory is lost, and so is a random part of what its disk had not synced."""
        if self.running:
            self.world.faulty()
            self.running = self.paused = self.busy = self.misplaced = self.recovering = False
            self.world.trace(f"{self.name:10} crashes")
            self.disk.crash(self.world.rng)
            self.world.net.died(self.name)
            self.world.checks.crashed(self)
            self._resume.clear()

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.paused = self.running

    def resume(self) -> None:
        """Let the process go on, as SIGCONT does."""
        self.pause_at = ""
        if self.paused:
            self.paused = False
            self.world.checks.resumed(self)
            resume, self._resume = self._resume, []
            for what in resume:
                what()
            self.schedule(0.0)
            for conn in self.world.net.of[self.name]:
                if conn.kind == "peer":
                    self.world.net.retry(conn)

    @property
    def is_replica(self) -> bool:
        """True if it follows the pair (replicas.py)."""
        return False

    @property
    def holds_lease(self) -> bool:
        """True if the server holds the arbiter's lease by its own clock."""
        return self.line is not None and self.clock.mono() < self.line.until

    # -- what the network says

    @property
    def shakes_hands(self) -> bool:
        """True if the peer can connect. The kernel accepts for a stopped process, but no handshake follows."""
        return not (self.paused or self.recovering)

    def shown(self, conn: Conn) -> bool:
        """Note the key that a client's connection shows, and return True if the server admits it."""
        conn.key = getattr(self.world.nodes[conn.a], "key", "")
        return self.keys is None or self.keys.lets_in(conn.key)

    def connected(self, conn: Conn) -> None:
        """Note a connection that came up."""
        if conn.kind == "peer" and conn.a == self.name:
            self._connection.append(True)
            self.connected_at = self.world.time.now if self.connected_at is None else self.connected_at
        elif conn.kind == "req":
            self._identities[conn.identity] = conn
        elif conn.kind == "set":
            # The server's SUB subscribes to everything.
            self.world.net.send(conn, "down", [b"\x01"])

    def disconnected(self, conn: Conn) -> None:
        """Note a connection that broke, with the unsubscriptions that the XPUB reports."""
        if conn.kind == "peer" and conn.a == self.name:
            self._connection.append(False)
        elif conn.kind == "upd":
            for topic in list(conn.topics):
                self.deliver(conn, [b"", b"\x00" + topic])
            self.deliver(conn, [conn.identity])
        elif conn.kind == "req":
            self._identities.pop(conn.identity, None)

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """Take a message that has arrived at a socket."""
        if conn.kind == "upd":
            frames = self._subscribed(conn, frames)
        elif conn.kind == "peer":
            self._heard |= frames[0] == b"STATE"
            self.world.checks.word(self, conn, frames)
        # The identity is kept beside the message, because a later connection has another one.
        self.inbox[conn.kind].append((conn, conn.identity, frames))
        self.schedule(self.world.turn_delay())

    def _subscribed(self, conn: Conn, frames: Frames) -> Frames:
        """Return the event that the XPUB reports for a subscription or for the end of a connection."""
        if len(frames) == 1 and frames[0][:1] in (b"\x00", b"\x01"):
            topic = frames[0][1:]
            if self.door is not None:
                # In manual mode the XPUB waits for the decision.
                pass
            elif frames[0][:1] == b"\x01":
                conn.topics[topic] = None
            else:
                conn.topics.pop(topic, None)
            return [conn.identity, *frames]
        return frames

    # -- turns

    def schedule(self, after: float) -> None:
        """Take a turn after a delay, unless one is planned already."""
        if not self._scheduled and not self.busy and not self.paused and not self.recovering:
            self._scheduled = True
            starts = self.starts
            self.world.time.at(self.world.time.now + after, lambda: self._turn_if(starts))

    def _turn_if(self, starts: int) -> None:
        self._scheduled = False
        if self.running and not self.paused and not self.busy and self.starts == starts:
            self.turn()

    def turn(self) -> None:
        """Take a turn: take input, decide, act."""
        core, world = self.core, self.world
        self.turns += 1
        world.checks.begins(self)
        self._took, self.lacked_room, self._hears = 0, False, self._heard
        self.performed = turn = self._short_turn() or self._whole_turn()
        if (self.foreign or self.misplaced) and mistakes.knows_no_better(self):
            mistakes.take_away(self)
            return
        world.checks.decided(self, turn)
        if core.link.ends:
            self.crash()
            return
        # A turn that takes sets from the pending list has done something, although these sets may then wait in a queue.
        pending, self._pending = self._pending, len(core._pending.taken)
        said = turn.deliveries or turn.replies or turn.to_peer or turn.publish or turn.acks
        if self._took or said or self._pending < pending:
            self._spins = 0
        else:
            self._spins += 1
            assert self._spins < SPIN_TURNS, f"{self.name} wakes again and again with nothing to do"
        self._steps = steps(core, turn, self)
        self._go_on()

    def _whole_turn(self) -> Turn:
        core, now, wall_s = self.core, self.clock.mono(), self.clock.wall()
        heard = None if self.line is None else (self.line.until, self.line.members)
        self._connection, connection = [], self._connection
        core.begin_turn(now, wall_s, heard, connection)
        if now >= self._measure_due:
            self._measure_due = now + MEASURE_S
            core.measured(ResourceUsage(disk_free=FREE[self.disk.measured]))
        take_inputs(core, self)
        turn: Turn = core.end_turn()
        if self.line is not None:
            self.line.want(*core.pair.asks_arbiter())
        return turn

    def _short_turn(self) -> Turn | None:
        """Take a short turn if messages have come only at the port of short turns, or return None for a whole turn."""
        core, now = self.core, self.clock.mono()
        other = self._connection or self.snapshotter.busy or self.ready != {short_port(core)}
        if other or now >= self._measure_due:
            return None
        return short_turn(core, self, now, self.clock.wall(), core.next_deadline())

    @property
    def ready(self) -> set[ServerPort]:
        """The ports at which messages have arrived."""
        return {port for port, kind in KINDS.items() if self.inbox[kind]}

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        """Hand over the messages that have arrived (performing.Inboxes)."""
        kind, core = KINDS[port], self.core
        queue = self.inbox[kind]
        core.turn.arrived(self.clock.mono())
        for _ in range(min(len(queue), self.world.limits.turn_messages_max)):
            conn, identity, frames = queue.popleft()
            self._took += 1
            if self._is_rejected(conn, frames):
                continue
            if kind == "upd" and self.door is not None and not self.door.decides(conn, frames):
                continue
            if kind == "req":
                self.world.checks.asked(self, frames)
            if kind in ("req", "peer"):
                frames = [identity, *frames]
            handle(Signed(frames, user_of(conn)) if kind in ("req", "set") else frames)

    def _is_rejected(self, conn: Conn, frames: Frames) -> bool:
        """Return True if a message came by a key that was removed. The report of a connection's end does not count."""
        by_client = conn.kind != "peer" and frames[0] != b"" and not (conn.kind == "upd" and len(frames) == 1)
        return by_client and self.keys is not None and self.keys.rejects(conn, user_of(conn))

    def _cut_readers(self) -> None:
        """Cut off readers of P whose keys were removed, as `Replies.cut_removed` does."""
        for identity, conn in list(self._identities.items()):
            if self.keys is not None and not self.keys.admits(conn.key, user_of(conn)):
                self.world.net.reset(conn)
                self.core.requests.gone(identity)

    # -- a turn's effects, step by step

    def _go_on(self) -> None:
        """Do one step after the other, until the process dies, is busy or stops before one."""
        try:
            for step in self._steps:
                busy_s = self._takes_s(step)
                if self.pause_at == step:
                    self.paused, self.pause_at = True, ""
                if busy_s > 0 or self.paused:
                    self._wait(busy_s, step)
                    return
                if self._dies_at(step):
                    return
            self._end_turn()
        except JournalError as error:
            self.world.checks.fail(f"{self.name}: the journal refused: {error}")

    def _takes_s(self, step: Step) -> float:
        """Return the seconds that a step takes."""
        if self.busy_at == step:
            self.busy_at = ""
            return self.busy_s
        return self.world.sync_s() if step is Step.SYNC else NO_ROOM_RETRY_S * (step is Step.NO_ROOM)

    def _wait(self, busy_s: float, step: Step) -> None:
        self.busy, self.waits = True, step in (Step.SYNC, Step.NO_ROOM)
        if self.paused or busy_s > SHORT_S:
            self.world.faulty(busy_s)
        starts = self.starts
        self.world.time.at(self.world.time.now + busy_s, lambda: self._waited(starts, step))
        if busy_s > self.core.link.beat_timer.beat_s / 2 and not self.is_replica:
            self._beat(starts, self.turns)

    def _beat(self, starts: int, turn: int) -> None:
        """Do what the thread beside the turns does (chp_server.ports.beat_thread), again and again during a turn."""
        if not self.running or not self.busy or (self.starts, self.turns) != (starts, turn):
            return
        beat_timer, world = self.core.link.beat_timer, self.world
        if not self.paused:
            frames = beat_timer.due(self.clock.mono(), 0.0 if self.waits else world.time.now + 1.0)
            if frames is not None:
                world.checks.beats(self, frames)
                world.net.beat(self.name, "B" if self.primary else "P", frames)
            if beat_timer.stuck(self.clock.mono()) and self.line is not None:
                self.line.want(False)
        world.time.at(world.time.now + beat_timer.beat_s / 2, lambda: self._beat(starts, turn))

    def _waited(self, starts: int, step: Step) -> None:
        if not self.running or self.starts != starts:
            return
        if self.paused:
            self._resume.append(lambda: self._waited(starts, step))
            return
        self.busy = False
        if not self._dies_at(step):
            self._go_on()

    def _dies_at(self, step: str) -> bool:
        if self.crash_at != step:
            return False
        self.crash()
        return True

    def _end_turn(self) -> None:
        if not self._dies_at("end"):
            try:
                self.snapshotter.step(self.core)
            except JournalFull:
                self.snapshotter.give_up(self.core.turn.now + NO_ROOM_S)
            if self.keys is not None and self.keys.look():
                self._cut_readers()
                self.cut_denied()
            self.met |= self._hears
            self.world.checks.server_turned(self, self.performed)
            if self.core.pair.cut_short:
                self.world.trace(f"{self.name:10} {self.core.pair.cut_short}")
                self.crash()
            else:
                self._wake()

    def _wake(self) -> None:
        if any(self.inbox.values()) or self.snapshotter.busy:
            self.schedule(self.world.turn_delay())
            return
        due = self.clock.true_time(self.core.next_deadline()) + 1e-6
        if due <= self.world.time.now:
            self.schedule(self.world.turn_delay())
        elif due < self._wake_at or self._wake_at <= self.world.time.now:
            self._wake_at = due
            starts = self.starts
            self.world.time.at(due, lambda: self._turn_if_due(starts))

    def _turn_if_due(self, starts: int) -> None:
        if self.running and self.starts == starts and not self._scheduled and not self.busy and not self.paused:
            self._scheduled = True
            self._turn_if(starts)

    # -- what a turn does (performing.Ports)

    def now(self) -> float:
        """Return the time of this server's clock, in the middle of a turn."""
        return self.clock.mono()

    def cut_denied(self) -> None:
        """Break the connections to P+1 that the rules deny."""
        if self.door is not None:
            self.door.look()

    def save(self, save: Save) -> None:
        """Note a file of a suffix."""
        self.world.checks.saves(self, save)

    def to_peer(self, messages: list[Frames]) -> None:
        """Send messages over the link to the peer, if there is one."""
        conn = self.world.net.conns.get(("peer", self.name, "B" if self.primary else "P"))
        for frames in messages:
            if conn is None or not conn.up:
                self.core.committer.counts["peer_dropped"] += 1
            else:
                self.world.net.send(conn, "up", frames)
                self.world.checks.told_peer(self, frames)

    def no_room(self, error: JournalFull) -> None:
        """Note that the turn waits for room, and release the lease."""
        self.lacked_room = True
        self.world.trace(f"{self.name:10} waits for room")
        if self.line is not None:
            self.line.want(False)

    def write(self, ops: Sequence[Any], *, again: bool) -> None:
        """Add operations to those that the next sync makes durable."""
        self.snapshotter.write(ops, self.core, again=again)
        for op in ops:
            self.world.trace_journal(self, op)

    def sync(self) -> None:
        """Sync the disk."""
        self.disk.sync()
        self.world.checks.synced(self, self.performed)

    def publish(self, messages: list[Frames]) -> None:
        """Publish messages to all connections that subscribed to them."""
        self.world.checks.publishes(self, messages)
        self.world.stranger.hears(messages)
        self.broadcast(messages)

    def broadcast(self, messages: list[Frames], only: Conn | None = None) -> None:
        """Send messages to all connections that subscribed to them, or only to one of these."""
        net, checks = self.world.net, self.world.checks
        for conn in net.of[self.name]:
            if conn.kind == "upd" and conn.up and conn.b == self.name and conn.topics and only in (None, conn):
                topics = tuple(conn.topics)
                for frames in messages:
                    if frames[0].startswith(topics):
                        checks.access.sends(self, conn, frames)
                        net.send(conn, "down", frames)

    def acknowledge(self, acks: list[Frames]) -> None:
        """Check acknowledgements, and publish them."""
        self.world.checks.acknowledges(self, acks)
        self.broadcast(acks)

    def reply(self, identity: bytes, messages: list[Frames]) -> None:
        """Send replies to the connection that asked, if it is still there."""
        conn = self._identities.get(identity)
        for frames in messages:
            if (answered := self.world.outsiders.get(identity)) is not None:
                answered(self, frames)
                continue
            if conn is not None:
                self.world.checks.access.sends(self, conn, frames)
            if conn is None or not self.world.net.send(conn, "down", frames):
                self.core.requests.gone(identity)
                return

    def fact(self, fact: Fact) -> None:
        """Add a fact to the transcript."""
        self.world.checks.said(self, fact)
        self.world.trace_fact(self, fact)

    def read(self, read: JournalRead) -> Any:
        """Return the result of a read of the disk's journal."""
        return read_journal(self.disk, read)

    def copy(self, copy: Copy) -> None:
        """Do nothing: no operator makes a copy here."""
