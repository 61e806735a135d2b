"""Asking the snapshot port of whichever server serves: facts, an image and its slices, the feed (SPEC.md, section 17).

    with Port(servers, timeout_s=120) as port:
        facts = port.ask("/rates/", image=name, prefix="/rates/EUR", parts=4)
        for header, items in port.stream("/rates/", image=name, part=0): ...      # ends with the KTHXBAI

A question goes to one server; one that is passive, or silent for `RETRY_S`, has the next one asked. A stream that
has begun does not change servers in the middle: its chunks carry an index, and a gap, a silence or a connection that
goes is an error. For that long a failover may take, `timeout_s` is the bound. Blocking; for one thread.

`Connection` is one server's part of that, for those who know better which server to ask.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Event
from time import monotonic
from types import TracebackType
from typing import Any, Self

import zmq

from chp.addresses import in_turn, is_name
from chp.headers import Header, Records, Sync
from chp.limits import DEFAULT

from ..clientfile import Credentials, credentials_of
from ..core.question import Question, Told, reply_of
from ..errors import Refused, Unanswered
from . import admission

RETRY_S = 2.0
CREDIT = 8
# after 4 s without an answer to data, or to probes where there is none; never ZMTP's PING (docs/decisions/0004)
TCP_GIVES_UP = (
    (zmq.TCP_MAXRT, 4000), (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 1), (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)  # fmt: skip
DENIED_S = 0.2  # until a server that did not let us in is asked again
DENIALS = 2  # so often, before we believe it
LATER = ("passive", "busy")  # codes with which a server says that another, or it itself a moment later, may answer


class Elsewhere(Exception):
    """This server doesn't answer, or is not the active: ask another."""


class Interrupted(Unanswered):
    """No server answered to the end; what was heard of it is good."""


class AccessDenied(Elsewhere):
    """This server does not let us in."""


class Unreached(Elsewhere):
    """Nothing is there, at the address that its name was looked up as."""


class Connection:
    """A DEALER to P of one server; `monitor`, if there is one, tells when its connection goes."""

    def __init__(
        self, server: str, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes] | None = None,
        known: Credentials | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self.socket = socket
        self._monitor = monitor
        self._known = known
        socket.linger = 0
        socket.maxmsgsize = DEFAULT.frame_bytes_max

    def put(self, frames: list[bytes]) -> bool:
        """Send, if there is a connection, or room until there is one."""
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def hear(self, question: Question, silence_s: float, *, watched: bool = True) -> Told:
        """The next message of the answer; `Elsewhere` when none comes in time, or the connection goes."""
        deadline = monotonic() + silence_s
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        while (left := deadline - monotonic()) > 0:
            ready = dict(poller.poll(max(1, int(left * 1000))))
            if self.socket not in ready:
                if ready and not self._told(watched):
                    continue
                raise Elsewhere(f"{self.server} {'went away' if ready else f'said nothing for {silence_s:g} s'}")
            told = question.hear(self.server, self.socket.recv_multipart())
            if told is not None:
                return told
        raise Elsewhere(f"{self.server} said nothing for {silence_s:g} s")

    def _told(self, watched: bool) -> bool:
        """Whether the monitor tells that the connection went, if that is `watched`; `AccessDenied` if it was not let
        in.
        """
        assert self._monitor is not None
        frames = self._monitor.recv_multipart()
        if why := admission.reason(self.server, frames, self._known):
            raise AccessDenied(f"{self.server} {why}")
        event = int.from_bytes(frames[0][:2], sys.byteorder)
        if event == admission.NOT_REACHED and is_name(self.server):
            raise Unreached(f"{self.server} is not reached")
        return watched and event == zmq.EVENT_DISCONNECTED

    def answer(self, question: Question, silence_s: float) -> Iterator[Told]:
        """All that is still to come of an answer, with more credit granted as it is taken."""
        while not question.over:
            more = question.granted()
            if more is not None and not self.put(more):
                raise Elsewhere(f"{self.server} went away")
            yield self.hear(question, silence_s)

    def forget(self) -> None:
        """Drop what the monitor told of a connection before."""
        while self._monitor is not None and self._monitor.poll(0):
            self._monitor.recv_multipart()

    def close(self) -> None:
        """Close the socket, and its monitor."""
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close(0)
        self.socket.close()


