"""The reactor: sockets, clock and journal around the pure core. It acts; it decides nothing.

One turn: wait for something or for the core's deadline, drain a bounded number of messages from each port (the peer
first, so that a server which was stopped hears of its successor before it acknowledges anything), ask the core, and
perform its `Turn` in the order of its fields. Nothing that arrives can end the loop; a journal that fails does,
because from then on no acknowledgement would be true.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import zmq

from chp.limits import DEFAULT, Limits
from chp.numbers import describe

from ..access.admitting import Admitting
from ..access.keyring import Keyring
from ..core.core import CoreConfig, ServerCore
from ..core.performing import (
    Port,
    Step,
    admit,
    answer_operators,
    leave,
    recover,
    refuse_subscription,
    rules_number,
    steps,
    take_inputs,
)
from ..core.snapshots import Snapshotter
from ..core.state.recordlog import Row
from ..core.turn import Copy, Fact, JournalOp, Read, Save, Turn
from ..exits import CannotStart, Exit
from ..ports.beats import QUEUED_MAX as BEATS_MAX
from ..ports.beats import Beats
from ..ports.replies import Replies
from ..ports.sockets import Frames, Sockets, peer_dealer, receive, receive_by, send_all, take_subscriptions, weight
from ..settings.config import Config
from ..settings.readers import without_password
from ..store.journal import Journal, JournalDamaged, JournalError, JournalFull
from . import logs
from .arbiter import Arbiter
from .copies import Copies
from .facts import log_fact
from .measuring import Gauge, give_back
from .metrics import Metrics
from .saving import saved
from .space import Space
from .turnclock import TurnClock

log = logs.get_log(__name__)
HOUSEKEEPING_S = 1.0  # how old a status a scrape may see
NO_KEYS = (
    "this store has rules of who may do what, and without keys nobody is known; start with --keys DIR (`chp keygen` "
    "makes them), as the servers before this one"
)
BLOCKED_RETRY_S = 0.01  # a ROUTER can't tell when one reader has room again


class Server:
    """One server. `bind`, then `run` until `stop`, then `close`; `stop` may be called from any thread or signal."""

    def __init__(
        self, config: Config, journal: Journal, limits: Limits = DEFAULT, keyring: Keyring | None = None
    ) -> None:
        gauge = Gauge(config.max_memory, config.min_free_disk, config.store)
        if why := gauge.impossible:
            raise CannotStart(Exit.USAGE, why)
        limits = replace(limits, pending_bytes_max=config.pending_bytes_max, log_bytes_max=config.retain_bytes)
        self._config, self._journal, self._limits = config, journal, limits
        self._arbiter = Arbiter(config.arbiter, config.name, self._wake) if config.arbiter else None
        self._metrics: Metrics | None = None
        self._housekeeping_due = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._sockets = Sockets(self._context, config, limits, keyring)
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._stopping = False
        self._closed = False
        self._ready: Container[object] | None = None  # the sockets that have something; None: look at all
        self._clock = TurnClock()
        self.tidy: Callable[[bool], None] = lambda gathering: None  # at the end of a turn: cycles.py, in chp-server
        now = self._now = time.monotonic()  # of the turn
        self._space = Space(gauge, now)
        core_config = _core_config(config, journal, gauge.disk_free_min)
        run = secrets.token_bytes(16)  # a peer that sees another knows that we restarted
        self.core = ServerCore(core_config, run, now, limits)
        self.core.told = lambda: {"journal": journal.stats(), "turns": self._clock.facts()}
        asks = partial(admit, self.core), partial(refuse_subscription, self.core)
        self._admitting = None if keyring is None else Admitting(self._sockets.updates, *asks)
        self._replies = Replies(self._sockets.snapshot, limits, self.core.requests)
        self._recover(now)
        self._snapshotter = Snapshotter(journal, limits)
        self._copies = Copies(config.backup_dir, self.core, limits)

    def _recover(self, now: float) -> None:
        loaded, state = recover(self.core, self._journal, now, time.time()), self.core.state
        if loaded.marked:
            missing = {"number": describe(state.number), "mark": describe(loaded.marked)}
            log.warning("the journal was cut short", wanted="what is missing, of the peer", **missing)
        elif loaded.number:
            say = log.warning if loaded.rows_aside else log.info  # what is set aside is lost to this server
            say("recovered", number=describe(state.number), keys=len(state.map), found=loaded.report)

    # -- running

    def bind(self) -> None:
        """Take the ports (`OSError` if one is not to be had), reach the arbiter, serve metrics."""
        if rules_number(self.core) and self._config.keys is None:
            raise CannotStart(Exit.USAGE, NO_KEYS)
        self._sockets.bind()
        if self._arbiter is not None:
            self._arbiter.start()
        if self._config.metrics:
            self._metrics = Metrics(self._config.metrics)
        if self._config.peer is not None:
            solo_s = self._config.solo_wait_s
            log.info("waiting for the peer", peer=self._config.peer, solo_wait_s="never" if solo_s is None else solo_s)

    def run(self) -> None:
        """Serve until `stop`; `CannotStart` if the peer says that this server can't be one of the pair."""
        s = self._sockets
        things: list[Any] = [s.snapshot, s.updates, s.collector, self._wake_in]
        if self._config.peer is not None:  # looking at a socket costs three system calls
            things.append(s.peer_in)
        if s.doors is not None:
            things.append(s.doors.questions)
        polled = [(thing, zmq.POLLIN) for thing in things]
        with self._beating():
            while not self._stopping and not self.core.ends:
                ready = {thing for thing, _ in zmq.zmq_poll(polled, self._timeout_ms())}
                if self._wake_in in ready:
                    os.read(self._wake_in, 4096)
                if s.doors is not None:
                    s.doors.answer(time.monotonic())
                self.turn(ready)
        if self.core.ends:
            raise CannotStart(Exit.USAGE, self.core.ends)

    def _beating(self) -> AbstractContextManager[object]:
        """While it lasts, the peer hears that we live in a long turn too."""
        peer = self._config.peer_endpoint(3)
        if peer is None:
            return nullcontext()
        socket = peer_dealer(self._context, BEATS_MAX, self._sockets.doors)
        return Beats(socket, peer, self.core.pulse, self._let_go)

    def _let_go(self) -> None:
        """With an arbiter, the other may have the lease."""
        if self._arbiter is not None:
            self._arbiter.want(False)

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        due = self.core.next_deadline()
        if self._replies.holding:
            due = min(due, now + BLOCKED_RETRY_S)
        if self._snapshotter.busy or self._copies.busy or self._sockets.intake.waiting:
            due = now
        return max(0, min(1000, int((due - now) * 1000) + 1)) if due > now else 0

    def turn(self, ready: Container[object] | None = None) -> None:
        """Take what has arrived at the sockets that are ready (None: look at all), decide, act.

        The peer is always asked: it may have spoken after the others were found ready, and is to be heard first.
        """
        core, clock, self._ready = self.core, self._clock, ready
        clock.begin()
        heard = None if self._arbiter is None else (self._arbiter.until, self._arbiter.members)
        self._now = time.monotonic()
        core.begin_turn(self._now, time.time(), heard)
        self._space.look(core, self._now)
        take_inputs(core, self)
        self._replies.retry(self._now)
        self._copies.step()
        clock.lap("copies and held replies")
        turn = core.end_turn()
        clock.lap("timers, commit and streams")
        if self._arbiter is not None:
            self._arbiter.want(*core.asks_arbiter)
        self.perform(turn)
        clock.lap("journal and sending")
        if self._admitting is not None:
            self._admitting.look(rules_number(core), self._sockets.subscribers.cut_off)
        if core.cut_short:
            raise JournalDamaged(f"{without_password(self._config.store)}: {core.cut_short}")
        if not core.state.late:
            self._look_after(core)
            clock.lap("housekeeping and journal snapshot")
        self.tidy(core.state.gathering)
        clock.end()

    def _look_after(self, core: ServerCore) -> None:
        try:
            if self._now >= self._housekeeping_due:
                self._keep_house(core)
            if self._snapshotter.step(core):
                log.info("journal snapshot", number=describe(self._snapshotter.number))
        except JournalFull as error:  # a snapshot is abandoned, and rows are trimmed later
            log.limited("the journal has no room to clean up", why=str(error))
            self._snapshotter.give_up(self._space.no_room_to_clean(self._now))

    def _keep_house(self, core: ServerCore) -> None:
        self._housekeeping_due = self._now + HOUSEKEEPING_S
        self._sockets.subscribers.look_now_and_then(self._now)
        if self._sockets.subscribers.cut:
            core.counts["subscribers_cut"] = self._sockets.subscribers.cut
        self._journal.sync()  # what an interval held back, and the trimming of an idle server
        self._replies.look(self._now)
        if self._replies.given_up:
            core.counts["readers_given_up"] = self._replies.given_up
        if self._sockets.doors is not None:
            self._sockets.doors.look()
            core.counts |= self._sockets.doors.counts
        if self._space.tight:
            give_back()
        log.flush()
        if self._metrics is not None:
            self._metrics.tell(core.status(), self._clock.histogram())

    # -- what comes in (performing.Inboxes)

    def take(self, port: Port, handle: Callable[[Frames], None]) -> None:
        """Hand over what has arrived at a port, as much as a turn takes."""
        sockets = self._sockets
        match port:
            case Port.PEER:
                if self._config.peer is not None:
                    self._receive(sockets.peer_in, handle)
            case Port.UPDATES:
                self._take_subscriptions(handle)
            case Port.COLLECTOR:
                self._take_sets(handle)
            case Port.SNAPSHOT:
                self._take_requests(handle)
        self._clock.lap(port)

    def _take_subscriptions(self, handle: Callable[[Frames], None]) -> None:
        sockets = self._sockets
        if self._ready is None or sockets.updates in self._ready:
            most = self._limits.turn_messages_max
            taken = take_subscriptions(sockets.updates, most, sockets.subscribers, self._now, self._admitting)
            for frames in taken:
                self._guard(handle, frames)
        sockets.mark_for(self.core.chp1_joins, self._now)

    def _take_requests(self, handle: Callable[[Frames], None]) -> None:
        socket, limits = self._sockets.snapshot, self._limits
        if self._ready is None or socket in self._ready:
            signs = self._admitting is not None
            for fd, frames in list(receive_by(socket, limits.turn_messages_max, limits.turn_bytes_max, signs=signs)):
                self._replies.came(frames[0], fd, self._now)
                self._guard(handle, frames)

    def _take_sets(self, handle: Callable[[Frames], None]) -> None:
        sockets = self._sockets
        if self._ready is None or sockets.collector in self._ready or sockets.intake.waiting:
            self._hand_over(sockets.intake.take(), handle)

    def _receive(self, socket: zmq.Socket[bytes], handle: Callable[[Frames], None]) -> None:
        self._hand_over(list(receive(socket, self._limits.turn_messages_max, self._limits.turn_bytes_max)), handle)

    def _hand_over(self, messages: list[Frames], handle: Callable[[Frames], None]) -> None:
        if messages:
            self.core.arrived(time.monotonic())
        for frames in messages:
            self._guard(handle, frames)

    def _guard(self, handle: Callable[[Frames], None], frames: Frames) -> None:
        try:
            handle(frames)
        except JournalError:  # a status tells what the journal takes
            raise
        except Exception:
            self._defect()

    def _defect(self) -> None:
        self.core.counts["defects"] += 1
        log.exception("a defect of this program; please report it with this line")

    # -- acting (performing.Ports)

    def perform(self, turn: Turn) -> None:
        """Do what a turn says, in its order."""
        for step in steps(self.core, turn, self):
            if step is Step.NO_ROOM:
                self._wait_for_room()

    def now(self) -> float:
        """The time in the middle of a turn."""
        return time.monotonic()

    def save(self, save: Save) -> None:
        """Write updates that are not history to a file of their own."""
        path = saved(self._config.data, save)
        log.warning("updates that are not history were saved", file=path, updates=len(save.updates))

    def to_peer(self, messages: list[Frames]) -> None:
        """Send to the peer what it has room for."""
        self.core.counts["peer_dropped"] += send_all(self._sockets.peer_out, messages)

    def write(self, ops: Sequence[JournalOp], *, again: bool) -> None:
        """Do the journal's operations, all but the sync."""
        self._snapshotter.write(ops, self.core, again=again)

    def sync(self) -> None:
        """Make them durable."""
        self._journal.sync()

    def no_room(self, error: JournalFull) -> None:
        """The turn waits."""
        self._space.no_room(self.core, error, time.monotonic())
        log.limited("the journal has no room; waiting for some", why=str(error))
        self._let_go()

    def _wait_for_room(self) -> None:
        """Some moments, in which operators are answered."""
        until = time.monotonic() + self._space.wait_s
        while (left := until - time.monotonic()) > 0:
            if self._stopping:
                raise self._space.full
            things = (self._sockets.snapshot, self._sockets.updates, self._wake_in)
            zmq.zmq_poll([(thing, zmq.POLLIN) for thing in things], max(1, int(left * 1000)))
            if self._sockets.doors is not None:
                self._sockets.doors.answer(time.monotonic())
            self._answer_operators()

    def _answer_operators(self) -> None:
        """An operator's program subscribes, to see that we speak CHP/2, and asks for the status."""
        self._ready = None
        aside = answer_operators(self.core, self)
        send_all(self._sockets.updates, aside.publish)
        for identity, messages in aside.replies:
            self.reply(identity, messages)

    def publish(self, messages: list[Frames]) -> None:
        """Send to whoever has subscribed."""
        self._sockets.subscribers.publishing(weight(messages), self._now)
        send_all(self._sockets.updates, messages)

    def acknowledge(self, acks: list[Frames]) -> None:
        """Send answers to sets."""
        send_all(self._sockets.updates, acks)

    def fact(self, fact: Fact) -> None:
        """Write a line of the log."""
        log_fact(log, fact)

    def read(self, read: Read) -> list[Row] | None:
        """A page of the journal."""
        return self._journal.read_after(read.after, read.bytes_max)

    def copy(self, copy: Copy) -> None:
        """Let the next turn begin it."""
        self._copies.ask(copy)

    # -- the snapshot port

    def reply(self, identity: bytes, messages: list[Frames]) -> None:
        """Answer whoever has room; what has no room waits for a while."""
        self._replies.send(identity, messages, self._now)

    # -- the end

    def stop(self) -> None:
        """Let `run` return after its turn."""
        self._stopping = True
        if not self._closed:  # its descriptors may be others' by now
            self._wake()

    def _wake(self) -> None:
        """Let the next turn begin; from any thread or signal."""
        try:
            os.write(self._wake_out, b"x")
        except OSError:
            pass  # it is awake already

    def leave(self) -> None:
        """Tell the peer that we end on purpose, after `run`; nothing is acknowledged any more."""
        if self._config.peer is not None:
            send_all(self._sockets.peer_out, [leave(self.core)])

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
            self._sockets.close()
            self._context.term()
            os.close(self._wake_in)
            os.close(self._wake_out)


def _core_config(config: Config, journal: Journal, disk_free_min: int) -> CoreConfig:
    return CoreConfig(
        primary=config.role != "backup",
        has_peer=config.peer is not None,
        has_arbiter=config.arbiter is not None,
        name=config.name,
        secret=secrets.token_bytes(16),
        exposed=config.exposed,
        keyed=config.keys is not None,
        heartbeat_s=config.heartbeat_s,
        peer_timeout_s=config.peer_timeout_s,
        solo_wait_s=config.solo_wait_s,
        bootstrap=config.bootstrap,
        replica_timeout_s=config.replica_timeout_s,
        durability=journal.durability,
        scrub_s=config.scrub_s,
        keys_max=config.max_keys or None,
        disk_free_min=disk_free_min,
    )
