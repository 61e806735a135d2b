"""Watches: confirmed changes once and in order, the difference after a resync, conflation, bounds; and the ticket."""

from __future__ import annotations

import threading

import pytest

from chp.errors import BadValue
from chp_client.codecs import Json
from chp_client.errors import Closed, Lagging
from chp_client.events import Ack, Changed
from chp_client.tickets import Ticket
from chp_client.watch import Change, Watch, WatchQueue, changes_of
from tests.unit.client_frames import OTHER, SESSION, Talk, n


def watch_of(queue: WatchQueue) -> Watch:
    return Watch(queue, None, lambda: None, None)


def all_of(talk: Talk) -> list[tuple[str, bytes | None, int]]:
    flat = [change for columns in talk.changes for change in changes_of(columns, None)]
    return [(c.key, c.value, c.revision) for c in flat]


class TestWhatTheCoreTells:
    def test_nothing_while_nobody_watches(self) -> None:
        talk = Talk().joined()
        talk.batch(n(0), n(1), {"/a": b"1"})
        assert talk.changes == []

    def test_every_change_in_the_servers_order(self) -> None:
        talk = Talk().joined()
        talk.core.watch(True)
        talk.batch(n(0), n(1), {"/a": b"1", "/b": b"2"}, {"/a": b"3"})
        talk.batch(n(3), n(4), {"/a": None})
        assert all_of(talk) == [("/a", b"1", n(1)), ("/b", b"2", n(1)), ("/a", b"3", n(1)), ("/a", None, n(4))]

    def test_an_own_set_is_told_when_it_is_confirmed_and_once(self) -> None:
        talk = Talk().joined()
        talk.core.watch(True)
        talk.set({"/a": b"mine"})
        assert talk.changes == []
        talk.batch(n(0), n(1), {"/a": b"theirs"}, origins=[[OTHER, 1]])
        talk.batch(n(1), n(2), {"/a": b"mine"}, origins=[[SESSION, 1]])
        assert all_of(talk) == [("/a", b"theirs", n(1)), ("/a", b"mine", n(2))]

    def test_after_a_snapshot_the_difference(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2), "/c": n(3)})
        talk.core.watch(True)
        talk.heartbeat(n(3), count=9)
        talk.snapshot(n(9), {"/a": (b"/a=1", n(1)), "/b": (b"new", n(8)), "/d": (b"4", n(7))})
        assert all_of(talk) == [("/c", None, n(9)), ("/d", b"4", n(7)), ("/b", b"new", n(8))]

    def test_a_history_that_began_anew_is_told_whole_as_its_revisions_mean_something_else(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(1), "/b": n(2)})
        talk.core.watch(True)
        talk.greet(told=n(3), uuid=b"T" * 16)
        talk.snapshot(n(3), {"/a": (b"another", n(1)), "/c": (b"3", n(3))})
        assert all_of(talk) == [("/b", None, n(3)), ("/a", b"another", n(1)), ("/c", b"3", n(3))]
        talk.heartbeat(n(9), count=9)
        talk.snapshot(n(9), {"/a": (b"another", n(1)), "/c": (b"4", n(9))})
        assert all_of(talk)[3:] == [("/c", b"4", n(9))]

    def test_what_is_held_can_be_told_first(self) -> None:
        talk = Talk().joined(n(3), **{"/x/a": n(3), "/x/b": n(1), "/y": n(2)})
        talk.set({"/x/pending": b"1"})
        assert talk.core.held("/x/", 0).keys == ["/x/b", "/x/a"]
        assert talk.core.held("", n(1)).keys == ["/y", "/x/a"]


