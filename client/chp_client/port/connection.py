"""One server without an agent: port P for questions and, if topics are wanted, P+1 for what it publishes.

    connection.reach(wait_s)                  wait until the connection is up
    connection.ask(question)                  send a question; False if no connection is up
    connection.answer(question, silence_s)    yield each message of the answer; `Elsewhere` if this server gives none
    connection.published()                    yield the messages that came on the topics, a bounded number

All questions of this package but the agent's go out here (SPEC.md, section 17). A question is never queued for a server
that is away: it would be stale when the server is back. `Admission` connects again after a handshake that failed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from time import monotonic

import zmq

from chp.addresses import FORMS, beside
from chp.errors import BadInput
from chp.headers import Greeting, Header, Heartbeat
from chp.headers import Refused as RefusedHeader
from chp.limits import DEFAULT
from chp.messages import HUGZ

from ..clientfile import Credentials
from ..core.question import Question, Told, read
from .admission import DONE, EVENTS, Admission
from .receive import drain

# The receiving socket holds at most this many published messages.
MARK = 20_000
MESSAGES_A_TURN = 200
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
CHP2 = b"chp=2\n"  # the property of a HUGZ
# TCP gives the connection up after about 4 s without an answer to data or to probes. This replaces ZMTP's PING, which
# is never used (docs/decisions/0004).
TCP_GIVES_UP = (
    (zmq.TCP_MAXRT, 4000), (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 1), (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)  # fmt: skip


class Elsewhere(Exception):
    """The error of a server that does not answer or is not the active. The caller asks another server."""


class Connection:
    """A DEALER to P of one server, and a SUB to its P+1 if there are `topics`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        known: Credentials | None = None,
        topics: Sequence[bytes] = (),
    ) -> None:
        self.address, self.topics = address, list(topics)
        # True if the connection to P is up now. Then True if it was ever up.
        self.stands = self.reached = False
        # True once the server showed on P+1 that it speaks CHP/2. Then True if it showed only CHP/1.
        self.greeted = self.is_chp1 = False
        # The state and the number that the server published last.
        self.state = self.number = 0
        self.heartbeat_s = 1.0
        # True if the server was restarted since the last question. It may hold another store now.
        self.anew = False
        self._run = b""
        self._forbidden = False
        self.requests = context.socket(zmq.DEALER)
        self.requests.immediate = 1
        # The receiving queue needs no bound, because the credit of each question bounds its answer.
        self.requests.rcvhwm = 0
        for option, value in TCP_GIVES_UP:
            self.requests.setsockopt(option, value)
        self.monitor = self.requests.get_monitor_socket(DISCONNECTED | EVENTS)
        self.updates = context.socket(zmq.SUB) if topics else None
        try:
            self._connect(known)
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise BadInput(f"{address!r} can't be connected to ({error}); give {FORMS}") from None

    def _connect(self, known: Credentials | None) -> None:
        ways = [(self.requests, self.address)]
        if self.updates is not None:
            self.updates.rcvhwm = MARK
            ways.append((self.updates, beside(self.address, 1)))
            for topic in self.topics:
                self.updates.subscribe(topic)
        for socket, _ in ways:
            socket.linger = 0
            socket.maxmsgsize = DEFAULT.frame_bytes_max
            socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 500
        self._admission = Admission(self.address, ways, known)
        for socket, endpoint in ways:
            socket.connect(endpoint)

    # -- the connection

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets on which something may come."""
        found = [self.requests, self.monitor]
        return found if self.updates is None else [*found, self.updates]

    @property
    def why(self) -> str:
        """The reason why the server refuses the handshake, once it has refused for a while; else ""."""
        return self._admission.why

    @property
    def due(self) -> float:
        """The time at which `look` has to connect again."""
        return self._admission.due

    def look(self) -> None:
        """Take libzmq's events about the connection to P, and connect again if that is due."""
        for frames in drain(self.monitor, MESSAGES_A_TURN):
            event = int.from_bytes(frames[0][:2], sys.byteorder)
            if event in (DONE, DISCONNECTED):
                self.stands = event == DONE
                self.reached |= self.stands
            self._admission.heard(frames, monotonic())
        self._admission.step(monotonic())

    def reach(self, wait_s: float) -> bool:
        """Wait until the connection is up, at most `wait_s`. Return False if it is not, or if the server refuses it."""
        deadline = monotonic() + wait_s
        self.look()
        while not self.stands and not self.why and (left := deadline - monotonic()) > 0:
            self.monitor.poll(_ms(min(left, self.due - monotonic())))
            self.look()
        return self.stands

    # -- questions

    def ask(self, question: Question) -> bool:
        """Send a question. Return False if no connection is up."""
        self.look()
        if not self.stands or not self._put(question.frames):
            return False
        self.anew = False
        if self._forbidden:
            self._subscribe_again()
        return True

    def _put(self, frames: list[bytes]) -> bool:
        # Reading EVENTS makes libzmq process what its own thread reported about the socket, such as a lost connection.
        if not int(self.requests.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            return False
        try:
            self.requests.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def take(self, question: Question) -> Told | None:
        """Return the next message of the answer, or None if none has arrived. Drop answers to earlier questions."""
        while True:
            try:
                frames = self.requests.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return None
            if (told := question.hear(self.address, frames)) is not None:
                return told

    def hear(self, question: Question, silence_s: float) -> Told:
        """Wait for the next message of the answer. Raises `Elsewhere` if none comes in time or the connection ends."""
        deadline = monotonic() + silence_s
        poller = zmq.Poller()
        poller.register(self.requests, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        # Take the messages that have arrived before looking whether the connection ended.
        while (told := self.take(question)) is None:
            if not self.stands:
                raise Elsewhere(f"{self.address} {self.why or 'went away'}")
            if (left := deadline - monotonic()) <= 0:
                raise Elsewhere(f"{self.address} said nothing for {silence_s:g} s")
            if self.monitor in dict(poller.poll(_ms(left))):
                self.look()
        return told

    def answer(self, question: Question, silence_s: float) -> Iterator[Told]:
        """Yield the rest of an answer, and grant more credit as the caller takes messages."""
        while not question.over:
            more = question.granted()
            if more is not None and not self._put(more):
                raise Elsewhere(f"{self.address} went away")
            yield self.hear(question, silence_s)

    # -- what the server publishes

    def published(self) -> Iterator[tuple[Header, list[object]]]:
        """Yield the header and the items of each message on the topics. Note the server's state and number."""
        for frames in [] if self.updates is None else drain(self.updates, MESSAGES_A_TURN):
            if frames[0] == HUGZ:
                self.greeted |= len(frames) > 3 and CHP2 in frames[3]
                self.is_chp1 = not self.greeted
            if frames[0] == HUGZ or len(frames) != 5:
                continue
            header, items = read(self.address, frames[4])
            if isinstance(header, RefusedHeader) and header.code == "access":
                self._forbidden = True
            if isinstance(header, Greeting | Heartbeat):
                self.state, self.number, self.heartbeat_s = header.state, header.number, header.heartbeat_ms / 1000
                self.greeted, self.is_chp1 = True, False
            if isinstance(header, Greeting):
                self.anew |= self._run not in (b"", header.server)
                self._run = header.server
            yield header, items

    def _subscribe_again(self) -> None:
        """Subscribe anew after the access rules refused a topic. The server then tells whether they still forbid it."""
        self._forbidden = False
        assert self.updates is not None, "only a topic can be forbidden"
        for topic in self.topics:
            self.updates.unsubscribe(topic)
            self.updates.subscribe(topic)

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        if not self.requests.closed:
            self.requests.disable_monitor()
            self.monitor.close(0)
        self.requests.close()
        if self.updates is not None:
            self.updates.close()


def _ms(seconds: float) -> int:
    return max(0, math.ceil(1000 * seconds))
