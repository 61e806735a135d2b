"""Requests of an operator: to ask a server for its status, or to tell it what to do (SPEC.md, section 17).

    to P (DEALER):    ICANHAZ?   STX command ETX   msgpack {"chp": 3, "id": n, ...arguments}
    from P:           STX ETX    number            ""  ""   msgpack [[8, id, map]], or [[7, id, code, detail]]

Commands are "status", "switch", "leases", "backup", "restore". Every server answers for itself, active or not.
`ask_all` asks all servers at once, and returns when all have answered or the time is over. `ask_active` asks the
active alone.

A request is sent only over an open connection, so that no queue keeps it for an hour. The server's greeting on P+1 has
to show first that it speaks CHP/2, because three frames on P stop the classic programs. "status" changes nothing, so it
is sent again when no answer comes. Any other command is sent once: a second "switch" would undo the first.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import zmq

from chp.errors import BadFrame, BadInput, ChpError
from chp.keys import ETX, STX, channel_topic, session_topic
from chp.messages import HUGZ
from chp.numbers import unpack

from .. import checks
from ..clientfile import credentials_of
from ..core.copy.subscriptions import PULSE
from ..core.question import Question, reply_of
from ..errors import Refused
from ..target import FilePath, servers_of
from .connection import Connection

TIMEOUT_S = 2.0
RETRY_S = 0.5
REPEATABLE = frozenset({"status"})


@dataclass(frozen=True, slots=True)
class AdminReply:
    """A server's answer: its number, and a map whose names depend on the command."""

    server: str
    number: int
    facts: dict[str, Any]


