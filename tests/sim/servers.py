"""A server process: the production core, its journal on a `Disk`, and the reactor's way of performing a turn.

Like `chp_server.reactor`: what has arrived is drained, the peer first, then subscriptions, sets, requests; the `Turn`
is performed in the order of its fields. With a slow disk the process is busy from the appends to the end of the sync,
and what is in memory may be lost there. `crash_at` names a field of the turn before which the process dies.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from chp_server.core import CoreConfig, ServerCore
from chp_server.journal import JournalError
from chp_server.snapshots import Snapshotter, recover_snapshot
from chp_server.turn import Turn

from .arbiter import Line
from .clock import LocalClock
from .disk import Disk
from .network import Conn, Frames

if TYPE_CHECKING:
    from .world import World

CRASH_POINTS = ("to_peer", "journal", "sync", "publish", "acks", "confirm", "replies", "end")
SPIN_TURNS = 2000


class Died(Exception):
    """The process ended in the middle of a turn."""


class ServerNode:
    """P or B."""

    def __init__(self, world: World, name: str, clock: LocalClock, disk: Disk) -> None:
        self.world, self.name, self.clock, self.disk = world, name, clock, disk
        self.primary = name == "P"
        self.running = self.paused = self.busy = False
        self.starts = 0
        self.started_at = 0.0
        self.core: Any = None
        self.line: Line | None = None  # to the arbiter, if there is one
        self.crash_at = ""
        self.pause_at_sync = False
        self.turns = 0
        self.defect: Exception | None = None
        self._resume: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        self.inbox: dict[str, deque[tuple[Conn, Frames]]] = {k: deque() for k in ("peer", "upd", "set", "req")}
        self._scheduled = False
        self._wake_at = float("inf")
        self._identities: dict[bytes, Conn] = {}
        self._spins = 0

    # -- starting and ending

    def start(self) -> None:
        """Recover from the journal and take the ports."""
        self._forget()
        self.running, self.paused, self.busy, self.crash_at = True, False, False, ""
        self.pause_at_sync = False
        self.starts += 1
        self.started_at = self.world.time.now
        server = bytes([ord(self.name)]) + self.starts.to_bytes(15, "big")
        now = self.clock.mono()
        settings = self.world.server_settings
        self.core = ServerCore(
            CoreConfig(primary=self.primary, name=self.name, durability=self.disk.durability, **settings),
            server, now, self.world.limits,
        )  # fmt: skip
        self.line = Line(self, self.world.arbiter) if self.world.arbiter is not None else None
        self._recover(now)
        self.snapshotter = Snapshotter(self.disk, self.world.limits)
        self.world.checks.recovered(self)
        self.world.connect_server(self)
        self.schedule(0.0)

    def _recover(self, now: float) -> None:
        self.core.read_journal = self.disk.read_after
        self.replayed(self.disk.load(), now)

    def replayed(self, loaded: Any, now: float) -> Any:
        """The state that a journal restores, by the core's own committer."""
        commits, wall_s = self.core.commits, self.clock.wall()
        recover_snapshot(commits, loaded.snapshot, self.world.limits, now, wall_s)
        for row in loaded.rows:
            commits.log.append(commits.follow(row.body, now, wall_s))
        if commits.drop_held():
            self.disk.drop_after(commits.state.number)
        return commits.state

    def crash(self) -> None:
        """The process is gone, with what was in memory and a part of what was not synced."""
        if self.running:
            self.running = self.paused = self.busy = False
            self.world.trace(f"{self.name:10} crashes")
            self.disk.crash(self.world.rng)
            self.world.net.died(self.name)
            self.world.checks.crashed(self)
            self._resume.clear()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = self.running

    def resume(self) -> None:
        """SIGCONT."""
        self.pause_at_sync = False
        if self.paused:
            self.paused = False
            self.world.checks.resumed(self)
            resume, self._resume = self._resume, []
            for what in resume:
                what()
            self.schedule(0.0)

    @property
    def holds_lease(self) -> bool:
        """Whether the arbiter's word, as this server has it, is still good by its clock."""
        return self.line is not None and self.clock.mono() < self.line.until

    # -- what the network says

    def connected(self, conn: Conn) -> None:
        """A connection came up."""
        if conn.kind == "req":
            self._identities[conn.identity] = conn
        elif conn.kind == "set":
            self.world.net.send(conn, "down", [b"\x01"])  # our SUB subscribes to everything

    def disconnected(self, conn: Conn) -> None:
        """A connection broke: the XPUB tells of subscriptions that are gone."""
        if conn.kind == "upd":
            for topic in list(conn.topics):
                self.deliver(conn, [b"\x00" + topic])
        elif conn.kind == "req":
            self._identities.pop(conn.identity, None)

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """A message has arrived at a socket."""
        if conn.kind == "upd":
            topic = frames[0][1:]
            if frames[0][:1] == b"\x01":
                conn.topics[topic] = None
            else:
                conn.topics.pop(topic, None)
        elif conn.kind == "peer":
            self.world.checks.told(self, frames)
        self.inbox[conn.kind].append((conn, frames))
        self.schedule(self.world.turn_delay())

    # -- turns

    def schedule(self, after: float) -> None:
        """Take a turn in a while, unless one is to come already."""
        if not self._scheduled and not self.busy and not self.paused:
            self._scheduled = True
            starts = self.starts
            self.world.time.at(self.world.time.now + after, lambda: self._turn_if(starts))

    def _turn_if(self, starts: int) -> None:
        self._scheduled = False
        if self.running and not self.paused and not self.busy and self.starts == starts:
            self.turn()

    def turn(self) -> None:
        """Take what has arrived, decide, act."""
        core, world = self.core, self.world
        self.turns += 1
        world.checks.begins(self)
        took = self._drain()
        turn = core.end_turn()
        world.checks.decided(self, turn)
        self._spins = 0 if took or turn.replies or turn.to_peer or turn.publish else self._spins + 1
        assert self._spins < SPIN_TURNS, f"{self.name} wakes again and again with nothing to do"
        try:
            self._before_sync(turn)
        except Died:
            self.crash()
        except JournalError as error:
            world.checks.fail(f"{self.name}: the journal refused: {error}")

    def _drain(self) -> int:
        core, inbox = self.core, self.inbox
        if self.line is not None:
            core.lease_until = self.line.until
            self.line.want(core.wants_lease)
        core.begin_turn(self.clock.mono(), self.clock.wall())
        took = 0
        for kind, handle in (("peer", core.peer_message), ("upd", None), ("set", core.collect), ("req", core.request)):
            queue = inbox[kind]
            for _ in range(min(len(queue), self.world.limits.turn_messages_max)):
                conn, frames = queue.popleft()
                took += 1
                if handle is None:
                    core.subscription(frames[0])
                elif kind == "req":
                    if conn.up:
                        handle([conn.identity, *frames])
                else:
                    handle(frames)
        return took

    def _point(self, name: str) -> None:
        if self.crash_at == name:
            raise Died

    def _before_sync(self, turn: Turn) -> None:
        self.world.checks.saves(self, turn)
        self._point("to_peer")
        self._to_peer(turn.to_peer)
        self._point("journal")
        if not turn.journal:
            self._after_sync(turn)
            return
        self._write(turn)
        sync_s = self.world.sync_s()
        self.paused, self.pause_at_sync = self.pause_at_sync, False
        if sync_s <= 0 and not self.paused:
            self._after_sync(turn)
            return
        self.busy = True
        starts = self.starts
        self.world.time.at(self.world.time.now + sync_s, lambda: self._synced(starts, turn))

    def _write(self, turn: Turn) -> None:
        self.snapshotter.write(turn.journal, self.core)
        for op in turn.journal:
            self.world.trace_journal(self, op)

    def _synced(self, starts: int, turn: Turn) -> None:
        if not self.running or self.starts != starts:
            return
        if self.paused:
            self._resume.append(lambda: self._synced(starts, turn))
            return
        self.busy = False
        try:
            self._after_sync(turn)
        except Died:
            self.crash()

    def _after_sync(self, turn: Turn) -> None:
        self._point("sync")
        self.disk.sync()
        self.world.checks.synced(self, turn)
        self._point("publish")
        self._publish(turn.publish)
        self._point("acks")
        acks = self.core.in_time(turn.acks, self.clock.mono())
        self.world.checks.acknowledges(self, acks)
        self._publish(acks)
        self._point("confirm")
        self._to_peer(turn.confirm)
        self._point("replies")
        for identity, messages in turn.replies:
            self._reply(identity, messages)
        for fact in turn.facts:
            self.world.trace_fact(self, fact)
        self._point("end")
        self.snapshotter.step(self.core)
        self.world.checks.server_turned(self, turn)
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

    # -- sending

    def _to_peer(self, messages: list[Frames]) -> None:
        if messages:
            conn = self.world.net.conns.get(("peer", self.name, "B" if self.primary else "P"))
            for frames in messages:
                if conn is None or not conn.up:
                    self.core.counts["peer_dropped"] += 1
                else:
                    self.world.net.send(conn, "up", frames)
                    self.world.checks.told_peer(frames)

    def _publish(self, messages: list[Frames]) -> None:
        if not messages:
            return
        net = self.world.net
        for conn in net.of[self.name]:
            if conn.kind == "upd" and conn.up and conn.topics:
                topics = tuple(conn.topics)
                for frames in messages:
                    if frames[0].startswith(topics):
                        net.send(conn, "down", frames)

    def _reply(self, identity: bytes, messages: list[Frames]) -> None:
        conn = self._identities.get(identity)
        for frames in messages:
            if conn is None or not self.world.net.send(conn, "down", frames):
                self.core.requests.gone(identity)
                return
