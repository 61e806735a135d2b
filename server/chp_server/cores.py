"""Two server cores and the link between them, driven by hand, without a socket, a thread or a clock.

    pair = Cores()                        P is active, B follows and is in sync
    pair.put("P", b"x" * 16, 1, {"/k": b"1"}, c=[[0], [0]])      a KVSET to one server, or to "PB"
    pair.linked = False                   drop all messages between the two
    pair.connection(True)                 tell both that their connection stands: long silence may then be slowness
    pair.run(2.0)                         let time pass for both, but not for those in pair.stopped
    pair.answers(session)                 [(batch, "ack", revision, durability) or (batch, code, detail)], as they left

`Cores` is for tests of a pair's invariants under any order of events, and for clients in other languages: two seconds
of a failover take some milliseconds, and are the same each time. For programs that use Clone, `testing.Pair` has
sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chp import columns
from chp.batch import Segment, decode
from chp.headers import Ack, Refused
from chp.keys import OLDEST_HELD, RESERVED_KEY, public_session, session_topic
from chp.limits import DEFAULT, Limits
from chp.numbers import pack

from .core.core import CoreConfig, ServerCore
from .core.pair.binary_star import PairEvent
from .core.updates.turn import ReadMessages, ReadSpans, Save, Turn

STEP_S = 0.05


class Cores:
    """The cores of a primary P and a backup B."""

    def __init__(self, limits: Limits = DEFAULT, **config: Any) -> None:
        self.now = 100.0
        self.limits = limits
        base = CoreConfig(has_peer=True, durability=1, **config)
        self.cores = {
            name: ServerCore(replace(base, primary=name == "P", name=name), name.encode() * 16, self.now, limits)
            for name in "PB"
        }
        self.linked = True
        self.stopped = ""
        self.turns: dict[str, list[Turn]] = {"P": [], "B": []}
        self.saves: list[Save] = []
        self._mail: dict[str, list[list[bytes]]] = {"P": [], "B": []}
        self._connection: dict[str, list[bool]] = {"P": [], "B": []}
        self.said: list[tuple[str, list[bytes]]] = []
        self.run(1.0)
        assert self.p.active and self.p.pair.in_sync(), "the pair is in sync"

    @property
    def p(self) -> ServerCore:
        """The primary."""
        return self.cores["P"]

    @property
    def b(self) -> ServerCore:
        """The backup."""
        return self.cores["B"]

    def turn(self, name: str) -> Turn:
        """Make one turn of a server, with the peer's messages first, and return it."""
        core = self.cores[name]
        connection, self._connection[name] = self._connection[name], []
        core.begin_turn(self.now, self.now, None, connection)
        mail, self._mail[name] = self._mail[name], []
        for frames in mail:
            core.peer_message(frames)
        turn = core.end_turn()
        self.saves += turn.saves
        self.said += [(name, frames) for frames in turn.acks]
        if self.linked:
            self._mail["B" if name == "P" else "P"] += [*turn.to_peer, *turn.opened, *turn.confirm]
        self.turns[name].append(turn)
        self.write(name, turn)
        core.pair.replacing = None
        for read in turn.reads:
            if isinstance(read, ReadMessages | ReadSpans):
                core.page(read, self.read(name, read))
        return turn

    def write(self, name: str, turn: Turn) -> None:
        """Write a turn to a server's journal. Here this does nothing, as there is no journal."""

    def read(self, name: str, read: ReadMessages | ReadSpans) -> Any:
        """Return messages from a server's journal: none here, as there is no journal."""
        return {} if isinstance(read, ReadSpans) else []

    def connection(self, up: bool) -> None:
        """Tell both servers in their next turns that the connection to the other's P+3 stands, or is broken."""
        for events in self._connection.values():
            events.append(up)

    def late(self, name: str) -> None:
        """Drop the peer's messages that wait for a server; the next heartbeat brings their content."""
        self._mail[name].clear()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for name in "PB":
                if name not in self.stopped:
                    self.turn(name)

    def put(
        self,
        servers: str,
        session: bytes,
        no: int,
        items: Mapping[str, bytes | None],
        *,
        oldest: bool = False,
        **extras: Any,
    ) -> None:
        """Send a KVSET to the servers that are named; a value None deletes.

        `oldest` tells the servers that the client holds no batch before this one.
        """
        gone = [i for i, value in enumerate(items.values()) if value is None]
        given = {**extras, columns.DELETES: gone} if gone else extras
        body = Segment(list(items), [value or b"" for value in items.values()], given or None).encode()
        for name in servers:
            self.cores[name].collect([RESERVED_KEY, pack(no), session, OLDEST_HELD if oldest else b"", body])

    def vote(self, name: str) -> None:
        """Let a client ask this server to serve."""
        self.cores[name].do(PairEvent.VOTE_PEER_SILENT)

    def answers(self, session: bytes, of: str = "PB") -> list[tuple[Any, ...]]:
        """Return the answers to a session, in the order in which they left."""
        out: list[tuple[Any, ...]] = []
        for name, frames in self.said:
            if name not in of or frames[0] != session_topic(public_session(session)):
                continue
            header, _ = decode(frames[-1])
            if isinstance(header, Ack):
                for first, last, revision in header.runs:
                    out += [(no, "ack", revision, header.durability) for no in range(first, last + 1)]
            elif isinstance(header, Refused):
                out.append(tuple(header))
        return out

    def outcomes(self) -> dict[str, str]:
        """Return the last outcome of each key that was saved to a file."""
        return {update.key: update.outcome for save in self.saves for update in save.updates}
