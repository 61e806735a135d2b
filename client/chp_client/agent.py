"""The background agent: one thread that owns every socket and lets the core decide (SPEC.md, "Sockets of a client").

    per server   DEALER -> P (requests)    SUB -> P+1 (updates)    XPUB -> P+2 (own sets)
    inproc PAIR  wakes it: the application sends an empty frame after it put something into the hub
    inproc PAIR  per server: libzmq tells how far the connection to P came, for errors that say what is there

A turn: wait, drain a bounded number of messages, and with the lock held take the open batch, let the core look at each
message and at the clock; then, with the lock free, perform the effects, settle tickets, hand changes to watchers.
`start` returns when the sockets are there; `stop` returns when the thread has ended.
"""

from __future__ import annotations

import logging
import sys
from threading import Event, Thread
from time import monotonic
from typing import Any

import zmq

from chp.limits import DEFAULT

from .dispatch import Dispatcher
from .events import Effects, State
from .hub import Hub
from .link import AWAY, CONNECTED, SPEAKS
from .watch import WatchQueue

log = logging.getLogger("chp_client")

TURN_MESSAGES = 200  # from one socket a turn
TURN_BYTES = 8 << 20
RECEIVE_MARK = 1000
SEND_MARK = 4096
REQUEST_MARK = 256  # two for each of 64 subtrees, twice
IDLE_S_MAX = 60.0
WIRE = {
    int(zmq.EVENT_CONNECTED): CONNECTED,
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): SPEAKS,
    int(zmq.EVENT_DISCONNECTED): AWAY,
}


