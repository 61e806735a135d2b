"""Tests of what an application sees of a failover by its listener, watches and flush, also with asyncio.

The active is killed with SIGKILL under a stream of sets. No call raises, no change comes twice, and flush returns when
the successor has everything. Classic clients were silent for ever after two requests (G-14 of docs/sources.md).
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from chp_client import AsyncClone, Clone, State
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.process_pair("--store", "memory:")]
KEYS = 2000


def kill_active(process_pair: ProcessPair) -> ServerProcess:
    """Kill the active with SIGKILL."""
    process_pair.wait_in_sync()
    active = process_pair.active()
    assert active is not None
    active.kill()
    return active


def test_listener_watch_and_flush_work_over_a_failover(process_pair: ProcessPair) -> None:
    told: list[State] = []
    threads: set[str] = set()

    def listen(state: State) -> None:
        told.append(state)
        threads.add(threading.current_thread().name)

    with (
        Clone(process_pair.servers, subtree="/sync/", on_state=listen) as reader,
        Clone(process_pair.servers) as writer,
    ):
        reader.wait_until_synced(WAIT_S)
        writer.wait_until_synced(WAIT_S)
        with reader.watch("/sync/") as watch:
            for i in range(KEYS // 2):
                writer.set(f"/sync/{i}", b"%d" % i)
            writer.flush(WAIT_S)
            victim = kill_active(process_pair)
            for i in range(KEYS // 2, KEYS):
                writer.set(f"/sync/{i}", b"%d" % i)
            # The flush begins while no server is active.
            writer.flush(WAIT_S)
            changes = [watch.get(WAIT_S) for _ in range(KEYS)]
        assert [change.key for change in changes] == [f"/sync/{i}" for i in range(KEYS)], "each once, in order"
        revisions = [change.revision for change in changes]
        assert revisions == sorted(revisions) and revisions[-1] >> 48 > revisions[0] >> 48
        until(lambda: told[-1] is State.SYNCED and State.STALE in told, "the listener to be told")
        assert told[0] is State.SYNCED and told[told.index(State.STALE) + 1] is State.SYNCED
        assert threads == {"chp-dispatch"}
        assert writer.active == reader.active != victim.address and len(reader) == KEYS
    victim.start()


def test_an_async_clone_works_over_a_failover(process_pair: ProcessPair) -> None:
    async def main() -> ServerProcess:
        async with AsyncClone(process_pair.servers) as clone, AsyncClone(process_pair.servers) as other:
            await clone.wait_until_synced(WAIT_S)
            await other.wait_until_synced(WAIT_S)
            async with other.watch("/async/") as watch:
                first = await asyncio.gather(*(clone.set(f"/async/{i}", b"1") for i in range(100)))
                victim = await asyncio.to_thread(kill_active, process_pair)
                sets = [asyncio.create_task(clone.set(f"/async/{i}", b"1", timeout=WAIT_S)) for i in range(100, 200)]
                got = [await asyncio.wait_for(anext(watch), WAIT_S) for _ in range(200)]
                second = await asyncio.gather(*sets)
                await clone.flush(WAIT_S)
            assert [change.key for change in got] == [f"/async/{i}" for i in range(200)]
            assert max(ack.epoch for ack in first) < min(ack.epoch for ack in second)
            assert clone.state is State.SYNCED and clone.active != victim.address
            assert await clone.delete("/async/0") and "/async/0" not in clone
            return victim

    asyncio.run(main()).start()


def test_ten_clients_go_on_after_three_failovers(process_pair: ProcessPair) -> None:
    """G-14 to G-16: clients that had asked twice, or heard the HUGZ of a passive, were frozen."""
    clones = [Clone(process_pair.servers, subtree=f"/many/{i}/" if i % 2 else "/many/") for i in range(10)]
    try:
        for clone in clones:
            clone.wait_until_synced(WAIT_S)
        for n in range(3):
            victim = kill_active(process_pair)
            if n % 2:
                # The server is back at once, passive and heard by clients.
                victim.start()
            for i, clone in enumerate(clones):
                clone.set(f"/many/{i}/{n}", b"1").wait(WAIT_S)
            if not n % 2:
                victim.start()
        for clone in clones:
            until(lambda c=clone: len(c) == (30 if c.subtrees == ("/many/",) else 3), "every copy to be whole")  # type: ignore[misc]
            assert clone.state is State.SYNCED
    finally:
        for clone in clones:
            clone.close(0)
