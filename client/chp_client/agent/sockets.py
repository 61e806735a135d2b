"""The agent's sockets, and which of them may have something to read.

    per server   DEALER -> P (requests)    SUB -> P+1 (updates)    XPUB -> P+2 (own sets)
    inproc PAIR  per server: libzmq tells how far the connection to P came, for errors that say what is there

The agent waits for the sockets' descriptors, not for the sockets, of which libzmq would look at each twice. A
descriptor tells of what is new only until the next call into its socket, so a socket that was used is looked at before
the next wait: it is among the `unread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from chp.limits import DEFAULT

from ..port.admission import EVENTS, Admission
from ..port.connection import TCP_GIVES_UP
from ..port.receive import has_input, receive

TURN_MESSAGES = 200  # from one socket a turn
RECEIVE_MARK = 1000
SEND_MARK = 4096
REQUEST_MARK = 256  # two for each of 64 subtrees, twice
REQUESTS, UPDATES, LINK, MONITOR = range(4)  # a server's sockets: DEALER, SUB, XPUB, and what libzmq tells of the first
WATCHED = int(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) | EVENTS
Place = tuple[int, int]  # server, kind


class ClientSockets:
    """Those of one Clone; `open` makes them, `connect` lets them meet the servers."""

    def __init__(self, endpoints: list[tuple[str, str, str]], credentials: Mapping[str, Any]) -> None:
        self._endpoints, self._credentials = endpoints, credentials
        self.context = zmq.Context()
        self.context.setsockopt(zmq.MAX_SOCKETS, 64 + 8 * len(endpoints))
        self.servers: list[list[zmq.Socket[bytes]]] = []
        self.monitors: list[zmq.Socket[bytes]] = []
        self.admissions: list[Admission] = []
        self.unread: set[Place] = set()  # what may have something that its descriptor does not tell

    def open(self) -> None:
        """Make them."""
        for endpoints in self._endpoints:
            dealer, sub, xpub = (self.context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB))
            self.servers.append([dealer, sub, xpub])
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
            self.monitors.append(dealer.get_monitor_socket(WATCHED))
            ways = list(zip((dealer, sub, xpub), endpoints, strict=True))
            known = self._credentials.get(endpoints[0])
            self.admissions.append(Admission(endpoints[0], ways, known))

    def connect(self) -> None:
        """Connect them."""
        for server, endpoints in zip(self.servers, self._endpoints, strict=True):
            for socket, endpoint in zip(server, endpoints, strict=True):
                socket.connect(endpoint)

    def close(self) -> None:
        """Close them, once what was sent has gone, or had its time."""
        for socket in (s for server in self.servers for s in server):
            socket.close()
        for monitor in self.monitors:
            monitor.close(0)
        self.context.term()

    # -- what arrives

    def places(self) -> dict[int, Place]:
        """Where what a descriptor tells of is."""
        return {
            int(socket.getsockopt(zmq.FD)): (i, kind)
            for i, (sockets, monitor) in enumerate(zip(self.servers, self.monitors, strict=True))
            for kind, socket in enumerate([*sockets, monitor])
        }

    def drain(self) -> list[tuple[Place, list[list[bytes]]]]:
        """What has arrived where something may have."""
        unread, self.unread = self.unread, set()
        arrived = []
        for place in sorted(unread):
            i, kind = place
            messages, more = receive(self.monitors[i] if kind == MONITOR else self.servers[i][kind], TURN_MESSAGES)
            arrived.append((place, messages))
            if more:
                self.unread.add(place)
        return arrived

    # -- what is done with them

    def subscribe(self, i: int, topic: bytes, *, wanted: bool = True) -> None:
        """Hear a topic of a server, or no more of it."""
        self.servers[i][UPDATES].setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, topic)
        self.unread.add((i, UPDATES))

    def reconnect(self, i: int) -> None:
        """Connect to a server's updates anew; between two messages, so that libzmq may take the old pipe away."""
        endpoint = self._endpoints[i][UPDATES]
        self.servers[i][UPDATES].disconnect(endpoint)
        self.servers[i][UPDATES].connect(endpoint)
        self.unread.add((i, UPDATES))

    def ask(self, i: int, frames: list[bytes]) -> None:
        """Send a request; of a server that is not connected nothing is asked, and the core asks again."""
        try:
            send(self.servers[i][REQUESTS], frames)
        except zmq.Again:
            pass
        self.unread.add((i, REQUESTS))

    def publish(self, messages: list[tuple[int, list[bytes]]]) -> None:
        """Send batches to collectors."""
        for i, frames in messages:
            try:
                send(self.servers[i][LINK], frames)
            except zmq.ZMQError:
                pass  # no room: the server will miss this number, and say so
        for i in {i for i, _ in messages}:
            if has_input(self.servers[i][LINK]):
                self.unread.add((i, LINK))

    def knock(self, now: float) -> None:
        """At the servers that did not let us in."""
        for i, each in enumerate(self.admissions):
            each.step(now)
            self.unread.update((i, kind) for kind in (REQUESTS, UPDATES, LINK))


_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT) | int(zmq.SNDMORE)
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
