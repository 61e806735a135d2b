"""covers: reading and deleting by prefix on a real server: two Clones, one order, portions that are acknowledged."""

from __future__ import annotations

import asyncio

from chp_client import AsyncClone, Clone
from chp_server.testing import TestServer
from tests.talk import WAIT_S

KEYS = [f"/p/{i:05d}" for i in range(20_000)]


def seen(clone: Clone, prefix: str, keys: list[str]) -> bool:
    """Wait until another Clone shows exactly these keys, and return True."""
    with clone.watch("") as watch:
        while list(clone.prefix(prefix)) != keys:
            watch.get(WAIT_S)
    return True


def test_a_prefix_view_shows_changes_of_other_clients_in_key_order(server: TestServer) -> None:
    with Clone(server.address) as one, Clone(server.address) as other:
        other.wait_until_synced(WAIT_S)
        assert list(other.prefix("/p/")) == []
        one.set_many(dict.fromkeys(reversed(KEYS), b"v")).wait(WAIT_S)
        one["/q"] = b"stays"
        assert seen(other, "/p/", KEYS)
        one.delete(KEYS[0])
        one.set("/p/00001a", b"v")
        one.flush(WAIT_S)
        assert seen(other, "/p/0000", [KEYS[1], "/p/00001a", *KEYS[2:10]])
        assert one.delete_prefix("/p/", timeout=WAIT_S) == len(KEYS)
        assert list(one) == ["/q"] and seen(other, "/p/", [])
        assert one.delete_prefix("/p/", timeout=WAIT_S) == 0


def test_an_async_clone_deletes_by_prefix(server: TestServer) -> None:
    async def run() -> None:
        async with AsyncClone(server.address) as clone:
            await clone.wait_until_synced(WAIT_S)
            await clone.set_many(dict.fromkeys([*KEYS, "/q"], b"v"))
            assert await clone.delete_prefix("/p/", timeout=WAIT_S) == len(KEYS)
            assert list(clone) == ["/q"]

    asyncio.run(run())
