"""Own sets in the client's core: shown at once, never flipping back, numbered, resent in order, settled, refused."""

from __future__ import annotations

from chp_client.core.events import Ack, State
from chp_client.core.session import SKIPS_MAX
from chp_client.errors import Conflict, Refused
from tests.unit.client_frames import ACTIVE, OTHER, PASSIVE, SESSION, Talk, message, n, own_topic


def sent(talk: Talk, server: int = 0) -> list[int]:
    return [no for i, no, _, _ in talk.sent if i == server]


def unknown(talk: Talk, no: int) -> None:
    """Let a server refuse a session for good, even if the client names its oldest batch."""
    for _ in range(SKIPS_MAX + 1):
        talk.sent.clear()
        talk.refuse(no, "session", 1)
        talk.now += 2.1


class TestShown:
    def test_an_own_set_is_visible_at_once_and_its_echo_changes_nothing(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"mine"})
        assert talk.map == {"/a": b"mine"}
        talk.batch(n(0), n(1), {"/a": b"mine"}, origins=[[SESSION, 1]])
        assert talk.map == {"/a": b"mine"}
        assert talk.core.channels[0].replica.map.revisions == {"/a": n(1)}
        assert not talk.core.channels[0].replica.pending

    def test_an_earlier_update_of_another_client_does_not_hide_an_own_set(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"mine"})
        talk.batch(n(0), n(1), {"/a": b"theirs", "/b": b"theirs"}, origins=[[OTHER, 1]])
        assert talk.map == {"/a": b"mine", "/b": b"theirs"}
        talk.batch(n(2), n(3), {"/a": b"mine"}, origins=[[SESSION, 1]])
        talk.batch(n(3), n(4), {"/a": b"after"}, origins=[[OTHER, 2]])
        assert talk.map == {"/a": b"after", "/b": b"theirs"}

    def test_a_record_of_several_writers_does_not_hide_a_pending_own_set(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.set({"/b": b"2"})
        talk.batch(n(0), n(1), {"/a": b"1"}, {"/a": b"over", "/b": b"x"}, origins=[[SESSION, 1], [OTHER, 5]])
        assert talk.map == {"/a": b"over", "/b": b"2"}

    def test_a_chp1_update_beside_an_echo_is_not_taken_for_the_echo(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.batch(n(0), n(1), {"/a": b"1"}, {"/a": b"plain"}, origins=[[SESSION, 1]])
        assert talk.map == {"/a": b"plain"}

    def test_an_own_delete_is_visible_at_once_and_stays(self) -> None:
        talk = Talk().joined(n(1), **{"/a": n(1)})
        talk.set({"/a": None})
        assert talk.map == {}
        talk.batch(n(1), n(2), {"/a": b"theirs"}, origins=[[OTHER, 1]])
        assert talk.map == {}
        talk.batch(n(2), n(3), {"/a": None}, origins=[[SESSION, 1]])
        assert talk.map == {} and talk.core.channels[0].replica.map.fingerprint() == (0, 0)

    def test_a_snapshot_does_not_hide_a_pending_own_set(self) -> None:
        talk = Talk()
        talk.set({"/a": b"mine", "/gone": None})
        talk.greet(told=n(2))
        talk.snapshot(n(2), {"/a": (b"theirs", n(1)), "/gone": (b"theirs", n(2)), "/c": (b"3", n(2))})
        assert talk.map == {"/a": b"mine", "/c": b"3"}

    def test_a_snapshot_that_includes_an_own_set_confirms_the_set(self) -> None:
        talk = Talk()
        talk.set({"/a": b"mine"})
        talk.greet(told=n(2))
        talk.snapshot(n(2), {"/a": (b"later", n(2))}, session_no=1)
        assert talk.map == {"/a": b"later"}

    def test_a_conditional_set_is_shown_when_it_is_confirmed(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"}, shown=False, c=[[0], [0]])
        assert talk.map == {}
        talk.batch(n(0), n(1), {"/a": b"1"}, origins=[[SESSION, 1]])
        assert talk.map == {"/a": b"1"}

    def test_each_of_several_subtrees_waits_for_its_own_echo(self) -> None:
        talk = Talk("/a/", "/b/").joined()
        talk.set({"/a/x": b"mine", "/b/x": b"mine"})
        talk.batch(n(0), n(2), {"/a/x": b"mine"}, origins=[[SESSION, 1]], on="/a/")
        talk.batch(n(0), n(1), {"/b/x": b"before"}, origins=[[OTHER, 1]], on="/b/")
        assert talk.map == {"/a/x": b"mine", "/b/x": b"mine"}

    def test_confirmed_own_batches_are_forgotten_generation_by_generation(self) -> None:
        talk = Talk().joined()
        pending = talk.core.channels[0].replica.pending
        for i in range(70):
            talk.set({f"/{j}": b"%d" % i for j in range(i * 1000, i * 1000 + 1000)})
        assert pending.among(["/0"]) == {"/0"} and pending._old and pending._young
        at = n(0)
        for i in range(70):
            keys = {f"/{j}": b"%d" % i for j in range(i * 1000, i * 1000 + 1000)}
            talk.batch(at, at + 1, keys, origins=[[SESSION, i + 1]])
            at += 1000
            if i == 40:
                assert pending.among(["/0", "/40999", "/41000"]) == {"/41000"}
        assert not pending and len(talk.map) == 70_000


class TestSent:
    def test_nothing_is_sent_before_the_link_is_up_and_the_own_channel_greeted(self) -> None:
        talk = Talk()
        talk.set({"/a": b"1"})
        talk.up()
        assert talk.sent == []
        talk.greet()
        assert sent(talk) == [1]

    def test_a_set_goes_to_both_servers(self) -> None:
        talk = Talk(servers=2).joined()
        talk.greet(PASSIVE, n(0), server=1)
        talk.up(1)
        talk.set({"/a": b"1"})
        assert sent(talk, 0) == sent(talk, 1) == [1]

    def test_unacknowledged_batches_are_resent_in_order_when_a_link_returns(self) -> None:
        talk = Talk().joined()
        for i in range(3):
            talk.set({f"/{i}": b"1"})
        talk.ack(1, 1, n(1))
        talk.sent.clear()
        talk.down()
        talk.set({"/3": b"1"})
        assert talk.sent == []
        talk.up()
        assert sent(talk) == [2, 3, 4]

    def test_unacknowledged_batches_are_resent_to_the_new_active(self) -> None:
        talk = Talk(servers=2).joined()
        talk.greet(PASSIVE, n(0), server=1)
        talk.up(1)
        talk.set({"/a": b"1"})
        talk.set({"/b": b"1"})
        talk.sent.clear()
        talk.greet(ACTIVE, n(0, 2), server=1)
        assert sent(talk, 1) == [1, 2] and talk.stats["resends"] == 2

    def test_an_unacknowledged_batch_is_resent_at_growing_intervals(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        for _ in range(200):
            talk.wait(0.2)
            talk.heartbeat(n(0))
        assert 3 <= sent(talk).count(1) - 1 <= 6

    def test_later_answers_do_not_delay_the_resend_of_an_unanswered_batch(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        for step in range(60):
            no = talk.set({"/b": b"1"}, shown=False, c=[[0], [0]])
            talk.wait(1.0)
            talk.heartbeat(n(0))
            talk.ack(no, no, n(1)) if step % 2 else talk.refuse(no, "revision", {"/b": 1})
        # The batch is sent each resend_s. Answers do not put it off, and the interval does not grow.
        assert sent(talk).count(1) >= 20

    def test_the_pipeline_is_bounded(self) -> None:
        talk = Talk().joined()
        for i in range(1500):
            talk.set({f"/{i}": b"1"})
        assert len(talk.sent) < 1100
        talk.ack(1, 1000, n(1))
        assert sent(talk) == list(range(1, 1501))

    def test_the_window_is_full_by_batches_or_by_bytes(self) -> None:
        talk = Talk(limits={"window_batches": 2, "window_bytes": 1000}).joined()
        talk.set({"/a": b"1"})
        assert not talk.core.full()
        talk.set({"/b": b"1"})
        assert talk.core.full()
        talk.ack(1, 2, n(2))
        talk.set({"/c": b"x" * 2000})
        assert talk.core.full()


class TestAnswered:
    def test_an_ack_may_ask_for_small_batches(self) -> None:
        talk = Talk().joined()
        for _ in range(3):
            talk.set({"/a": b"1"})
        asked = []
        for no, items in ((1, [1024]), (2, [5]), (3, [])):
            talk.ack(no, no, n(no), 2, *items)
            asked.append(talk.core.session.batch_items)
        assert asked == [1024, 5, None]

    def test_an_ack_settles_a_run_with_its_revision_and_durability(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.set({"/b": b"1"})
        talk.heartbeat(n(7), n(0))
        talk.ack(1, 2, n(7), durability=1)
        assert talk.settled == [(1, Ack(1, 7, "journaled")), (2, Ack(1, 7, "journaled"))]
        assert talk.stats["acks_journaled"] == 2 and not talk.core.outbox.batches

    def test_acknowledgements_may_come_in_any_order(self) -> None:
        talk = Talk(write_only=True).joined()
        for i in range(4):
            talk.set({f"/{i}": b"1"})
        talk.ack(3, 4, n(4))
        assert [handle for handle, _ in talk.settled] == [3, 4] and list(talk.core.outbox.batches) == [1, 2]
        talk.ack(1, 2, n(2))
        assert [handle for handle, _ in talk.settled] == [3, 4, 1, 2] and not talk.core.outbox.batches

    def test_an_ack_of_a_huge_range_settles_only_open_batches(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.heartbeat(n(7), n(0))
        talk.ack(0, 1 << 60, n(7))
        assert len(talk.settled) == 1

    def test_an_ack_of_a_stale_active_is_not_believed(self) -> None:
        talk = Talk(servers=2).joined()
        talk.greet(ACTIVE, n(0, 2), server=1)
        talk.set({"/a": b"1"})
        talk.ack(1, 1, n(5, 1))
        assert talk.settled == []

    def test_a_gap_is_resent_once_from_the_expected_batch(self) -> None:
        talk = Talk().joined()
        for i in range(4):
            talk.set({f"/{i}": b"1"})
        talk.sent.clear()
        talk.refuse(3, "expected", 2)
        talk.refuse(4, "expected", 2)
        assert sent(talk) == [2, 3, 4]

    def test_an_unknown_session_without_an_acknowledgement_is_resent_from_the_start(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.set({"/b": b"1"})
        talk.sent.clear()
        talk.refuse(2, "session", 1)
        assert sent(talk) == [1, 2] and "sessions_reopened" not in talk.stats

    def test_a_server_that_lacks_answered_batches_is_told_the_oldest_open_batch(self) -> None:
        talk = Talk().joined()
        for i in range(4):
            talk.set({f"/{i}": b"1"})
        talk.ack(1, 2, n(2))
        talk.sent.clear()
        assert talk.oldest == []
        talk.refuse(3, "expected", 2)
        talk.refuse(4, "expected", 2)
        assert sent(talk) == [3, 4] and talk.oldest == [3], "once for all that were refused"
        talk.ack(3, 3, n(3))
        talk.set({"/5": b"1"})
        assert sent(talk)[2:] == [5] and talk.oldest == [3], "what follows is the next of its session"
        talk.refuse(4, "session", 1)
        assert talk.oldest == [3, 4] and "sessions_reopened" not in talk.stats

    def test_the_oldest_batch_is_named_again_after_a_reconnection(self) -> None:
        talk = Talk().joined()
        for i in range(2):
            talk.set({f"/{i}": b"1"})
        talk.ack(1, 1, n(1))
        talk.refuse(2, "expected", 1)
        talk.down()
        talk.up()
        talk.greet()
        assert talk.oldest == [2, 2]

    def test_a_session_that_stays_unknown_is_reopened_and_its_batches_renumbered(self) -> None:
        talk = Talk().joined()
        for i in range(3):
            talk.set({f"/{i}": b"mine"}, handle=f"ticket {i}")
        talk.batch(n(0), n(1), {"/0": b"mine"}, origins=[[SESSION, 1]])
        talk.ack(1, 1, n(1))
        unknown(talk, 2)
        session = talk.core.outbox.public
        assert session != SESSION and talk.stats["sessions_reopened"] == 1
        assert own_topic(session) in talk.topics[0] and own_topic() not in talk.topics[0]
        assert talk.sent == [], "not before its acknowledgements can be heard"
        talk.greet()
        assert [(no, s) for _, no, s, _ in talk.sent] == [(1, talk.core.outbox.session), (2, talk.core.outbox.session)]
        talk.batch(n(1), n(9), {"/1": b"theirs"}, origins=[[OTHER, 1]], last=n(9))
        assert talk.map["/1"] == b"mine"
        talk.ack(1, 2, n(9))
        assert [handle for handle, _ in talk.settled] == ["ticket 0", "ticket 1", "ticket 2"]

    def test_refusals_of_later_batches_do_not_end_the_session(self) -> None:
        """They may have waited at a passive since before the client told it the oldest batch."""
        talk = Talk().joined()
        for i in range(3):
            talk.set({f"/{i}": b"mine"})
        talk.ack(1, 1, n(1))
        for _ in range(SKIPS_MAX + 2):
            talk.refuse(3, "expected", 1)
            talk.now += 2.1
        assert talk.core.outbox.public == SESSION and talk.oldest[-1] == 2

    def test_refusals_of_later_batches_do_not_hide_refusals_of_the_oldest_batch(self) -> None:
        """An application that went on setting kept a lost session for minutes, as a later batch was refused first."""
        talk = Talk().joined()
        for i in range(3):
            talk.set({f"/{i}": b"mine"})
        talk.ack(1, 1, n(1))
        for _ in range(SKIPS_MAX + 1):
            talk.refuse(3, "session", 1)
            talk.refuse(2, "session", 1)
            talk.now += 2.1
        assert talk.core.outbox.public != SESSION

    def test_a_client_asks_for_its_snapshot_again_in_a_new_session(self) -> None:
        """The end of a snapshot tells of the session that asked, so the client asks again in the new session."""
        talk = Talk().joined()
        talk.set({"/a": b"mine"})
        talk.batch(n(0), n(1), {"/a": b"mine"}, origins=[[SESSION, 1]])
        talk.ack(1, 1, n(1))
        # There is a gap, so the client asks.
        talk.batch(n(5), n(6), {"/b": b"theirs"}, origins=[[OTHER, 1]])
        talk.set({"/c": b"mine"})
        # The client begins a new session.
        unknown(talk, 2)
        assert talk.requests[-1][2]["session"] == talk.core.outbox.public
        talk.greet()
        talk.snapshot(n(9), {"/a": (b"mine", n(1)), "/c": (b"mine", n(8))}, session_no=1)
        talk.ack(1, 1, n(8))
        talk.batch(n(9), n(10), {"/c": b"theirs"}, origins=[[OTHER, 2]])
        assert talk.map["/c"] == b"theirs"

    def test_a_failed_condition_tells_the_present_revision(self) -> None:
        talk = Talk().joined(n(3), **{"/a": n(3)})
        talk.set({"/a": b"1"}, shown=False, c=[[0], [5]])
        talk.refuse(1, "revision", {"/a": n(3), "/b": 0})
        error = talk.settled[0][1]
        assert isinstance(error, Conflict) and error.revisions == {"/a": n(3), "/b": 0}
        assert str(error) == "nothing was set: '/a' is at 1.3, '/b' is not there; read the entry again and retry"
        assert len(talk.requests) == 1, "nothing was shown, so nothing is fetched"

    def test_a_batch_refused_as_busy_is_not_sent_again(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        talk.refuse(1, "busy", "1000 leases are open")
        assert not talk.core.outbox.batches
        _, result = talk.settled[0]
        assert isinstance(result, Refused) and result.code == "busy"
        talk.set({"/b": b"2"})
        assert sent(talk) == [1, 2], "nothing is sent again"

    def test_a_refused_set_that_was_shown_is_taken_back(self) -> None:
        talk = Talk().joined(n(1), **{"/a": n(1)})
        talk.set({"/a": b"mine", "/new": b"mine"})
        talk.set({"/later": b"mine"})
        talk.refuse(1, "access", "not yours")
        error = talk.settled[0][1]
        assert isinstance(error, Refused) and error.code == "access" and "not yours" in str(error)
        assert talk.requests[-1][2]["from"] == 0
        talk.snapshot(n(1), {"/a": (b"confirmed", n(1))})
        assert talk.map == {"/a": b"confirmed", "/later": b"mine"}
        assert talk.stats["refusals"] == 1 and talk.core.state is State.SYNCED


class TestSettledOnceTheCopyHoldsIt:
    """Tests that a ticket is settled when the copy has its set, at its revision or a later one."""

    def lagging(self, *subtrees: str) -> Talk:
        """Return a joined client that misses the next batch."""
        talk = Talk(*subtrees).joined()
        for subtree in subtrees or ("",):
            talk.set({f"{subtree}/k": b"mine"})
        return talk

    def test_an_acknowledgement_waits_until_its_batch_is_in_the_copy(self) -> None:
        talk = self.lagging()
        talk.ack(1, 1, n(3))
        assert talk.settled == [] and talk.core.session.open_batches == 1
        talk.batch(n(0), n(1), {"/other": b"theirs"}, origins=[[OTHER, 1]])
        assert talk.settled == []
        talk.batch(n(1), n(3), {"/k": b"mine"}, origins=[[SESSION, 1]])
        assert talk.settled == [(1, Ack(1, 3, "replicated"))] and not talk.core.session.open_batches
        assert talk.core.channels[0].replica.map.revisions["/k"] == n(3)
        assert not talk.core.channels[0].replica.is_own("/k")

    def test_an_acknowledgement_during_a_resync_waits_for_the_end_of_the_resync(self) -> None:
        talk = self.lagging()
        talk.heartbeat(n(9), count=7)
        talk.batch(n(0), n(3), {"/k": b"mine"}, origins=[[SESSION, 1]])
        talk.ack(1, 1, n(3))
        assert talk.settled == []
        talk.snapshot(n(9), {"/k": (b"later", n(8))}, session_no=1)
        assert len(talk.settled) == 1 and talk.map == {"/k": b"later"}

    def test_an_acknowledgement_waits_only_for_the_subtree_of_its_keys(self) -> None:
        talk = self.lagging("/a/", "/b/")
        talk.heartbeat(n(9), count=7, on="/a/")
        talk.ack(2, 2, n(0))
        assert [handle for handle, _ in talk.settled] == [2]
        talk.ack(1, 1, n(0))
        assert [handle for handle, _ in talk.settled] == [2]

    def test_an_empty_batch_and_a_commit_wait_for_all_subtrees(self) -> None:
        talk = Talk("/a/", "/b/").joined()
        talk.set({})
        talk.set({}, shown=False, commit=[b"T" * 16, "job", 1, [["0.0", 1]], None])
        talk.set({}, shown=False, refresh=b"L" * 16)
        talk.ack(1, 3, n(3))
        assert [handle for handle, _ in talk.settled] == [3]
        talk.heartbeat(n(3), n(0), on="/a/")
        assert [handle for handle, _ in talk.settled] == [3]
        talk.heartbeat(n(3), n(0), on="/b/")
        assert [handle for handle, _ in talk.settled] == [3, 1, 2]

    def test_an_ack_without_a_revision_waits_for_the_servers_number(self) -> None:
        talk = self.lagging()
        where = own_topic()
        talk.update(message(where, n(5), [6, [[1, 1, 1]], 2]))
        assert talk.settled == []
        talk.heartbeat(n(5), n(0))
        assert talk.settled == [(1, Ack(0, 1, "replicated"))]

    def test_a_conflict_waits_for_the_revision_that_it_tells(self) -> None:
        talk = Talk().joined()
        talk.set({"/k": b"mine"}, shown=False, c=[[0], [0]])
        talk.refuse(1, "revision", {"/k": n(2)})
        assert talk.settled == []
        talk.batch(n(0), n(2), {"/k": b"theirs"}, origins=[[OTHER, 1]])
        assert isinstance(talk.settled[0][1], Conflict)

    def test_acks_of_staged_sets_and_write_only_clients_are_settled_at_once(self) -> None:
        talk = Talk().joined()
        talk.set({"/k": b"1"}, shown=False, stage=[b"T" * 16, "0.0"])
        talk.ack(1, 1, n(3))
        writer = Talk(write_only=True).joined()
        writer.set({"/k": b"1"})
        writer.ack(1, 1, n(3))
        assert len(talk.settled) == len(writer.settled) == 1

    def test_acknowledged_batches_that_wait_for_the_copy_fill_the_window(self) -> None:
        talk = Talk(limits={"window_batches": 2}).joined()
        for i in range(2):
            talk.set({f"/{i}": b"1"})
        talk.ack(1, 2, n(2))
        assert talk.core.full()

    def test_a_new_history_settles_waiting_acknowledgements(self) -> None:
        talk = self.lagging()
        talk.ack(1, 1, n(300))
        talk.greet(told=n(3), uuid=b"T" * 16)
        assert len(talk.settled) == 1


def test_leases_are_refreshed_at_a_third_of_their_ttl() -> None:
    talk = Talk().joined()
    talk.core.leases.hold(b"L" * 16, 3000, talk.now)
    for _ in range(20):
        talk.wait(0.25)
        talk.heartbeat(n(0))
    refreshes = {no: body.extras for _, no, _, body in talk.sent}
    assert list(refreshes.values()) == [{"refresh": b"L" * 16}] * 5
    talk.core.leases.drop(b"L" * 16)
    assert talk.core.leases.next_due() == float("inf")


def test_lease_refreshes_do_not_pile_up_without_a_server() -> None:
    talk = Talk().joined()
    for lease in (b"L" * 16, b"M" * 16):
        talk.core.leases.hold(lease, 1000, talk.now)
    until = talk.now + 3600
    while talk.now < until:
        talk.now = max(talk.now, min(talk.core.next_deadline(), talk.now + 1.0)) + 0.001
        talk.core.on_timer(talk.now)
    assert len(talk.core.outbox) <= 2 * (1 + 3 * 2), "two each, and those sent before the silence was one"
    talk.core.check()
