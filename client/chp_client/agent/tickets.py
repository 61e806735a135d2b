"""Tickets: a set returns one, and it is settled when the server has answered.

All sets that travel in one batch share one ticket, so a million sets need a few hundred tickets. A batch that was cut
into parts is acknowledged when all its parts are. Its acknowledgement is that of the last part, with the weakest
durability of all parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Protocol

from chp.errors import BadInput

from ..checks import wait_s
from ..core.events import Ack, least
from .dispatch import call_logged


@dataclass(slots=True)
class PublishedMessages:
    """The messages of a ticket: their topic, their keys (None if none has one) and their number, once they are sent."""

    topic: str
    keys: list[str] | None = None
    count: int = 0


class Consumed(Protocol):
    """The promise that a group has consumed messages."""

    def wait(self, timeout: float | None = None) -> Ack:
        """Wait at most `timeout` seconds."""

    def __await__(self) -> Generator[Any, None, Ack]:
        """Wait in a task."""


class Ticket:
    """The promise of an acknowledgement."""

    __slots__ = (
        "_ack", "_call", "_callbacks", "_describe", "_done_lock", "_error", "_parts", "asked", "consuming", "done",
        "published", "told",
    )  # fmt: skip

    def __init__(
        self, describe: Callable[[], str], call: Callable[[Callable[[], object]], object] = lambda act: act()
    ) -> None:
        self._parts = 1
        self._ack: Ack | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Ticket], object]] = []
        self._describe = describe
        # The function that runs a callback of the application, on a thread where it may take its time.
        self._call = call
        self.done = False
        # True if the application waited for the ticket, or added a callback.
        self.asked = False
        # True if the application was told the error.
        self.told = False
        # The messages of the batch, and the function behind `consumed`. Both are None unless a topic made the ticket.
        self.published: PublishedMessages | None = None
        self.consuming: Callable[[Ticket, str], Consumed] | None = None
        self._done_lock = Lock()
        self._done_lock.acquire()

    def wait(self, timeout: float | None = None) -> Ack:
        """Wait at most `timeout` seconds, and return the acknowledgement.

        Raises `TimeoutError`, after which the set is still on its way. Raises `Refused` (or its subclass `Conflict`) if
        the server took nothing of the batch. Raises `Closed` if the Clone was closed before the answer came.
        """
        self.asked = True
        if not self.done:
            limit = wait_s(timeout)
            if not self._done_lock.acquire(timeout=-1 if limit is None else limit):
                raise self.overdue(timeout)
            self._done_lock.release()
        if self._error is not None:
            self.told = True
            try:
                raise self._error
            finally:
                # The error's traceback refers to this frame. Without `del`, the frame would keep the ticket alive, and
                # the ticket the error.
                del self
        assert self._ack is not None, "a settled ticket has an ack or an error"
        return self._ack

    @property
    def ack(self) -> Ack | None:
        """The acknowledgement, or None if there is none yet."""
        return self._ack if self.done and self._error is None else None

    @property
    def error(self) -> Exception | None:
        """The error of a refused set, or None."""
        self.told = self.told or self.done
        return self._error if self.done else None

    def consumed(self, group: str) -> Consumed:
        """Return the promise that a group of the topic has consumed the messages that were published with this ticket.

        `ticket.consumed("billing").wait(timeout)` returns the acknowledgement of the messages, and `await` does so in a
        task of asyncio. A message is consumed when a consumer has acknowledged it, and also when it was put aside as a
        dead letter: the group gives it to no consumer again.

        Raises `TimeoutError` when the time is over, `Closed`, and `Full` for more waits than a Clone may have. Raises
        `NoSuchGroup` if there is no such group, or if it began behind the message. Raises `NoSuchTopic` if the topic is
        gone or was made again, unless the new topic has let messages go or began after a failover. The user needs the
        right to read the topic.
        """
        if self.consuming is None or self.published is None:
            raise BadInput("only a ticket of `publish` or `publish_many` has messages that a group consumes")
        return self.consuming(self, group)

    def add_done_callback(self, callback: Callable[[Ticket], object]) -> None:
        """Call `callback(ticket)` once the ticket is settled, or now if it is.

        The callback runs on the thread of the Clone's listeners. It may set, wait and close there, but other callbacks
        wait for it. What it raises is logged.
        """
        if not callable(callback):
            raise BadInput(f"a callback is something to call with the ticket, not {callback!r:.60}")
        act = partial(callback, self)
        if self.done:
            call_logged(act)
        else:
            self.on_settled(lambda _: self._call(act))

    def __await__(self) -> Generator[Any, None, Ack]:
        """Wait in a task of any loop: `ack = await ticket`. A cancelled task leaves the set on its way."""
        if not self.done:
            loop = asyncio.get_running_loop()
            settled = loop.create_future()
            self.on_settled(lambda _: _call_soon(loop, partial(_resolve, settled)))
            yield from settled
        return self.wait(0)

    def future(self) -> Future[Ack]:
        """Return a `concurrent.futures.Future`, for `wait`, `as_completed` and executors. It can't be cancelled."""
        future: Future[Ack] = Future()
        future.set_running_or_notify_cancel()
        self.add_done_callback(lambda _: self._tell(future))
        return future

    def _tell(self, future: Future[Ack]) -> None:
        if self._error is not None:
            self.told = True
            future.set_exception(self._error)
        else:
            future.set_result(self.wait(0))

    def on_settled(self, callback: Callable[[Ticket], object]) -> None:
        """Call `callback` on the agent's thread once the ticket is settled, or now if it is.

        Only this package uses it. The callback must be brief and never raise.
        """
        self.asked = True
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def __repr__(self) -> str:
        return f"<Ticket {self._error or self._ack!r}>" if self.done else "<Ticket, not settled>"

    # -- for the parts of this package

    def overdue(self, timeout: float | None) -> TimeoutError:
        """Return the error of a wait that ran out of time."""
        within = "in time" if timeout is None else f"within {round(timeout, 2 if timeout > 0.1 else 3)} s"
        return TimeoutError(f"no acknowledgement {within}, and still trying; {self._describe()}")

    def expect(self, parts: int) -> None:
        """Wait for this many parts instead of one."""
        self._parts = parts

    def settle(self, result: Ack | Exception) -> None:
        """Take the answer to a part."""
        if self.done:
            return
        self._parts -= 1
        if isinstance(result, Exception):
            self._error = result
        else:
            self._ack = result if self._ack is None else least(self._ack, result)
        if self._parts > 0:
            return
        self.done = True
        self._done_lock.release()
        self._call_back()

    def forked(self, error: Exception) -> None:
        """Settle the ticket in a child process, where no answer will come. The callbacks stay with the parent."""
        # A thread that does not exist in the child may hold the old lock.
        self._done_lock = Lock()
        self._done_lock.acquire()
        self._callbacks, self._parts = [], 1
        self.settle(error)

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                # Another thread took the last one.
                return
            callback(self)


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Call `act` on the loop's thread. Do nothing if the loop has ended."""
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        pass


def _resolve(settled: asyncio.Future[None]) -> None:
    # It is done already if the waiting task was cancelled.
    if not settled.done():
        settled.set_result(None)
