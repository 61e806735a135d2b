"""The background agent: one thread that owns every socket and lets the core decide (SPEC.md, section 15).

In each turn the agent waits, and receives a bounded number of messages. With the lock held it takes the open batch, and
lets the core handle the messages and the time. With the lock free it performs the effects, settles tickets and hands
changes to watches.

`start` returns when the sockets exist, and `stop` returns when the thread has ended. The application writes to an
eventfd to wake the agent after it put something into the mailbox.

If no other set is under way, the application's thread sends a small batch itself, instead of waking the agent. While
the agent sleeps, the XPUB sockets belong to the thread that holds the mailbox's lock.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from threading import Event, Thread
from time import monotonic

import zmq

from chp import columns

from ..core.events import Ack, Effects, State
from ..core.rate_limited_log import RateLimitedLog
from ..core.server_view import AWAY, CONNECTED, SPEAKS
from ..port.admission import EVENTS as ADMISSION
from .dispatch import Dispatcher
from .mailbox import Mailbox
from .names import look_up
from .sockets import ClientSockets
from .watch import WatchQueue

log = logging.getLogger("chp_client")

IDLE_S_MAX = 60.0
# The application's thread sends at most this many sets itself, and a queued batch of at most this size. For more, it
# gains nothing.
DIRECT_ITEMS, DIRECT_BYTES = 64, 65_536
# The size of a batch does not count the messages in these columns, which may be large.
MESSAGES = frozenset({columns.PUBLISH, columns.SCHEDULE})
WIRE = {
    int(zmq.EVENT_CONNECTED): CONNECTED,
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): SPEAKS,
    int(zmq.EVENT_DISCONNECTED): AWAY,
}


class Agent:
    """The thread and the sockets of one Clone."""

    def __init__(
        self, mailbox: Mailbox, endpoints: list[tuple[str, str, str]], dispatcher: Dispatcher, name: str
    ) -> None:
        self.mailbox = mailbox
        self._batch = mailbox.batch
        self._endpoints = endpoints
        self._dispatcher = dispatcher
        self.sockets = ClientSockets(endpoints, mailbox.credentials)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The time when the agent wakes by itself.
        self.due = 0.0
        self._ready = Event()
        # Other threads wait for this event instead of `join`. An interrupted `join` takes the thread for ended, in
        # Python 3.11.
        self.ended = Event()
        self._failure: Exception | None = None
        self._name = name
        self._limited_log = RateLimitedLog(monotonic())
        self.thread = Thread(target=self._main, name=f"chp-agent-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. Return when the agent is ready, or raise the error that prevented it."""
        self._batch.wake = self.wake_or_send
        self.thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        look_up([addresses[0] for addresses in self._endpoints], self._unresolved)

    def _unresolved(self, i: int, why: str) -> None:
        """Note an unresolved host name. The thread that looks names up calls this."""
        with self.mailbox.lock:
            link = self.mailbox.core.links[i]
            link.unresolved = why
        log.warning("%s: %s; trying on", link.address, why)

    def wake_or_send(self) -> None:
        """Wake the agent, or send a small batch without it.

        The application calls this with the mailbox's lock held, after it put something there while the agent slept.
        """
        mailbox, batch, core = self.mailbox, self._batch, self.mailbox.core
        sealed, pending = batch.sealed, batch.pending
        if not sealed:
            direct = 0 < len(batch.keys) <= DIRECT_ITEMS
        else:
            pending = sealed[0]
            direct = len(sealed) == 1 and not batch.keys
            direct = direct and len(pending.keys) <= DIRECT_ITEMS and pending.size <= DIRECT_BYTES
            direct = direct and MESSAGES.isdisjoint(pending.extras)
        batch.sleeping, direct = False, direct and mailbox.stop_at is None and not mailbox.commands
        try:
            if direct and core.idle() and self.due <= (now := monotonic()) + core.timing.resend_s:
                mailbox.take(now)
                self.sockets.publish(core.take_publish())
                batch.sleeping = not self.sockets.unread
            if not batch.sleeping:
                os.eventfd_write(self.bell, 1)
        # Ctrl-C may interrupt this, as it runs on the application's thread.
        except BaseException:
            batch.requeue_interrupted(pending, core.own.has)
            os.eventfd_write(self.bell, 1)
            raise

    # -- the thread

    def _main(self) -> None:
        mailbox = self.mailbox
        failure: Exception | None = None
        try:
            self.sockets.open()
            self._perform(mailbox.core.take())
            self.sockets.connect()
        except Exception as error:
            self._failure = failure = error
        self._ready.set()
        try:
            if failure is None:
                self._run()
        except Exception as error:
            failure = error
            log.exception("the agent of a Clone ended")
        finally:
            try:
                self._end(failure)
            finally:
                self.ended.set()

    def _end(self, failure: Exception | None) -> None:
        mailbox, batch = self.mailbox, self._batch
        with mailbox.lock:
            mailbox.core.session.settle_held(all_of_them=True)
            effects = mailbox.core.take()
        self._report(effects, mailbox.watches)
        mailbox.shut(failure)
        with mailbox.lock:
            batch.sleeping = False
            batch.wake = lambda: None
            os.close(self.bell)
        self._report(mailbox.core.take(), mailbox.watches)
        self.sockets.close()

    def _run(self) -> None:
        mailbox, batch, core, sockets = self.mailbox, self._batch, self.mailbox.core, self.sockets
        inputs = (core.on_reply, core.on_update, self._on_link, self._on_wire)
        places = sockets.places()
        poll = select.poll()
        for fd in [self.bell, *places]:
            poll.register(fd, select.POLLIN)
        sockets.unread.update(places.values())
        due = core.next_deadline()
        while mailbox.stop_at is None or not self._finished():
            again = sockets.next_knock()
            self.due = min(due, mailbox.stop_at or due, self._limited_log.due, again)
            batch.sleeping = True
            waits = mailbox.commands or batch.keys or batch.sealed
            busy = sockets.unread or (waits and mailbox.has_work())
            timeout_s = 0.0 if busy else min(max(0.0, self.due - monotonic()), IDLE_S_MAX)
            ready = poll.poll(int(timeout_s * 1000 + 0.999))
            # A thread that was sending in place of the agent has finished once the lock is free.
            with mailbox.lock:
                batch.sleeping = False
            for fd, _ in ready:
                if fd == self.bell:
                    os.eventfd_read(fd)
                else:
                    sockets.unread.add(places[fd])
            arrived = sockets.drain()
            with mailbox.lock:
                now = monotonic()
                mailbox.take(now)
                for (i, kind), messages in arrived:
                    for frames in messages:
                        inputs[kind](i, frames, now)
                # The messages may have moved the deadline, so the core checks each one.
                if now >= due:
                    core.on_timer(now)
                # A watch made from here on begins after these changes.
                effects, watches = core.take(), mailbox.watches
                # This comes before `settle`: a thread whose ticket is settled runs only once the agent sleeps.
                due = core.next_deadline()
                overdue = self._limited_log.overdue(now) if now >= self._limited_log.due else ""
            self._perform(effects)
            if now >= again:
                sockets.knock(now)
            self._report(effects, watches)
            if overdue:
                log.warning("Clone %s: %s; %s", self._name, overdue, mailbox.describe())
            if mailbox.waiting or mailbox.awaiting:
                mailbox.notify()

    def _finished(self) -> bool:
        """Return True if the agent was told to stop, and nothing is left or its time is over."""
        mailbox, batch = self.mailbox, self._batch
        # The commands end the leases, however little time is left.
        if mailbox.stop_at is None or mailbox.commands:
            return False
        idle = not (batch.keys or batch.sealed or mailbox.core.session.open_batches)
        return idle or monotonic() >= mailbox.stop_at

    def _on_link(self, i: int, frames: list[bytes], now: float) -> None:
        """Handle a message of an XPUB: 0x01 and a topic means that the collector subscribed, 0x00 that it left."""
        if frames and frames[0][:1] in (b"\0", b"\1"):
            self.mailbox.core.on_link(i, frames[0][:1] == b"\1", now)

    def _on_wire(self, i: int, frames: list[bytes], now: float) -> None:
        """Handle libzmq's event about a connection to P. The event is the first two bytes, in native order."""
        event, link = int.from_bytes(frames[0][:2], sys.byteorder), self.mailbox.core.links[i]
        if event in WIRE:
            self.mailbox.core.on_wire(i, WIRE[event])
        if event & ADMISSION:
            admission = self.sockets.admissions[i]
            admission.heard(frames, now)
            said, link.denied = link.denied, admission.why
            if link.denied not in ("", said):
                log.warning("Clone %s: %s %s", self._name, link.address, link.denied)

    # -- effects, in their order

    def _perform(self, effects: Effects) -> None:
        sockets = self.sockets
        # This comes first, as a topic that is subscribed to again is in both lists.
        for i, topic in effects.unsubscribe:
            sockets.subscribe(i, topic, wanted=False)
        for i, topic in effects.subscribe:
            sockets.subscribe(i, topic)
        for i in effects.reconnect:
            sockets.reconnect(i)
        for i, frames in effects.request:
            sockets.ask(i, frames)
        if effects.publish:
            sockets.publish(effects.publish)

    def _log(self, effects: Effects) -> None:
        for note in effects.notes:
            log.info("%s", note)
        for warning in effects.warnings:
            log.warning("Clone %s: %s", self._name, warning)

    def _settle(self, effects: Effects) -> None:
        mailbox, batch = self.mailbox, self._batch
        batch.bound(mailbox.core.session.batch_items)
        for ticket, result in effects.settled:
            if ticket is not None:
                # A refused ticket is noted before it is settled. So a flush always finds it, unsettled or refused.
                if type(result) is not Ack:
                    mailbox.note_refused(ticket)
                ticket.settle(result)
                if ticket.done:
                    since = batch.outstanding.pop(ticket, None)
                    if mailbox.metrics is not None and since is not None:
                        mailbox.metrics.settled(result, monotonic() - since)
        if mailbox.metrics is not None:
            mailbox.metrics.told(effects)

    def _report(self, effects: Effects, watches: list[WatchQueue]) -> None:
        mailbox = self.mailbox
        if effects.settled or mailbox.metrics is not None:
            self._settle(effects)
        if effects.changes:
            for watch in watches:
                watch.offer(*effects.changes)
        for watch, missed in effects.missed:
            watch.begin(missed)
        if effects.notes or effects.warnings:
            self._log(effects)
        for state in effects.states:
            log.info("now %s", state)
            if said := self._limited_log.told(state, monotonic()):
                log.warning("Clone %s: %s; %s", self._name, said, mailbox.describe())
            self._dispatcher.state(state)
        for lag_s in effects.lags:
            self._dispatcher.lag(lag_s)
        if effects.states and State.CLOSED not in effects.states:
            with mailbox.lock:
                mailbox.changed.notify_all()
