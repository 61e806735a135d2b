"""The agent's sockets, and which of them may have a message to read.

    per server   DEALER -> P (requests)    SUB -> P+1 (updates)    XPUB -> P+2 (own sets)
    inproc PAIR  per server: libzmq reports the state of the connection to P, for errors that say what is there

The agent polls the sockets' descriptors, because libzmq would look twice at each polled socket. A descriptor reports a
new message only until the next call into its socket. So every socket that was used is `unread`, and the agent looks at
the socket before it polls again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from chp.addresses import FORMS
from chp.errors import BadInput
from chp.limits import DEFAULT

from ..port.admission import EVENTS, NEVER, Admission
from ..port.connection import TCP_GIVES_UP
from ..port.receive import has_input, receive

# The most messages that are taken from one socket in a turn.
TURN_MESSAGES = 200
RECEIVE_MARK = 1000
SEND_MARK = 4096
# The most requests that may wait: two for each of 64 subtrees, twice.
REQUEST_MARK = 256
# The sockets of a server: DEALER, SUB, XPUB, and the monitor of the DEALER.
REQUESTS, UPDATES, LINK, MONITOR = range(4)
WATCHED = int(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) | EVENTS
Place = tuple[int, int]  # server, kind


class ClientSockets:
    """The sockets of one Clone. `open` makes them, and `connect` connects them to the servers."""

    def __init__(self, endpoints: list[tuple[str, str, str]], credentials: Mapping[str, Any]) -> None:
        self._endpoints, self._credentials = endpoints, credentials
        self.context = zmq.Context()
        self.context.setsockopt(zmq.MAX_SOCKETS, 64 + 8 * len(endpoints))
        self.servers: list[list[zmq.Socket[bytes]]] = []
        self.monitors: list[zmq.Socket[bytes]] = []
        self.admissions: list[Admission] = []
        # The sockets that may have a message which their descriptor does not report.
        self.unread: set[Place] = set()

    def open(self) -> None:
        """Make the sockets."""
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
            # No batch is queued for a collector that is not connected: the batch would be stale (docs/decisions/0003).
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
        """Connect the sockets."""
        for server, endpoints in zip(self.servers, self._endpoints, strict=True):
            for socket, endpoint in zip(server, endpoints, strict=True):
                try:
                    socket.connect(endpoint)
                except zmq.ZMQError as error:
                    raise BadInput(f"{endpoints[0]!r} can't be connected to ({error}); give {FORMS}") from None

    def close(self) -> None:
        """Close the sockets. Messages that were sent have their linger time to leave."""
        for socket in (s for server in self.servers for s in server):
            socket.close()
        for monitor in self.monitors:
            monitor.close(0)
        self.context.term()

    # -- what arrives

    def places(self) -> dict[int, Place]:
        """Return which socket each descriptor belongs to."""
        return {
            int(socket.getsockopt(zmq.FD)): (i, kind)
            for i, (sockets, monitor) in enumerate(zip(self.servers, self.monitors, strict=True))
            for kind, socket in enumerate([*sockets, monitor])
        }

    def drain(self) -> list[tuple[Place, list[list[bytes]]]]:
        """Receive from the sockets that may have messages, up to a limit each."""
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
        """Subscribe to a topic of a server, or unsubscribe from it."""
        self.servers[i][UPDATES].setsockopt(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, topic)
        self.unread.add((i, UPDATES))

    def reconnect(self, i: int) -> None:
        """Connect to a server's updates again.

        The agent calls this between two messages, so libzmq may drop the old pipe.
        """
        endpoint = self._endpoints[i][UPDATES]
        self.servers[i][UPDATES].disconnect(endpoint)
        self.servers[i][UPDATES].connect(endpoint)
        self.unread.add((i, UPDATES))

    def ask(self, i: int, frames: list[bytes]) -> None:
        """Send a request. It is dropped if the server is not connected, and the core asks again later."""
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
                # There is no room. The server will miss this number, and ask for it.
                pass
        # The keys of this dict are the servers.
        for i in dict(messages):
            if has_input(self.servers[i][LINK]):
                self.unread.add((i, LINK))

    def next_knock(self) -> float:
        """Return the time of the next `knock`."""
        due = NEVER
        for each in self.admissions:
            due = min(due, each.due)
        return due

    def knock(self, now: float) -> None:
        """Try again to connect to the servers that did not admit this client."""
        for i, each in enumerate(self.admissions):
            each.step(now)
            self.unread.update((i, kind) for kind in (REQUESTS, UPDATES, LINK))


_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT) | int(zmq.SNDMORE)
# This avoids the wrapper zmq.Socket.send, which costs as much as the sending.
_send_frame: Any = Backend.send


def send(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
    """Send a message without waiting; raise `zmq.Again` if there is no room.

    It takes a sixth of the time of `send_multipart`. A large last frame is not copied: libzmq reads it in place, and no
    code changes it. Ctrl-C may interrupt between two frames. The rest is then sent, as a partial message would spoil
    the next one.
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
