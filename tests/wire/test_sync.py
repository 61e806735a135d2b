"""covers: `Clone.sync` on a real pair: after it a Clone reads the acknowledged sets of others, also over a failover."""

from __future__ import annotations

import asyncio

from chp_client import AsyncClone, Clone
from chp_server.testing import Pair
from tests.talk import WAIT_S


def test_a_clone_reads_acknowledged_sets_of_another_after_a_sync() -> None:
    with Pair(heartbeat_s=0.05) as pair, Clone(pair.servers) as one, Clone(pair.servers, subtree="/n/") as other:
        one.wait_until_synced(WAIT_S)
        other.wait_until_synced(WAIT_S)
        for i in range(50):
            one.set("/elsewhere/x", b"%d" % i)
            one.set("/n/x", b"%d" % i).wait(WAIT_S)
            ack = other.sync(WAIT_S)
            assert other["/n/x"] == b"%d" % i and ack.revision > other.entry("/n/x").revision  # type: ignore[union-attr]
            assert ack.durability == "replicated"


def test_an_async_clone_syncs_too() -> None:
    async def run(servers: list[str]) -> None:
        async with AsyncClone(servers) as one, AsyncClone(servers) as other:
            for clone in (one, other):
                await clone.wait_until_synced(WAIT_S)
            await one.set("/x", b"1", timeout=WAIT_S)
            await other.sync(timeout=WAIT_S)
            assert other["/x"] == b"1"

    with Pair() as pair:
        asyncio.run(run(list(pair.servers)))
