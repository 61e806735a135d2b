"""A reader of images by number: it plans a read, and asks for its parts one after the other, at either server.

It asks a server that serves, and goes to the other one when no answer comes. Between two parts it waits, so failovers
come in the middle of a read.

    at once     Each part has the keys of its hash, with the values and revisions that the map had at the plan's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from chp import columns
from chp.headers import Kthxbai, Reply, Sync
from chp.numbers import describe
from chp_client.core.question import Question
from chp_client.errors import Refused

from .network import Conn, Frames

if TYPE_CHECKING:
    from .world import World

EVERY_S, PATIENCE_S = 0.3, 1.5
PARTS, CREDIT = 4, 2


class ImageReader:
    """A reader of images, which is a node of the network."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.running = True
        # The number of parts that were read, of parts that came from another server than the plan, and of lost plans.
        self.parts = self.of_successors = self.lost = 0
        self._plan: dict[str, Any] = {}
        self._planned_by = self._server = self._part = 0
        self._found: dict[str, tuple[bytes, int]] = {}
        self._question: Question | None = None
        self._asked, self._asked_at = 0, float("-inf")

    def start(self) -> None:
        """Connect, and read until the run ends."""
        for server in "PB":
            self.world.net.connect("req", self.name, server)
        self._later()

    def _later(self) -> None:
        self.world.time.at(self.world.time.now + EVERY_S, self._tick)

    def _tick(self) -> None:
        if self._question is not None and self.world.time.now - self._asked_at > PATIENCE_S:
            self._server, self._question = 1 - self._server, None
        if self._question is None:
            self._ask()
        self._later()

    def _ask(self) -> None:
        self._asked, self._asked_at, self._found = self._asked + 1, self.world.time.now, {}
        options: dict[str, Any] = {"image": 0}
        if self._plan:
            proof = [self._plan["store"], self._plan["opener"]]
            options = {"image": self._plan["number"], "proof": proof, "part": self._part, "parts": PARTS}
        self._question = Question(self._asked, b"", {"from": 0, "credit": CREDIT, **options})
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
            if refused.code == "image":
                self.lost, self._plan = self.lost + 1, {}
            else:
                self._server = 1 - self._server
            return
        if told is None:
            return
        self._asked_at = self.world.time.now
        if isinstance(told.header, Reply):
            self._question, self._plan, self._part = None, told.header.facts, 0
            self._planned_by = self._server
        elif isinstance(told.header, Sync):
            for keys, values, extras in told.items:
                revisions = [r for r, n in extras[columns.REVISIONS] for _ in range(n)]
                self._found.update(zip(keys, zip(values, revisions, strict=True), strict=True))
        elif isinstance(told.header, Kthxbai):
            self._take(told.header)
        if (more := question.granted()) is not None:
            self._send(more)

    def _take(self, end: Kthxbai) -> None:
        number, node = self._plan["number"], self.world.checks.oracle.nodes[self._plan["number"]]
        wanted = {
            key: (value, node.revisions[key])
            for key, value in node.values.items()
            if crc32(key.encode()) % PARTS == self._part
        }
        if end.number != number or self._found != wanted:
            where = f"part {self._part} at {describe(number)} from {'PB'[self._server]}"
            self.world.checks.fail(f"{self.name} read {where} as {self._found}, not {wanted}")
        self.parts += 1
        self.of_successors += self._server != self._planned_by
        self._question, self._part = None, self._part + 1
        if self._part == PARTS:
            self._plan = {}
