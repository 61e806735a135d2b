"""Writes of all requests on their way to the pair, each key in one hand at a time.

    no condition, no Idempotency-Key  --> what comes while two batches are under way travels as the next one
    else, and what is large           --> a batch of its own: all of it is done, or nothing
    a key that is under way           --> the next write of it waits until that one is answered

So a revision is one write's alone. Two PUTs of one key in the same record would be told the same ETag, and whoever was
first could pass over the other's value with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from ...clone.aio import AsyncClone
from ...core.events import Ack
from ..problems import Problem
from .batches import Rows

ACK_S = 10.0  # a failover takes about a second, a busy one some
UNDER_WAY = 2  # batches: one travels while the other is done
TOGETHER_BYTES = 1 << 20  # a row that is larger goes alone: others would wait for it


class Writes:
    """Of one Clone; for its loop only."""

    def __init__(self, clone: AsyncClone) -> None:
        self._clone = clone
        self._held: dict[str, deque[asyncio.Future[None]] | None] = {}  # keys under way, and who waits for each
        self._open: tuple[Rows, asyncio.Future[Ack]] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def write(self, rows: Rows, *, alone: bool) -> Ack:
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

    def soon(self, rows: Rows) -> asyncio.Future[Ack] | None:
        """The same of one plain set, with nobody who waits for its turn; None if another write has the key in hand."""
        if rows.keys[0] in self._held or rows.bytes > TOGETHER_BYTES:
            return None
        self._held[rows.keys[0]] = None
        answer = self._joined(rows)
        answer.add_done_callback(lambda _: self._release(rows.keys))
        return answer

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

    def _joined(self, rows: Rows) -> asyncio.Future[Ack]:
        """Add to the batch that gathers."""
        if self._open is not None and not self._open[0].room_for(rows):
            self._send()
        if self._open is None:
            loop = asyncio.get_running_loop()
            self._open = Rows(()), loop.create_future()
            if len(self._sending) < UNDER_WAY:
                loop.call_soon(self._send)
        self._open[0].extend(rows)
        return self._open[1]

    def _send(self) -> None:
        if self._open is None:
            return
        rows, answer = self._open
        self._open = None
        sending = asyncio.create_task(self._deliver(rows, answer))
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if len(self._sending) < UNDER_WAY:
            self._send()

    async def _deliver(self, rows: Rows, answer: asyncio.Future[Ack]) -> None:
        try:
            ack = await _put(self._clone, rows)
        except BaseException as error:
            if not answer.done():
                answer.set_exception(error if isinstance(error, Exception) else TimeoutError("this gateway ends"))
                answer.exception()  # all who waited may have gone
        else:
            if not answer.done():
                answer.set_result(ack)


async def _put(clone: AsyncClone, rows: Rows) -> Ack:
    return await clone.put_columns(
        rows.keys, rows.values, rows.deletes, rows.ttls, rows.conditions, extras=rows.extras, timeout=ACK_S
    )
