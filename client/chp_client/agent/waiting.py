"""The waits of a call: in a `Clone` they block the thread, and in an `AsyncClone` a task awaits them.

The code of a call is a coroutine that awaits a `Waiter`, so one text serves both. The waiter of an `AsyncClone` is
`Awaiting` (aioparts.py), which waits on its loop. The waiter of a `Clone` is `Blocking`, which blocks the thread. A
coroutine over it never suspends, and `at_once` runs it to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Protocol, TypeVar

from ..checks import wait_s
from ..core.events import Ack
from ..errors import Closed
from .mailbox import Mailbox
from .tickets import Ticket
from .watch import Watch

Result = TypeVar("Result")


class Waiter(Protocol):
    """The waits of one call. They share a time limit that began with the call, and raise `TimeoutError` after it."""

    async def confirmed(self, key: str) -> None:
        """Wait until no own set of this key is on its way. Before that, its revision is not known."""

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """Make a set by `act`, and wait until it is acknowledged. Raise what its ticket raises.

        `act` takes a `timeout`, as `Clone.set` does, because it may itself wait for room.
        """

    async def settled(self, ticket: Ticket) -> object:
        """Wait until a set is acknowledged. Raise what its ticket raises."""

    async def made(self, act: Callable[..., Result]) -> Result:
        """Return the result of `act`, once there is room for it in the window."""

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """Return True if a change came in that time; raise `Closed` if none can come any more."""


class Blocking:
    """A waiter that blocks the thread."""

    def __init__(self, mailbox: Mailbox, timeout: float | None) -> None:
        limit = wait_s(timeout)
        self._mailbox = mailbox
        self._until = None if limit is None else monotonic() + limit

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - monotonic())

    async def confirmed(self, key: str) -> None:
        """Wait until no own set of this key is on its way."""
        self._mailbox.confirmed(key, self._left())

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """Make a set by `act`, and wait until it is acknowledged."""
        return act(timeout=self._left()).wait(self._left())

    async def settled(self, ticket: Ticket) -> object:
        """Wait until a set is acknowledged."""
        return ticket.wait(self._left())

    async def made(self, act: Callable[..., Result]) -> Result:
        """Return the result of `act`, once there is room for it in the window."""
        return act(timeout=self._left())

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """Return True if a change came in that time; raise `Closed` if none can come any more."""
        limit = at_most(at_most_s, self._left())
        try:
            watch.get(limit)
        except TimeoutError:
            return False
        except StopIteration:
            raise closed_meanwhile() from None
        return True


def at_most(seconds: float, left: float | None) -> float:
    """Return how long the next wait may last, of the time left; raise TimeoutError if no time is left."""
    if left == 0.0:
        raise TimeoutError
    return seconds if left is None else min(left, seconds)


def closed_meanwhile() -> Closed:
    """Return the error for a wait for a change, if the Clone was closed meanwhile."""
    return Closed("this Clone was closed while something waited for a change; make another")


def at_once(course: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that awaits nothing but `Blocking`."""
    try:
        course.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("Blocking never suspends")