class QuestionPort:
    """A line to each server, made when it is needed. `again` says what to do about an answer that broke off."""

    def __init__(
        self, servers: Sequence[str], timeout_s: float, *, again: str = "ask again", silence_s: float | None = None
    ) -> None:
        self._servers = list(servers)
        self._known = credentials_of(servers)
        self._turns: dict[str, int] = {}  # how often a line to each was made: a client file may have two keys for it
        self._tries: Counter[str] = Counter()  # at which each was not reached: a name may have two kinds of address
        self._denied: dict[str, str] = {}
        self._timeout_s = timeout_s
        self._silence_s = timeout_s if silence_s is None else silence_s  # in the middle of an answer
        self._again = again
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._lines: dict[str, Connection] = {}
        self._ids = itertools.count(1)
        self._at = 0

    def ask(self, subtree: str, **options: Any) -> dict[str, Any]:
        """The facts of a REPLY."""
        line, _, told = self._first(subtree, options)
        return reply_of(line.server, told).facts

    def stream(self, subtree: str, **options: Any) -> Iterator[tuple[Header, list[Any]]]:
        """Header and items of each chunk, in order, and of the KTHXBAI."""
        for index, told in enumerate(self._answers(subtree, {"credit": CREDIT, **options})):
            header = told.header
            if isinstance(header, Sync | Records) and header.chunk != index:
                raise Unanswered(f"chunk {header.chunk} came where {index} was due; {self._again}")
            yield header, told.items

    def _answers(self, subtree: str, options: dict[str, Any]) -> Iterator[Told]:
        line, question, told = self._first(subtree, options)
        yield told
        try:
            yield from line.answer(question, self._silence_s)
        except Elsewhere as broken:
            self._lines.pop(line.server).close()
            self._next()
            raise Interrupted(f"{broken} in the middle of an answer; {self._again}") from None

    def _first(self, subtree: str, options: dict[str, Any]) -> tuple[Connection, Question, Told]:
        """Ask one server after the other until one answers; what it says first."""
        deadline = monotonic() + self._timeout_s
        last, patience_s = "no answer", RETRY_S
        while (now := monotonic()) < deadline:
            line = self._line()
            question = Question(next(self._ids), subtree.encode(), {"from": 0, **options})
            line.forget()
            try:
                if line.put(question.frames):
                    return line, question, line.hear(question, min(deadline - now, patience_s), watched=False)
                raise Elsewhere
            except Refused as refused:
                if refused.code not in LATER:
                    raise
                last = refused.code
                self._next()
                self._line().socket.poll(100)  # it said that it can't now: a moment later it may
            except Elsewhere as broken:
                last = str(broken) if isinstance(broken, AccessDenied) else "no answer"
                self._deny(line.server, last if isinstance(broken, AccessDenied) else "")
                self._lines.pop(line.server).close()
                self._next()
                if isinstance(broken, Unreached):
                    self._tries[line.server] += 1
                    Event().wait(DENIED_S)
                elif self._at == 0:
                    patience_s *= 2  # all are silent, or one is busy with much: asked again it is not sooner done
        raise Unanswered(
            f"no server of {', '.join(self._servers)} serves (waited {self._timeout_s:g} s; last: {last}); "
            "is chp-server running there, and is it reached from this machine? See `chp status`"
        )

    def _deny(self, server: str, why: str) -> None:
        """It does not let us in; if no other server may, and it has said so several times, that is the answer."""
        if not why:
            self._denied.pop(server, None)
            return
        self._denied[server] = why
        Event().wait(DENIED_S)
        if len(self._denied) == len(self._servers) and min(self._turns.values()) >= DENIALS:
            raise Refused("; ".join(self._denied.values()), "key")

    def _line(self) -> Connection:
        server = self._servers[self._at]
        if server not in self._lines:
            socket = self._context.socket(zmq.DEALER)
            socket.rcvhwm = 0
            for option, value in TCP_GIVES_UP:
                socket.setsockopt(option, value)
            turn = self._turns[server] = self._turns.get(server, -1) + 1
            socket.ipv6 = in_turn(server, self._tries[server])
            if (known := self._known.get(server)) is not None:
                known.put_on(socket, turn)
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | admission.EVENTS)
            self._lines[server] = Connection(server, socket, monitor, known)
            socket.connect(server)
        return self._lines[server]

    def ask_another(self) -> None:
        """The next question goes to another server, if there is one: this one is behind."""
        self._next()

    def _next(self) -> None:
        self._at = (self._at + 1) % len(self._servers)

    def close(self) -> None:
        """Close the sockets."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
