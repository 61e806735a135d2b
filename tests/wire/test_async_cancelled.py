"""Tests of an AsyncClone whose waiting tasks are cancelled: they hold up no other task."""

from __future__ import annotations

import asyncio

import pytest

from chp_client import AsyncClone, Closed, State
from chp_client.clone.base import internals
from chp_server.testing import TestServer
from tests.talk import WAIT_S

# There are more tasks than threads of an event loop's executor.
MANY = 100


def test_many_cancelled_waits_do_not_block_later_waits() -> None:
    async def use() -> None:
        clone = AsyncClone("tcp://127.0.0.1:9")
        clone.submit("/a", b"1")
        for _ in range(MANY):
            for wait in (clone.wait_until_synced, clone.flush):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(wait(), 0.001)
        with pytest.raises(TimeoutError, match="not synced; CONNECTING"):
            await clone.wait_until_synced(0.001)
        with pytest.raises(TimeoutError, match="flush: 1 batches unacknowledged"):
            await clone.flush(0.001)
        waiting = [asyncio.ensure_future(clone.wait_until_synced()) for _ in range(MANY)]
        await asyncio.sleep(0)
        await clone.close(0.0)
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, Closed)
        assert not internals(clone).mailbox.awaiting

    asyncio.run(use())


def test_a_cancelled_task_with_a_lease_does_not_wait_for_a_server() -> None:
    async def hold(clone: AsyncClone) -> None:
        async with clone.lease(10):
            await asyncio.Event().wait()

    async def use() -> None:
        clone = AsyncClone("tcp://127.0.0.1:9")
        task = asyncio.ensure_future(hold(clone))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=WAIT_S)
        assert task.cancelled()
        await clone.close(0.0)

    asyncio.run(use())


def test_many_waiting_tasks_are_all_woken(server: TestServer) -> None:
    async def use() -> None:
        async with AsyncClone(server.address) as clone:
            await asyncio.gather(*(clone.wait_until_synced(WAIT_S) for _ in range(MANY)))
            assert clone.state is State.SYNCED
            await clone.wait_until_synced()
            clone.submit("/a", b"1")
            await asyncio.gather(*(clone.flush(WAIT_S) for _ in range(MANY)))
            assert clone.window == (0, 0)
        with pytest.raises(Closed):
            await clone.wait_until_synced()

    asyncio.run(use())
