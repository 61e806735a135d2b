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

from chp_client.checks import wait_s

GIVE_BACK_S = 5.0  # for what is given back though the time is over


class Do(NamedTuple):
    """Make a set, a delete or the end of a lease, and wait until it is acknowledged; comes to the `Ack`."""

    act: Callable[[], Any]
    at_least_s: float = 0.0  # waited for, also when the time is over


class Until(NamedTuple):
    """Wait for a change; comes to whether there was one within `at_most_s`."""

    watch: Any
    at_most_s: float


Steps = Generator[Do | Until, Any, Any]


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


def _done(step: Do | Until, clock: Clock) -> Any:
    if isinstance(step, Do):
        return step.act().wait(clock.left(step.at_least_s))
    limit = clock.left_of(step.at_most_s)
    try:
        step.watch.get(limit)
    except TimeoutError:
        return False
    return True


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


async def _done_async(step: Do | Until, clock: Clock) -> Any:
    if isinstance(step, Do):
        async with asyncio.timeout(clock.left(step.at_least_s)):
            return await step.act()
    limit = clock.left_of(step.at_most_s)
    try:
        async with asyncio.timeout(limit):
            await anext(step.watch)
    except TimeoutError:
        return False
    return True
