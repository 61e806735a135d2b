"""The reactor: sockets, clock and journal around the pure core. It acts; it decides nothing.

A turn waits for a message or for the core's deadline. It drains a bounded number of messages from each port, and begins
with the peer's. So a server whose process was stopped hears of its successor before it acknowledges anything. Then the
turn asks the core, and performs the core's `Turn` in the order of its fields. No message can end the loop. A journal
that fails ends it, because no acknowledgement would be true after that.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from chp.limits import DEFAULT, Limits
from chp.numbers import describe

from .. import logs
from ..access.audit import Audit
from ..access.keyring import Keyring
from ..access.subscription_authorizer import SubscriptionAuthorizer
from ..access.zap import ZapHandler
from ..core.core import CoreConfig, ServerCore
from ..core.peer.handshake import EVENTS
from ..core.performing import (
    NO_EFFECTS,
    ServerPort,
    Step,
    admit,
    answer_operators,
    read_journal,
    recover,
    refuse_subscription,
    short_port,
    short_turn,
    steps,
    take_inputs,
)
from ..core.snapshots import Snapshotter
from ..core.state.journal import Journal, JournalDamaged, JournalError, JournalFull, WrongStore
from ..core.updates.authorizer import Signed
from ..core.updates.turn import Copy, Fact, JournalOp, JournalRead, Save, Turn
from ..exits import CannotStart, Exit
from ..logs import Log
from ..ports.beat_thread import QUEUED_MAX as BEATS_MAX
from ..ports.beat_thread import BeatThread
from ..ports.replies import Replies
from ..ports.sockets import Frames, ServerSockets, receive, receive_by, send_all, take_subscriptions, weight
from ..settings.config import Config
from ..settings.readers import without_password
from ..store.sql.sqlite_files import sync_directory
from .arbiter import Arbiter, open_store
from .copies import Copies
from .metrics import MetricsServer, readiness
from .resources import DiskMonitor, Gauge, QuietMoments, give_back, resident_bytes
from .supervisor import Supervisor
from .turn_clock import TurnClock, WaitTimes

FORMAT = 1


def saved(directory: str, save: Save) -> str:
    """Write a suffix. Raise `JournalError`, which ends the server, on failure: the journal will forget the updates."""
    try:
        return write_updates(directory, save)
    except OSError as error:
        text = f"{directory}: updates that are not history can't be saved ({error}); mend it, start again"
        raise JournalError(text) from error


def write_updates(directory: str, save: Save) -> str:
    """Write a suffix durably into a file: a line with the format, then a JSON line for each key. Return its path."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{save.name}-{time.time_ns()}.jsonl")
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps({"chp": "suffix", "format": FORMAT}) + "\n")
        for update in save.updates:
            value = None if update.value is None else base64.b64encode(update.value).decode()
            line = {
                "key": update.key,
                "operation": "delete" if value is None else "set",
                "value_base64": value,
                "ttl_ms": update.ttl_ms,
                "number": describe(update.number),
                "outcome": update.outcome,
            }
            file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    # The file has to last, as the journal is about to forget the updates.
    sync_directory(Path(path))
    return path


# Any program that reaches P+3 can cause these events as often as it likes, so the log limits them.
SAID_BY_OTHERS = frozenset(
    {
        "denied", "peer", "peer left", "settings differ", "a stranger on the peer's port", "catching_up",
        "histories parted", "the passive differs", *EVENTS.values(),
    }
)  # fmt: skip


def log_fact(log: Log, fact: Fact) -> None:
    """Write a fact to the log."""
    if fact.level == "audit":
        return
    if fact.event == "garbage":
        log.limited("garbage on the " + str(fact.fields.pop("port")) + " port", **fact.fields)
    elif fact.event in SAID_BY_OTHERS:
        log.limited(fact.event, fact.level, **fact.fields)
    elif fact.level == "warning":
        log.warning(fact.event, **fact.fields)
    else:
        log.info(fact.event, **fact.fields)