class TestQueue:
    def test_a_watcher_gets_only_its_prefix(self) -> None:
        queue = WatchQueue("/b/", False, 100)
        queue.offer(Changed(["/a/1", "/c/1"], [b"", b""], 1))
        queue.offer(Changed(["/a/1", "/b/1", "/b/2"], [b"1", b"2", None], [1, 2, 3]))
        queue.offer(Changed(["/b/3", "/b/4"], [b"3", b"4"], 9))
        queue.close()
        assert list(watch_of(queue)) == [
            Change("/b/1", b"2", "set", 2),
            Change("/b/2", None, "delete", 3),
            Change("/b/3", b"3", "set", 9),
            Change("/b/4", b"4", "set", 9),
        ]

    def test_one_that_is_too_slow_is_told_so(self) -> None:
        queue = WatchQueue("", False, 3)
        queue.offer(Changed(["/a", "/b"], [b"1", b"2"], 1))
        queue.offer(Changed(["/c", "/d"], [b"1", b"2"], 2))
        with pytest.raises(Lagging, match=r"4 changes behind.*conflate"):
            next(watch_of(queue))

    def test_conflation_keeps_the_latest_of_each_key_however_slow_the_reader(self) -> None:
        queue = WatchQueue("", True, 3)
        for i in range(1000):
            queue.offer(Changed(["/a", f"/{i % 5}"], [b"%d" % i, None], i))
        queue.close()
        got = list(watch_of(queue))
        assert len(got) == 6 and got[-2:] == [Change("/a", b"999", "set", 999), Change("/4", None, "delete", 999)]

    def test_a_start_with_what_is_held_does_not_count_as_lag(self) -> None:
        queue = WatchQueue("", False, 2)
        queue.preload(Changed([f"/{i}" for i in range(10)], [b""] * 10, [1] * 10))
        queue.offer(Changed(["/x"], [b""], 2))
        assert len(queue.poll() or Changed([], [], 0)) == 3

    def test_closing_wakes_who_waits(self) -> None:
        queue = WatchQueue("", False, 10)
        got: list[list[Change]] = []
        thread = threading.Thread(target=lambda: got.append(list(watch_of(queue))))
        thread.start()
        queue.close()
        thread.join(20)
        assert got == [[]]

    def test_closing_wakes_everybody_who_waits(self) -> None:
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

    def test_one_whose_wait_ran_out_takes_nobody_elses_turn(self) -> None:
        queue = WatchQueue("", False, 100)
        with pytest.raises(TimeoutError):
            queue.take(0)
        queue.offer(Changed(["/a"], [b"1"], 1))
        assert queue.take(60) == Changed(["/a"], [b"1"], 1)
        assert queue._sleepers == 0
        assert queue._bell.empty(), "who left is not rung for"

    def test_a_wait_is_bounded(self) -> None:
        with pytest.raises(TimeoutError, match="no change under '/p/'"):
            watch_of(WatchQueue("/p/", False, 10)).get(timeout=0.01)

    def test_values_are_decoded_by_the_watcher(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b"], [b"1", None], 1))
        watch = Watch(queue, bytes.decode, lambda: None, None)
        assert [watch.get(1).value, watch.get(1).value] == ["1", None]

    def test_two_threads_that_read_in_turn_get_every_change(self) -> None:
        taken: list[str] = []
        other = threading.Thread(target=lambda: taken.append(next(watch).key))

        class Between(WatchQueue):
            """In which another thread reads, before what one took has been kept."""

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

    def test_one_that_was_interrupted_between_changes_goes_on_where_it_was(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b", "/c"], [b"1", b"2", b"3"], 1))
        stop = [KeyboardInterrupt(), None, None]

        def decode(value: bytes) -> str:
            if error := stop.pop(0):
                raise error
            return value.decode()

        watch = Watch(queue, decode, lambda: None, None)
        with pytest.raises(KeyboardInterrupt):
            next(watch)
        assert [watch.get(1).key, watch.get(1).key] == ["/b", "/c"]

    def test_a_value_that_can_not_be_decoded_names_its_key_and_hides_no_other(self) -> None:
        queue = WatchQueue("", False, 10)
        for _ in range(2):
            queue.offer(Changed(["/a", "/b", "/c"], [b"1", b"{", b"3"], 1))
        watch = Watch(queue, Json().decode, lambda: None, None)
        assert next(watch).value == 1
        with pytest.raises(BadValue, match=r"key '/b': the value b'\{' is not JSON"):
            next(watch)
        assert next(watch).value == 3
        with pytest.raises(BadValue, match="key '/b'"):
            next(watch.batches(1))

    def test_batches_begin_with_what_was_taken_and_not_read(self) -> None:
        queue = WatchQueue("", False, 10)
        queue.offer(Changed(["/a", "/b"], [b"1", None], [1, 2]))
        queue.offer(Changed(["/c"], [b"3"], 3))
        watch = watch_of(queue)
        assert next(watch).key == "/a"
        watch.close()
        assert list(watch.batches()) == [[Change("/b", None, "delete", 2)], [Change("/c", b"3", "set", 3)]]


class TestTicket:
    def test_it_is_settled_once_all_its_parts_are_with_the_weakest_worth(self) -> None:
        ticket = Ticket(lambda: "state")
        ticket.expect(2)
        ticket.settle(Ack(1, 5, "replicated"))
        assert not ticket.done and ticket.ack is None
        ticket.settle(Ack(1, 9, "journaled"))
        assert ticket.wait(0) == Ack(1, 9, "journaled") == ticket.ack

    def test_a_wait_that_runs_out_says_how_things_stand(self) -> None:
        with pytest.raises(TimeoutError, match=r"within 0.01 s.*tcp://a not heard"):
            Ticket(lambda: "tcp://a not heard from").wait(0.01)

    def test_an_error_is_raised_for_each_who_waits(self) -> None:
        ticket = Ticket(lambda: "")
        ticket.settle(Closed("closed"))
        for _ in range(2):
            with pytest.raises(Closed):
                ticket.wait(0)
        assert isinstance(ticket.error, Closed)

    def test_callbacks_are_called_before_and_after(self) -> None:
        ticket, called = Ticket(lambda: ""), []
        ticket.add_done_callback(lambda t: called.append(("before", t.ack)))
        ticket.settle(Ack(1, 1, "applied"))
        ticket.settle(Ack(1, 2, "applied"))
        ticket.add_done_callback(lambda t: called.append(("after", t.ack)))
        assert called == [("before", Ack(1, 1, "applied")), ("after", Ack(1, 1, "applied"))]
