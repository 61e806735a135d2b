"""The Clone against real servers in this process: sets, acknowledgements, joins, watches, leases, failover, asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chp.limits import Limits
from chp_client import AsyncClone, BadInput, BadKey, Change, Clone, Closed, Conflict, Full, NotRetained, State, Ticket
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, join_all, until
from tests.wire.classic import ClassicServer


@pytest.fixture
def other(server: TestServer) -> Iterator[Clone]:
    with Clone(server.address) as made:
        made.wait_until_synced(WAIT_S)
        yield made


class TestOneServer:
    def test_a_set_is_acknowledged_and_seen_by_others(self, clone: Clone, other: Clone) -> None:
        ack = clone.set("/a", b"1").wait(WAIT_S)
        assert ack.durability == "applied" and ack.epoch >= 1
        until(lambda: other.get("/a") == b"1")
        entry = other.entry("/a")
        assert entry is not None and entry.revision == ack.revision and entry.ttl is None

    def test_sets_made_right_after_connecting_arrive(self, server: TestServer, other: Clone) -> None:
        for i in range(30):
            with Clone(server.address, subtree=None if i % 2 else "") as fresh:
                fresh.set(f"/fresh/{i}", b"1")
        until(lambda: len(other) == 30)

    def test_a_batch_of_many_is_one_record(self, clone: Clone, other: Clone) -> None:
        with other.watch("/many/") as watch:
            clone.set_many({f"/many/{i}": b"%d" % i for i in range(5000)}).wait(WAIT_S)
            changes = next(watch.batches(WAIT_S))
        assert len(changes) == 5000 and len({c.revision for c in changes}) == 1

    def test_a_set_many_too_large_for_one_batch_arrives(self, clone: Clone, other: Clone) -> None:
        ticket = clone.set_many(([f"/{i}" for i in range(150_000)], [b"x"] * 150_000))
        ticket.wait(WAIT_S)
        until(lambda: len(other) == 150_000)
        assert other.verify().ok

    def test_deletes_and_empty_values_are_told_apart(self, clone: Clone, other: Clone) -> None:
        clone.update({"/empty": b"", "/gone": b"1"})
        del clone["/gone"]
        clone.flush(WAIT_S)
        until(lambda: dict(other) == {"/empty": b""})
        clone.delete_many(["/empty", "/never"]).wait(WAIT_S)
        until(lambda: not other)

    def test_a_ttl_counts_down_and_the_key_goes(self, clone: Clone, other: Clone) -> None:
        clone.set("/short", b"1", ttl=0.5).wait(WAIT_S)
        clone.set_many({"/long": b"1"}, ttl=3600).wait(WAIT_S)
        until(lambda: "/long" in other)
        entry = other.entry("/long")
        assert entry is not None and entry.ttl is not None and 3000 < entry.ttl <= 3600
        until(lambda: "/short" not in other and "/short" not in clone)

    def test_a_conditional_set(self, clone: Clone, other: Clone) -> None:
        first = clone.set("/c", b"1", if_revision=0).wait(WAIT_S)
        until(lambda: other.get("/c") == b"1")
        with pytest.raises(Conflict) as caught:
            other.set("/c", b"2", if_revision=0).wait(WAIT_S)
        assert caught.value.revisions == {"/c": first.revision}
        other.set("/c", b"3", if_revision=first.revision).wait(WAIT_S)
        until(lambda: clone["/c"] == b"3")

    def test_flush_raises_a_refusal_only_if_its_ticket_was_not_asked(self, clone: Clone) -> None:
        clone.set("/a", b"1").wait(WAIT_S)
        ticket = clone.set("/a", b"2", if_revision=0)
        # The answer to this set comes after the refusal of the set before.
        clone.set("/b", b"1").wait(WAIT_S)
        with pytest.raises(Conflict, match="'/a' is at"):
            clone.flush(WAIT_S)
        clone.flush(WAIT_S)
        asks: tuple[Callable[[Ticket], object], ...] = (lambda asked: asked.wait(WAIT_S), lambda asked: asked.error)
        for ask in asks:
            ticket = clone.set("/a", b"2", if_revision=0)
            clone.set("/b", b"1").wait(WAIT_S)
            until(lambda ticket=ticket: ticket.done)  # type: ignore[misc]
            with contextlib.suppress(Conflict):
                ask(ticket)
            clone.flush(WAIT_S)

    def test_a_lease_refreshes_its_keys_and_deletes_them_at_its_end(self, clone: Clone, other: Clone) -> None:
        with clone.lease(ttl=1.5) as lease:
            for i in range(100):
                ticket = lease.set(f"/lease/{i}", b"x")
            ticket.wait(WAIT_S)
            until(lambda: len(other) == 100)
            assert not threading.Event().wait(3.5) and len(other) == 100, "refreshed for two ttls"
        until(lambda: not other and not clone)

    @pytest.mark.parametrize("timeout", [0.0, 5.0])
    def test_a_clone_that_is_closed_ends_its_leases(self, server: TestServer, other: Clone, timeout: float) -> None:
        with other.watch("/lease/") as watch:
            holder = Clone(server.address)
            leases = [holder.lease(ttl=600) for _ in range(3)]
            for i, lease in enumerate(leases):
                lease.set(f"/lease/{i}", b"x").wait(WAIT_S)
            holder.close(timeout)
            changes = [watch.get(WAIT_S) for _ in range(6)]
        assert [change.operation for change in changes] == ["set"] * 3 + ["delete"] * 3
        assert not any(change.expired for change in changes)

    def test_a_watch_tells_an_expiry_from_a_delete(self, clone: Clone, other: Clone) -> None:
        with other.watch("/t/") as watch:
            clone.set("/t/a", b"x", ttl=0.1).wait(WAIT_S)
            clone.set("/t/b", b"x")
            assert [(c.operation, c.expired) for c in (watch.get(WAIT_S) for _ in range(3))][-1] == ("delete", True)
            clone.delete("/t/b")
            gone = watch.get(WAIT_S)
            assert (gone.key, gone.operation, gone.expired) == ("/t/b", "delete", False)

    def test_a_clone_of_several_subtrees_holds_and_sets_only_their_keys(self, server: TestServer, clone: Clone) -> None:
        with Clone(server.address, subtrees=["/a/", "/b/", "/a/inner/"]) as part:
            assert part.subtrees == ("/a/", "/b/")
            clone.update({"/a/1": b"", "/b/1": b"", "/c/1": b"", "/a/inner/1": b""})
            clone.flush(WAIT_S)
            until(lambda: sorted(part) == ["/a/1", "/a/inner/1", "/b/1"])
            with pytest.raises(BadKey, match="subtree=None"):
                part.set("/c/2", b"")
            with pytest.raises(BadKey, match="outside"):
                part.set_many({"/a/2": b"", "/c/2": b""})
            part.set_many({"/a/2": b"", "/b/2": b""}).wait(WAIT_S)
            until(lambda: "/b/2" in clone)

    def test_codecs(self, server: TestServer, clone: Clone) -> None:
        with Clone(server.address, codec="json") as json_clone, Clone(server.address, codec="text") as text:
            json_clone.set("/j", {"a": [1, None]}).wait(WAIT_S)
            json_clone.set_many({"/k": 7}).wait(WAIT_S)
            until(lambda: "/k" in text and "/k" in clone)
            assert json_clone["/j"] == {"a": [1, None]} and clone["/j"] == b'{"a":[1,null]}' and text["/k"] == "7"
            assert dict(json_clone) == {"/j": {"a": [1, None]}, "/k": 7} and json_clone.get("/none", 1) == 1

    def test_watches_from_now_from_a_snapshot_and_from_a_revision(self, clone: Clone, other: Clone) -> None:
        first = clone.set("/w/1", b"1").wait(WAIT_S)
        clone.set("/w/2", b"2").wait(WAIT_S)
        until(lambda: "/w/2" in other)
        with (
            other.watch("/w/") as now,
            other.watch("/w/", start="snapshot") as held,
            other.watch("/w/", start=first.revision) as newer,
            other.watch("/w/", conflate=True) as latest,
        ):
            clone.delete("/w/1").wait(WAIT_S)
            clone.set("/elsewhere", b"").wait(WAIT_S)
            clone.set("/w/3", b"3").wait(WAIT_S)
            assert [now.get(WAIT_S).key for _ in range(2)] == ["/w/1", "/w/3"]
            assert [held.get(WAIT_S).key for _ in range(4)] == ["/w/1", "/w/2", "/w/1", "/w/3"]
            assert [newer.get(WAIT_S)[:3] for _ in range(3)] == [
                ("/w/2", b"2", "set"), ("/w/1", None, "delete"), ("/w/3", b"3", "set"),
            ]  # fmt: skip
            until(lambda: len(latest.queue.latest) == 2)
            assert [c.key for c in next(latest.batches(WAIT_S))] == ["/w/1", "/w/3"]

    def test_a_watch_made_before_the_first_sync_begins_at_its_start(self, server: TestServer, clone: Clone) -> None:
        clone.set_many({f"/w/{i}": b"old" for i in range(25)}).wait(WAIT_S)
        mark = clone.set("/w/0", b"mark").wait(WAIT_S)
        clone.delete("/w/1").wait(WAIT_S)
        clone.set("/w/2", b"2").wait(WAIT_S)
        with Clone(server.address) as late:
            starts: list[Any] = ["end", mark.revision, "snapshot"]
            watches = [late.watch("/w/", start=start) for start in starts]
            late.wait_until_synced(WAIT_S)
            clone.set("/w/end", b"").wait(WAIT_S)
            told: dict[Any, list[Any]] = {start: [] for start in starts}
            for start, watch in zip(starts, watches, strict=True):
                while not told[start] or told[start][-1] != ("/w/end", b"", "set"):
                    told[start].append(watch.get(WAIT_S)[:3])
            assert told["end"] == [("/w/end", b"", "set")]
            assert told[mark.revision] == [("/w/1", None, "delete"), ("/w/2", b"2", "set"), ("/w/end", b"", "set")]
            assert len(told["snapshot"]) == 25
            with late.watch("/w/", start="begin") as oldest:
                found = [oldest.get(WAIT_S)[:3] for _ in range(29)]
            assert found[:25] == [(f"/w/{i}", b"old", "set") for i in range(25)]
            assert found[25:] == [("/w/0", b"mark", "set"), *told[mark.revision]]
            with late.watch(start=1) as unknown, pytest.raises(NotRetained, match="begin anew from a snapshot"):
                unknown.get(WAIT_S)

    def test_a_watch_may_begin_with_the_oldest_change_that_is_retained(self) -> None:
        with TestServer(Limits(log_records_max=10), retain_memory_bytes=2000) as server, Clone(server.address) as clone:
            for i in range(40):
                clone.set(f"/{i}", b"%d" % i * 50).wait(WAIT_S)
            with clone.watch(start="begin") as watch:
                keys = [watch.get(WAIT_S).key]
                while keys[-1] != "/39":
                    keys.append(watch.get(WAIT_S).key)
                clone.set("/40", b"").wait(WAIT_S)
                assert watch.get(WAIT_S).key == "/40"
        assert keys == [f"/{i}" for i in range(40 - len(keys), 40)] and 0 < len(keys) < 40

    def test_a_writer_with_a_full_window_raises_or_times_out(self, server: TestServer) -> None:
        with Clone(server.address, window_bytes=10_000, on_full="raise") as fast:
            fast.wait_until_synced(WAIT_S)
            server.kill()
            with pytest.raises(Full, match="window"):
                for i in range(10_000):
                    fast.set_many({f"/{i}/{j}": b"x" * 100 for j in range(100)})
            with pytest.raises(TimeoutError, match="unacknowledged"):
                fast.flush(0.05)
            server.start()
            fast.flush(WAIT_S)
        with Clone(server.address, window_bytes=10_000) as patient:
            server.kill()
            with pytest.raises(TimeoutError, match=r"unacknowledged.*heard"):
                for i in range(10_000):
                    patient.set_many({f"/{i}/{j}": b"x" * 100 for j in range(100)}, timeout=0.05)
            patient.close(0.01)

    def test_many_threads_set_at_once(self, clone: Clone, other: Clone) -> None:
        def write(who: int) -> None:
            for i in range(2000):
                clone.set(f"/t/{who}/{i}", b"%d" % i)

        threads = [threading.Thread(target=write, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clone.flush(WAIT_S)
        until(lambda: len(other) == 16_000)
        assert all(other[f"/t/{who}/{i}"] == b"%d" % i for who in range(8) for i in (0, 999, 1999))
        assert clone.verify().ok and other.verify().ok

    def test_two_writers_of_the_same_keys_end_equal(self, clone: Clone, other: Clone) -> None:
        def write(who: Clone, value: bytes) -> None:
            for i in range(200):
                who.set_many({f"/same/{j}": value + b"%d" % i for j in range(50)})

        threads = [threading.Thread(target=write, args=a) for a in ((clone, b"x"), (other, b"y"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clone.flush(WAIT_S)
        other.flush(WAIT_S)
        until(lambda: dict(clone) == dict(other) and len(clone) == 50)
        assert "mismatches" not in clone.stats and "mismatches" not in other.stats

    def test_a_reader_never_sees_half_a_record(self, clone: Clone, other: Clone) -> None:
        keys = [f"/atomic/{i}" for i in range(500)]
        clone.set_many((keys, [b"0"] * 500)).wait(WAIT_S)
        until(lambda: len(other) == 500)
        stop, torn = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                if len(set(other.values())) != 1:
                    torn.append(1)

        reader = threading.Thread(target=read)
        reader.start()
        for i in range(200):
            clone.set_many((keys, [b"%d" % i] * 500))
        clone.flush(WAIT_S)
        until(lambda: set(other.values()) == {b"199"})
        stop.set()
        reader.join()
        assert torn == []

    def test_clients_that_join_under_load_miss_nothing(self, server: TestServer, clone: Clone) -> None:
        stop, count = threading.Event(), [0]

        def write() -> None:
            while not stop.is_set():
                i = count[0]
                clone.set_many({f"/load/{j % 3000}": b"%d" % j for j in range(i, i + 100)}).wait(WAIT_S)
                count[0] += 100

        writer = threading.Thread(target=write)
        writer.start()
        joined = []
        try:
            for i in range(40):
                fresh = Clone(server.address, subtree="/load/" if i % 2 else "")
                fresh.wait_until_synced(WAIT_S)
                joined.append(fresh)
                if len(joined) > 5:
                    joined.pop(0).close()
        finally:
            stop.set()
            writer.join()
        for fresh in joined:
            until(lambda fresh=fresh: dict(fresh) == dict(clone))  # type: ignore[misc]
            assert "holes" not in fresh.stats and "mismatches" not in fresh.stats
            fresh.close()

    def test_a_server_that_restarts_empty_gets_unacknowledged_sets(self, server: TestServer, clone: Clone) -> None:
        clone.set("/before", b"1").wait(WAIT_S)
        server.kill()
        ticket = clone.set("/meanwhile", b"2")
        until(lambda: clone.state is State.STALE)
        assert clone.staleness_s > 0 and clone["/before"] == b"1"
        server.start()
        ticket.wait(WAIT_S)
        until(lambda: dict(clone) == {"/meanwhile": b"2"}, "a memory store forgets")


class TestPair:
    def test_failover_keeps_every_acknowledged_set_and_goes_on(self, pair: Pair) -> None:
        with Clone(pair.servers) as writer, Clone(pair.servers) as reader:
            writer.wait_until_synced(WAIT_S)
            reader.wait_until_synced(WAIT_S)
            tickets = [writer.set(f"/{i}", b"%d" % i) for i in range(200)]
            tickets[-1].wait(WAIT_S)
            pair.primary.kill()
            more = [writer.set(f"/{i}", b"%d" % i) for i in range(200, 400)]
            more[-1].wait(WAIT_S)
            until(lambda: reader.state is State.SYNCED and len(reader) == 400)
            assert reader.active == pair.backup.address and writer.stats["failovers"] == 1
            pair.primary.start()
            writer.set("/last", b"x").wait(WAIT_S)
            until(lambda: dict(reader) == dict(writer) and len(reader) == 401)

    def test_on_state_is_called_on_the_dispatch_thread(self, pair: Pair) -> None:
        told: list[tuple[State, str]] = []
        with Clone(pair.servers, on_state=lambda s: told.append((s, threading.current_thread().name))) as clone:
            clone.wait_until_synced(WAIT_S)
            until(lambda: told)
        until(lambda: told[-1][0] is State.CLOSED)
        assert told[0] == (State.SYNCED, "chp-dispatch")


class TestClassicServer:
    @pytest.mark.parametrize("dialect", ["c", "python"])
    def test_a_clone_follows_a_server_of_chp1(self, dialect: str) -> None:
        with ClassicServer(dialect=dialect, hugz_s=0.2) as server:
            server.put(b"/before", b"1")
            with Clone(server.endpoint) as one, Clone(server.endpoint, subtree="/x/") as two:
                one.wait_until_synced(WAIT_S)
                two.wait_until_synced(WAIT_S)
                assert dict(one) == {"/before": b"1"} and dict(two) == {}
                assert one.set("/x/1", b"2").wait(WAIT_S).durability == "applied"
                until(lambda: dict(two) == {"/x/1": b"2"})
                two.set("/x/2", b"3", ttl=100).wait(WAIT_S)
                two.delete("/x/1").wait(WAIT_S)
                until(lambda: dict(one) == {"/before": b"1", "/x/2": b"3"})


class TestLife:
    def test_a_closed_clone_ends_its_thread_and_refuses_sets(self, server: TestServer) -> None:
        clone = Clone(server.address, name="ends")
        clone["/a"] = b"1"
        clone.close()
        clone.close()
        assert clone.closed and clone["/a"] == b"1"
        assert not [t for t in threading.enumerate() if t.name == "chp-agent-ends"]
        for act in (lambda: clone.set("/a", b""), lambda: clone.delete("/a"), lambda: clone.set_many({"/a": b""}),
                    clone.watch, lambda: clone.lease(5), clone.wait_until_synced):  # fmt: skip
            with pytest.raises(Closed):
                act()

    def test_a_ticket_that_is_unacknowledged_at_close_raises_closed(self) -> None:
        clone = Clone("tcp://127.0.0.1:9")
        ticket = clone.set("/a", b"1")
        clone.close(timeout=0.05)
        with pytest.raises(Closed, match="before it was acknowledged"):
            ticket.wait(WAIT_S)

    def test_close_logs_unacknowledged_sets_unless_flush_was_called(self, caplog: pytest.LogCaptureFixture) -> None:
        for ask in (True, False):
            clone = Clone("tcp://127.0.0.1:9")
            clone["/a"] = b"1"
            if ask:
                with pytest.raises(TimeoutError):
                    clone.flush(0.01)
            clone.close(0.05)
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert "1 batch of sets was not acknowledged, and may be lost; flush before" in record.getMessage()
        assert "127.0.0.1:9 not heard from" in record.getMessage()

    def test_flush_of_a_closed_clone_raises_if_sets_were_lost(self) -> None:
        clone = Clone("tcp://127.0.0.1:9")
        clone["/a"] = b"1"
        clone.close(timeout=0.05)
        with pytest.raises(Closed, match="before it was acknowledged"):
            clone.flush(WAIT_S)

    def test_a_forgotten_clone_is_collected_with_its_thread(self, server: TestServer) -> None:
        clone = Clone(server.address, name="forgotten")
        gone = weakref.ref(clone)
        del clone
        gc.collect()
        assert gone() is None
        until(lambda: not [t for t in threading.enumerate() if t.name == "chp-agent-forgotten"])

    def test_an_unreachable_server_is_named_in_the_timeout(self) -> None:
        with Clone("tcp://127.0.0.1:9") as clone, pytest.raises(TimeoutError, match=r"127\.0\.0\.1:9 not heard from"):
            clone.wait_until_synced(0.05)

    @pytest.mark.parametrize("servers", ["", [], "tcp://a:0", "tcp://a:65535", "ipc://x", [5]])
    def test_an_invalid_server_address_is_refused(self, servers: object) -> None:
        with pytest.raises(BadInput, match="server"):
            Clone(servers)  # type: ignore[arg-type]

    def test_a_watch_ends_with_its_clone(self, server: TestServer) -> None:
        clone = Clone(server.address)
        watch = clone.watch()
        got: list[list[Change]] = []
        thread = threading.Thread(target=lambda: got.append(list(watch)))
        thread.start()
        clone.close()
        join_all(thread)
        assert got == [[]]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
    def test_a_set_in_a_forked_process_raises_forked(self, clone: Clone) -> None:
        context = multiprocessing.get_context("fork")
        said = context.Queue()

        def child() -> None:
            try:
                clone.set("/a", b"1")
            except Exception as error:
                said.put(f"{type(error).__name__}: {error}")

        process = context.Process(target=child)
        process.start()
        assert "Forked" in said.get(timeout=WAIT_S)
        process.join(WAIT_S)
        assert process.exitcode == 0
        clone.set("/b", b"still works").wait(WAIT_S)


class TestAsync:
    def test_an_async_clone_sets_deletes_watches_and_flushes(self, server: TestServer) -> None:
        async def main() -> None:
            async with AsyncClone(server.address) as clone:
                await clone.wait_until_synced(WAIT_S)
                async with clone.watch("/a/") as watch:
                    acks = await asyncio.gather(*(clone.set(f"/a/{i}", b"1", timeout=WAIT_S) for i in range(100)))
                    assert len({ack.sequence for ack in acks}) < 100 and len(clone) == 100
                    got = [await anext(watch) for _ in range(100)]
                    assert [c.key for c in got] == [f"/a/{i}" for i in range(100)]
                await clone.set_many({"/b": b"2"})
                await clone.delete("/b")
                with pytest.raises(Conflict):
                    await clone.set("/a/1", b"", if_revision=1)
                await clone.flush(WAIT_S)
                assert clone.get("/b") is None and clone.entry("/a/1") is not None

        asyncio.run(main())

    def test_an_async_lease(self, server: TestServer) -> None:
        async def main() -> None:
            async with AsyncClone(server.address, subtree="/svc/") as clone:
                async with clone.lease(60) as lease:
                    assert (await lease.set("/svc/1", b"a", timeout=WAIT_S)).durability == "applied"
                    await lease.set_many({"/svc/2": b"b"}, timeout=WAIT_S)
                    assert dict(clone) == {"/svc/1": b"a", "/svc/2": b"b"}
                    assert lease.ttl_s == 60 and repr(lease).startswith("<AsyncLease")
                await clone.flush(WAIT_S)
                while clone:
                    await asyncio.sleep(0.01)
                assert await lease.close() is None

        asyncio.run(asyncio.wait_for(main(), WAIT_S))

    def test_an_async_clone_has_all_clone_methods_but_update_and_clear(self) -> None:
        waits = {"update", "clear"}
        words = {word for word in dir(Clone) if not word.startswith("_")}
        assert words - waits - set(dir(AsyncClone)) == set()
        assert inspect.signature(AsyncClone).parameters == inspect.signature(Clone).parameters

    def test_async_sets_without_a_server_time_out(self) -> None:
        async def main() -> None:
            clone = AsyncClone("tcp://127.0.0.1:9", window_bytes=2000)
            with pytest.raises(TimeoutError, match=r"within 0\.0\d+ s, and still trying.*not heard from"):
                await clone.set("/a", b"x" * 3000, timeout=0.05)
            with pytest.raises(TimeoutError, match=r"within 0\.0\d+ s, and still trying.*not heard from"):
                await clone.set("/b", b"", timeout=0.05)
            with pytest.raises(TimeoutError, match=r"no room for it within 0\.05 s, so nothing was set.*not heard"):
                await clone.delete_many(["/b"], timeout=0.05)
            with pytest.raises(BadInput, match="timeout='5' is not a number of seconds"):
                await clone.set("/b", b"", timeout="5")  # type: ignore[arg-type]
            await clone.close(0.01)

        asyncio.run(main())
