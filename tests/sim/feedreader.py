"""A reader of the feed: it asks P for all records after its number, at either server, and keeps the records.

It uses the library's `Question`, `record_of` and `Parts`, and follows the rules of `Feed`. It proves its position by
the server that opened its epoch. It begins anew if the servers do not go on from its position.

    at once     Each record has the right updates for its number, and is later than the records before it.
    at the end  The records since the reader last began are the surviving history, and none is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chp.batch import record_of
from chp.columns import DELETES
from chp.headers import Kthxbai, Records
from chp.numbers import describe, epoch_of
from chp.parts import Parts, WholeRecord
from chp_client.core.question import Question
from chp_client.errors import Refused

from .network import Conn, Frames

if TYPE_CHECKING:
    from .world import World

EVERY_S, PATIENCE_S = 0.2, 2.0
# The credit is small, so that answers last over many turns and over failovers.
CREDIT, GRANT = 2, 1
# The subtree of everything.
SUBJECT = b""
Updates = list[tuple[str, bytes | None]]


class FeedReader:
    """A reader of the feed, which is a node of the network."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.running = True
        # The number and the updates of each record since the reader last began.
        self.read: list[tuple[int, Updates]] = []
        self.began = self.complete = 0
        self.times_anew = 0
        # The store, and the server that opened the epoch of `complete`.
        self._proof: list[bytes] = []
        self._asked_at = float("-inf")
        self._question: Question | None = None
        self._parts = Parts()
        self._asked = 0
        self._server = 0

    def start(self) -> None:
        """Connect, and read until the run ends."""
        for server in "PB":
            self.world.net.connect("req", self.name, server)
        self._later()

    def _later(self) -> None:
        self.world.time.at(self.world.time.now + EVERY_S, self._tick)

    def _tick(self) -> None:
        if self._question is None or self.world.time.now - self._asked_at > PATIENCE_S:
            self._server = self._server if self._question is None else 1 - self._server
            self._ask()
        self._later()

    def _ask(self) -> None:
        self._asked, self._asked_at, self._parts = self._asked + 1, self.world.time.now, Parts()
        options: dict[str, Any] = {"feed": True, "from": self.complete, "credit": CREDIT}
        if self._proof:
            options["proof"] = self._proof
        self._question = Question(self._asked, SUBJECT, options, grant=GRANT)
        self._send(self._question.frames)

    def _send(self, frames: Frames) -> None:
        self.world.net.send(self.world.net.connect("req", self.name, "PB"[self._server]), "up", frames)

    # -- what comes

    def connected(self, conn: Conn) -> None:
        """Do nothing: the reader asks at its next tick."""

    def disconnected(self, conn: Conn) -> None:
        """Do nothing: the reader asks again when no answer comes."""

    def resume(self) -> None:
        """Do nothing: a reader is never stopped."""

    def deliver(self, conn: Conn, frames: Frames) -> None:
        """Take a message of an answer."""
        question = self._question
        if question is None or conn.b != "PB"[self._server]:
            return
        try:
            told = question.hear(conn.b, frames)
        except Refused as refused:
            self._question = None
            if refused.code in ("retained", "store"):
                self._begin_anew(refused.detail)
            else:
                self._server = 1 - self._server
            return
        if told is None:
            return
        self._asked_at = self.world.time.now
        if isinstance(told.header, Kthxbai):
            self._question = None
            self._reach(max(self.complete, told.header.number), list(told.header.proof or ()))
        elif isinstance(told.header, Records):
            for item in told.items:
                record = self._parts.add(*record_of(item))
                if record is not None:
                    self._take(record)
        if (more := question.granted()) is not None:
            self._send(more)

    def _reach(self, number: int, proof: list[bytes]) -> None:
        if proof:
            self._proof = proof[:2]
        elif epoch_of(number) != epoch_of(self.complete):
            self._proof = []
        self.complete = number

    def _begin_anew(self, oldest: object) -> None:
        self.times_anew += 1
        at = oldest if isinstance(oldest, int) and self.complete == 0 else 0
        self.began = self.complete = at
        self.read, self._proof = [], []

    def _take(self, record: WholeRecord) -> None:
        fail = self.world.checks.fail
        updates = updates_of(record)
        if record.last <= self.complete:
            fail(f"{self.name} is given {describe(record.last)} after {describe(self.complete)}")
        node = self.world.checks.oracle.nodes.get(record.last)
        if node is None or node.writes != updates:
            fail(f"{self.name} is given {describe(record.last)} as {updates}, not {node and node.writes}")
        self.read.append((record.last, updates))
        self._reach(record.last, [])

    # -- the end

    def check(self, end: int) -> None:
        """Check that the reader has the surviving history since it last began."""
        path = [(node.last, node.writes) for node in self.world.checks.oracle.path(end) if node.last > self.began]
        wanted = [(last, writes) for last, writes in path if writes]
        found = [(last, writes) for last, writes in self.read if writes]
        if sorted(found) != sorted(wanted):
            lacking = [describe(last) for last, writes in wanted if (last, writes) not in found]
            more = [describe(last) for last, writes in found if (last, writes) not in wanted]
            self.world.checks.fail(f"{self.name}, since {describe(self.began)}, lacks {lacking} and has {more} besides")


def updates_of(record: WholeRecord) -> Updates:
    """Return the keys and values of a record in order, with None as the value of a delete."""
    found: Updates = []
    for segment in record.segments:
        gone = set((segment.extras or {}).get(DELETES, ()))
        found += [
            (key, None if i in gone else value)
            for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True))
        ]
    return found
