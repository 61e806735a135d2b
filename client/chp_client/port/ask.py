"""Questions to the active server: facts, an image and its parts, the feed, topics (SPEC.md, section 17).

    with QuestionPort(servers, timeout_s=120) as port:
        facts = port.ask("/rates/", image=0, prefix="/rates/EUR")       # plans a read
        number, proof = facts["number"], [facts["store"], facts["opener"]]
        for header, items in port.stream("/rates/", image=number, proof=proof, prefix="/rates/EUR", part=0, parts=4):
            ...     # ends with the KTHXBAI

A question goes to one server. If that server is passive, silent for `patience_s` or away, the next server gets the
question. A stream that has begun never changes servers: its chunks carry an index, and a gap, a silence or a lost
connection is an error. `timeout_s` bounds the time without an active server, a failover included. The calls block, and
only one thread may use a port.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

import zmq

from chp.headers import Header, Records, State, Sync
from chp.numbers import epoch_of

from ..clientfile import credentials_of
from ..core.question import Question, Told, reply_of
from ..errors import Refused, Unanswered
from .connection import Connection, Elsewhere

log = logging.getLogger(__name__)
RETRY_S = 2.0
# If a server is busy for longer than this, in seconds, a warning says so in the log.
BUSY_S = 2.0
CREDIT = 8
# After this long without a connection, the next server is asked. The first connection is still being made meanwhile.
CONNECT_S = 0.25
AGAIN_S = 0.1
# Refusals with these codes say that the server can't answer now. Another server may, or the same one a moment later.
LATER = ("passive", "busy")


class Interrupted(Unanswered):
    """The error of an answer that broke off. The messages that came before are good."""


class QuestionPort:
    """A connection to each server, made when it is needed. With `topics` all are made at once, to find the active.

    `again` is the remedy in the error of an answer that broke off. `silence_s` bounds a silence in the middle of an
    answer.
    """

    def __init__(
        self,
        servers: Sequence[str],
        timeout_s: float,
        *,
        again: str = "ask again",
        silence_s: float | None = None,
        patience_s: float = RETRY_S,
        topics: Sequence[bytes] = (),
    ) -> None:
        self._servers, self._known = list(servers), credentials_of(servers)
        self._denied: dict[str, str] = {}
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._silence_s = timeout_s if silence_s is None else silence_s
        self._again, self._topics = again, topics
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: dict[str, Connection] = {}
        self._ids = itertools.count(1)
        self._at = 0
        # The connection over which the last answer came.
        self.asked: Connection | None = None
        try:
            self.connections = [self._connection(server) for server in self._servers] if topics else []
        except BaseException:
            self.close()
            raise

    def ask(self, subtree: str, **options: Any) -> dict[str, Any]:
        """Return the facts of a REPLY."""
        connection, _, told = self._first(subtree, options, self._timeout_s, 1)
        return reply_of(connection.address, told).facts

    def stream(self, subtree: str, **options: Any) -> Iterator[tuple[Header, list[Any]]]:
        """Yield the header and the items of each chunk, in order, and then of the KTHXBAI."""
        for index, told in enumerate(self.answers(subtree, {"credit": CREDIT, **options}, self._timeout_s)):
            header = told.header
            if isinstance(header, Sync | Records) and header.chunk != index:
                raise Unanswered(f"chunk {header.chunk} came where {index} was due; {self._again}")
            yield header, told.items

    def answers(self, subtree: str, options: dict[str, Any], timeout_s: float, *, grant: int = 1) -> Iterator[Told]:
        """Yield each message of an answer. Raises `Unanswered` if the first one does not come within `timeout_s`."""
        connection, question, told = self._first(subtree, options, timeout_s, grant)
        try:
            yield told
            yield from connection.answer(question, self._silence_s)
        except Elsewhere as broken:
            self._drop(connection)
            raise Interrupted(f"{broken} in the middle of an answer; {self._again}") from None
        except Refused as refused:
            self._pass_on(connection, refused)
            raise

    def _first(
        self, subtree: str, options: dict[str, Any], timeout_s: float, grant: int
    ) -> tuple[Connection, Question, Told]:
        """Ask one server after the other until one answers; return the first message of the answer."""
        deadline = monotonic() + timeout_s
        last, patience_s = "no answer", self._patience_s
        busy_from = deadline - timeout_s + BUSY_S
        while (left := deadline - monotonic()) > 0:
            connection = self._choose()
            question = Question(next(self._ids), subtree.encode(), {"from": 0, **options}, grant=grant)
            try:
                if connection.reach(min(left, CONNECT_S)) and connection.ask(question):
                    # The timeout of a feed bounds the search for a server, and not an answer on its way.
                    told = connection.hear(question, patience_s if self._topics else min(left, patience_s))
                    self.asked = connection
                    return connection, question, told
                last = connection.why or "no answer"
                self._deny(connection, bounded=deadline < float("inf"))
                self._next(connection)
                if not connection.why:
                    continue
            except Refused as refused:
                last = refused.code
                self._pass_on(connection, refused)
                if refused.code not in LATER:
                    raise
                if refused.code == "busy" and monotonic() > busy_from:
                    log.warning("%s is busy: %s; asking again for up to %.0f s", connection.address, refused.text, left)
                    busy_from = float("inf")
            except Elsewhere:
                # If little time was left, the silence of the server says nothing. Then keep the reason from before.
                if left >= min(patience_s, timeout_s / 2):
                    last = "no answer"
                self._drop(connection)
                if self._at == 0:
                    # All servers were asked. A server may be busy with a large answer, so give each one more time.
                    patience_s *= 2
            self.heard(AGAIN_S)
        raise Unanswered(
            f"no server of {', '.join(self._servers)} serves (waited {round(timeout_s, 2):g} s; last: {last}); "
            "is chp-server running there, and is it reached from this machine? See `chp status`"
        )

    def _deny(self, connection: Connection, *, bounded: bool) -> None:
        """Note whether a server refuses the handshake; raise `Refused` if all do."""
        self._denied.pop(connection.address, None)
        if connection.why:
            self._denied[connection.address] = connection.why
            if bounded and len(self._denied) == len(self._servers):
                text = "; ".join(f"{server} {why}" for server, why in self._denied.items())
                raise Refused(text, "key", dict(self._denied))

    # -- which server

    def _choose(self) -> Connection:
        """Return the connection whose server publishes that it is active, or the one whose turn it is."""
        for connection in self.heard(0):
            # A reader asks the server for the records that are skipped here, so none is lost.
            for _ in connection.published():
                pass
        active = [connection for connection in self.connections if connection.state == State.ACTIVE]
        if active:
            return max(active, key=lambda connection: epoch_of(connection.number))
        return self._connection(self._servers[self._at])

    def heard(self, wait_s: float) -> list[Connection]:
        """Wait until something was published, at most `wait_s`; return the connections with something to read."""
        poller = zmq.Poller()
        for connection in self.connections:
            if connection.updates is not None:
                poller.register(connection.updates, zmq.POLLIN)
        ready = dict(poller.poll(max(0, int(wait_s * 1000 + 0.999))))
        return [connection for connection in self.connections if connection.updates in ready]

    def ask_another(self) -> None:
        """Ask another server next, if there is one, because the current one is behind."""
        self._next(self._connection(self._servers[self._at]))

    def _next(self, connection: Connection) -> None:
        connection.state = 0
        self._at = (self._servers.index(connection.address) + 1) % len(self._servers)

    def _pass_on(self, connection: Connection, refused: Refused) -> None:
        """Turn to the next server if this one can't answer now."""
        if refused.code in LATER:
            self._next(connection)
            if refused.code == "passive" and type(refused.detail) is int:
                connection.state = refused.detail

    def _drop(self, connection: Connection) -> None:
        """Close a connection whose server owes an answer, so that the server forgets the question."""
        self._next(connection)
        self._connections.pop(connection.address).close()
        if self._topics:
            self.connections[self._servers.index(connection.address)] = self._connection(connection.address)

    def _connection(self, server: str) -> Connection:
        if server not in self._connections:
            self._connections[server] = Connection(self._context, server, self._known.get(server), self._topics)
        return self._connections[server]

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
