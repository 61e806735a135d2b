"""The parts of an AsyncClone: its waits, leases with awaited sets, watches for `async for`, and change callbacks."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

from chp.errors import ChpError

from ..checks import wait_s
from ..codecs import Decoding, V
from ..core.events import Ack, Changed, State
from ..errors import Closed, Full, Lagging
from .changes import Change, Changes, change_with, changes_from, changes_of
from .lease import Lease
from .listeners import Failures
from .mailbox import Mailbox
from .tickets import Ticket
from .waiting import at_most, closed_meanwhile
from .watch import Watch, WatchQueue
from .writer import Items

Made = TypeVar("Made")


class Awaiting:
    """The waits of one call, in a task of its event loop, within a time limit that begins now.

    A `TimeoutError` names the whole limit, and not the part that was left for the last wait.
    """

    def __init__(self, mailbox: Mailbox, blocks: bool, timeout: float | None) -> None:
        self._mailbox = mailbox
        # True if the call waits while the window is full. Otherwise it raises.
        self._blocks = blocks
        self._loop, self._timeout = asyncio.get_running_loop(), wait_s(timeout)
        self._until = None if self._timeout is None else self._loop.time() + self._timeout

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - self._loop.time())

    async def done(self, act: Callable[..., Ticket]) -> Ack:
        """Make a set by `act` once there is room for it. Return its acknowledgement."""
        return await self.settled(await self.made(act))

    async def made(self, act: Callable[..., Made]) -> Made:
        """Return the result of `act`, once there is room for it."""
        while True:
            try:
                return act()
            except Full:
                if not self._blocks:
                    raise
            try:
                await self._room()
            except TimeoutError:
                text = (
                    f"there was no room for it within {self._timeout} s, so nothing was set; {self._mailbox.describe()}"
                )
                raise TimeoutError(text) from None

    async def _room(self) -> None:
        """Wait until a batch is settled."""
        ticket = self._mailbox.oldest_ticket()
        if ticket is not None:
            try:
                await self.settled(ticket)
            except TimeoutError:
                raise
            except Exception:
                # The batch was refused, so there is room now. The task that made it gets the error.
                return

    async def settled(self, ticket: Ticket) -> Ack:
        """Wait until a set is acknowledged. Return its acknowledgement, or raise what its ticket raises."""
        if not ticket.done:
            left, done = self._left(), asyncio.Event()
            ticket.on_settled(lambda _: call_soon(self._loop, done.set))
            try:
                await asyncio.wait_for(done.wait(), left)
            except TimeoutError:
                if not ticket.done:
                    raise ticket.overdue(self._timeout) from None
        return ticket.wait(0)

    async def changed(self, watch: Watch, at_most_s: float) -> bool:
        """Return True if a change came in that time; raise `Closed` if none can come any more."""
        limit = at_most(at_most_s, self._left())
        try:
            async with asyncio.timeout(limit):
                await anext(AsyncWatch(watch, self._loop))
        except TimeoutError:
            return False
        except StopAsyncIteration:
            raise closed_meanwhile() from None
        return True

    async def confirmed(self, key: str) -> None:
        """Wait until no own set or delete of this key is on its way."""
        await self.until(partial(self._mailbox.is_confirmed, key), f"{key!r} is not confirmed")

    async def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready()`, which is checked after each turn of the agent. Raise the error that ended the Clone."""
        # No thread waits here: it would outlive a cancelled task, and an executor has few threads.
        left, mailbox, came = self._left(), self._mailbox, asyncio.Event()
        tell = partial(call_soon, self._loop, came.set)
        mailbox.awaiting.add(tell)
        try:
            async with asyncio.timeout(left):
                while not ready() and mailbox.core.state is not State.CLOSED:
                    await came.wait()
                    came.clear()
        except TimeoutError:
            raise TimeoutError(f"waited {self._timeout} s: {what}; {self._mailbox.describe()}") from None
        finally:
            mailbox.awaiting.discard(tell)
        if mailbox.core.state is State.CLOSED:
            raise mailbox.why_not()


class AsyncLease:
    """The lease that `AsyncClone.lease` makes; use it with `async with`, or call `close`."""

    def __init__(self, mailbox: Mailbox, lease: Lease, waits: Callable[[float | None], Awaiting]) -> None:
        self.id, self.ttl_s = lease.id, lease.ttl_s
        self._mailbox, self._lease = mailbox, lease
        self._waits = waits

    async def set(self, key: str, value: Any, timeout: float | None = None) -> Ack:
        """Set a key that lives as long as the lease. Return when the set is acknowledged."""
        return await self._waits(timeout).done(partial(self._lease.set, key, value))

    async def set_many(self, items: Items, timeout: float | None = None) -> Ack:
        """Set many keys that live as long as the lease."""
        return await self._waits(timeout).done(partial(self._lease.set_many, items))

    @property
    def lost(self) -> bool:
        """True if the servers have ended the lease, as it was not refreshed in time; its keys are gone."""
        return self._lease.lost

    def on_lost(self, listener: Callable[[Lease], object]) -> None:
        """Call `listener(lease)` once the lease is lost, or now if it is.

        The listener runs on the thread of the Clone's listeners, not on the loop's thread.
        """
        self._lease.on_lost(listener)

    async def close(self, timeout: float | None = None) -> Ack | None:
        """End the lease. Its keys are deleted together."""
        return None if self._lease.closed else await self._waits(timeout).done(self._lease.end)

    def abandon(self) -> None:
        """End the lease without waiting for the answer."""
        self._lease.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._mailbox.core.state is State.CLOSED:
            return
        if kind is None:
            await self.close()
            return
        # A cancelled task does not wait for the answer: it would hang until a server is there.
        self._lease.abandon()

    def __repr__(self) -> str:
        return repr(self._lease).replace("<Lease", "<AsyncLease", 1)


