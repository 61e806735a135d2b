"""A consumer for asyncio: it has the methods of `Consumer`, to be awaited. Its own thread reads, a step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from chp.dead_letters import Outgoing
from chp.numbers import Revision
from chp.topics import Headers

from ..agent.tickets import Ticket
from ..agent.writer import Items
from ..core.events import Ack
from .batch import Batch, Published
from .consumer import Consumer
from .reader import Message
from .transaction import Transaction

T = TypeVar("T")


class AsyncBatch:
    """A `Batch` whose acknowledgements are awaited."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets of all messages. This and all columns are those of `Batch`."""
        return self.batch.offsets

    @property
    def keys(self) -> list[str | None]:
        """The keys, one for each message; None for a message without a key."""
        return self.batch.keys

    @property
    def values(self) -> list[Any]:
        """The values, one for each message."""
        return self.batch.values

    @property
    def times(self) -> list[float]:
        """The times, one for each message."""
        return self.batch.times

    @property
    def revisions(self) -> list[Revision]:
        """The revisions, one for each message."""
        return self.batch.revisions

    @property
    def headers(self) -> Sequence[Headers] | None:
        """One mapping for each message; None if no message has headers."""
        return self.batch.headers

    @property
    def deliveries(self) -> int:
        """The number of times that the message of this batch was given; 1 for messages that did not fail."""
        return self.batch.deliveries

    @property
    def missed(self) -> int:
        """The number of messages before this batch that the topic keeps no more; see `Batch.missed`."""
        return self.batch.missed

    @property
    def whose(self) -> tuple[str, str, bytes]:
        """The topic, the group, and the lease of the member."""
        return self.batch.whose

    @property
    def position(self) -> list[Any] | None:
        """Its place in the servers' history; see `Batch.position`."""
        return self.batch.position

    @property
    def dead(self) -> dict[str, list[Outgoing]]:
        """The messages that are put aside with this batch, by topic. Only this package uses it."""
        return self.batch.dead

    def moves(self) -> list[list[Any]]:
        """Return the steps that acknowledge the batch. Only this package uses it."""
        return self.batch.moves()

    def given_back(self) -> list[list[Any]]:
        """Return the messages that the batch gives back. Only this package uses it."""
        return self.batch.given_back()

    def sent(self, ticket: Ticket) -> None:
        """Note that the acknowledgement is on its way, with this ticket."""
        self.batch.sent(ticket)

    def __len__(self) -> int:
        return len(self.batch)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.batch)

    async def done(self) -> Ack:
        """Acknowledge the batch, and wait; see `Batch.done`."""
        return await self.batch.done()

    async def commit(
        self, sets: Items | None = None, *, deletes: Iterable[str] = (), publish: Published | None = None
    ) -> Ack:
        """Acknowledge the batch together with other changes; see `Batch.commit`."""
        return await self.batch.committing(sets, deletes=deletes, publish=publish)

    def reject(self, message: Message | int, why: str, tries: int = 1) -> list[int]:
        """Put a message aside, or give it back; see `Batch.reject`."""
        return self.batch.reject(message, why, tries)


class AsyncTransaction:
    """A transaction for `async with`, made by `AsyncClone.transaction`. The block gets a `Transaction`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> Transaction:
        return self._transaction.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        ticket = self._transaction.end(done=kind is None)
        if ticket is not None:
            await ticket


class AsyncConsumer:
    """A consumer for one task at a time, made by `AsyncTopic.consumer`."""

    def __init__(self, consumer: Consumer, pool: ThreadPoolExecutor) -> None:
        # The application may read `lag`, `fenced` and `name` of this consumer.
        self.consumer = consumer
        self._pool = pool

    @classmethod
    async def join(cls, made: Callable[[], Consumer]) -> Self:
        """Call `made`, which joins the group, on a new thread. Return the consumer."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="chp-consumer")
        loop = asyncio.get_running_loop()
        try:
            return cls(await loop.run_in_executor(pool, made), pool)
        except BaseException:
            pool.shutdown(wait=False)
            raise

    async def _run(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act)

    async def take(self, timeout: float | None = None) -> AsyncBatch | None:
        """Return the next batch; see `Consumer.take`. A cancelled task ends the consumer within a second or two."""
        try:
            batch = await self._run(partial(self._take, timeout))
        except asyncio.CancelledError:
            self.consumer.stop()
            raise
        return None if batch is None else AsyncBatch(batch)

    def _take(self, timeout: float | None) -> Batch | None:
        try:
            return self.consumer.take(timeout)
        except StopIteration:
            # This exception can't be raised in a task.
            return None

    async def __aiter__(self) -> AsyncIterator[AsyncBatch]:
        while not self.consumer.closed:
            batch = await self.take()
            if batch is not None:
                yield batch

    async def get(self, timeout: float | None = None) -> Message | None:
        """Return the next message; see `Consumer.get`."""
        try:
            return await self._run(partial(self._get, timeout))
        except asyncio.CancelledError:
            self.consumer.stop()
            raise

    def _get(self, timeout: float | None) -> Message | None:
        try:
            return self.consumer.get(timeout)
        except StopIteration:
            return None

    async def close(self) -> None:
        """Leave the group; see `Consumer.close`."""
        self.consumer.stop()
        try:
            await self._run(self.consumer.close)
        finally:
            self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
