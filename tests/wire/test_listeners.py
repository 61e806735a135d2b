"""covers: agent/listeners.py and AsyncListeners: callbacks of changes, `@clone.on("/config/")`."""

from __future__ import annotations

import asyncio
import logging
import threading
from queue import SimpleQueue

import pytest

from chp_client import AsyncClone, BadInput, Change, Clone, Closed
from chp_client.agent import listeners
from chp_server.testing import TestServer
from tests.talk import WAIT_S


def test_a_function_is_called_with_each_change_under_its_prefix(clone: Clone) -> None:
    told: SimpleQueue[Change] = SimpleQueue()
    names: set[str] = set()

    @clone.on("/config/")
    def changed(change: Change) -> None:
        names.add(threading.current_thread().name)
        told.put(change)

    clone.set_many({"/config/a": b"1", "/other": b"", "/config/b": b"2"})
    clone.delete("/config/a")
    found = [told.get(timeout=WAIT_S) for _ in range(3)]
    assert [(c.key, c.value, c.operation) for c in found] == [
        ("/config/a", b"1", "set"), ("/config/b", b"2", "set"), ("/config/a", None, "delete")
    ]  # fmt: skip
    assert names == {"chp-dispatch"} and changed.__name__ == "changed"
    assert clone.off(changed) and not clone.off(changed)
    clone.set("/config/c", b"").wait(WAIT_S)
    clone.close()
    assert told.empty()


def test_a_listener_may_start_at_a_snapshot_and_wait_for_a_set(clone: Clone) -> None:
    clone.set("/in/a", b"1").wait(WAIT_S)
    done: SimpleQueue[bytes] = SimpleQueue()

    @clone.on("/in/", start="snapshot")
    def copy(change: Change) -> None:
        clone.set(change.key.replace("/in/", "/out/"), change.value).wait(WAIT_S)
        done.put(clone[change.key.replace("/in/", "/out/")])

    assert done.get(timeout=WAIT_S) == b"1"


def test_errors_of_a_listener_are_logged_a_bounded_number_of_times(
    clone: Clone, caplog: pytest.LogCaptureFixture
) -> None:
    told: SimpleQueue[str] = SimpleQueue()

    @clone.on("/a/")
    def wrong(change: Change) -> None:
        told.put(change.key)
        raise ZeroDivisionError

    for i in range(30):
        clone.set(f"/a/{i}", b"")
    assert [told.get(timeout=WAIT_S) for _ in range(30)] == [f"/a/{i}" for i in range(30)]
    clone.close()
    found = [r for r in caplog.records if "wrong, called for '/a/" in r.getMessage()]
    assert len(found) == listeners.LOGGED and "ZeroDivisionError" in caplog.text


def test_an_undecodable_value_is_logged_and_hides_no_other_change(
    server: TestServer, clone: Clone, caplog: pytest.LogCaptureFixture
) -> None:
    told: SimpleQueue[object] = SimpleQueue()
    with Clone(server.address, codec="json") as reader:
        reader.wait_until_synced(WAIT_S)
        reader.on()(lambda change: told.put(change.value))
        clone.set_many((["/a", "/b"], [b"{", b"2"]))
        assert told.get(timeout=WAIT_S) == 2
    assert "key '/a': the value b'{' is not JSON" in caplog.text


def test_a_listener_that_falls_behind_is_told_all_keys_again(clone: Clone, caplog: pytest.LogCaptureFixture) -> None:
    told: SimpleQueue[str] = SimpleQueue()
    go = threading.Event()

    @clone.on("/a/", queue_max=10)
    def slow(change: Change) -> None:
        assert go.wait(WAIT_S)
        told.put(change.key)

    # Wait for each set, so that the changes come one by one and overflow the listener's bounded queue.
    for i in range(30):
        clone.set(f"/a/{i}", b"").wait(WAIT_S)
    go.set()
    seen: set[str] = set()
    while len(seen) < 30:
        seen.add(told.get(timeout=WAIT_S))
    assert "slow is told all that is held anew" in caplog.text and "changes behind" in caplog.text


def test_on_refuses_bad_arguments_and_a_closed_clone(clone: Clone) -> None:
    with pytest.raises(BadInput, match="listener"):
        clone.on("/a/")(3)  # type: ignore[type-var]
    with pytest.raises(BadInput, match="on_bad"):
        clone.on("/a/", on_bad="drop")(print)  # type: ignore[arg-type]
    clone.close()
    with pytest.raises(Closed):
        clone.on("/a/")(print)


def test_a_listener_ends_if_its_start_is_not_in_the_log(clone: Clone, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    calls: list[Change] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is told nothing more of" in record.getMessage():
                ended.set()

    logger, handler = logging.getLogger("chp_client"), Seen()
    logger.addHandler(handler)
    try:
        # Number 1 has epoch 0, which no server ever had.
        clone.on("", start=1)(calls.append)
        assert ended.wait(WAIT_S)
    finally:
        logger.removeHandler(handler)
    assert not calls


def test_async_clones_call_coroutine_and_plain_listeners(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        async with AsyncClone(server.address) as clone:
            await clone.wait_until_synced(WAIT_S)

            @clone.on("/a/")
            async def changed(change: Change) -> None:
                await asyncio.sleep(0)
                told.put_nowait(f"{change.operation} {change.key}")
                if change.key == "/a/0":
                    raise ZeroDivisionError

            @clone.on("/a/")
            def plain(change: Change) -> None:
                told.put_nowait(f"plain {change.key}")

            await clone.set("/a/0", b"", timeout=WAIT_S)
            await clone.set("/b", b"", timeout=WAIT_S)
            await clone.delete("/a/0", timeout=WAIT_S)
            found = sorted([await told.get() for _ in range(4)])
            assert found == ["delete /a/0", "plain /a/0", "plain /a/0", "set /a/0"]
            assert clone.off(changed) and not clone.off(print)
        assert "ZeroDivisionError" in caplog.text

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_a_coroutine_listener_that_never_ends_is_cancelled_at_close(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chp_client.clone.aio.CALLBACKS_S", 0.01)

    async def main() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()
        async with AsyncClone(server.address) as clone:
            await clone.wait_until_synced(WAIT_S)

            @clone.on()
            async def waits(change: Change) -> None:
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

            await clone.set("/a", b"", timeout=WAIT_S)
            await began.wait()
        await cancelled.wait()

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