class AsyncWatch(Generic[V]):
    """The changes for `async for`, one by one or by `batches()`. `close()` or the end of `async with` ends it."""

    def __init__(self, watch: Watch[V], loop: asyncio.AbstractEventLoop) -> None:
        self._watch = watch
        self._came = asyncio.Event()
        self._rest: deque[Change[V]] = deque()
        watch.queue.on_offer = partial(call_soon, loop, self._came.set)

    def __aiter__(self) -> AsyncIterator[Change[V]]:
        return self

    async def __anext__(self) -> Change[V]:
        while True:
            change = await self._next()
            if change is None:
                raise StopAsyncIteration
            decoded = change if self.decoding is None else change_with(change, self.decoding)
            if decoded is not None:
                return decoded

    async def _next(self) -> Change[V] | None:
        while not self._rest:
            changed = await self._come()
            if changed is None:
                return None
            self._rest.extend(changes_of(changed, None))
        return self._rest.popleft()

    async def undecoded(self) -> AsyncIterator[Change]:
        """Yield changes with bytes as values (for the parts of this package)."""
        while (change := await self._next()) is not None:
            yield change

    @property
    def decoding(self) -> Decoding | None:
        """The decoding of values (for the parts of this package)."""
        return self._watch.decoding

    async def batches(self) -> AsyncIterator[Changes[V]]:
        """Yield changes as columns, as `Watch.batches` does. `asyncio.timeout` limits a wait."""
        rest, self._rest = self._rest, deque()
        if rest:
            yield changes_from(rest, self._watch.decoding)
        while (changed := await self._come()) is not None:
            yield changes_of(changed, self._watch.decoding)

    async def missed(self) -> Changes:
        """Wait until it is known what a watch missed since its first revision. Return all changes that are here.

        Only this package uses it.
        """
        queue = self._watch.queue
        while queue.waits and not queue.closed:
            await self._came.wait()
            self._came.clear()
        return changes_of(queue.poll() or Changed([], [], 0), self._watch.decoding)

    async def _come(self) -> Changed | None:
        """Wait for changes and return them. Return None at the end."""
        queue = self._watch.queue
        while True:
            self._came.clear()
            # `closed` is read first, so the changes before the end are returned before the end.
            closed = queue.closed
            changed = queue.poll()
            if changed is not None or closed:
                return changed
            await self._came.wait()

    @property
    def queue(self) -> WatchQueue:
        """The queue of changes that are not read yet (for the parts of this package)."""
        return self._watch.queue

    def close(self) -> None:
        """End the watch. No more changes come."""
        self._watch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class AsyncListeners:
    """The change callbacks of an AsyncClone. Each runs in its own task."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], Callable[[Change], object]] = {}

    def add(
        self, listener: Callable[[Change], object], prefix: str, opened: Callable[[Any], AsyncWatch], start: int | str
    ) -> None:
        """Begin to call a callback. Raises what `watch` raises."""
        task = asyncio.create_task(_tell(listener, Failures(listener, prefix), opened, opened(start)))
        self._tasks[task] = listener
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    def drop(self, listener: Callable[[Change], object]) -> bool:
        """Stop calling a callback. Return True if it was called."""
        found = [task for task, each in self._tasks.items() if each == listener]
        for task in found:
            task.cancel()
        return bool(found)

    async def end(self, timeout: float) -> None:
        """Wait at most `timeout` for the callbacks, whose watches have ended. Then cancel them."""
        if tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()


async def _tell(
    listener: Callable[[Change], object], failures: Failures, opened: Callable[[Any], AsyncWatch], watch: AsyncWatch
) -> None:
    """Call a callback for each change until the watch ends."""
    while True:
        try:
            async with watch:
                await _tell_all(listener, failures, watch)
            return
        except Lagging as error:
            failures.lagging(error)
        except ChpError as error:
            failures.ended(error)
            return
        try:
            watch = opened("snapshot")
        except Closed:
            return


async def _tell_all(listener: Callable[[Change], object], failures: Failures, watch: AsyncWatch) -> None:
    decoding = watch.decoding
    async for change in watch.undecoded():
        try:
            decoded = change if decoding is None else change_with(change, decoding)
            result = None if decoded is None else listener(decoded)
            if inspect.isawaitable(result):
                await result
        except Exception:
            failures.log(change.key)


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call `callback` on the loop's thread. Do nothing if the loop has ended."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        pass
