"""Requests of an operator: what a server says about itself, and what it is told to do (SPEC.md, section 17).

    to P (DEALER):    ICANHAZ?   STX command ETX   msgpack {"chp": 3, "id": n, ...arguments}
    from P:           STX ETX    number            ""  ""   msgpack [[8, id, map]], or [[7, id, code, detail]]

Commands are "status", "switch", "leases", "backup", "restore". Every server answers for itself, active or not:
`ask_all` asks both at once and returns when both have answered or time is up; `ask_active` finds the one that serves.

A request goes out only over a connection that stands, so it is not left in a queue to be done an hour later; and only
to a server whose greeting on P+1 shows that it speaks CHP/2, because three frames on P stop the classic programs.
"status" changes nothing and is asked again when no answer comes; any other command is sent once, because a second
"switch" would undo the first.
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

from chp.addresses import FORMS, beside
from chp.errors import BadFrame, BadInput, ChpError
from chp.keys import ETX, STX, session_topic
from chp.limits import DEFAULT
from chp.messages import HUGZ
from chp.numbers import unpack

from .ask import admission
from .ask.port import Connection
from .clientfile import Credentials, credentials_of
from .core.question import Question, reply_of
from .errors import Refused
from .target import FilePath, servers_of

TIMEOUT_S = 2.0
RETRY_S = 0.5  # a status that is not answered is asked again
REPEATABLE = frozenset({"status"})
_CHP2 = b"chp=2\n"  # the property by which a HUGZ says so


@dataclass(frozen=True, slots=True)
class AdminReply:
    """What a server answered: its number, and a map whose names depend on the command."""

    server: str
    number: int
    facts: dict[str, Any]


class AdminError(ChpError):
    """A server gave no answer that can be used; `server` says which."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(f"{server}: {text}")
        self.server = server
        self.text = text


class Unreachable(AdminError):
    """No answer within the time given; `connected` says whether anybody listened there."""

    def __init__(self, server: str, timeout_s: float, connected: bool) -> None:
        silent = f"takes connections but does not answer (waited {timeout_s:g} s); is it stopped, or no CHP server?"
        nobody = f"nobody listens there (tried for {timeout_s:g} s); start chp-server, or mend the address"
        super().__init__(server, silent if connected else nobody)
        self.connected = connected


class SpeaksOnlyChp1(AdminError):
    """A server that follows RFC 12 and no more: it has no admin requests."""

    def __init__(self, server: str) -> None:
        super().__init__(server, "speaks CHP/1 only, which has no admin requests; its data can be read and set")


class AdminDenied(AdminError):
    """A server that does not let this client in: it has no key, an unknown one, or expects another server."""


Answer = AdminReply | AdminError | Refused


class Admin:
    """One line to each server's P and P+1. Not for use by several threads at once.

    servers       one or two addresses; None for CHP_SERVERS or CHP_CLIENT_FILE, else the local pair
    timeout_s     how long an answer is waited for
    client_file   in place of servers: the path of a file with their addresses and keys, and this client's

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
            raise BadInput("no servers; name one or two, such as tcp://127.0.0.1:5556")
        servers = servers_of(servers, client_file)
        self.servers = tuple(servers)
        self.timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._context = zmq.Context()
        self._lines: dict[str, _AdminConnection] = {}
        known = credentials_of(servers)
        self.with_key = bool(known)
        try:
            for server in self.servers:
                self._lines[server] = _AdminConnection(self._context, server, known.get(server))
        except BaseException:
            self.close()
            raise

    def ask(self, server: str, command: str, **arguments: Any) -> AdminReply:
        """One server's answer; raises `Unreachable`, `SpeaksOnlyChp1` or `Refused`."""
        answer = self._ask((server,), command, arguments)[server]
        if not isinstance(answer, AdminReply):
            raise answer
        return answer

    def ask_all(self, command: str, **arguments: Any) -> dict[str, Answer]:
        """Every server's answer, or what was wrong, by server; takes at most `timeout_s`."""
        return self._ask(self.servers, command, arguments)

    def ask_some(self, servers: Sequence[str], command: str, **arguments: Any) -> dict[str, Answer]:
        """The same of some of them."""
        return self._ask(servers, command, arguments)

    def ask_active(self, command: str, **arguments: Any) -> AdminReply:
        """The answer of the server that serves: found by asking each what it is."""
        answers = self.ask_all("status")
        for server, answer in answers.items():
            if isinstance(answer, AdminReply) and str(answer.facts.get("state", "")).lower() == "active":
                return self.ask(server, command, **arguments)
        states = {s: a.facts.get("state") if isinstance(a, AdminReply) else a.text for s, a in answers.items()}
        raise AdminError(self.servers[0], "none is active: " + "; ".join(f"{s} {state}" for s, state in states.items()))

    def _ask(self, servers: Sequence[str], command: str, arguments: dict[str, Any]) -> dict[str, Answer]:
        question = Question(next(self._ids), STX + command.encode() + ETX, arguments)
        lines = [self._lines[server] for server in servers]
        for line in lines:
            line.begin(question, again=command in REPEATABLE)
        deadline = time.monotonic() + self.timeout_s
        while (waiting := [line for line in lines if line.answer is None]) and time.monotonic() < deadline:
            _turn(waiting, deadline)
        return {line.server: line.answer or Unreachable(line.server, self.timeout_s, line.connected) for line in lines}

    def close(self) -> None:
        """Close the sockets; twice is fine."""
        for line in self._lines.values():
            line.close()
        self._context.term()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _turn(waiting: list[_AdminConnection], deadline: float) -> None:
    """Wait until something happens on one of the lines, or a request is due again, and take it."""
    now = time.monotonic()
    poller = zmq.Poller()
    for line in waiting:
        poller.register(line.monitor, zmq.POLLIN)
        poller.register(line.updates, zmq.POLLIN)
        poller.register(line.snapshot, zmq.POLLIN | (zmq.POLLOUT if line.may_send(now) else 0))
    wait_s = min(deadline - now, RETRY_S, *(max(0.0, line.knocks_at - now) for line in waiting))
    events = dict(poller.poll(max(1, math.ceil(1000 * wait_s))))
    for line in waiting:
        line.look(time.monotonic())
        if events.get(line.updates):
            line.hear()
        ready = events.get(line.snapshot, 0)
        if ready & zmq.POLLOUT:
            line.send(now)
        if ready & zmq.POLLIN:
            line.receive()