class Agent:
    """One Clone's thread and sockets."""

    def __init__(self, hub: Hub, endpoints: list[tuple[str, str, str]], dispatcher: Dispatcher, name: str) -> None:
        self._hub = hub
        self._endpoints = endpoints
        self._dispatcher = dispatcher
        self._context = zmq.Context()
        self._context.setsockopt(zmq.MAX_SOCKETS, 64 + 8 * len(endpoints))
        self._pipe = self._context.socket(zmq.PAIR)  # the application's end
        self._pipe.bind("inproc://wake")
        self._sockets: list[list[zmq.Socket[bytes]]] = []
        self._monitors: list[zmq.Socket[bytes]] = []
        self._ready = Event()
        self._failure: Exception | None = None
        self.thread = Thread(target=self._main, name=f"chp-agent-{name}", daemon=True)

    def start(self) -> None:
        """Begin; returns when the agent is ready, raises what kept it from that."""
        self._hub.wake = self._wake
        self.thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        """By the application, with the hub's lock held (which makes the socket change threads safely)."""
        self._hub.sleeping = False
        try:
            self._pipe.send(b"", zmq.NOBLOCK)
        except zmq.ZMQError:
            pass  # full: it is awake; closed: it has ended

    # -- the thread

    def _main(self) -> None:
        hub = self._hub
        failure: Exception | None = None
        wake = self._context.socket(zmq.PAIR)
        try:
            wake.connect("inproc://wake")
            self._open()
            self._perform(hub.core.take())
            for server, endpoints in zip(self._sockets, self._endpoints, strict=True):
                for socket, endpoint in zip(server, endpoints, strict=True):
                    socket.connect(endpoint)
        except Exception as error:
            self._failure = failure = error
        self._ready.set()
        try:
            if failure is None:
                self._run(wake)
        except Exception as error:
            failure = error
            log.exception("the agent of a Clone ended")
        finally:
            self._end(wake, failure)

    def _end(self, wake: zmq.Socket[bytes], failure: Exception | None) -> None:
        hub = self._hub
        hub.shut(failure)
        with hub.lock:
            hub.sleeping = False
            hub.wake = lambda: None
            self._pipe.close(0)
        self._report(hub.core.take(), hub.watches)
        wake.close(0)
        for socket in (s for server in self._sockets for s in server):
            socket.close()
        for monitor in self._monitors:
            monitor.close(0)
        self._context.term()

    def _open(self) -> None:
        for _ in self._endpoints:
            dealer, sub, xpub = (self._context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB))
            self._sockets.append([dealer, sub, xpub])
            for socket in (dealer, sub, xpub):
                socket.setsockopt(zmq.MAXMSGSIZE, DEFAULT.frame_bytes_max)
                socket.setsockopt(zmq.RECONNECT_IVL, 50)
                socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
                socket.setsockopt(zmq.RCVHWM, RECEIVE_MARK)
                socket.setsockopt(zmq.SNDHWM, SEND_MARK)
                socket.setsockopt(zmq.LINGER, 0)
            # Nothing waits for a collector that is away (it would be stale), and its going is told. Not on the sockets
            # that receive messages of several frames: libzmq 4.3 aborts if such a pipe goes between two of them.
            xpub.setsockopt(zmq.IMMEDIATE, 1)
            dealer.setsockopt(zmq.SNDHWM, REQUEST_MARK)
            xpub.setsockopt(zmq.LINGER, 200)
            xpub.setsockopt(zmq.HEARTBEAT_IVL, 1000)  # a server that is stopped must not gather a queue here
            xpub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4000)
            self._monitors.append(dealer.get_monitor_socket(sum(WIRE)))

    def _run(self, wake: zmq.Socket[bytes]) -> None:
        hub, core = self._hub, self._hub.core
        polled = [(wake, zmq.POLLIN)] + [(s, zmq.POLLIN) for server in self._sockets for s in server]
        places = {s: (i, kind) for i, server in enumerate(self._sockets) for kind, s in enumerate(server)}
        places |= {monitor: (i, 3) for i, monitor in enumerate(self._monitors)}
        polled += [(monitor, zmq.POLLIN) for monitor in self._monitors]
        inputs = (core.on_reply, core.on_update, self._on_link, self._on_wire)
        while not self._finished():
            hub.sleeping = True
            due = core.next_deadline()
            timeout_s = 0.0 if hub.has_work() else min(max(0.0, due - monotonic()), IDLE_S_MAX)
            if hub.stop_at is not None:
                timeout_s = min(timeout_s, max(0.0, hub.stop_at - monotonic()))
            ready: list[tuple[Any, int]] = zmq.zmq_poll(polled, int(timeout_s * 1000 + 0.999))
            hub.sleeping = False
            arrived: list[tuple[int, int, list[list[bytes]]]] = []
            for socket, _ in ready:
                if socket is wake:
                    drain(wake, TURN_MESSAGES)
                else:
                    i, kind = places[socket]
                    arrived.append((i, kind, drain(socket, TURN_MESSAGES)))
            with hub.lock:
                now = monotonic()
                hub.take(now)
                for i, kind, messages in arrived:
                    for frames in messages:
                        inputs[kind](i, frames, now)
                if now >= due:  # what arrived may have put it off; the core looks
                    core.on_timer(now)
                effects, watches = core.take(), hub.watches  # a watch made from here on begins after these changes
            self._perform(effects)
            self._report(effects, watches)
            hub.notify()

    def _finished(self) -> bool:
        hub = self._hub
        if hub.stop_at is None:
            return False
        idle = not (hub.keys or hub.sealed or hub.core.outbox.batches)
        return idle or monotonic() >= hub.stop_at

    def _on_link(self, i: int, frames: list[bytes], now: float) -> None:
        """What an XPUB hears: 0x01 and a topic, the collector subscribed; 0x00, it went."""
        if frames and frames[0][:1] in (b"\0", b"\1"):
            self._hub.core.on_link(i, frames[0][:1] == b"\1", now)

    def _on_wire(self, i: int, frames: list[bytes], now: float) -> None:
        """What libzmq says of a connection to P: the event is the first two octets, in this machine's order."""
        self._hub.core.on_wire(i, WIRE[int.from_bytes(frames[0][:2], sys.byteorder)])

    # -- effects, in their order

    def _perform(self, effects: Effects) -> None:
        sockets = self._sockets
        for i, topic in effects.subscribe:
            sockets[i][1].setsockopt(zmq.SUBSCRIBE, topic)
        for i, topic in effects.unsubscribe:
            sockets[i][1].setsockopt(zmq.UNSUBSCRIBE, topic)
        for i, frames in effects.request:
            try:
                send(sockets[i][0], frames)
            except zmq.Again:
                pass  # not connected: the core asks again
        for i, frames in effects.publish:
            try:
                send(sockets[i][2], frames)
            except zmq.Again:
                pass  # the server will miss this number, and say so

    def _report(self, effects: Effects, watches: list[WatchQueue]) -> None:
        hub = self._hub
        for ticket, result in effects.settled:
            if ticket is not None:
                ticket.settle(result)
                if ticket.done:
                    hub.outstanding.pop(ticket, None)
        for changed in effects.changes:
            for watch in watches:
                watch.offer(changed)
        for note in effects.notes:
            log.info("%s", note)
        for state in effects.states:
            log.info("now %s", state)
            self._dispatcher.state(state)
        for lag_s in effects.lags:
            self._dispatcher.lag(lag_s)
        if effects.states and State.CLOSED not in effects.states:
            with hub.lock:
                hub.changed.notify_all()


_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT) | int(zmq.SNDMORE)


def send(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """A message, without waiting; `zmq.Again` if there is no room; a third of `send_multipart`'s time."""
    send_frame: Any = socket.send
    for frame in frames[:-1]:
        send_frame(frame, _MORE)
    send_frame(frames[-1], _DONTWAIT)


def drain(socket: zmq.Socket[bytes], messages_max: int) -> list[list[bytes]]:
    """Whatever has arrived, up to a number of messages and bytes."""
    messages: list[list[bytes]] = []
    size = 0
    recv: Any = socket.recv_multipart
    try:
        while len(messages) < messages_max and size < TURN_BYTES:
            frames = recv(zmq.NOBLOCK)
            messages.append(frames)
            size += len(frames[-1])
    except zmq.Again:
        pass
    return messages
