"""The background agent: one thread that owns every socket and lets the core decide (SPEC.md, section 15).

    per server   DEALER -> P (requests)    SUB -> P+1 (updates)    XPUB -> P+2 (own sets)
    inproc PAIR  per server: libzmq tells how far the connection to P came, for errors that say what is there
    eventfd      wakes it: the application writes to it after it put something into the mailbox

A turn: wait, drain a bounded number of messages, and with the lock held take the open batch, let the core look at each
message and at the clock; then, with the lock free, perform the effects, settle tickets, hand changes to watchers.
`start` returns when the sockets are there; `stop` returns when the thread has ended.

It waits for the sockets' descriptors, not for the sockets, of which libzmq would look at each twice. A descriptor tells
of what is new only until the next call into its socket, so a socket that was used is looked at before the next wait.

A set that nothing is under way before need not wait until the agent is awake: the application's thread sends it. While
the agent sleeps, the XPUB sockets belong to who holds the mailbox's lock.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from threading import Event, Thread
from time import monotonic
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from chp.limits import DEFAULT

from ..ask import admission
from ..ask.admission import Admission
from ..ask.port import TCP_GIVES_UP
from ..clone.watch import WatchQueue
from ..core.events import Ack, Effects, State
from ..core.serverview import AWAY, CONNECTED, SPEAKS
from ..core.speaking import Voice
from .dispatch import Dispatcher
from .mailbox import Mailbox
from .names import look_up

log = logging.getLogger("chp_client")

TURN_MESSAGES = 200  # from one socket a turn
TURN_BYTES = 8 << 20
RECEIVE_MARK = 1000
SEND_MARK = 4096
REQUEST_MARK = 256  # two for each of 64 subtrees, twice
IDLE_S_MAX = 60.0
REQUESTS, UPDATES, LINK, MONITOR = range(4)  # a server's sockets: DEALER, SUB, XPUB, and what libzmq tells of the first
Place = tuple[int, int]  # server, kind
DIRECT_ITEMS = 64  # as many sets the application's thread sends itself; more gain nothing by it
WIRE = {
    int(zmq.EVENT_CONNECTED): CONNECTED,
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): SPEAKS,
    int(zmq.EVENT_DISCONNECTED): AWAY,
}
WATCHED = sum(WIRE) | admission.EVENTS


class Agent:
    """One Clone's thread and sockets."""

    def __init__(
        self, mailbox: Mailbox, endpoints: list[tuple[str, str, str]], dispatcher: Dispatcher, name: str
    ) -> None:
        self._mailbox = mailbox
        self._batch = mailbox.batch
        self._endpoints = endpoints
        self._dispatcher = dispatcher
        self._context = zmq.Context()
        self._context.setsockopt(zmq.MAX_SOCKETS, 64 + 8 * len(endpoints))
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._due = 0.0  # when the agent wakes by itself
        self._unread: set[Place] = set()  # what may have something that its descriptor does not tell
        self._sockets: list[list[zmq.Socket[bytes]]] = []
        self._monitors: list[zmq.Socket[bytes]] = []
        self._admissions: list[Admission] = []
        self._ready = Event()
        self.ended = Event()  # to be waited for: a `join` that is interrupted takes the thread for ended (Python 3.11)
        self._failure: Exception | None = None
        self._name = name
        self._voice = Voice(monotonic())
        self.thread = Thread(target=self._main, name=f"chp-agent-{name}", daemon=True)

    def start(self) -> None:
        """Begin; returns when the agent is ready, raises what kept it from that."""
        self._batch.wake = self._wake
        self.thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        look_up([addresses[0] for addresses in self._endpoints], self._unresolved)

    def _unresolved(self, i: int, why: str) -> None:
        """On the thread that looks names up."""
        with self._mailbox.lock:
            link = self._mailbox.core.links[i]
            link.unresolved = why
        log.warning("%s: %s; trying on", link.address, why)

    def _wake(self) -> None:
        """By the application, with the mailbox's lock held, when it put something there while the agent sleeps."""
        mailbox, batch, core = self._mailbox, self._batch, self._mailbox.core
        plain = 0 < len(batch.keys) <= DIRECT_ITEMS and not (batch.sealed or mailbox.commands)
        plain = plain and mailbox.stop_at is None
        batch.sleeping, draft = False, batch.draft
        try:
            if plain and core.idle() and self._due <= (now := monotonic()) + core.timing.resend_s:
                mailbox.take(now)
                self._publish(core.take_publish())
                batch.sleeping = not self._unread
            if not batch.sleeping:
                os.eventfd_write(self._bell, 1)
        except BaseException:  # Ctrl-C: this is the application's thread
            batch.trim_interrupted(draft, core.own.has)
            os.eventfd_write(self._bell, 1)
            raise

    # -- the thread

    def _main(self) -> None:
        mailbox = self._mailbox
        failure: Exception | None = None
        try:
            self._open()
            self._perform(mailbox.core.take())
            for server, endpoints in zip(self._sockets, self._endpoints, strict=True):
                for socket, endpoint in zip(server, endpoints, strict=True):
                    socket.connect(endpoint)
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
        mailbox, batch = self._mailbox, self._batch
        with mailbox.lock:
            mailbox.core.session.settle_held(all_of_them=True)
            effects = mailbox.core.take()
        self._report(effects, mailbox.watches)
        mailbox.shut(failure)
        with mailbox.lock:
            batch.sleeping = False
            batch.wake = lambda: None
            os.close(self._bell)
        self._report(mailbox.core.take(), mailbox.watches)
        for socket in (s for server in self._sockets for s in server):
            socket.close()
        for monitor in self._monitors:
            monitor.close(0)
        self._context.term()

    def _open(self) -> None:
        for endpoints in self._endpoints:
            dealer, sub, xpub = (self._context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB))
            self._sockets.append([dealer, sub, xpub])
            for socket in (dealer, sub, xpub):
                socket.setsockopt(zmq.MAXMSGSIZE, DEFAULT.frame_bytes_max)
                socket.setsockopt(zmq.RECONNECT_IVL, 50)
                socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
                socket.setsockopt(zmq.RCVHWM, RECEIVE_MARK)
                socket.setsockopt(zmq.SNDHWM, SEND_MARK)
                socket.setsockopt(zmq.LINGER, 0)
            # Nothing waits for a collector that is away: it would be stale (docs/decisions/0003).
            xpub.setsockopt(zmq.IMMEDIATE, 1)
            dealer.setsockopt(zmq.SNDHWM, REQUEST_MARK)
            xpub.setsockopt(zmq.LINGER, 200)
            # A server that takes nothing, or a network that is gone, must not gather a queue here.
            for option, value in TCP_GIVES_UP:
                xpub.setsockopt(option, value)
            self._monitors.append(dealer.get_monitor_socket(WATCHED))
            ways = list(zip((dealer, sub, xpub), endpoints, strict=True))
            known = self._mailbox.credentials.get(endpoints[0])
            self._admissions.append(Admission(endpoints[0], ways, known))

    def _run(self) -> None:
        mailbox, batch, core = self._mailbox, self._batch, self._mailbox.core
        inputs = (core.on_reply, core.on_update, self._on_link, self._on_wire)
        places = self._places()
        poll = select.poll()
        for fd in [self._bell, *places]:
            poll.register(fd, select.POLLIN)
        self._unread.update(places.values())
        while not self._finished():
            due = core.next_deadline()
            again = min(each.due for each in self._admissions)
            self._due = min(due, mailbox.stop_at or due, self._voice.due, again)
            batch.sleeping = True
            timeout_s = (
                0.0 if self._unread or mailbox.has_work() else min(max(0.0, self._due - monotonic()), IDLE_S_MAX)
            )
            ready = poll.poll(int(timeout_s * 1000 + 0.999))
            with mailbox.lock:  # who sends for us has done so
                batch.sleeping = False
            for fd, _ in ready:
                if fd == self._bell:
                    os.eventfd_read(fd)
                else:
                    self._unread.add(places[fd])
            arrived = self._drain()
            with mailbox.lock:
                now = monotonic()
                mailbox.take(now)
                for (i, kind), messages in arrived:
                    for frames in messages:
                        inputs[kind](i, frames, now)
                if now >= due:  # what arrived may have put it off; the core looks
                    core.on_timer(now)
                effects, watches = core.take(), mailbox.watches  # a watch made from here on begins after these changes
                overdue = self._voice.overdue(now)
            self._perform(effects)
            if now >= again:
                self._knock(now)
            self._report(effects, watches)
            if overdue:
                log.warning("Clone %s: %s; %s", self._name, overdue, mailbox.describe())
            mailbox.notify()

    def _places(self) -> dict[int, Place]:
        """Where what a descriptor tells of is."""
        return {
            int(socket.getsockopt(zmq.FD)): (i, kind)
            for i, (sockets, monitor) in enumerate(zip(self._sockets, self._monitors, strict=True))
            for kind, socket in enumerate([*sockets, monitor])
        }

    def _drain(self) -> list[tuple[Place, list[list[bytes]]]]:
        """What has arrived where something may have."""
        unread, self._unread = self._unread, set()
        arrived = []
        for place in sorted(unread):
            i, kind = place
            messages, more = receive(self._monitors[i] if kind == MONITOR else self._sockets[i][kind], TURN_MESSAGES)
            arrived.append((place, messages))
            if more:
                self._unread.add(place)
        return arrived

    def _finished(self) -> bool:
        mailbox, batch = self._mailbox, self._batch
        if mailbox.stop_at is None or mailbox.commands:  # its leases are ended, however little time there is
            return False
        idle = not (batch.keys or batch.sealed or mailbox.core.open_batches)
        return idle or monotonic() >= mailbox.stop_at

    def _on_link(self, i: int, frames: list[bytes], now: float) -> None:
        """What an XPUB hears: 0x01 and a topic, the collector subscribed; 0x00, it went."""
        if frames and frames[0][:1] in (b"\0", b"\1"):
            self._mailbox.core.on_link(i, frames[0][:1] == b"\1", now)

    def _on_wire(self, i: int, frames: list[bytes], now: float) -> None:
        """What libzmq says of a connection to P: the event is the first two octets, in this machine's order."""
        event, link = int.from_bytes(frames[0][:2], sys.byteorder), self._mailbox.core.links[i]
        if event in WIRE:
            self._mailbox.core.on_wire(i, WIRE[event])
        if event & admission.EVENTS:
            self._admissions[i].heard(frames, now)
            said, link.denied = link.denied, self._admissions[i].why
            if link.denied not in ("", said):
                log.warning("Clone %s: %s %s", self._name, link.address, link.denied)

    def _knock(self, now: float) -> None:
        """At the servers that did not let us in."""
        for i, each in enumerate(self._admissions):
            each.step(now)
            self._unread.update((i, kind) for kind in (REQUESTS, UPDATES, LINK))

    # -- effects, in their order

    def _perform(self, effects: Effects) -> None:
        sockets = self._sockets
        for i, topic in effects.unsubscribe:  # first: who wants a topic anew takes it back and gives it again
            sockets[i][UPDATES].setsockopt(zmq.UNSUBSCRIBE, topic)
            self._unread.add((i, UPDATES))
        for i, topic in effects.subscribe:
            sockets[i][UPDATES].setsockopt(zmq.SUBSCRIBE, topic)
            self._unread.add((i, UPDATES))
        for i in effects.reconnect:  # between two messages, so that libzmq may take the old pipe away
            endpoint = self._endpoints[i][UPDATES]
            sockets[i][UPDATES].disconnect(endpoint)
            sockets[i][UPDATES].connect(endpoint)
            self._unread.add((i, UPDATES))
        for i, frames in effects.request:
            try:
                send(sockets[i][REQUESTS], frames)
            except zmq.Again:
                pass  # not connected: the core asks again
            self._unread.add((i, REQUESTS))
        if effects.publish:
            self._publish(effects.publish)

    def _publish(self, messages: list[tuple[int, list[bytes]]]) -> None:
        for i, frames in messages:
            try:
                send(self._sockets[i][LINK], frames)
            except zmq.ZMQError:
                pass  # no room: the server will miss this number, and say so
        for i in {i for i, _ in messages}:
            if has_input(self._sockets[i][LINK]):
                self._unread.add((i, LINK))

    def _log(self, effects: Effects) -> None:
        for note in effects.notes:
            log.info("%s", note)
        for warning in effects.warnings:
            log.warning("Clone %s: %s", self._name, warning)

    def _settle(self, effects: Effects) -> None:
        mailbox, batch = self._mailbox, self._batch
        for ticket, result in effects.settled:
            if ticket is not None:
                if type(result) is not Ack:
                    mailbox.refused.append(ticket)  # before it is settled, so that a flush finds it here or there
                ticket.settle(result)
                if ticket.done:
                    since = batch.outstanding.pop(ticket, None)
                    if mailbox.metrics is not None and since is not None:
                        mailbox.metrics.settled(result, monotonic() - since)
        if mailbox.metrics is not None:
            mailbox.metrics.told(effects)

    def _report(self, effects: Effects, watches: list[WatchQueue]) -> None:
        mailbox = self._mailbox
        self._settle(effects)
        if effects.changes:
            for watch in watches:
                watch.offer(*effects.changes)
        for watch, missed in effects.missed:
            watch.begin(missed)
        self._log(effects)
        for state in effects.states:
            log.info("now %s", state)
            if said := self._voice.told(state, monotonic()):
                log.warning("Clone %s: %s; %s", self._name, said, mailbox.describe())
            self._dispatcher.state(state)
        for lag_s in effects.lags:
            self._dispatcher.lag(lag_s)
        if effects.states and State.CLOSED not in effects.states:
            with mailbox.lock:
                mailbox.changed.notify_all()


