"""What an application sees of a failover: its listener, its watches, its flush; and the same with asyncio.

The active is killed (-9) under a stream of sets. Nothing here raises, nothing is told twice, and flush returns when the
successor has everything. Classic clients were silent for ever after two requests (chp1-facts line 14).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import AsyncClone, Clone, State

from .cluster import GENEROUS_S, ProcessPair, ServerProcess, wait_for

pytestmark = pytest.mark.slow
KEYS = 2000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPair]:
    """Two servers in memory; each test kills the active one, and starts it again."""
    with ProcessPair(Path(tmp_path_factory.mktemp("pair")), "--store", "memory:") as both:
        yield both


def kill_active(pair: ProcessPair) -> ServerProcess:
    """kill -9 whoever is active."""
    pair.wait_in_sync()
    active = pair.active()
    assert active is not None
    active.kill()
    return active


def test_a_listener_a_watch_and_a_flush(pair: ProcessPair) -> None:
    told: list[State] = []
    threads: set[str] = set()

    def listen(state: State) -> None:
        told.append(state)
        threads.add(threading.current_thread().name)

    with Clone(pair.servers, subtree="/sync/", on_state=listen) as reader, Clone(pair.servers) as writer:
        reader.wait_until_synced(GENEROUS_S)
        writer.wait_until_synced(GENEROUS_S)
        with reader.watch("/sync/") as watch:
            for i in range(KEYS // 2):
                writer.set(f"/sync/{i}", b"%d" % i)
            writer.flush(GENEROUS_S)
            victim = kill_active(pair)
            for i in range(KEYS // 2, KEYS):
                writer.set(f"/sync/{i}", b"%d" % i)
            writer.flush(GENEROUS_S)  # began while nobody was active
            changes = [watch.get(GENEROUS_S) for _ in range(KEYS)]
        assert [change.key for change in changes] == [f"/sync/{i}" for i in range(KEYS)], "each once, in order"
        revisions = [change.revision for change in changes]
        assert revisions == sorted(revisions) and revisions[-1] >> 48 > revisions[0] >> 48
        wait_for("the listener to be told", lambda: told[-1] is State.SYNCED and State.STALE in told)
        assert told[0] is State.SYNCED and told[told.index(State.STALE) + 1] is State.SYNCED
        assert threads == {"chp-dispatch"}
        assert writer.active == reader.active != victim.address and len(reader) == KEYS
    victim.start()


def test_an_async_clone(pair: ProcessPair) -> None:
    async def main() -> ServerProcess:
        async with AsyncClone(pair.servers) as clone, AsyncClone(pair.servers) as other:
            await clone.wait_until_synced(GENEROUS_S)
            await other.wait_until_synced(GENEROUS_S)
            async with other.watch("/async/") as watch:
                first = await asyncio.gather(*(clone.set(f"/async/{i}", b"1") for i in range(100)))
                victim = await asyncio.to_thread(kill_active, pair)
                sets = [
                    asyncio.create_task(clone.set(f"/async/{i}", b"1", timeout=GENEROUS_S)) for i in range(100, 200)
                ]
                got = [await asyncio.wait_for(anext(watch), GENEROUS_S) for _ in range(200)]
                second = await asyncio.gather(*sets)
                await clone.flush(GENEROUS_S)
            assert [change.key for change in got] == [f"/async/{i}" for i in range(200)]
            assert max(ack.epoch for ack in first) < min(ack.epoch for ack in second)
            assert clone.state is State.SYNCED and clone.active != victim.address
            assert await clone.delete("/async/0") and "/async/0" not in clone
            return victim

    asyncio.run(main()).start()


def test_ten_clients_go_on_however_often(pair: ProcessPair) -> None:
    """chp1-facts lines 14, 15 and 16: clients that were asked twice, or heard the wrong one's HUGZ, were frozen."""
    clones = [Clone(pair.servers, subtree=f"/many/{i}/" if i % 2 else "/many/") for i in range(10)]
    try:
        for clone in clones:
            clone.wait_until_synced(GENEROUS_S)
        for n in range(3):
            victim = kill_active(pair)
            if n % 2:
                victim.start()  # back at once: passive, and heard
            for i, clone in enumerate(clones):
                clone.set(f"/many/{i}/{n}", b"1").wait(GENEROUS_S)
            if not n % 2:
                victim.start()
        for clone in clones:
            wait_for("every copy to be whole", lambda c=clone: len(c) == (30 if c.subtrees == ("/many/",) else 3))  # type: ignore[misc]
            assert clone.state is State.SYNCED
    finally:
        for clone in clones:
            clone.close(0)
