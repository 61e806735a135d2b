"""The arbiter in virtual time: a service that keeps one lease, and each server's line to it.

The service has a clock of its own (the world's), ends a session it has not heard for its length, and never errs.
A line does what `chp_server.arbiter` does with kazoo: it asks a few times a session while the lease is wanted, and what
it may rely on counts from when it asked. Messages take as long as others do, and are lost while the line is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chp_server.arbiter import SAFETY

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World

SESSION_S = 2.0
ASK_S = SESSION_S / 5


class LeaseService:
    """Who holds the lease, and until when it will wait for them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holder: tuple[str, int] | None = None  # a server and which of its starts: each has a session of its own
        self._until = 0.0
        self._watching: list[Line] = []

    def hold(self, session: tuple[str, int], line: Line) -> bool:
        """Give the lease to whoever asks first; a holder's asking keeps it."""
        now = self._world.time.now
        if self.holder is None or now >= self._until:
            self.holder = session
        if self.holder != session:
            self._watching.append(line)
            return False
        self._until = now + SESSION_S
        self._world.time.at(self._until, self._end)
        return True

    def _end(self) -> None:
        if self._world.time.now >= self._until:
            self.release(self.holder)

    def release(self, session: tuple[str, int] | None) -> None:
        """The holder lets it go, or its session is over: who wants it is told."""
        if self.holder is not None and self.holder == session:
            self.holder, self._until = None, 0.0
            watching, self._watching = self._watching, []
            for line in watching:
                self._world.time.at(self._world.time.now + self._world.delay(), line.ask)


class Line:
    """One server's line to the service, as long as the server lives."""

    def __init__(self, node: ServerNode, service: LeaseService) -> None:
        self._node, self._world, self._service = node, node.world, service
        self._session = (node.name, node.starts)
        self._wanted = False
        self.until = 0.0  # on the server's own clock
        self._next()

    @property
    def _alive(self) -> bool:
        return self._node.running and self._node.starts == self._session[1]

    def _next(self) -> None:
        if self._alive:
            self._world.time.at(self._world.time.now + ASK_S, self._beat)

    def _beat(self) -> None:
        self._next()
        self.ask()

    def want(self, wanted: bool) -> None:
        """Ask for the lease and keep it, or let it go."""
        if wanted != self._wanted:
            self._wanted = wanted
            self.ask()

    def ask(self) -> None:
        """Say what is wanted; a stopped process says nothing, and reads what was answered when it goes on."""
        if not self._alive or self._node.paused:
            return
        asked = self._node.clock.mono()
        if self._wanted:
            self._send(lambda: self._asked(asked))
        elif self.until:
            self.until = 0.0
            self._send(lambda: self._service.release(self._session))

    def _send(self, what: Callable[[], None]) -> None:
        self._world.time.at(self._world.time.now + self._world.delay(), lambda: self._arrive(what))

    def _arrive(self, what: Callable[[], None]) -> None:
        if self._node.name not in self._world.doubted:
            what()

    def _asked(self, asked: float) -> None:
        held = self._service.hold(self._session, self)
        self._send(lambda: self._answered(asked, held))

    def _answered(self, asked: float, held: bool) -> None:
        if not self._alive:
            return
        if not held:
            self.until = 0.0
        elif self._wanted:
            self.until = max(self.until, asked + SESSION_S * SAFETY)
        self._node.schedule(self._world.turn_delay())