class AdminError(ChpError):
    """The error of a server that gave no usable answer. `server` is its address."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(f"{server}: {text}")
        self.server = server
        self.text = text


class Unreachable(AdminError):
    """The error of a server that did not answer in time. `connected` is True if something listened there."""

    def __init__(self, server: str, timeout_s: float, connected: bool) -> None:
        silent = f"takes connections but does not answer (waited {timeout_s:g} s); is it stopped, or no CHP server?"
        nobody = f"nobody listens there (tried for {timeout_s:g} s); start chp-server, or mend the address"
        super().__init__(server, silent if connected else nobody)
        self.connected = connected


class SpeaksOnlyChp1(AdminError):
    """The error of a server that speaks only CHP/1 (RFC 12), which has no admin requests."""

    def __init__(self, server: str) -> None:
        super().__init__(server, "speaks CHP/1 only, which has no admin requests; its data can be read and set")


class AdminDenied(AdminError):
    """The error of a failed handshake: this client has no key or an unknown one, or a wrong key of the server."""


Answer = AdminReply | AdminError | Refused


class Admin:
    """A connection to each server's P and P+1. Only one thread may use it at a time.

    servers       up to 16 addresses; None for CHP_SERVERS or CHP_CLIENT_FILE, else the local pair
    timeout_s     how long to wait for an answer
    client_file   instead of servers: the path of a file with their addresses and keys, and with this client's keys

    Raises `BadInput`.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        client_file: FilePath | None = None,
    ) -> None:
        if servers is not None and not servers:
            raise BadInput("no servers; name some, such as tcp://127.0.0.1:5556")
        checks.wait_s(timeout_s, "timeout_s")
        servers = servers_of(servers, client_file)
        self.servers = tuple(servers)
        self.timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._context = zmq.Context()
        self._connections: dict[str, Connection] = {}
        known = credentials_of(servers)
        self.with_key = bool(known)
        # The first topic is a channel of our own, on which only a greeting comes. HUGZ is the heartbeat of CHP/1. A
        # replica without an active greets on PULSE only.
        topics = [session_topic(secrets.token_bytes(16)), channel_topic(PULSE), HUGZ]
        try:
            for server in self.servers:
                self._connections[server] = Connection(self._context, server, known.get(server), topics)
        except BaseException:
            self.close()
            raise

    def ask(self, server: str, command: str, **arguments: Any) -> AdminReply:
        """Return one server's answer; raise `Unreachable`, `SpeaksOnlyChp1` or `Refused`."""
        answer = self._ask((server,), command, arguments)[server]
        if not isinstance(answer, AdminReply):
            raise answer
        return answer

    def ask_all(self, command: str, **arguments: Any) -> dict[str, Answer]:
        """Return every server's answer or error, by server, within `timeout_s`."""
        return self._ask(self.servers, command, arguments)

    def ask_some(self, servers: Sequence[str], command: str, **arguments: Any) -> dict[str, Answer]:
        """Return the answers or errors of some servers, as `ask_all` does."""
        return self._ask(servers, command, arguments)

    def ask_active(self, command: str, **arguments: Any) -> AdminReply:
        """Ask each server for its status, and then the active. Return the answer of the active."""
        answers = self.ask_all("status")
        serve = {
            server: answer.facts.get("replica") is not None
            for server, answer in answers.items()
            if isinstance(answer, AdminReply) and str(answer.facts.get("state", "")).lower() == "active"
        }
        if serve:
            # Prefer a server of the pair. A replica would ask the active in its turn.
            return self.ask(min(serve, key=serve.__getitem__), command, **arguments)
        states = {s: a.facts.get("state") if isinstance(a, AdminReply) else a.text for s, a in answers.items()}
        raise AdminError(self.servers[0], "none is active: " + "; ".join(f"{s} {state}" for s, state in states.items()))

    def _ask(self, servers: Sequence[str], command: str, arguments: dict[str, Any]) -> dict[str, Answer]:
        question = Question(next(self._ids), STX + command.encode() + ETX, arguments)
        requests = [Request(self._connections[server], question, again=command in REPEATABLE) for server in servers]
        deadline = time.monotonic() + self.timeout_s
        while (waiting := [each for each in requests if each.answer is None]) and time.monotonic() < deadline:
            _turn(waiting, deadline)
        return {each.server: each.answer or Unreachable(each.server, self.timeout_s, each.reached) for each in requests}

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        for connection in self._connections.values():
            connection.close()
        self._context.term()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Request:
    """A request on its way to one server."""

    def __init__(self, connection: Connection, question: Question, *, again: bool) -> None:
        self.server = connection.address
        self.answer: Answer | None = None
        self.connection = connection
        self._question, self._again = question, again
        self._sent_at: float | None = None

    @property
    def reached(self) -> bool:
        """True if a connection to the server was ever made."""
        return self.connection.reached

    def step(self, now: float) -> None:
        """Look at the connection, send the request if it may go, and take its answer."""
        connection = self.connection
        for _ in connection.published():
            pass
        if connection.is_chp1:
            self.answer = SpeaksOnlyChp1(self.server)
        elif connection.why:
            self.answer = AdminDenied(self.server, connection.why)
        elif connection.greeted and self._may_send(now) and connection.ask(self._question):
            self._sent_at = now
        try:
            self._take()
        except Refused as refused:
            self.answer = refused
        except BadFrame as bad:
            self.answer = AdminError(self.server, f"answers with something that is not CHP/2 ({bad})")

    def _may_send(self, now: float) -> bool:
        """Return True for a request that was not sent, or that is repeatable and has waited for long enough."""
        return self._sent_at is None or (self._again and now - self._sent_at >= RETRY_S)

    def _take(self) -> None:
        if (told := self.connection.take(self._question)) is not None:
            self.answer = AdminReply(self.server, unpack(told.number), reply_of(self.server, told).facts)


def _turn(waiting: list[Request], deadline: float) -> None:
    """Let each request take a step, then wait until something happens at one of their servers."""
    now = time.monotonic()
    poller = zmq.Poller()
    for request in waiting:
        request.connection.look()
        request.step(now)
        for socket in request.connection.sockets:
            poller.register(socket, zmq.POLLIN)
    if all(request.answer is None for request in waiting):
        wait_s = min(deadline - now, RETRY_S, *(max(0.0, request.connection.due - now) for request in waiting))
        poller.poll(max(1, math.ceil(1000 * wait_s)))