class _AdminConnection:
    """Both sockets to one server, and the one request on its way."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], server: str, known: Credentials | None) -> None:
        self.server = server
        self.connected = False
        self._known = known
        self.answer: Answer | None = None
        self._greeted = False
        self._question: Question | None = None
        self._again = False
        self._sent_at: float | None = None
        self.snapshot = context.socket(zmq.DEALER)
        self.updates = context.socket(zmq.SUB)
        self._port = Connection(server, self.snapshot)
        self._set_up()

    def _set_up(self) -> None:
        self.updates.linger = 0
        self.updates.maxmsgsize = DEFAULT.frame_bytes_max
        self.snapshot.immediate = 1  # queue nothing for a server that is not there
        self._topic = session_topic(secrets.token_bytes(16))  # a channel of our own: only a greeting comes on it
        self.updates.subscribe(self._topic)
        self.updates.subscribe(HUGZ)
        self.monitor = self.snapshot.get_monitor_socket(admission.EVENTS)
        try:
            ways = [(self.snapshot, self.server), (self.updates, beside(self.server, 1))]
            self._admission = admission.Admission(self.server, ways, self._known)
            for socket, endpoint in ways:
                socket.connect(endpoint)
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise BadInput(f"{self.server!r} can't be connected to ({error}); give {FORMS}") from None

    def begin(self, question: Question, again: bool) -> None:
        """Take up a request; an answer to an earlier one will be dropped."""
        self._question, self._again = question, again
        self._sent_at = self.answer = None

    def look(self, now: float) -> None:
        """Whether it lets us in."""
        while self.monitor.poll(0):
            self._admission.heard(self.monitor.recv_multipart(), now)
        self._admission.step(now)
        if self._admission.why and self.answer is None:
            self.answer = AdminDenied(self.server, self._admission.why)

    def may_send(self, now: float) -> bool:
        """Whether the request may go out: to a server known to speak CHP/2, once, or again when it is due."""
        if not self._greeted:
            return not self.connected  # only to learn whether a connection stands
        return self._sent_at is None or (self._again and now - self._sent_at >= RETRY_S)

    @property
    def knocks_at(self) -> float:
        """When it is to be tried again, if it did not let us in."""
        return self._admission.due

    def hear(self) -> None:
        """A message on P+1: a greeting shows CHP/2, a HUGZ that does not say so shows CHP/1."""
        topic, *rest = self.updates.recv_multipart()
        if topic == self._topic or (topic == HUGZ and len(rest) > 2 and _CHP2 in rest[2]):
            self._greeted = True
        elif topic == HUGZ and not self._greeted:
            self.answer = SpeaksOnlyChp1(self.server)

    def send(self, now: float) -> None:
        """The connection takes messages: send the request if it may go."""
        self.connected = True
        if self._greeted and self._question is not None and self._port.put(self._question.frames):
            self._sent_at = now

    def receive(self) -> None:
        """Take the answer to this request; what answers an earlier one is dropped."""
        assert self._question is not None, "begin comes first"
        try:
            told = self._question.hear(self.server, self.snapshot.recv_multipart(zmq.DONTWAIT))
            if told is not None:
                self.answer = AdminReply(self.server, unpack(told.number), reply_of(self.server, told).facts)
        except zmq.Again:
            return
        except Refused as refused:
            self.answer = refused
        except BadFrame as bad:
            self.answer = AdminError(self.server, f"answers with something that is not CHP/2 ({bad})")

    def close(self) -> None:
        if not self.snapshot.closed:
            self.snapshot.disable_monitor()
            self.monitor.close(0)
        self.snapshot.close()
        self.updates.close()
