"""A recipe as steps, and who takes them: a thread that waits, or a task.

A recipe is written once, as a generator of what has to be waited for; a Clone and an AsyncClone have the same words, so
it need not know which one it has. What a step comes to is sent into the generator, what it raises is thrown into it,
and what the generator returns is the recipe's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from chp.errors import BadInput
from chp_client.checks import wait_s
from chp_client.clone.aio import AsyncClone
from chp_client.clone.clone import Clone
from chp_client.errors import Closed

GIVE_BACK_S = 5.0  # for what is given back though the time is over


def of_kind(clone: Any, kind: type[Any]) -> Any:
    """A recipe's Clone, if it is of the kind that it waits for; raises BadInput."""
    if isinstance(clone, kind):
        return clone
    if isinstance(clone, Clone | AsyncClone):
        names = ("a Clone", "without") if kind is Clone else ("an AsyncClone", "with")
        raise BadInput(
            f"this recipe takes {names[0]}; of the other kind it is the one {names[1]} 'Async' before its name"
        )
    raise BadInput(f"a recipe takes {kind.__name__}, not {clone!r:.60}")


class Do(NamedTuple):
    """Make a set, a delete or the end of a lease, and wait until it is acknowledged; comes to the `Ack`."""

    act: Callable[..., Any]  # takes a timeout, for the room in the window
    at_least_s: float = 0.0  # waited for, also when the time is over


class Until(NamedTuple):
    """Wait for a change; comes to whether there was one within `at_most_s`."""

    watch: Any
    at_most_s: float


class Open(NamedTuple):
    """Make a lease; comes to it."""

    clone: Any
    ttl: float


Steps = Generator[Do | Until | Open, Any, Any]


class Clock:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        timeout = wait_s(timeout)
        self._until = None if timeout is None else monotonic() + timeout

    def left(self, at_least: float = 0.0) -> float | None:
        """The seconds that are left; None: for ever."""
        return None if self._until is None else max(at_least, self._until - monotonic())

    def left_of(self, at_most: float) -> float:
        """The seconds that may be waited once more; raises TimeoutError if there are none."""
        left = self.left()
        if left == 0.0:
            raise TimeoutError
        return at_most if left is None else min(left, at_most)


def take(steps: Steps, timeout: float | None) -> Any:
    """Take the steps of a recipe on a Clone, in this thread."""
    clock, go = Clock(timeout), partial(next, steps)
    while True:
        try:
            step = go()
        except StopIteration as end:
            return end.value
        try:
            go = partial(steps.send, _done(step, clock))
        except BaseException as error:
            go = partial(steps.throw, error)


def _done(step: Do | Until | Open, clock: Clock) -> Any:
    if isinstance(step, Open):
        return step.clone.lease(step.ttl, clock.left())
    if isinstance(step, Do):
        return step.act(timeout=clock.left(step.at_least_s)).wait(clock.left(step.at_least_s))
    limit = clock.left_of(step.at_most_s)
    try:
        step.watch.get(limit)
    except TimeoutError:
        return False
    except StopIteration:
        raise _closed() from None
    return True


def _closed() -> Closed:
    return Closed("this Clone was closed while a recipe waited; make another")


async def take_async(steps: Steps, timeout: float | None) -> Any:
    """Take the steps of a recipe on an AsyncClone, in this task."""
    clock, go = Clock(timeout), partial(next, steps)
    while True:
        try:
            step = go()
        except StopIteration as end:
            return end.value
        try:
            go = partial(steps.send, await _done_async(step, clock))
        except BaseException as error:
            go = partial(steps.throw, error)


async def _done_async(step: Do | Until | Open, clock: Clock) -> Any:
    if isinstance(step, Open):
        return await step.clone.lease_once_there_is_room(step.ttl, clock.left())
    if isinstance(step, Do):
        return await step.act(timeout=clock.left(step.at_least_s))
    limit = clock.left_of(step.at_most_s)
    try:
        async with asyncio.timeout(limit):
            await anext(step.watch)
    except TimeoutError:
        return False
    except StopAsyncIteration:
        raise _closed() from None
    return True
