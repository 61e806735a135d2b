"""One WebSocket at /v1/clone: a proxy with its own sockets to the pair, which decides which messages pass.

    browser  <-- WebSocket -->  here  --  of each server: DEALER -> P,  SUB -> P+1,  XPUB -> P+2

uvicorn hands a connection over when its client asks for a WebSocket. Messages of the pair pass unchanged. While the
client takes nothing, nothing is read from the pair. libzmq then drops messages, and the client finds the gap and heals
it.
Nothing is queued in the other direction either: the client asks or sends again if a server has no room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import zmq
import zmq.asyncio

from chp import addresses
from chp.fair import FairTable
from chp.limits import DEFAULT

from ...clientfile import credentials_of
from ..access.caller import Caller
from ..access.callers import Callers
from ..answers import raw_answer
from ..problems import Problem, problem_of
from . import websocket
from .admission import ABOUT, COLLECTOR, AllowedMessages, P
from .websocket import Broken, put

PATH = "/v1/clone"
# A client that takes nothing for this long is cut off.
SEND_S = 30.0
# The gateway sends an ABOUT message this often, which shows that the connection lives.
SAY_S = 2.0
# At most this many messages of the pair wait in libzmq, in each socket of a connection.
RECEIVE_MARK = 100
# While more than this many bytes wait for the client, nothing more is read from the pair.
WAITS_MAX = 1 << 20


class PairServers(Protocol):
    """The servers of the pair that a connection is for."""

    servers: Sequence[str]
    ipv6: list[bool]


class Admitted(NamedTuple):
    """A WebSocket that is admitted: the messages that may pass, its pair, and the callers by the rules of that pair."""

    allowed: AllowedMessages
    pair: PairServers
    callers: Callers


class GatewayServices(Protocol):
    """The parts of a gateway that a connection uses."""

    context: zmq.asyncio.Context
    lines: FairTable[WebSocketConnection, None]


class ConnectionAdmission(Protocol):
    """The part that admits a connection."""

    @property
    def gateway(self) -> GatewayServices:
        """The gateway."""

    def admit_line(self, headers: list[tuple[bytes, bytes]], query: bytes, address: str) -> Admitted:
        """Return what is admitted; raise `Problem` if the WebSocket is not."""

    def denied(self, caller: Caller, address: str, why: str) -> None:
        """Note that a message was denied."""


class WebSocketConnection(asyncio.Protocol):
    """One connection; `admission` is the application, which decides whether to admit the connection."""

    admission: ConnectionAdmission

    def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
        self._connections = server_state.connections
        self._reader = websocket.FrameReader()
        self._room = asyncio.Event()
        self._room.set()
        self._sockets: list[list[zmq.asyncio.Socket]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._head: bytes | None = b""
        self._address = ""
        self._open = False

    # -- called by asyncio and uvicorn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection from the HTTP protocol. The head of the request comes first."""
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._address = (self._transport.get_extra_info("peername") or ("",))[0]
        self._transport.set_write_buffer_limits(high=WAITS_MAX)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of the client."""
        if self._head is not None:
            self._head, head = None, data
            self._begin(head)
            return
        try:
            for opcode, payload in self._reader.feed(data):
                self._came(opcode, payload)
        except Broken as broken:
            self._end(broken.code, broken.reason)

    def pause_writing(self) -> None:
        """Stop reading from the pair, as the client takes nothing."""
        self._room.clear()
        self._alarm = self._loop.call_later(SEND_S, self._transport.abort)

    def resume_writing(self) -> None:
        """Read from the pair again."""
        self._room.set()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of all sockets, as the connection has ended."""
        self.resume_writing()
        self._connections.discard(self)
        self._let_go()

    def shutdown(self) -> None:
        """Close the WebSocket, as the gateway ends."""
        self._end(websocket.GOING, "the gateway ends; ask another, or this one a moment later")

    def abort(self) -> None:
        """End the connection at once, as a cut network does. Any thread may call it."""
        self._loop.call_soon_threadsafe(self._transport.abort)

    # -- the handshake

    def _begin(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        method, target, *_ = lines[0].split(b" ")
        headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines[1:] if line)]
        said = dict(headers)
        path, _, query = target.partition(b"?")
        try:
            if path.decode("latin-1") != PATH or method != b"GET":
                raise Problem(404, "no-path", f"a WebSocket is at {PATH}, and at no other path")
            key = said.get(b"sec-websocket-key", b"")
            if said.get(b"sec-websocket-version") != b"13" or len(key) != 24:
                raise Problem(400, "bad-websocket", "a WebSocket begins with Sec-WebSocket-Key, and version 13")
            self._allowed, self._pair, self._callers = self.admission.admit_line(headers, query, self._address)
        except Problem as problem:
            if problem.status != 401:
                self._refuse(problem)
                return
            # A browser shows a page only an answer 101. So the reason goes into the frame that closes the WebSocket.
            self._accept(key, said)
            self._transport.write(websocket.closing(websocket.DENIED, problem.detail))
            self._transport.close()
            return
        except Exception as error:
            self._refuse(problem_of(error))
            return
        self._accept(key, said)
        self._open = True
        self._enter(self.admission.gateway.lines, self._allowed.caller.user)
        self._connect()

    def _enter(self, lines: FairTable[WebSocketConnection, None], user: str) -> None:
        """Add this connection to the open WebSockets; if they are full, close one of the user that has the most."""
        if lines.full:
            lines.loser(user).make_room()
        lines.put(self, None, user)

    def make_room(self) -> None:
        """Close the WebSocket, to make room for another user."""
        self._end(
            websocket.GOING, "your user has most of the WebSockets here, and another one came; ask another gateway"
        )

    def _accept(self, key: bytes, said: dict[bytes, bytes]) -> None:
        answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        offered = (each.strip() for each in said.get(b"sec-websocket-protocol", b"").split(b","))
        chosen = b"Sec-WebSocket-Protocol: chp\r\n" if b"chp" in offered else b""
        self._transport.write(answer + chosen + b"Sec-WebSocket-Accept: " + websocket.accepted(key) + b"\r\n\r\n")

    def _refuse(self, problem: Problem) -> None:
        self._transport.write(raw_answer(problem.response(), b"connection: close\r\n"))
        self._transport.close()

    def _connect(self) -> None:
        gateway = self.admission.gateway
        servers = [addresses.full(server) for server in self._pair.servers]
        known = credentials_of(self._pair.servers)
        about = websocket.framed(websocket.BINARY, put(len(servers), ABOUT, [server.encode() for server in servers]))
        # ABOUT has to come before all messages of the servers.
        self._transport.write(about)
        for i, server in enumerate(servers):
            made = [gateway.context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB)]
            self._sockets.append(made)
            for port, socket in enumerate(made):
                _prepare(socket, known.get(self._pair.servers[i]))
                socket.ipv6 = self._pair.ipv6[i]
                socket.connect(addresses.beside(server, port))
                self._tasks.append(asyncio.ensure_future(self._carry(i, port, socket)))
        self._tasks.append(asyncio.ensure_future(self._say(about)))

    # -- from the pair

    async def _carry(self, server: int, port: int, socket: zmq.asyncio.Socket) -> None:
        while True:
            await self._room.wait()
            frames = await socket.recv_multipart()
            if not self._may_go_on():
                return
            self._transport.write(websocket.framed(websocket.BINARY, put(server, port, frames)))

    async def _say(self, about: bytes) -> None:
        """Send the addresses of the servers to the client every SAY_S seconds, as no other message may come."""
        while True:
            await asyncio.sleep(SAY_S)
            await self._room.wait()
            if not self._may_go_on():
                return
            self._transport.write(about)

    def _may_go_on(self) -> bool:
        """Return True if the caller's rights are still as before; if they have changed, end the connection."""
        before = self._allowed.caller
        try:
            caller = self._callers.still(before)
        except Problem as problem:
            self._end(websocket.DENIED if problem.status == 401 else websocket.GOING, problem.detail)
            return False
        if caller.rights != before.rights:
            self._end(websocket.GOING, "the rules have changed; connect again")
            return False
        if caller is not before:
            self._allowed = replace(self._allowed, caller=caller)
        return True

    # -- from the client

    def _came(self, opcode: int, payload: bytes) -> None:
        if opcode == websocket.CLOSE:
            self._end(websocket.NORMAL)
        elif opcode == websocket.PING:
            self._transport.write(websocket.framed(websocket.PONG, payload))
        elif opcode == websocket.TEXT:
            raise Broken(websocket.NOT_BINARY, "messages are binary")
        elif opcode == websocket.BINARY and self._open and self._may_go_on():
            self.admission.gateway.lines.use(self)
            server, port, frames = websocket.taken(payload)
            if server >= len(self._sockets):
                raise Broken(websocket.BROKEN, f"there are {len(self._sockets)} servers, counted from 0")
            if why := self._allowed.why_not(port, frames):
                self.admission.denied(self._allowed.caller, self._address, why)
                raise Broken(websocket.DENIED, why)
            self._pass(self._sockets[server][port], port, frames)

    def _pass(self, socket: zmq.asyncio.Socket, port: int, frames: list[bytes]) -> None:
        if port in (P, COLLECTOR):
            sent = asyncio.ensure_future(socket.send_multipart(frames, zmq.DONTWAIT))
            sent.add_done_callback(_sent)
            return
        subscribe(socket, frames[0])

    # -- the end

    def _end(self, code: int, reason: str = "") -> None:
        if self._open and not self._transport.is_closing():
            self._transport.write(websocket.closing(code, reason))
        self._transport.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._open:
            self._open = False
            del self.admission.gateway.lines[self]
        for task in self._tasks:
            task.cancel()
        for sockets in self._sockets:
            for socket in sockets:
                socket.close()
        self._tasks, self._sockets = [], []


def _prepare(socket: zmq.asyncio.Socket, known: Any) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, DEFAULT.frame_bytes_max)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.RCVHWM, RECEIVE_MARK)
    socket.setsockopt(zmq.LINGER, 0)
    # No message waits for a server that is away: the message would be stale once the server is back.
    if socket.type != zmq.SUB:
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.LINGER, 200)
    if known is not None:
        known.put_on(socket)


def subscribe(socket: zmq.asyncio.Socket, message: bytes) -> None:
    """Begin or end a subscription; then signal waiting messages again, as libzmq may have used up its one signal."""
    socket.set(zmq.SUBSCRIBE if message[:1] == b"\1" else zmq.UNSUBSCRIBE, message[1:])
    # `get` of the asyncio socket wakes the waiting tasks; `getsockopt` of the plain socket would not.
    socket.get(zmq.EVENTS)


def _sent(future: asyncio.Future[Any]) -> None:
    """Ignore an error: there is no room or no connection, and the client asks again."""
    if not future.cancelled():
        future.exception()
