"""The sockets of a replica to the servers that it follows.

    DEALER  P      one for the question `follow`, whose answer has no end, and one for each client that asks the active
    SUB     P+1    HUGZ, and the own channels of clients; each SUB socket has at most `TOPICS_MAX` channels
    XPUB    P+2    KVSETs of clients; nothing waits for a server that is away

Each message begins with its line, which names the socket and the server (core/replica/upstream.py).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

import zmq

from chp.addresses import beside, in_turn
from chp.keyfiles import KeyPair
from chp.limits import Limits

from ..core.replica.upstream import HUGZ, PASSED, QUESTIONS, SETS, UPDATES
from .sockets import KEEPALIVE, PEER_MESSAGE_BYTES_MAX, Frames, Poller, only_ipv6, send_all

Socket = zmq.Socket[bytes]
OFFSETS = {QUESTIONS: 0, UPDATES: 1, SETS: 2}
KINDS = {QUESTIONS: zmq.DEALER, UPDATES: zmq.SUB, SETS: zmq.XPUB}
# At most this many messages wait for a connection to a server, as in a Clone's sockets.
SEND_MARK = 4096
# A SUB socket has at most this many topics: a server bounds the topics of a connection, and libzmq drops subscriptions
# beyond the high-water mark of a new connection.
TOPICS_MAX = 900


class UpstreamSockets:
    """The sockets of a replica to its upstream, by their lines."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        servers: list[str],
        limits: Limits,
        waiting: Poller,
        keys: list[tuple[KeyPair, bytes]],
    ) -> None:
        self._context, self._servers, self._limits, self._waiting = context, servers, limits, waiting
        # For each server: our own key pair and the server's key; empty without keys.
        self._keys = keys
        # The topics of each SUB socket. The key is its line, and its place among the SUB sockets of that line.
        self._topics: dict[bytes, set[bytes]] = {}
        self._of_topic: dict[tuple[bytes, bytes], bytes] = {}
        self._lines: dict[bytes, Socket] = {}
        self._named: dict[Socket, bytes] = {}
        # For each server: the number of tries, by which IPv4 and IPv6 alternate for a name. A kind of address that
        # reached the server is kept.
        self._tries = [int(only_ipv6(server)) for server in servers]
        self._reached: set[int] = set()
        self.dropped = 0

    def connect(self) -> None:
        """Connect to all servers."""
        for place in range(len(self._servers)):
            for kind in (QUESTIONS, SETS):
                self._open(kind + bytes([place]))
            self._topics.setdefault(UPDATES + bytes([place, 0]), {HUGZ})
        for line in self._topics:
            self._open(line)

    def _open(self, line: bytes) -> Socket:
        kind = QUESTIONS if line[:1] == PASSED else line[:1]
        socket = self._context.socket(KINDS[kind])
        socket.set(zmq.LINGER, 200 if kind == SETS else 0)
        socket.set(zmq.MAXMSGSIZE, PEER_MESSAGE_BYTES_MAX)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 500)
        socket.set(zmq.SNDHWM, SEND_MARK)
        socket.set(zmq.RCVHWM, self._limits.publish_mark)
        for option, value in KEEPALIVE.items():
            socket.set(option, value)
        if kind == SETS:
            socket.set(zmq.IMMEDIATE, 1)
        for topic in self._topics.get(line, ()):
            socket.set(zmq.SUBSCRIBE, topic)
        if self._keys:
            own, theirs = self._keys[line[1]]
            socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = own.public, own.secret, theirs
        address = beside(self._servers[line[1]], OFFSETS[kind])
        socket.ipv6 = in_turn(address, self._tries[line[1]])
        socket.connect(address)
        self._lines[line], self._named[socket] = socket, line
        self._waiting.add(socket)
        return socket

    def ready(self, found: set[object]) -> bool:
        """Return True if a line is among the sockets that have something."""
        return not found.isdisjoint(self._named)

    def take(self) -> Iterator[Frames]:
        """Yield the messages that have arrived, with their lines in front, as many as a turn takes."""
        for line, socket in list(self._lines.items()):
            self._waiting.again.add(socket)
            for _ in range(self._limits.turn_messages_max):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    self._waiting.again.discard(socket)
                    break
                self._reached.add(line[1])
                # A message at the XPUB is a subscription. It only shows that the server's P+2 is there.
                if line[:1] != SETS:
                    yield [line[:2] if line[:1] == UPDATES else line, *frames]

    def send(self, messages: Iterable[Frames]) -> None:
        """Send messages by their lines; drop those for which there is no room."""
        for line, *frames in messages:
            if line[:1] == UPDATES:
                self._subscribe(line, frames[0])
            elif not frames:
                self._close(line)
            else:
                socket = self._lines.get(line) or self._open_passed(line)
                if socket is None:
                    self.dropped += 1
                    continue
                self.dropped += send_all(socket, [frames])
                self._waiting.again.add(socket)

    def _open_passed(self, line: bytes) -> Socket | None:
        """Open a connection for a client; return None if this process may open no more files: the client asks again."""
        try:
            return self._open(line)
        except zmq.ZMQError as error:
            if error.errno != errno.EMFILE:
                raise
            return None

    def connect_anew(self) -> None:
        """Connect to all servers again; change the kind of address of a name if nothing came from that server.

        libzmq never tries again after a server has refused our key, and it tries only one kind of address of a name.
        """
        for line in list(self._lines):
            self._close(line)
        self._tries = [tries + (place not in self._reached) for place, tries in enumerate(self._tries)]
        self._reached.clear()
        self.connect()

    def _subscribe(self, line: bytes, event: bytes) -> None:
        topic, wanted = event[1:], event[:1] == b"\x01"
        one = self._of_topic.get((line, topic)) or self._with_room(line)
        socket, topics = self._lines.get(one) or self._open(one), self._topics[one]
        if wanted is (topic in topics):
            return
        if wanted:
            topics.add(topic)
            self._of_topic[line, topic] = one
        else:
            topics.remove(topic)
            del self._of_topic[line, topic]
        socket.set(zmq.SUBSCRIBE if wanted else zmq.UNSUBSCRIBE, topic)
        self._waiting.again.add(socket)

    def _with_room(self, line: bytes) -> bytes:
        """Return the first SUB socket of a line that has room for a topic; it may be new, without a connection yet."""
        for n in range(256):
            one = line + bytes([n])
            if len(self._topics.setdefault(one, set())) < TOPICS_MAX:
                return one
        return one

    def _close(self, line: bytes) -> None:
        socket = self._lines.pop(line, None)
        if socket is not None:
            del self._named[socket]
            self._waiting.remove(socket)
            socket.close()

    def close(self) -> None:
        """Close all sockets."""
        for socket in self._lines.values():
            socket.close()
