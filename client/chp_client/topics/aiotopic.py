"""A topic for asyncio: it has the methods of `Topic`, to be awaited. A thread reads, some batches ahead of the task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from threading import Event, Thread
from typing import Any

from chp.numbers import Revision
from chp.topics import Headers

from ..agent.aioparts import Awaiting, call_soon
from ..agent.tickets import Ticket
from ..core.events import Ack
from ..renamed import PublicNames, public_names, renamed
from ..starts import TopicStart
from .aioconsumer import AsyncConsumer
from .groups import KEEP, Keep, naming
from .reader import PATIENCE_S, MessageBatch
from .schedule import Scheduled, ScheduledMessage
from .topic import Topic, requests_of

AHEAD = 4  # batches
# Stands for "no batch came in time".
QUIET = MessageBatch(0, [], [], Revision(0), 0.0)


class AsyncTopic(metaclass=PublicNames):
    """A topic for asyncio, made by `AsyncClone.topic`."""

    def __init__(self, topic: Topic, waits: Callable[[float | None], Awaiting]) -> None:
        self.name = topic.name
        self._topic, self._requests, self._waits = topic, requests_of(topic), waits

    async def publish(
        self,
        value: Any,
        key: str | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> Ack:
        """Publish a message, and return when it is acknowledged; see `Topic.publish`."""
        return await self._waits(timeout).done(partial(self._topic.publish, value, key, headers=headers))

    async def publish_many(
        self,
        values: Sequence[Any],
        keys: Sequence[str] | None = None,
        timeout: float | None = None,
        *,
        headers: Sequence[Headers | None] | None = None,
    ) -> Ack:
        """Publish messages as one batch, and return when they are acknowledged; see `Topic.publish_many`."""
        return await self._waits(timeout).done(partial(self._topic.publish_many, values, keys, headers=headers))

    def submit(self, value: Any, key: str | None = None, *, headers: Headers | None = None) -> Ticket:
        """Publish a message without waiting. Raises `Full` if the window of unacknowledged batches is full.

        `await ticket.consumed("billing")` waits until a group has consumed it; see `Ticket.consumed`.
        """
        ticket = self._topic.publish(value, key, headers=headers)
        ticket.consuming = self._requests.consuming_in_tasks
        return ticket

    async def schedule(
        self,
        value: Any,
        key: str | None = None,
        *,
        delay_s: float | timedelta | None = None,
        at: datetime | None = None,
        every_s: float | timedelta | None = None,
        name: str | None = None,
        unless_changed: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> Scheduled:
        """Have the pair publish a message later, and return when the pair has it; see `Topic.schedule`."""
        made = self._requests.schedule(
            value, key, delay_s=delay_s, at=at, every_s=every_s, name=name, unless_changed=unless_changed,
            headers=headers,
        )  # fmt: skip
        await self._waits(timeout).done(lambda: made.ticket)
        return made

    async def cancel(self, name: str, timeout: float | None = None) -> Ack:
        """Drop a scheduled message; see `Topic.cancel`."""
        return await self._waits(timeout).done(partial(self._requests.cancellation, name))

    async def scheduled(
        self, limit: int = 100, after: str | None = None, *, timeout: float = PATIENCE_S
    ) -> list[ScheduledMessage]:
        """Return scheduled messages by name; see `Topic.scheduled`."""
        return await asyncio.to_thread(partial(self._topic.scheduled, limit, after, timeout=timeout))

    async def create(
        self,
        keep: str = "all",
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        max_age_s: int | None = None,
        require_group: bool = False,
        expire_after_s: int | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Make the topic; see `Topic.create`."""
        bounds = {
            "max_messages": max_messages, "max_bytes": max_bytes, "max_age_s": max_age_s,
            "require_group": require_group, "expire_after_s": expire_after_s,
        }  # fmt: skip
        with naming(self.name):
            return await self._waits(timeout).done(partial(self._requests.creation, keep, **bounds))

    async def remove(self, timeout: float | None = None) -> Ack:
        """Remove the topic with all its messages; see `Topic.remove`."""
        with naming(self.name):
            return await self._waits(timeout).done(self._requests.removal)

    async def facts(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """Return the facts of the topic; see `Topic.facts`."""
        return await asyncio.to_thread(self._topic.facts, timeout)

    @renamed(after="start, the first offset wanted")
    async def read(
        self, start: TopicStart = "begin", *, until: int | None = None, wait: bool = True
    ) -> AsyncIterator[MessageBatch]:
        """Yield messages, for `async for`; see `Topic.read`. The reading thread ends some seconds after the loop."""
        async with aclosing(reading(self, start, until=until, wait=wait)) as found:
            async for batch in found:
                if batch is not None:
                    yield batch

    # -- groups

    async def consumer(self, group: str, **options: Any) -> AsyncConsumer:
        """Become a member of a group, for `async with await topic.consumer("billing")`; see `Topic.consumer`."""
        return await AsyncConsumer.join(partial(self._topic.consumer, group, **options))

    async def subscribe(
        self,
        group: str,
        start: TopicStart = "end",
        *,
        ack_timeout_s: int | None = None,
        max_deliveries: int | None = None,
        retry_after_s: float | None = None,
        lag_alarm_s: int | None = None,
        expire_after_s: int | None = None,
        timeout: float | None = None,
    ) -> Ack:
        """Make a group; see `Topic.subscribe`."""
        settings = {
            "max_deliveries": max_deliveries, "retry_after_s": retry_after_s, "ack_timeout_s": ack_timeout_s,
            "lag_alarm_s": lag_alarm_s,
            "expire_after_s": expire_after_s,
        }  # fmt: skip
        with naming(self.name, group):
            return await self._waits(timeout).done(partial(self._requests.subscription, group, start, **settings))

    async def configure(
        self,
        group: str,
        *,
        max_deliveries: int | Keep | None = KEEP,
        retry_after_s: float | Keep | None = KEEP,
        ack_timeout_s: int | Keep | None = KEEP,
        lag_alarm_s: int | Keep | None = KEEP,
        expire_after_s: int | Keep | None = KEEP,
        timeout: float | None = None,
    ) -> Ack:
        """Change settings of a group; see `Topic.configure`."""
        settings = {
            "max_deliveries": max_deliveries, "retry_after_s": retry_after_s, "ack_timeout_s": ack_timeout_s,
            "lag_alarm_s": lag_alarm_s,
            "expire_after_s": expire_after_s,
        }  # fmt: skip
        with naming(self.name, group):
            return await self._waits(timeout).done(partial(self._requests.configuration, group, **settings))

    async def unsubscribe(self, group: str, timeout: float | None = None) -> Ack:
        """Remove a group with its positions; see `Topic.unsubscribe`."""
        with naming(self.name, group):
            return await self._waits(timeout).done(partial(self._requests.unsubscription, group))

    async def reset(self, group: str, start: TopicStart, timeout: float | None = None) -> Ack:
        """Move a group to another start; see `Topic.reset`."""
        with naming(self.name, group):
            return await self._waits(timeout).done(partial(self._requests.subscription, group, start, again=True))

    def __dir__(self) -> list[str]:
        return public_names(type(self), super().__dir__())

    async def groups(self, timeout: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Return the facts of each group; see `Topic.groups`."""
        return await asyncio.to_thread(self._topic.groups, timeout)


async def reading(
    topic: AsyncTopic, start: TopicStart, *, until: int | None = None, wait: bool = True, quiet_s: float | None = None
) -> AsyncGenerator[MessageBatch | None]:
    """Yield what `AsyncTopic.read` yields, and None when nothing came for `quiet_s`. For parts of this package."""
    ahead = _Ahead(requests_of(topic).reading(start, until=until, wait=wait))
    try:
        while (batch := await ahead.take(quiet_s)) is not None:
            yield None if batch is QUIET else batch
    finally:
        ahead.stop()


class _Ahead:
    """A thread that reads, and a queue that the task takes from."""

    def __init__(self, found: Generator[MessageBatch | None, None, None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[MessageBatch | BaseException | None] = asyncio.Queue()
        self._found = found
        self._room, self._stopped = Event(), False
        self._thread = Thread(target=self._run, name="chp-topic", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for batch in self._found:
                if batch is not None:
                    call_soon(self._loop, partial(self._queue.put_nowait, batch))
                while self._queue.qsize() >= AHEAD and not self._stopped:
                    self._room.wait(1.0)
                    self._room.clear()
                if self._stopped:
                    return
        except Exception as error:
            end = error
        finally:
            # The sockets of the reading belong to this thread.
            self._found.close()
        call_soon(self._loop, partial(self._queue.put_nowait, end))

    async def take(self, quiet_s: float | None) -> MessageBatch | None:
        """Return the next batch, `QUIET` if no batch comes in `quiet_s`, or None at the end."""
        try:
            async with asyncio.timeout(quiet_s):
                batch = await self._queue.get()
        except TimeoutError:
            return QUIET
        self._room.set()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def stop(self) -> None:
        """End the thread, as the task takes no more batches."""
        self._stopped = True
        self._room.set()
