"""How a call waits: a thread keeps still, a task awaits. One text serves both, since it awaits what a `Waiter` has.

An `AsyncClone`'s waiter is `Awaiting` (aioparts.py), which waits by its loop. A `Clone`'s is `Blocking`, which keeps
the thread, so that a coroutine over it never stops half way, and `at_once` runs it to its end.
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
    """How one call waits, for at most a time that began with it; `TimeoutError` when that is over."""

    async def confirmed(self, key: str) -> None:
        """Until no own set of this key is on its way: before that, it has no revision to make a condition of."""

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """Until the set that this makes is acknowledged; raises what its ticket does.

        `act` takes a `timeout`, as `Clone.set` does, for one that waits for room itself.
        """

    async def settled(self, ticket: Ticket) -> object:
        """The same of a set that is made."""

    async def made(self, act: Callable[..., Result]) -> Result:
        """What `act` comes to, once there is room for it in the window."""

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """Whether a change came in that time; `Closed` if none can come any more."""


class Blocking:
    """Waits that keep the thread."""

    def __init__(self, mailbox: Mailbox, timeout: float | None) -> None:
        limit = wait_s(timeout)
        self._mailbox = mailbox
        self._until = None if limit is None else monotonic() + limit

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - monotonic())

    async def confirmed(self, key: str) -> None:
        """As `Waiter`."""
        self._mailbox.confirmed(key, self._left())

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """As `Waiter`."""
        return act(timeout=self._left()).wait(self._left())

    async def settled(self, ticket: Ticket) -> object:
        """As `Waiter`."""
        return ticket.wait(self._left())

    async def made(self, act: Callable[..., Result]) -> Result:
        """As `Waiter`."""
        return act(timeout=self._left())

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """As `Waiter`."""
        limit = at_most(at_most_s, self._left())
        try:
            watch.get(limit)
        except TimeoutError:
            return False
        except StopIteration:
            raise closed_meanwhile() from None
        return True


def at_most(seconds: float, left: float | None) -> float:
    """How long to wait once more, of what is left; raises TimeoutError if that is nothing."""
    if left == 0.0:
        raise TimeoutError
    return seconds if left is None else min(left, seconds)


def closed_meanwhile() -> Closed:
    """What whoever waits for a change is told when there is nobody left to tell it."""
    return Closed("this Clone was closed while something waited for a change; make another")


def at_once(course: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns that awaits nothing but `Blocking`."""
    try:
        course.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("Blocking never suspends")