_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT) | int(zmq.SNDMORE)
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_get_option: Any = Backend.get
_send_frame: Any = Backend.send  # without the wrapper of zmq.Socket.send, which costs as much as the sending


def send(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """A message, without waiting; `zmq.Again` if there is no room; a sixth of `send_multipart`'s time.

    A last frame that is large goes without a copy: libzmq reads it where it is, and nobody changes it. A signal's
    handler may raise when a frame has gone (Ctrl-C): the rest follows, or it would spoil the next message.
    """
    rest = iter(frames[:-1])
    try:
        for frame in rest:
            _send_frame(socket, frame, _MORE)
    except zmq.ZMQError:
        raise
    except BaseException:
        for frame in rest:
            _send_frame(socket, frame, _MORE)
        _send_frame(socket, frames[-1], _DONTWAIT)
        raise
    _send_frame(socket, frames[-1], _DONTWAIT, len(frames[-1]) < zmq.COPY_THRESHOLD)


def has_input(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has arrived."""
    return bool(_get_option(socket, _EVENTS) & _POLLIN)


def drain(socket: zmq.Socket[bytes], messages_max: int) -> list[list[bytes]]:
    """Whatever has arrived, up to a number of messages and bytes."""
    return receive(socket, messages_max)[0]


def receive(socket: zmq.Socket[bytes], messages_max: int) -> tuple[list[list[bytes]], bool]:
    """Whatever has arrived, up to a number of messages and bytes; and whether there may be more.

    A `Frame` knows whether another follows; asking the socket (as recv_multipart does) takes longer. Where a message
    came alone, asking for another costs less than the exception that says there is none.
    """
    messages: list[list[bytes]] = []
    size = 0
    recv: Any = socket.recv
    try:
        while len(messages) < messages_max and size < TURN_BYTES:
            frame = recv(_DONTWAIT, False)
            frames = [frame.bytes]
            while frame.more:
                frame = recv(_DONTWAIT, False)
                frames.append(frame.bytes)
            messages.append(frames)
            size += len(frames[-1])
            if len(messages) <= 2 and not has_input(socket):
                return messages, False
    except zmq.Again:
        return messages, False
    return messages, True
