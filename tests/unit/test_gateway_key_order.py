"""covers: gateway/shared/key_order.py: many changes at once are taken in over several turns of the loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chp_client.core.events import Changed
from chp_client.gateway.shared import key_order
from chp_client.gateway.shared.key_order import SLICE, KeysInOrder


def keys_in_order(given: list[Changed]) -> KeysInOrder:
    """Return the ordered keys of a clone that hears `given`."""
    queue = SimpleNamespace(poll=lambda: given.pop(0) if given else None, on_offer=print)
    clone: Any = SimpleNamespace(watch=lambda *_, **__: SimpleNamespace(queue=queue))
    return KeysInOrder(clone)


def test_a_large_record_is_taken_in_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/{i:06}" for i in range(5 * SLICE)]
    real, noted = key_order._note, list[tuple[int, int]]()
    turn = 0

    def note(changed: Changed, some: slice, *more: set[str]) -> None:
        noted.append((turn, len(changed.keys[some])))
        real(changed, some, *more)

    monkeypatch.setattr(key_order, "_note", note)

    async def run() -> None:
        nonlocal turn
        keys = keys_in_order([Changed(names[::-1], [b"1"] * len(names), [7] * len(names))])
        keys.written(7)
        page = asyncio.create_task(keys.page("", names[0], 2))
        while not page.done():
            turn += 1
            await asyncio.sleep(0)
        assert await page == (names[1:3], True), "a page has what this gateway has written"

    asyncio.run(run())
    assert all(count <= SLICE for _, count in noted) and len({at for at, _ in noted}) == len(noted) == 5


def test_concurrent_follow_calls_lose_no_change() -> None:
    names = [f"/{i:06}" for i in range(3 * SLICE)]
    half = names[::2]

    async def run() -> None:
        set_all = Changed(names, [b"1"] * len(names), [1] * len(names))
        keys = keys_in_order([set_all, Changed(half, [None] * len(half), [2] * len(half))])
        await asyncio.gather(keys.follow(), keys.follow(), keys.follow())
        assert len(keys) == len(names) - len(half)
        assert (await keys.page("", "", 10_000))[0] == names[1::2][:10_000]

    asyncio.run(run())


def test_a_change_does_not_wake_the_loop() -> None:
    """The order of the keys is brought up to date when a page is asked for, and each second."""
    keys = keys_in_order([])
    assert keys._queue.on_offer is None
