"""One WebSocket at /v1/clone, and the sockets to the pair that are its own: a proxy that decides only what passes.

    browser  <-- WebSocket -->  here  --  of each server: DEALER -> P,  SUB -> P+1,  XPUB -> P+2

uvicorn hands a connection over when it asks for a WebSocket. What the pair says goes on as it is; while the other end
takes nothing, nothing is read from the pair, so libzmq drops what is beyond its mark, and the client finds a gap, which
heals. Nothing is queued here in the other direction either: what a server has no room for is asked or sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import zmq
import zmq.asyncio

from chp import addresses
from chp.fair import FairTable
from chp.limits import DEFAULT

from ...clientfile import credentials_of
from ..access.caller import Caller
from ..access.callers import Callers
from ..problems import Problem, problem_of
from . import websocket
from .admission import ABOUT, COLLECTOR, AllowedMessages, P
from .websocket import Broken, put

PATH = "/v1/clone"
SEND_S = 30.0  # who takes nothing for so long holds a connection for nothing
SAY_S = 2.0  # so often it is said that the gateway lives
RECEIVE_MARK = 100  # messages of the pair that wait in libzmq for one connection
WAITS_MAX = 1 << 20  # bytes that wait in the socket, before nothing is read from the pair


class GatewayServices(Protocol):
    """What a line needs of the gateway."""

    servers: Sequence[str]
    ipv6: list[bool]
    context: zmq.asyncio.Context
    lines: FairTable[WebSocketConnection, None]


class ConnectionAdmission(Protocol):
    """Who lets it in."""

    @property
    def gateway(self) -> GatewayServices:
        """Behind it."""

    @property
    def callers(self) -> Callers:
        """Who asks, by the rules as they are."""

    def admit_line(self, headers: list[tuple[bytes, bytes]], query: bytes, address: str) -> AllowedMessages:
        """What a WebSocket may, or a `Problem`."""

    def denied(self, caller: Caller, address: str, why: str) -> None:
        """What one asked for was not let."""


class WebSocketConnection(asyncio.Protocol):
    """One connection; `door` is the application, which lets it in or not."""

    door: ConnectionAdmission

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

    # -- what asyncio and uvicorn call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handed over by the HTTP protocol, with the head of the request as the first that comes."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio's
        self._loop = asyncio.get_running_loop()
        self._address = (self._transport.get_extra_info("peername") or ("",))[0]
        self._transport.set_write_buffer_limits(high=WAITS_MAX)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Some of what the client sends."""
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
        """The other end takes nothing."""
        self._room.clear()
        self._alarm = self._loop.call_later(SEND_S, self._transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        self._room.set()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self.resume_writing()
        self._connections.discard(self)
        self._let_go()

    def shutdown(self) -> None:
        """The gateway ends."""
        self._end(websocket.GOING, "the gateway ends; ask another, or this one a moment later")

    def abort(self) -> None:
        """End it at once, as a network does that is cut; from any thread."""
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
            self._allowed = self.door.admit_line(headers, query, self._address)
        except Problem as problem:
            if problem.status != 401:
                self._refuse(problem)
                return
            self._accept(key, said)  # a page is told nothing of an answer that is not 101
            self._transport.write(websocket.closing(websocket.DENIED, problem.detail))
            self._transport.close()
            return
        except Exception as error:
            self._refuse(problem_of(error))
            return
        self._accept(key, said)
        self._open = True
        self._enter(self.door.gateway.lines, self._allowed.caller.user)
        self._connect()

    def _enter(self, lines: FairTable[WebSocketConnection, None], user: str) -> None:
        """Be one of the open WebSockets; if there is no room, one of the user who has most of them ends."""
        if lines.full:
            lines.loser(user).make_room()
        lines.put(self, None, user)

    def make_room(self) -> None:
        """End, as another user wants to be let in."""
        self._end(
            websocket.GOING, "your user has most of the WebSockets here, and another one came; ask another gateway"
        )

    def _accept(self, key: bytes, said: dict[bytes, bytes]) -> None:
        answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        offered = (each.strip() for each in said.get(b"sec-websocket-protocol", b"").split(b","))
        chosen = b"Sec-WebSocket-Protocol: chp\r\n" if b"chp" in offered else b""
        self._transport.write(answer + chosen + b"Sec-WebSocket-Accept: " + websocket.accepted(key) + b"\r\n\r\n")

    def _refuse(self, problem: Problem) -> None:
        response = problem.response()
        head = b"".join(b"%s: %s\r\n" % each for each in response.raw_headers)
        self._transport.write(b"HTTP/1.1 %d %s\r\n" % (response.status_code, b"Refused") + head)
        self._transport.write(b"Connection: close\r\n\r\n" + bytes(response.body))
        self._transport.close()

    def _connect(self) -> None:
        gateway = self.door.gateway
        servers = [addresses.full(server) for server in gateway.servers]
        known = credentials_of(gateway.servers)
        about = websocket.framed(websocket.BINARY, put(len(servers), ABOUT, [server.encode() for server in servers]))
        self._transport.write(about)  # before anything of theirs
        for i, server in enumerate(servers):
            made = [gateway.context.socket(kind) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB)]
            self._sockets.append(made)
            for port, socket in enumerate(made):
                _prepare(socket, known.get(gateway.servers[i]))
                socket.ipv6 = gateway.ipv6[i]
                socket.connect(addresses.beside(server, port))
                self._tasks.append(asyncio.ensure_future(self._carry(i, port, socket)))
        self._tasks.append(asyncio.ensure_future(self._say(about)))

    # -- what the pair says

    async def _carry(self, server: int, port: int, socket: zmq.asyncio.Socket) -> None:
        while True:
            await self._room.wait()
            frames = await socket.recv_multipart()
            if not self._let():
                return
            self._transport.write(websocket.framed(websocket.BINARY, put(server, port, frames)))

    async def _say(self, about: bytes) -> None:
        """How many servers there are and where, again and again, as nothing else may come."""
        while True:
            await asyncio.sleep(SAY_S)
            await self._room.wait()
            if not self._let():
                return
            self._transport.write(about)

    def _let(self) -> bool:
        """Whether the rules are those that it was let in by; if its rights are not, it has to begin anew."""
        before = self._allowed.caller
        try:
            caller = self.door.callers.still(before)
        except Problem as problem:
            self._end(websocket.DENIED if problem.status == 401 else websocket.GOING, problem.detail)
            return False
        if caller.rights != before.rights:
            self._end(websocket.GOING, "the rules have changed; connect again")
            return False
        if caller is not before:
            self._allowed = replace(self._allowed, caller=caller)
        return True

    # -- what the client says

    def _came(self, opcode: int, payload: bytes) -> None:
        if opcode == websocket.CLOSE:
            self._end(websocket.NORMAL)
        elif opcode == websocket.PING:
            self._transport.write(websocket.framed(websocket.PONG, payload))
        elif opcode == websocket.TEXT:
            raise Broken(websocket.NOT_BINARY, "messages are binary")
        elif opcode == websocket.BINARY and self._open and self._let():
            self.door.gateway.lines.use(self)
            server, port, frames = websocket.taken(payload)
            if server >= len(self._sockets):
                raise Broken(websocket.BROKEN, f"there are {len(self._sockets)} servers, counted from 0")
            if why := self._allowed.why_not(port, frames):
                self.door.denied(self._allowed.caller, self._address, why)
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
            del self.door.gateway.lines[self]
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
    if socket.type != zmq.SUB:  # nothing waits for a server that is away: it would be stale
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.LINGER, 200)
    if known is not None:
        known.put_on(socket)


def subscribe(socket: zmq.asyncio.Socket, message: bytes) -> None:
    """Begin or end a subscription; what came meanwhile is told of again, as libzmq may have used up its one signal."""
    socket.set(zmq.SUBSCRIBE if message[:1] == b"\1" else zmq.UNSUBSCRIBE, message[1:])
    socket.get(zmq.EVENTS)  # `getsockopt` would be the plain socket's, and wake nobody


def _sent(future: asyncio.Future[Any]) -> None:
    """No room, or no connection: the client asks again."""
    if not future.cancelled():
        future.exception()
