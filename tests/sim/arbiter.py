"""The arbiter in virtual time: a service that keeps one lease, and each server's line to it.

The service uses the world's clock, and never errs. It ends a session that has been silent for the session's length.
It also keeps the in-sync set. Only the holder of the lease may write the set, and must name the version that it knows.
A line does what `chp_server.shell.arbiter` does with kazoo: it asks a few times a session. The lease that it gets
counts from the moment of the question. Messages take as long as others do, and are lost while the line is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from chp_server.core.pair.arbitration import Members, Wish
from chp_server.shell.arbiter import SAFETY

from .oracle import Wrong

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World

SESSION_S = 2.0
ASK_S = SESSION_S / 5


class LeaseService:
    """The service that knows the holder of the lease and the end of the holder's session."""

    def __init__(self, world: World) -> None:
        self._world = world
        # (server, number of its start): each start of a server has its own session.
        self.holder: tuple[str, int] | None = None
        self._until = 0.0
        self.members = Members(-1, frozenset(), 0)
        self._watching: list[Line] = []

    def hold(self, session: tuple[str, int]) -> bool:
        """Give a free lease to the session, or extend the lease that the session holds."""
        now = self._world.time.now
        if self.holder is None or now >= self._until:
            self.holder = session
        if self.holder != session:
            return False
        self._until = now + SESSION_S
        self._world.time.at(self._until, self._end)
        return True

    def _end(self) -> None:
        if self._world.time.now >= self._until:
            self.release(self.holder)

    def grant(self, session: tuple[str, int], wish: Wish | None) -> bool:
        """Write the in-sync set that the holder wishes, if the wish names the current version."""
        if wish is None or self.holder != session or wish.base != self.members.version:
            return False
        self.members = Members(wish.base + 1, wish.names, wish.number)
        self._watched()
        return True

    def _watched(self) -> None:
        watching, self._watching = self._watching, []
        for line in watching:
            self._world.time.at(self._world.time.now + self._world.delay(), line.ask)

    def watch(self, line: Line) -> None:
        """Note that a line is to be told of the next change."""
        if line not in self._watching:
            self._watching.append(line)

    def check(self, node: ServerNode) -> None:
        """Check, at the end of a turn, that an active server has the lease by its own clock and by the world's."""
        core, line = node.core, node.line
        # A server that hands over releases the lease, and takes no sets.
        if line is None or not core.pair.serving:
            return
        epoch = core.state.epoch
        if core.pair.arbitration.until <= core.turn.now:
            raise Wrong(f"{node.name} is active in epoch {epoch} without the lease")
        if node.holds_lease and self.holder != (node.name, node.starts):
            raise Wrong(f"{node.name} is active in epoch {epoch}, and the lease is not its own")

    def release(self, session: tuple[str, int] | None) -> None:
        """Release the lease of a session that gives it up or is over, and tell the watching lines."""
        if self.holder is not None and self.holder == session:
            self.holder, self._until = None, 0.0
            self._watched()


class Line:
    """The line of one start of a server to the service."""

    def __init__(self, node: ServerNode, service: LeaseService) -> None:
        self._node, self._world, self._service = node, node.world, service
        self._session = (node.name, node.starts)
        self._wanted = False
        self._wish: Wish | None = None
        self._done = 0
        self.members: Members | None = None
        # The end of the lease by the server's own clock.
        self.until = 0.0
        self._due = {"up": 0.0, "down": 0.0}
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

    def want(self, wanted: bool, wish: Wish | None = None) -> None:
        """Ask for the lease or release it, and say what the in-sync set is to be."""
        if wanted != self._wanted or wish != self._wish:
            self._wanted, self._wish = wanted, wish
            self.ask()

    def ask(self) -> None:
        """Send the current wish. A stopped process sends nothing, and reads its answers when it goes on."""
        if not self._alive or self._node.paused:
            return
        asked, wanted, wish = self._node.clock.mono(), self._wanted, self._wish
        if not wanted:
            self.until = 0.0
        self._send("up", lambda: self._asked(asked, wanted, wish))

    def _send(self, way: str, what: Callable[[], None]) -> None:
        # One connection keeps the order of messages.
        self._due[way] = max(self._due[way], self._world.time.now + self._world.delay())
        self._world.time.at(self._due[way], lambda: self._arrive(way, what))

    def _arrive(self, way: str, what: Callable[[], None]) -> None:
        if not self._world.doubted & {self._node.name, f"{self._node.name}.{way}"}:
            what()

    def _asked(self, asked: float, wanted: bool, wish: Wish | None) -> None:
        service = self._service
        held = wanted and service.hold(self._session)
        granted = held and service.grant(self._session, wish)
        if not wanted:
            service.release(self._session)
        service.watch(self)
        serial = wish.serial if granted and wish is not None else 0
        members = service.members
        self._send("down", lambda: self._answered(asked, held, replace(members, done=serial)))

    def _answered(self, asked: float, held: bool, members: Members) -> None:
        if not self._alive:
            return
        self._done = max(self._done, members.done)
        if self.members is None or members.version >= self.members.version:
            self.members = replace(members, done=self._done)
        if not held:
            self.until = 0.0
        elif self._wanted:
            self.until = max(self.until, asked + SESSION_S * SAFETY)
        self._node.schedule(self._world.turn_delay())
