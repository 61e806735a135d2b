"""Writes of all requests on their way to the pair, each key in one hand at a time.

    no condition, no Idempotency-Key  --> what comes while two batches are under way travels as the next one
    else, and what is large           --> a batch of its own: all of it is done, or nothing
    a key that is under way           --> the next write of it waits until that one is answered

So a revision is one write's alone. Two PUTs of one key in the same record would be told the same ETag, and whoever was
first could pass over the other's value with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from ...clone.aio import AsyncClone
from ...core.events import Ack
from ..problems import Problem
from .batches import BatchRows

log = logging.getLogger("chp_client")
Answered = Callable[[Ack | Exception], None]
ACK_S = 10.0  # a failover takes about a second, a busy one some
UNDER_WAY = 2  # batches: one travels while the other is done
TOGETHER_BYTES = 1 << 20  # a row that is larger goes alone: others would wait for it


class Writes:
    """Of one Clone; for its loop only."""

    def __init__(self, clone: AsyncClone) -> None:
        self._clone = clone
        self._held: dict[str, deque[asyncio.Future[None]] | None] = {}  # keys under way, and who waits for each
        self._open: _Batch | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def write(self, rows: BatchRows, *, alone: bool) -> Ack:
        """Do it, all of it or nothing; what `AsyncClone.set` raises."""
        held, keys = self._held, rows.keys
        if not held.keys().isdisjoint(keys):
            await self._wait_for(sorted(set(keys)))
        else:
            held.update(dict.fromkeys(keys))
        try:
            if alone or rows.extras or rows.conditions[0] or rows.bytes > TOGETHER_BYTES:
                return await _put(self._clone, rows)
            return await asyncio.shield(self._joined(rows))
        finally:
            self._release(keys if len(keys) == 1 else set(keys))

    def soon(self, key: str, value: bytes, answered: Answered) -> bool:
        """The same of one plain set, without a task; False if another write has the key in hand, or it goes alone."""
        size = len(key) + len(value)
        if key in self._held or size > TOGETHER_BYTES:
            return False
        self._held[key] = None
        batch = self._gathering(1, size)
        batch.rows.append(key, value, None, None)
        batch.soon.append((key, answered))
        return True

    async def _wait_for(self, keys: list[str]) -> None:
        try:
            async with asyncio.timeout(ACK_S):
                await self._take(keys)
        except TimeoutError:
            text = f"others have written {keys[0]!r:.120} for {ACK_S:g} s, and this was not done; ask again"
            raise Problem(503, "busy", text, retry_s=1) from None

    async def _take(self, keys: list[str]) -> None:
        """One after the other, in their order: so no two wait for each other."""
        taken: list[str] = []
        turn: asyncio.Future[None] | None = None
        try:
            for key in keys:
                if key not in self._held:
                    self._held[key] = None
                else:
                    waiting = self._held[key] = self._held[key] or deque()
                    turn = asyncio.get_running_loop().create_future()
                    waiting.append(turn)
                    await turn  # who lets go of the key hands it over
                    turn = None
                taken.append(key)
        except BaseException:
            if turn is not None and turn.done() and not turn.cancelled():
                taken.append(keys[len(taken)])
            self._release(taken)
            raise

    def _release(self, keys: Iterable[str]) -> None:
        for key in keys:
            waiting = self._held.pop(key)
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    self._held[key] = waiting
                    turn.set_result(None)
                    break

    # -- the next batch

    def _joined(self, rows: BatchRows) -> asyncio.Future[Ack]:
        """Add to the batch that gathers."""
        batch = self._gathering(len(rows.keys), rows.bytes)
        batch.rows.extend(rows)
        return batch.answer

    def _gathering(self, keys: int, size: int) -> _Batch:
        """The batch that gathers, with room for so much more."""
        if self._open is not None and not self._open.rows.room_for(keys, size):
            self._send()
        if self._open is None:
            loop = asyncio.get_running_loop()
            self._open = _Batch(loop.create_future())
            if len(self._sending) < UNDER_WAY:
                loop.call_soon(self._send)
        return self._open

    def _send(self) -> None:
        if self._open is None:
            return
        sending = asyncio.create_task(self._deliver(self._open))
        self._open = None
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if len(self._sending) < UNDER_WAY:
            self._send()

    async def _deliver(self, batch: _Batch) -> None:
        done: Ack | Exception
        try:
            done = await _put(self._clone, batch.rows)
        except BaseException as error:
            done = error if isinstance(error, Exception) else TimeoutError("this gateway ends")
        self._release(key for key, _ in batch.soon)
        batch.tell(done)


class _Batch:
    """What travels together, and who is to be told of it."""

    def __init__(self, answer: asyncio.Future[Ack]) -> None:
        self.rows, self.answer = BatchRows(()), answer
        self.soon: list[tuple[str, Answered]] = []

    def tell(self, done: Ack | Exception) -> None:
        """It is done, or it is not; who can't be told keeps nobody else from it."""
        if isinstance(done, Exception):
            self.answer.set_exception(done)
            self.answer.exception()  # all who waited may have gone
        else:
            self.answer.set_result(done)
        for _, answered in self.soon:
            try:
                answered(done)
            except Exception:
                log.exception("an answer to a write")


async def _put(clone: AsyncClone, rows: BatchRows) -> Ack:
    return await clone.put_columns(
        rows.keys, rows.values, rows.deletes, rows.ttls, rows.conditions, extras=rows.extras, timeout=ACK_S
    )