log = logs.get_log(__name__)
# The time between two rounds of housekeeping: a scrape may see a status that is this old.
HOUSEKEEPING_S = 1.0
NO_KEYS = (
    "this store has rules of who may do what, and without keys nobody is known; start with --keys DIR (`chp keygen` "
    "makes them), as the servers before this one"
)
# Reading a member of an enum costs as much as reading several globals of the module.
NO_ROOM = Step.NO_ROOM
# While answers wait, the server tries again after this time: a ROUTER can't tell when one reader has room again.
BLOCKED_RETRY_S = 0.01


class Server:
    """A server: `bind`, then `run` until `stop`, then `close`. Any thread or signal may call `stop`."""

    # At most this many sockets can be open: the default of libzmq.
    sockets_max = 1023

    def __init__(
        self, config: Config, journal: Journal, limits: Limits = DEFAULT, keyring: Keyring | None = None
    ) -> None:
        gauge = Gauge(config.max_memory, config.min_free_disk, config.store)
        if why := gauge.impossible:
            raise CannotStart(Exit.USAGE, why)
        limits = replace(limits, pending_bytes_max=config.pending_bytes_max, log_bytes_max=config.retain_memory_bytes)
        self._config, self._journal, self._limits = config, journal, limits
        self._arbiter = Arbiter(open_store(config), self._wake) if config.arbiter else None
        self._metrics: MetricsServer | None = None
        self._beats: BeatThread | None = None
        self._housekeeping_due = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, self.sockets_max)
        self.sockets = ServerSockets(self._context, config, limits, resident_bytes, keyring)
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self.sockets.waiting.add_pipe(self._wake_in)
        self._stopping = False
        self._closed = False
        s = self.sockets
        self._inboxes: dict[ServerPort, Callable[[Callable[[Frames], None]], None]] = {
            ServerPort.PEER: self._take_peer,
            ServerPort.UPDATES: self._take_subscriptions,
            ServerPort.COLLECTOR: self._take_sets,
            ServerPort.SNAPSHOT: self._take_requests,
        }
        self._port_of: dict[object, ServerPort] = {
            s.peer_in: ServerPort.PEER,
            s.updates: ServerPort.UPDATES,
            s.collector: ServerPort.COLLECTOR,
            s.snapshot: ServerPort.SNAPSHOT,
        }
        # The ports at which messages may have arrived.
        self.ready: set[ServerPort | None] = set()
        # True if answers wait for room, or a backup or a restore is under way.
        self._goes_on = False
        # The time from which on a whole turn is due.
        self._due = 0.0
        self._has_peer = config.peer is not None
        self._clock = TurnClock()
        # The reactor calls this at the end of each turn. chp-server sets it to the `step` of cycles.py.
        self.tidy: Callable[[bool], None] = lambda gathering: None
        # chp-server replaces this by the messages to systemd. A server inside of another program sends none.
        self.supervisor = Supervisor({})
        # The time of the turn.
        now = self._now = time.monotonic()
        self._space = DiskMonitor(gauge, now)
        self._quiet_moments = QuietMoments()
        core_config = CoreConfig.of(
            config, secret=secrets.token_bytes(16), durability=journal.durability, disk_free_min=gauge.disk_free_min
        )
        # The id of this run: by a new id, the peer knows that this server was started again.
        run = secrets.token_bytes(16)
        self.core = self.new_core(core_config, run, now)
        self._waits = WaitTimes(self.core.committer.acks, self.core.requests.syncs.took)
        self._audit = Audit(config.audit, config.name) if config.audit else None
        if self.sockets.zap_handler is not None:
            self.sockets.zap_handler.audit = self._audit
        self.core.requests.shell_facts = lambda: {"journal": journal.stats(), "turns": self._clock.facts()}
        asks = partial(admit, self.core), partial(refuse_subscription, self.core)
        zap_handler = self.sockets.zap_handler
        self._authorizer = (
            None if zap_handler is None else SubscriptionAuthorizer(self.sockets.updates, *asks, zap_handler.admits)
        )
        # The number of key removals at the last search for readers of P whose keys were removed.
        self._removals = 0
        self.replies = Replies(self.sockets.snapshot, limits, self.core.requests)
        self._recover(now)
        self._snapshotter = Snapshotter(journal, limits)
        self._copies = Copies(config.backup_dir, self.core, limits)

    def new_core(self, config: CoreConfig, run: bytes, now: float) -> ServerCore:
        """Return an empty core."""
        return ServerCore(config, run, now, self._limits)

    def _recover(self, now: float) -> None:
        try:
            loaded = recover(self.core, self._journal, now, time.time())
        except WrongStore as error:
            raise CannotStart(Exit.USAGE, str(error)) from None
        state = self.core.state
        if loaded.marked:
            missing = {"number": describe(state.number), "mark": describe(loaded.marked)}
            log.warning("the journal was cut short", wanted="what is missing, of the peer", **missing)
        elif loaded.number:
            # Rows that are set aside are lost to this server.
            say = log.warning if loaded.rows_aside else log.info
            say("recovered", number=describe(state.number), keys=len(state.map), found=loaded.report)

    # -- running

    def bind(self) -> None:
        """Bind the ports, connect to the arbiter, and serve metrics; raise `OSError` if a port is taken."""
        if self.core.state.access.changed and self._config.keys is None:
            raise CannotStart(Exit.USAGE, NO_KEYS)
        self.sockets.bind()
        if self._arbiter is not None:
            self._arbiter.start(lambda: self._stopping)
        if self._config.metrics:
            self._metrics = MetricsServer(self._config.metrics)
        if self._config.peer is not None:
            solo_s = self._config.solo_wait_s
            log.info("waiting for the peer", peer=self._config.peer, solo_wait_s="never" if solo_s is None else solo_s)

    def run(self) -> None:
        """Serve until `stop`; raise `CannotStart` if the peer says that this server can't be one of the pair."""
        s = self.sockets
        with self._beating():
            while not self._stopping and not self.core.link.ends:
                ready = s.waiting.wait(self._timeout_ms())
                if self._wake_in in ready:
                    os.read(self._wake_in, 4096)
                if s.zap_handler is not None and s.zap_handler.questions in ready:
                    s.zap_handler.answer(time.monotonic())
                if len(ready) != 1 or not self._short_turn(ready):
                    self.turn(ready)
        self.supervisor.stopping()
        if self.core.link.ends:
            raise CannotStart(Exit.USAGE, self.core.link.ends)

    def _beating(self) -> AbstractContextManager[object]:
        """Return a context in which a thread tells the peer that this server lives, even in a long turn."""
        if self._config.peer_endpoint(3) is None:
            return nullcontext()
        self._beats = BeatThread(partial(self.sockets.peer_dealer, BEATS_MAX), self.core.link.beat_timer, self._let_go)
        return self._beats

    def _let_go(self) -> None:
        """Release the arbiter's lease, so that the other server may take it."""
        if self._arbiter is not None:
            self._arbiter.want(False)

    def _timeout_ms(self) -> int:
        now, due = time.monotonic(), self.core.next_deadline()
        copies = self._copies.busy
        self._goes_on = copies or self.replies.has_waiting
        if self._goes_on:
            due = min(due, now + BLOCKED_RETRY_S)
        if copies or self._snapshotter.busy:
            due = now
        self._due = min(due, self._housekeeping_due, self._space.due)
        return min(1000, int((due - now) * 1000) + 1) if due > now else 0

    def _short_turn(self, ready: set[object]) -> bool:
        """Take the messages at one socket in a short turn; return False if a whole turn is needed."""
        (socket,) = ready
        if self._port_of.get(socket) is not short_port(self.core):
            return False
        clock = self._clock
        now = self._now = time.monotonic()
        clock.begin(now)
        turn = short_turn(self.core, self, now, time.time(), self._due)
        if turn is None:
            if socket not in self.sockets.waiting.again:
                # All messages of the socket were taken. The whole turn that follows need not read it again.
                ready.clear()
            return False
        if turn is not NO_EFFECTS:
            self.perform(turn)
            clock.lap("sending")
        self.tidy(False)
        clock.end()
        if now >= self.sockets.unfinished.due:
            self.sockets.unfinished.look_if_grown(time.monotonic)
        return True

    def turn(self, ready: set[object]) -> None:
        """Take the messages at the sockets that are ready, decide, act.

        The peer's socket is always read first: a message may have come after the others were found ready.
        """
        core, clock, sockets = self.core, self._clock, self.sockets
        changes = sockets.look_at_peer(ready) if self._has_peer else ()
        if sockets.intake.left:
            ready.add(sockets.collector)
        self.ready = set(map(self._port_of.get, ready))
        heard = None if self._arbiter is None else (self._arbiter.until, self._arbiter.members)
        now = self._now = time.monotonic()
        clock.begin(now)
        core.begin_turn(now, time.time(), heard, changes)
        if now >= self._space.due:
            self._space.look(core, now)
            self._journal.press(self._space.lacks)
        take_inputs(core, self)
        if now >= sockets.unfinished.due:
            sockets.unfinished.look_if_grown(time.monotonic)
        if self._goes_on:
            self._go_on()
        turn = core.end_turn()
        self._waits.decided(now)
        clock.lap("timers, commit and streams")
        if self._arbiter is not None:
            self._arbiter.want(*core.pair.asks_arbiter())
        self.perform(turn)
        clock.lap("journal and sending")
        if core.pair.cut_short:
            raise JournalDamaged(f"{without_password(self._config.store)}: {core.pair.cut_short}")
        state = core.state
        if (turn.journal or now >= self._housekeeping_due or self._snapshotter.busy) and not state.deferred:
            self._look_after(core)
        self.tidy(state.gathering)
        self.supervisor.turned(now)
        clock.end()

    def _go_on(self) -> None:
        """Go on with answers that had no room, and with backups and restores."""
        self.sockets.waiting.again.add(self.sockets.snapshot)
        self.replies.retry(self._now)
        self._copies.step()
        self._clock.lap("copies and held replies")

    def _look_after(self, core: ServerCore) -> None:
        try:
            if self._now >= self._housekeeping_due:
                self._keep_house(core)
                self._clock.lap("housekeeping")
            elif self._space.lacks:
                self._journal.sync()
                self._clock.lap("retained records given up")
            if self._snapshotter.busy or self._journal.snapshot_due() or self._space.tight:
                if self._snapshotter.step(core):
                    log.info("journal snapshot", number=describe(self._snapshotter.number))
                if self._snapshotter.busy:
                    # The snapshot takes room on the disk. So the next turn measures what is left for sets.
                    self._space.due = self._now
                self._clock.lap("journal snapshot")
        # A snapshot is abandoned, and rows are trimmed later.
        except JournalFull as error:
            log.limited("the journal has no room to clean up", why=str(error))
            self._snapshotter.give_up(self._space.no_room_to_clean(self._now))

    def _keep_house(self, core: ServerCore) -> None:
        self._housekeeping_due = self._now + HOUSEKEEPING_S
        self.sockets.waiting.all_again()
        self.sockets.subscribers.look_now_and_then(self._now)
        self.sockets.look_after_users()
        if self.sockets.users.cut:
            core.committer.counts["connections_cut"] = self.sockets.users.cut
        if self.sockets.unfinished.cut:
            core.committer.counts["messages_without_an_end"] = self.sockets.unfinished.cut
        if self.sockets.subscribers.cut:
            core.committer.counts["subscribers_cut"] = self.sockets.subscribers.cut
        # This syncs the records that a sync interval held back, and the trimming by an idle server.
        self._journal.sync()
        self.replies.look(self._now)
        if self.replies.given_up:
            core.committer.counts["readers_given_up"] = self.replies.given_up
        if self.sockets.zap_handler is not None:
            self.sockets.zap_handler.look(self._now)
            self._cut_removed(self.sockets.zap_handler)
            core.committer.counts |= self.sockets.zap_handler.counts
        met = core.pair.peer_hears_us()
        unheard = core.pair.peer_lives() and not met
        anew = self.sockets.look_for_peer(self._now, unheard=unheard, met=met)
        if anew and self._beats is not None:
            self._beats.anew()
        if self._quiet_moments.look(self._now, time.thread_time()) or self._space.tight:
            give_back()
        log.flush()
        if self._audit is not None:
            self._audit.flush()
        self._waits.count_copies()
        if self._metrics is not None or self.supervisor.listens:
            self._tell(core.status())

    def _tell(self, status: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.tell(status, self._clock.histogram(), self._waits, len(self.sockets.subscribers))
        self.supervisor.stands(*readiness(status))

    # -- what comes in (performing.Inboxes)

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        """Hand over the messages at a port, as many as a turn takes."""
        self._inboxes[port](handle)
        self._clock.lap(port)

    def _take_peer(self, handle: Callable[[Frames], None]) -> None:
        sockets, limits = self.sockets, self._limits
        fds: list[int | None] = []
        again, most = sockets.waiting.again, limits.turn_messages_max
        came = receive(sockets.peer_in, most, limits.turn_bytes_max, again, fds.append)
        self._hand_over(came, handle)
        for fd, frames in zip(fds, came, strict=True):
            sockets.bound[3].came(fd)
            if frames[0] == self.core.link.line:
                sockets.unfinished.peer = fd

    def _take_subscriptions(self, handle: Callable[[Frames], None]) -> None:
        sockets, most = self.sockets, self._limits.turn_messages_max
        taken = take_subscriptions(sockets, most, self._authorizer)
        self._guard(handle, taken)

    def _take_requests(self, handle: Callable[[Frames], None]) -> None:
        socket, limits, zap_handler = self.sockets.snapshot, self._limits, self.sockets.zap_handler
        for fd, frames in list(receive_by(socket, limits.turn_messages_max, limits.turn_bytes_max, zap_handler)):
            self.sockets.bound[0].came(fd)
            who = (frames.origin[0], frames.user) if isinstance(frames, Signed) else ("", "")
            self.replies.came(frames[0], fd, self._now, who)
            self.sockets.users.came(fd, who[1])
            self._guard(handle, [frames])

    def _take_sets(self, handle: Callable[[Frames], None]) -> None:
        self._hand_over(self.sockets.intake.take(self.core.link.sets.queue.room), handle)

    def _hand_over(self, messages: list[Frames], handle: Callable[[Frames], None]) -> None:
        if messages:
            self.take_guarded(handle, messages)

    def take_guarded(self, handle: Callable[[Frames], None], messages: Iterable[Frames]) -> None:
        """Hand over messages that have arrived by now. A defect in a handler is logged, and costs one message."""
        self.core.turn.arrived(time.monotonic())
        self._guard(handle, messages)

    def _guard(self, handle: Callable[[Frames], None], messages: Iterable[Frames]) -> None:
        for frames in messages:
            try:
                handle(frames)
            # An answer about the status reads the journal. If the journal fails, the server has to end.
            except JournalError:
                raise
            except Exception:
                self._defect()

    def _defect(self) -> None:
        self.core.committer.counts["defects"] += 1
        log.exception("a defect of this program; please report it with this line")

    # -- acting (performing.Ports)

    def perform(self, turn: Turn) -> None:
        """Perform the steps of a turn, in their order."""
        for step in steps(self.core, turn, self):
            if step is NO_ROOM:
                self._wait_for_room()

    def now(self) -> float:
        """Return the time in the middle of a turn."""
        return time.monotonic()

    def cut_denied(self) -> None:
        """Cut off subscribers of topics that they may not read any more."""
        if self._authorizer is not None:
            self.sockets.waiting.again.add(self.sockets.updates)
            removals = 0 if self.sockets.zap_handler is None else self.sockets.zap_handler.removals
            self._authorizer.look(self.core.state.access.changed, removals, self.sockets.subscribers.cut_off)

    def _cut_removed(self, zap_handler: ZapHandler) -> None:
        """Cut off the connections that have shown a key that was removed."""
        if zap_handler.removals != self._removals:
            self._removals = zap_handler.removals
            self.replies.cut_removed(zap_handler.admits)
            self.cut_denied()

    def save(self, save: Save) -> None:
        """Write updates that are not history to a file of their own."""
        path = saved(self._config.data, save)
        log.warning("updates that are not history were saved", file=path, updates=len(save.updates))

    def to_peer(self, messages: list[Frames]) -> None:
        """Send messages to the peer, and drop those for which there is no room."""
        self.core.committer.counts["peer_dropped"] += self.sockets.to_peer(messages)

    def write(self, ops: Sequence[JournalOp], *, again: bool) -> None:
        """Do the journal's operations, all but the sync."""
        self._snapshotter.write(ops, self.core, again=again)

    def sync(self) -> None:
        """Make the journal's operations durable."""
        began = time.monotonic()
        self._journal.sync()
        self._waits.synced(began)

    def no_room(self, error: JournalFull) -> None:
        """Note that the journal has no room, so that the turn waits."""
        self._space.no_room(self.core, error, time.monotonic())
        log.limited("the journal has no room; waiting for some", why=str(error))
        self._let_go()
        self._journal.press(self._space.lacks)
        # The journal holds none of the turn's records in memory now. So this sync only deletes retained records, as far
        # as there is room for that.
        with suppress(JournalFull):
            self._journal.sync()

    def _wait_for_room(self) -> None:
        """Wait some moments, and answer operators meanwhile."""
        until = time.monotonic() + self._space.wait_s
        while (left := until - time.monotonic()) > 0:
            if self._stopping:
                raise self._space.full
            things = (self.sockets.snapshot, self.sockets.updates, self._wake_in)
            zmq.zmq_poll([(thing, zmq.POLLIN) for thing in things], max(1, int(left * 1000)))
            self.sockets.waiting.all_again()
            self.supervisor.turned(time.monotonic())
            if self.sockets.zap_handler is not None:
                self.sockets.zap_handler.answer(time.monotonic())
            self._answer_operators()

    def _answer_operators(self) -> None:
        """Answer operators' programs, which subscribe to see that we speak CHP/2, and ask for the status."""
        aside = answer_operators(self.core, self)
        send_all(self.sockets.updates, aside.publish)
        for identity, messages in aside.replies:
            self.reply(identity, messages)

    def publish(self, messages: list[Frames]) -> None:
        """Send messages to the subscribers."""
        size = weight(messages)
        self._waits.published(len(messages), size)
        self.sockets.subscribers.publishing(size, self._now)
        self.sockets.waiting.again.add(self.sockets.updates)
        send_all(self.sockets.updates, messages)

    def acknowledge(self, acks: list[Frames]) -> None:
        """Send answers to sets."""
        self.sockets.waiting.again.add(self.sockets.updates)
        send_all(self.sockets.updates, acks)
        self._waits.answered(self._now)

    def fact(self, fact: Fact) -> None:
        """Write a line of the log, of the audit, or of both."""
        if self._audit is not None:
            self._audit.note(fact, self.core.state.number)
        log_fact(log, fact)

    def read(self, read: JournalRead) -> Any:
        """Return what the journal has."""
        return read_journal(self._journal, read)

    def copy(self, copy: Copy) -> None:
        """Let the next turn begin a backup or a restore."""
        self._copies.ask(copy)

    # -- the snapshot port

    def reply(self, identity: bytes, messages: list[Frames]) -> None:
        """Answer a reader; messages for which there is no room wait for a while."""
        self.sockets.waiting.again.add(self.sockets.snapshot)
        self.replies.send(identity, messages, self._now)

    # -- the end

    def stop(self) -> None:
        """Let `run` return after its turn."""
        self._stopping = True
        # After `close`, the descriptors of the pipe may belong to other files.
        if not self._closed:
            self._wake()

    def _wake(self) -> None:
        """Let the next turn begin. Any thread or signal may call this."""
        try:
            os.write(self._wake_out, b"x")
        except OSError:
            # The loop is awake already.
            pass

    def leave(self) -> None:
        """Tell the peer after `run` that we end on purpose; no more acknowledgements are sent."""
        if self._config.peer is not None:
            self.sockets.to_peer([self.core.link.leave_message()])

    def close(self) -> None:
        """Close the ports."""
        if not self._closed:
            self._closed = True
            self._copies.close()
            if self._arbiter is not None:
                self._arbiter.close()
            if self._metrics is not None:
                self._metrics.close()
            log.flush(everything=True)
            if self._audit is not None:
                self._audit.close()
            self.supervisor.close()
            self.sockets.close()
            self._context.term()
            os.close(self._wake_in)
            os.close(self._wake_out)
