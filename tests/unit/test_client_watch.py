"""Watches: confirmed changes once and in order, the difference after a resync, conflation, bounds; and the ticket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from chp.errors import BadValue
from chp.numbers import Revision
from chp_client.agent.aioparts import AsyncWatch
from chp_client.agent.changes import Change, Changes, changes_of
from chp_client.agent.tickets import Ticket
from chp_client.agent.watch import Watch, WatchQueue
from chp_client.codecs import Decoding, Json
from chp_client.core.events import Ack, Changed
from chp_client.errors import Closed, Lagging, NotRetained
from tests.unit.client_frames import OTHER, SESSION, Talk, n


def watch_of(queue: WatchQueue) -> Watch:
    return Watch(queue, None, lambda: None, None)


def all_of(talk: Talk) -> list[tuple[str, bytes | None, int]]:
    flat = [change for columns in talk.changes for change in changes_of(columns, None)]
    return [(c.key, c.value, c.revision) for c in flat]


class TestWhatTheCoreTells:
    def test_the_core_reports_no_changes_without_a_watch(self) -> None:
        talk = Talk().joined()
        talk.batch(n(0), n(1), {"/a": b"1"})
        assert talk.changes == []

    def test_a_watch_gets_every_change_in_the_servers_order(self) -> None:
        talk = Talk().joined()
        talk.core.subscriptions.watch(True)
        talk.batch(n(0), n(1), {"/a": b"1", "/b": b"2"}, {"/a": b"3"})
        talk.batch(n(3), n(4), {"/a": None})
        assert all_of(talk) == [("/a", b"1", n(1)), ("/b", b"2", n(1)), ("/a", b"3", n(1)), ("/a", None, n(4))]

    def test_a_watch_gets_an_own_set_once_after_its_confirmation(self) -> None:
        talk = Talk().joined()
        talk.core.subscriptions.watch(True)
        talk.set({"/a": b"mine"})
        assert talk.changes == []
        talk.batch(n(0), n(1), {"/a": b"theirs"}, origins=[[OTHER, 1]])
        talk.batch(n(1), n(2), {"/a": b"mine"}, origins=[[SESSION, 1]])
        assert all_of(talk) == [("/a", b"theirs", n(1)), ("/a", b"mine", n(2))]

    def test_a_watch_gets_the_difference_after_a_snapshot(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2), "/c": n(3)})
        talk.core.subscriptions.watch(True)
        talk.heartbeat(n(3), count=9)
        talk.snapshot(n(9), {"/a": (b"/a=1", n(1)), "/b": (b"new", n(8)), "/d": (b"4", n(7))})
        assert all_of(talk) == [("/d", b"4", n(7)), ("/b", b"new", n(8)), ("/c", None, n(9))]

    def test_a_watch_gets_no_key_whose_value_is_unchanged_after_a_snapshot(self) -> None:
        held = {f"/{i}": n(100 - i) for i in range(25)}
        talk = Talk().joined(n(100), **held)
        talk.core.subscriptions.watch(True)
        talk.greet(told=n(150, 2))
        # A replay may have set these keys again.
        again = {k: (f"{k}={r}".encode(), n(120 + i, 2)) for i, (k, r) in enumerate(held.items())}
        news = {f"/new/{i}": (b"new", n(120 - i, 2)) for i in range(9)}
        talk.snapshot(n(150, 2), {**news, **again, "/3": (b"other", n(115, 2))})
        told = all_of(talk)
        assert {key for key, _, _ in told} == {*news, "/3"}
        assert [r for _, _, r in told] == sorted(r for _, _, r in told)

    def test_an_own_set_hides_no_change_of_its_key_from_a_watch(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2)})
        talk.core.subscriptions.watch(True)
        talk.set({"/a": b"theirs"})
        talk.heartbeat(n(3), count=9)
        talk.snapshot(n(9), {"/a": (b"theirs", n(8)), "/b": (b"/b=" + str(n(2)).encode(), n(2))})
        assert all_of(talk) == [("/a", b"theirs", n(8))]

    def test_a_key_hidden_by_a_refused_own_set_is_told_afterwards(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2)})
        talk.core.subscriptions.watch(True)
        talk.set({"/a": b"mine"})
        assert talk.core.subscriptions.held("", set()).keys == ["/b"]
        talk.refuse(1, "access", "no")
        talk.snapshot(n(3), {"/a": (b"1", n(1)), "/b": (b"2", n(2))})
        assert all_of(talk) == [("/a", b"1", n(1))]

    def test_a_watch_compares_by_value_after_the_history_restarts(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2), "/same": n(2)})
        talk.core.subscriptions.watch(True)
        talk.greet(told=n(3), uuid=b"T" * 16)
        same = {"/same": (f"/same={n(2)}".encode(), n(3))}
        talk.snapshot(n(3), {"/a": (b"another", n(1)), "/c": (b"3", n(3)), **same})
        assert all_of(talk) == [("/a", b"another", n(1)), ("/c", b"3", n(3)), ("/b", None, n(3))]
        talk.heartbeat(n(9), count=9)
        talk.snapshot(n(9), {"/a": (b"another", n(1)), "/c": (b"4", n(9)), **same})
        assert all_of(talk)[3:] == [("/c", b"4", n(9))]

    def test_held_lists_the_confirmed_keys_of_the_copy_by_revision(self) -> None:
        talk = Talk().joined(n(3), **{"/x/a": n(3), "/x/b": n(1), "/y": n(2)})
        talk.set({"/x/pending": b"1"})
        assert talk.core.subscriptions.held("/x/", set()).keys == ["/x/b", "/x/a"]
        assert talk.core.subscriptions.held("", {"/x/b"}).keys == ["/y", "/x/a"]

    def test_held_sorts_the_keys_of_several_subtrees_by_revision(self) -> None:
        talk = Talk("/x/", "/y/").joined(n(4), **{"/x/a": n(1), "/y/b": n(2), "/x/c": n(3), "/y/d": n(4)})
        held = talk.core.subscriptions.held("", set())
        assert held.keys == ["/x/a", "/y/b", "/x/c", "/y/d"] and held.revisions == [n(1), n(2), n(3), n(4)]

    def test_a_delete_by_the_servers_is_told_as_an_expiry(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2), "/c": n(3)})
        talk.core.subscriptions.watch(True)
        talk.batch(n(3), n(4), [["/a", "/b"], [b"", b""], {"d": [1, 0], "ended": True}])
        talk.batch(n(5), n(6), {"/c": None})
        assert [list(changed.expiries) for changed in talk.changes] == [[0, 1], []]


class TestWhereAWatchBegins:
    def watched(self, start: str | int, conflate: bool = False) -> tuple[Talk, WatchQueue]:
        """Return a watch that was made before a snapshot and a batch came, with its talk."""
        talk, queue = Talk(), WatchQueue("", conflate, 3, start)
        talk.core.subscriptions.watch(True)
        if start == "begin" or isinstance(start, int):
            talk.core.catch_up(queue, "", start if isinstance(start, int) else None)
        talk.joined(n(4), **{"/a": n(1), "/b": n(2), "/c": n(3), "/d": n(4)})
        talk.batch(n(4), n(5), {"/e": b"5"})
        return talk, queue

    def told(self, talk: Talk, queue: WatchQueue) -> list[str]:
        for changed in talk.changes:
            queue.offer(changed)
        for made, missed in talk.missed:
            assert made is queue
            queue.begin(missed)
        talk.changes, talk.missed = [], []
        return [f"{change.operation} {change.key}" for c in iter(queue.poll, None) for change in changes_of(c, None)]

    def test_a_watch_from_end_skips_the_keys_of_the_first_sync(self) -> None:
        assert self.told(*self.watched("end")) == ["set /e"]

    def test_a_watch_from_snapshot_gets_every_key_despite_a_short_queue(self) -> None:
        assert self.told(*self.watched("snapshot")) == ["set /a", "set /b", "set /c", "set /d", "set /e"]

    def records(self, talk: Talk, *items: list[object]) -> None:
        server, _, options = talk.requests[-1]
        assert options["feed"] and server == 0
        talk.reply(n(4), [4, options["id"], 0], *items)
        talk.reply(n(4), [5, options["id"], n(4), 0, 0, None, False])

    @pytest.mark.parametrize("conflate", [False, True])
    def test_a_watch_from_a_revision_gets_all_later_changes_from_the_log(self, conflate: bool) -> None:
        talk, queue = self.watched(n(1), conflate)
        assert self.told(talk, queue) == []
        talk.wait(0.01)
        assert talk.requests[-1][2]["from"] == n(1) and talk.requests[-1][2]["until"] == n(4)
        gone = [["/gone", "/b"], [b"", b"2"], {"d": [0]}]
        self.records(
            talk,
            [[1, n(0), n(1), n(1), 0, [], False], [["/a"], [b"1"], None]],
            [[1, n(1), n(2), n(2), 0, [], True], gone],
            [[1, n(2), n(3), n(4), 0, [], False], [["/c", "/d"], [b"3", b"4"], None]],
        )
        assert self.told(talk, queue) == ["delete /gone", "set /b", "set /c", "set /d", "set /e"]

    def test_a_watch_from_begin_gets_every_change_that_the_log_retains(self) -> None:
        talk, queue = self.watched("begin")
        talk.wait(0.01)
        assert talk.requests[-1][2]["from"] == 0 and self.told(talk, queue) == []
        # The server drops more records before it is asked again.
        for oldest in (n(1), n(2)):
            talk.reply(n(4), [7, talk.requests[-1][2]["id"], "retained", oldest])
            talk.wait(0.01)
            assert talk.requests[-1][2]["from"] == oldest and self.told(talk, queue) == []
        self.records(talk, [[1, n(2), n(3), n(4), 0, [], False], [["/gone", "/d"], [b"", b"4"], {"d": [0]}]])
        assert self.told(talk, queue) == ["delete /gone", "set /d", "set /e"]

    def test_a_watch_from_begin_ends_if_the_log_names_no_start(self) -> None:
        talk, queue = self.watched("begin")
        talk.wait(0.01)
        talk.reply(n(4), [7, talk.requests[-1][2]["id"], "retained", 0])
        with pytest.raises(NotRetained):
            self.told(talk, queue)

    def test_a_watch_from_a_revision_fails_if_the_log_begins_later(self) -> None:
        talk, queue = self.watched(n(1))
        talk.wait(0.01)
        talk.reply(n(4), [7, talk.requests[-1][2]["id"], "retained", n(3)])
        with pytest.raises(NotRetained, match=r"after 1\.1 are not retained.*begins after 1\.3; begin anew"):
            self.told(talk, queue)

    def test_an_unanswered_log_request_is_repeated_and_follows_a_failover(self) -> None:
        talk, queue = self.watched(n(1))
        for _ in range(12):
            talk.wait(0.25)
            talk.heartbeat(n(5))
        asked = [options for _, _, options in talk.requests if options.get("feed")]
        assert len(asked) == 2 and len({options["id"] for options in asked}) == 2
        talk.reply(n(5), [7, asked[-1]["id"], "passive", 4])
        assert self.told(talk, queue) == []
        talk.greet(told=n(5, 3), uuid=b"T" * 16)
        talk.reply(n(5, 3), [5, talk.last_id(), n(5, 3), *talk.core.channels[0].replica.map.fingerprint(), None, True])
        for _ in range(5):
            talk.heartbeat(n(5, 3))
            talk.wait(0.25)
        self.records(talk, [[1, n(1), n(2), n(2), 0, [], False], [["/b"], [b""], {"d": [0]}]])
        assert self.told(talk, queue) == ["delete /b", "set /e"]

    def test_a_watch_fails_with_a_remedy_if_missed_changes_exceed_the_buffer(self) -> None:
        talk, queue = Talk(limits={"join_buffer_bytes": 100}).joined(n(4)), WatchQueue("", False, 3, n(1))
        talk.core.catch_up(queue, "", n(1))
        talk.wait(0.01)
        self.records(talk, [[1, n(1), n(2), n(2), 0, [], False], [["/b"], [b"x" * 101], None]])
        with pytest.raises(Lagging, match="start='snapshot'"):
            self.told(talk, queue)

    def test_a_watch_from_a_revision_fails_at_a_chp1_server(self) -> None:
        talk, queue = Talk(), WatchQueue("", False, 3, n(1))
        talk.core.catch_up(queue, "", n(1))
        talk.core.chp1.following = True
        talk.core.ask_missed(talk.now)
        talk.core.chp1.following = False
        talk.take()
        with pytest.raises(NotRetained):
            self.told(talk, queue)

    def test_a_watch_lags_if_too_many_changes_come_before_its_log_arrives(self) -> None:
        talk, queue = self.watched(n(1))
        for i in range(4):
            talk.batch(n(5 + i), n(6 + i), {"/f": b"%d" % i})
        with pytest.raises(Lagging):
            self.told(talk, queue)

    def test_an_idle_reader_gets_a_record_larger_than_the_queue(self) -> None:
        talk, queue = Talk().joined(n(1)), WatchQueue("", False, 3)
        talk.core.subscriptions.watch(True)
        talk.batch(n(1), n(2), {f"/{i}": b"1" for i in range(5)}, more=True)
        talk.batch(n(6), n(7), {f"/{i}": b"1" for i in range(5, 10)})
        talk.batch(n(11), n(12), {"/next": b"2"})
        assert self.told(talk, queue) == [*(f"set /{i}" for i in range(10)), "set /next"]


class TestQueue:
    def test_a_watcher_gets_only_its_prefix(self) -> None:
        queue = WatchQueue("/b/", False, 100)
        queue.offer(Changed(["/a/1", "/c/1"], [b"", b""], 1))
        queue.offer(Changed(["/a/1", "/b/1", "/b/2"], [b"1", b"2", None], [1, 2, 3]))
        queue.offer(Changed(["/b/3", "/b/4"], [b"3", b"4"], 9))
        queue.close()
        assert list(watch_of(queue)) == [
            Change("/b/1", b"2", "set", Revision(2)),
            Change("/b/2", None, "delete", Revision(3)),
            Change("/b/3", b"3", "set", Revision(9)),
            Change("/b/4", b"4", "set", Revision(9)),
        ]

    def test_a_watch_that_is_too_slow_raises_lagging(self) -> None:
        queue = WatchQueue("", False, 3)
        queue.offer(Changed(["/a", "/b"], [b"1", b"2"], 1))
        queue.offer(Changed(["/c", "/d"], [b"1", b"2"], 2))
        queue.offer(Changed(["/e", "/f"], [b"1", b"2"], 3))
        with pytest.raises(Lagging, match=r"6 changes behind.*queue_max=.*conflate"):
            next(watch_of(queue))

    def test_one_record_larger_than_the_bound_is_no_lag_by_itself(self) -> None:
        queue = WatchQueue("", False, 3)
        # Each segment of a record comes alone.
        for _ in range(3):
            queue.offer(Changed(["/a", "/b"], [b"1", b"2"], 1))
        queue.offer(Changed(["/c"], [b"1"], 2), Changed(["/d", "/e"], [b"1", b"1"], 3))
        assert len((queue.poll() or Changed([], [], 0)).keys) == 9
        # The difference after a resync is one whole as well.
        queue.offer(Changed(["/a", "/b", "/c", "/d"], [b"3"] * 4, [4, 5, 6, 7]))
        assert len((queue.poll() or Changed([], [], 0)).keys) == 4
        # A record that was read makes no room for later ones.
        for i in range(5):
            queue.offer(Changed(["/a"], [b"4"], 8 + i))
        with pytest.raises(Lagging, match="5 changes behind"):
            queue.poll()

    def test_conflation_keeps_the_latest_of_each_key_however_slow_the_reader(self) -> None:
        queue = WatchQueue("", True, 3)
        for i in range(1000):
            queue.offer(Changed(["/a", f"/{i % 5}"], [b"%d" % i, None], i))
        queue.close()
        got = list(watch_of(queue))
        assert len(got) == 6 and got[-2:] == [
            Change("/a", b"999", "set", Revision(999)),
            Change("/4", None, "delete", Revision(999)),
        ]

    def test_preloaded_keys_do_not_count_as_lag(self) -> None:
        queue = WatchQueue("", False, 2)
        queue.preload(Changed([f"/{i}" for i in range(10)], [b""] * 10, [1] * 10))
        queue.offer(Changed(["/x"], [b""], 2))
        assert len((queue.poll() or Changed([], [], 0)).keys) == 11

    def test_close_ends_the_iteration_of_a_watch(self) -> None:
        queue = WatchQueue("", False, 10)
        got: list[list[Change]] = []
        thread = threading.Thread(target=lambda: got.append(list(watch_of(queue))))
        thread.start()
        queue.close()
        thread.join(20)
        assert got == [[]]

    def test_close_wakes_all_waiting_threads(self) -> None:
        queue = WatchQueue("", False, 100)
        threads = [threading.Thread(target=queue.take, args=(None,), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        while queue._sleepers < 3:
            threading.Event().wait(0.001)
        queue.close()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)

    def test_a_timed_out_wait_leaves_no_sleeper_behind(self) -> None:
        queue = WatchQueue("", False, 100)
        with pytest.raises(TimeoutError):
            queue.take(0)
        queue.offer(Changed(["/a"], [b"1"], 1))
        assert queue.take(60) == Changed(["/a"], [b"1"], 1)
        assert queue._sleepers == 0
        assert queue._bell.empty(), "who left is not rung for"

    @pytest.mark.parametrize("error", [Lagging("slow"), Closed("closed"), KeyboardInterrupt()])
    def test_an_error_that_ends_a_watch_has_no_inner_context(self, error: BaseException) -> None:
        class Ending(WatchQueue):
            def take(self, timeout: float | None) -> Changed | None:
                raise error

        with pytest.raises(type(error)) as raised:
            next(watch_of(Ending("", False, 10)))
        assert raised.value.__context__ is None and raised.value.__cause__ is None

    def test_get_times_out_without_a_change(self) -> None:
        with pytest.raises(TimeoutError, match="no change under '/p/'"):
            watch_of(WatchQueue("/p/", False, 10)).get(timeout=0.01)

    def test_values_are_decoded_by_the_watcher(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b"], [b"1", None], 1))
        watch = Watch(queue, Decoding(bytes.decode), lambda: None, None)
        assert [watch.get(1).value, watch.get(1).value] == ["1", None]

    def test_two_threads_that_read_in_turn_get_every_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chp_client.agent.watch.TOGETHER", 1)
        taken: list[str] = []
        other = threading.Thread(target=lambda: taken.append(next(watch).key))

        class Between(WatchQueue):
            """A queue in which another thread reads before the taken changes were kept."""

            def take(self, timeout: float | None) -> Changed | None:
                columns = super().take(timeout)
                if other.ident is None:
                    other.start()
                    other.join(60)
                return columns

        queue = Between("", False, 10)
        watch = watch_of(queue)
        queue.offer(Changed(["/a", "/b"], [b"", b""], 1))
        queue.offer(Changed(["/c", "/d"], [b"", b""], 2))
        watch.close()
        taken += [change.key for change in watch]
        assert sorted(taken) == ["/a", "/b", "/c", "/d"]

    def test_an_interrupted_watch_goes_on_with_the_next_change(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b", "/c"], [b"1", b"2", b"3"], 1))
        stop = [KeyboardInterrupt(), None, None]

        def decode(value: bytes) -> str:
            if error := stop.pop(0):
                raise error
            return value.decode()

        watch = Watch(queue, Decoding(decode), lambda: None, None)
        with pytest.raises(KeyboardInterrupt):
            next(watch)
        assert [watch.get(1).key, watch.get(1).key] == ["/b", "/c"]

    def test_an_undecodable_value_names_its_key_and_hides_no_other_change(self) -> None:
        queue = WatchQueue("", False, 10)
        for _ in range(2):
            queue.offer(Changed(["/a", "/b", "/c"], [b"1", b"{", b"3"], 1))
        watch = Watch(queue, Decoding(Json().decode), lambda: None, None)
        assert next(watch).value == 1
        with pytest.raises(BadValue, match=r"key '/b': the value b'\{' is not JSON"):
            next(watch)
        assert next(watch).value == 3
        with pytest.raises(BadValue, match="key '/b'"):
            next(watch.batches(1))

    def test_batches_begin_with_changes_that_were_taken_but_not_read(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b"], [b"1", None], [1, 2]))
        queue.offer(Changed(["/c"], [b"3"], 3))
        watch = watch_of(queue)
        assert next(watch).key == "/a"
        watch.close()
        left = [Change("/b", None, "delete", Revision(2)), Change("/c", b"3", "set", Revision(3))]
        assert [list(changes) for changes in watch.batches()] == [left]

    def test_a_batch_has_all_waiting_changes_as_columns(self) -> None:
        queue = WatchQueue("/a/", False, 100)
        queue.offer(Changed(["/a/1", "/a/2"], [b"1", None], 7), Changed(["/b/1"], [b"b"], 8))
        queue.offer(Changed(["/b/2", "/a/3", "/b/3", "/a/2"], [b"b", None, None, b"2"], 9, expiries=[1, 2]))
        queue.close()
        assert list(watch_of(queue).batches()) == [
            Changes(["/a/1", "/a/2", "/a/3", "/a/2"], [b"1", None, None, b"2"], [7, 7, 9, 9], [1, 2], [2])  # type: ignore[list-item]
        ]

    def test_a_bounded_batch_never_splits_changes_that_came_together(self) -> None:
        queue = WatchQueue("", False, 10**6)
        for i in range(5):
            queue.offer(Changed([f"/{i}/{k}" for k in range(400)], [b""] * 400, i))
        queue.close()
        assert [len(changes) for changes in watch_of(queue).batches()] == [1200, 800]

    def test_a_reader_may_change_the_columns_of_its_batch(self) -> None:
        keys, values = ["/a", "/b"], [b"1", b"2"]
        two = WatchQueue("", False, 10), WatchQueue("", False, 10)
        for queue in two:
            queue.offer(Changed(keys, list(values), 1))
        first = next(watch_of(two[0]).batches())
        first.keys.clear()
        first.values.clear()
        assert keys == ["/a", "/b"] and next(watch_of(two[1]).batches()).keys == keys

    def test_a_value_that_decodes_to_none_is_no_delete(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b", "/c", "/d"], [b"1", None, b"null", None], 1))
        changes = next(Watch(queue, Decoding(Json().decode), lambda: None, None).batches())
        assert changes.values == [1, None, None, None] and changes.deletes == [1, 3]
        assert [change.operation for change in changes] == ["set", "delete", "set", "delete"]

    def test_a_listener_is_rung_once_for_all_changes_of_one_offer(self) -> None:
        queue, rung = WatchQueue("", False, 10), []
        queue.on_offer = lambda: rung.append(1)
        queue.offer(Changed(["/a"], [b"1"], 1), Changed(["/b"], [b"2"], 2))
        assert rung == [1]

    def test_a_listener_may_leave_while_the_agent_rings(self) -> None:
        class Leaving(WatchQueue):
            """A queue whose listener leaves as soon as the agent has looked for it once."""

            def __getattribute__(self, name: str) -> Any:
                found = super().__getattribute__(name)
                if name == "on_offer" and found is not None:
                    self.on_offer = None
                return found

        change = Changed(["/a"], [b"1"], 1)
        rings: list[Callable[[WatchQueue], None]] = [lambda q: q.offer(change), lambda q: q.begin([]), WatchQueue.close]
        for ring in rings:
            queue, rung = Leaving("", False, 10), list[int]()
            queue.on_offer = partial(rung.append, 1)
            ring(queue)
            assert rung == [1]

    def test_an_async_watch_yields_single_changes_and_batches(self) -> None:
        async def use() -> list[Changes]:
            queue = WatchQueue("", False, 100)
            watch = AsyncWatch(watch_of(queue), asyncio.get_running_loop())
            queue.offer(Changed(["/a", "/b"], [b"1", None], 1))
            assert (await anext(watch)).key == "/a"
            # These changes were taken and not read.
            got = [await anext(watch.batches())]
            queue.offer(Changed(["/c"], [b"3"], 2))
            queue.close()
            return got + [changes async for changes in watch.batches()]

        assert [list(changes) for changes in asyncio.run(use())] == [
            [Change("/b", None, "delete", Revision(1))],
            [Change("/c", b"3", "set", Revision(2))],
        ]


class TestTicket:
    def test_a_ticket_is_settled_with_the_weakest_durability_of_its_parts(self) -> None:
        ticket = Ticket(lambda: "state")
        ticket.expect(2)
        ticket.settle(Ack(1, 5, "replicated"))
        assert not ticket.done and ticket.ack is None
        ticket.settle(Ack(1, 9, "journaled"))
        assert ticket.wait(0) == Ack(1, 9, "journaled") == ticket.ack

    def test_a_ticket_timeout_describes_the_state_of_the_client(self) -> None:
        with pytest.raises(TimeoutError, match=r"within 0.01 s.*tcp://a not heard"):
            Ticket(lambda: "tcp://a not heard from").wait(0.01)

    def test_a_ticket_raises_its_error_at_each_wait(self) -> None:
        ticket = Ticket(lambda: "")
        ticket.settle(Closed("closed"))
        for _ in range(2):
            with pytest.raises(Closed):
                ticket.wait(0)
        assert isinstance(ticket.error, Closed)

    def test_callbacks_added_before_and_after_settling_are_called(self) -> None:
        ticket, called = Ticket(lambda: ""), []
        ticket.add_done_callback(lambda t: called.append(("before", t.ack)))
        ticket.settle(Ack(1, 1, "applied"))
        ticket.settle(Ack(1, 2, "applied"))
        ticket.add_done_callback(lambda t: called.append(("after", t.ack)))
        assert called == [("before", Ack(1, 1, "applied")), ("after", Ack(1, 1, "applied"))]
