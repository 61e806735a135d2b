"""Tests of a client that joins a channel and keeps it complete: greetings, snapshots, holes, epochs, silence."""

from __future__ import annotations

from typing import Any

import pytest

from chp_client.core.core import Timing
from chp_client.core.events import State
from tests.unit.client_frames import ACTIVE, PASSIVE, SESSION, WHOSE, Talk, message, n, own_topic, segment, topic


def test_a_snapshot_is_requested_only_after_the_greeting() -> None:
    talk = Talk("/a/")
    assert talk.topics[0] == {b"HUGZ", topic("/a/"), own_topic()}
    talk.wait(0.5)
    assert talk.requests == []
    talk.greet(told=n(5))
    assert [(i, s, r["from"]) for i, s, r in talk.requests] == [(0, "/a/", 0)]
    assert talk.topics[0] == {topic("/a/"), own_topic()}, "HUGZ is of no use beside a greeting"


def test_the_chunks_of_a_snapshot_are_shown_together_at_the_end() -> None:
    talk = Talk()
    talk.greet(told=n(9))
    request = talk.last_id()
    talk.reply(n(9), [3, request, 0], [["/a", "/b"], [b"1", b"2"], {"r": [[n(4), 2]]}])
    talk.reply(n(9), [3, request, 1], [["/c"], [b"3"], {"r": [[n(9), 1]], "t": [[0], [1500]]}])
    assert talk.map == {} and talk.states == []
    talk.reply(n(9), [5, request, n(9), 3, (2 * n(4) + n(9)) % (1 << 64), None, False, 0, 0, WHOSE])
    assert talk.map == {"/a": b"1", "/b": b"2", "/c": b"3"}
    assert talk.states == [State.SYNCED]
    hashmap = talk.core.channels[0].replica.map
    assert hashmap.revisions["/a"] == n(4) and hashmap.remaining_ms("/c", talk.now) == 1500


def test_credit_is_granted_as_chunks_arrive() -> None:
    talk = Talk()
    talk.greet()
    request = talk.last_id()
    credit = talk.requests[-1][2]["credit"]
    for index in range(credit):
        talk.reply(n(1), [3, request, index], [[f"/{index}"], [b"x"], {"r": [[n(1), 1]]}])
    granted = sum(r["more"] for _, _, r in talk.requests if "more" in r)
    assert credit // 2 <= granted <= credit, "never more in flight than the credit"


def test_batches_that_come_during_a_snapshot_follow_it() -> None:
    talk = Talk()
    talk.greet(told=n(2))
    talk.batch(n(1), n(2), {"/a": b"old"})
    talk.batch(n(2), n(3), {"/a": b"new"})
    talk.snapshot(n(2), {"/a": (b"old", n(2))})
    assert talk.map == {"/a": b"new"} and talk.core.position == n(3)
    assert talk.stats.get("holes") is None


def test_a_repeated_batch_is_ignored() -> None:
    talk = Talk().joined()
    talk.batch(n(0), n(1), {"/a": b"1", "/b": b"2"})
    talk.batch(n(0), n(1), {"/a": b"other", "/b": b"other"})
    assert talk.map == {"/a": b"1", "/b": b"2"} and talk.core.position == n(2)
    talk.batch(n(2), n(3), {"/a": None})
    assert talk.map == {"/b": b"2"}


def test_a_hole_is_counted_and_mended_by_a_resume() -> None:
    talk = Talk().joined()
    talk.batch(n(0), n(1), {"/a": b"1"})
    talk.batch(n(2), n(3), {"/c": b"3"})
    assert talk.stats["holes"] == 1 and talk.map == {"/a": b"1"}
    assert talk.core.state is State.STALE
    assert talk.requests[-1][2]["from"] == n(1)
    request = talk.last_id()
    records = [
        [[1, n(1), n(2), n(2), 0, [], False], segment({"/b": b"2"})],
        [[1, n(2), n(3), n(3), 0, [], False], segment({"/c": b"3"})],
    ]
    talk.reply(n(3), [4, request, 0], *records)
    talk.reply(n(3), [5, request, n(3), 3, n(1) + n(2) + n(3), None, True, 0, 0, WHOSE])
    assert talk.map == {"/a": b"1", "/b": b"2", "/c": b"3"} and talk.core.state is State.SYNCED
    assert talk.stats["resyncs_resumed"] == 1


def test_an_unfinished_resume_is_asked_for_again_from_its_last_record() -> None:
    talk = Talk().joined()
    talk.batch(n(3), n(4), {"/d": b"4"})
    request = talk.last_id()
    assert talk.requests[-1][2]["from"] == n(0)
    talk.reply(n(4), [4, request, 0, b"S" * 16], [[1, n(0), n(2), n(2), 0, [], False], segment({"/b": b"2"})])
    assert talk.map == {"/b": b"2"} and talk.core.state is State.STALE
    while talk.last_id() == request:
        talk.now += 0.25
        talk.heartbeat(n(4), n(4))
        talk.core.on_timer(talk.now)
        talk.take()
    assert talk.requests[-1][2]["from"] == n(2)


def test_a_server_that_sends_only_acknowledgements_and_refusals_is_silent() -> None:
    talk = Talk().joined()
    for no in range(1, 9):
        talk.set({f"/{no}": b"1"}, shown=False)
        talk.now += 0.25
        (talk.ack(no, no, n(1)) if no % 2 else talk.refuse(no, "full", "no room"))
    assert talk.core.leadership.silent(talk.now)
    talk.heartbeat(n(1), n(0))
    assert not talk.core.leadership.silent(talk.now)


def test_a_heartbeat_shows_a_hole_at_the_end() -> None:
    talk = Talk().joined()
    talk.heartbeat(n(4), channel_last=n(3))
    assert talk.stats["holes"] == 1 and talk.requests[-1][2]["from"] == n(0)


def test_a_heartbeat_moves_the_position_of_a_quiet_subtree() -> None:
    talk = Talk("/a/").joined()
    talk.heartbeat(n(70), channel_last=n(0))
    assert talk.core.position == n(70) and talk.stats.get("holes") is None
    talk.batch(n(0), n(71), {"/a/x": b"1"})
    assert talk.map == {"/a/x": b"1"}


def test_a_different_fingerprint_is_counted_and_everything_is_fetched_anew() -> None:
    talk = Talk().joined(n(1), **{"/a": n(1)})
    talk.heartbeat(n(1), count=2)
    assert talk.stats["mismatches"] == 1 and talk.requests[-1][2]["from"] == 0
    talk.snapshot(n(1), {"/b": (b"2", n(1)), "/c": (b"3", n(1))})
    assert talk.map == {"/b": b"2", "/c": b"3"}, "keys deleted meanwhile are gone"
    assert talk.stats["resyncs_snapshot"] == 2


def test_a_heartbeat_older_than_the_snapshot_is_not_compared() -> None:
    talk = Talk().joined(n(9), **{"/a": n(9)})
    talk.heartbeat(n(8), channel_last=n(8), count=77)
    assert "mismatches" not in talk.stats and talk.core.position == n(9)


def test_a_snapshot_that_does_not_add_up_is_fetched_again() -> None:
    talk = Talk()
    talk.greet(told=n(1))
    talk.snapshot(n(1), {"/a": (b"1", n(1))}, revsum=5)
    assert talk.stats["mismatches"] == 1 and len(talk.requests) == 2


def test_a_record_in_parts_is_shown_when_its_last_part_arrives() -> None:
    talk = Talk().joined()
    talk.batch(n(0), n(1), {"/a": b"1"}, last=n(1), more=True)
    assert talk.map == {}
    talk.batch(n(1), n(2), {"/b": b"2"}, last=n(2), more=False)
    assert talk.map == {"/a": b"1", "/b": b"2"} and talk.core.position == n(2)
    assert talk.core.channels[0].replica.map.revisions == {"/a": n(1), "/b": n(1)}


def test_a_lost_part_is_a_hole() -> None:
    talk = Talk().joined()
    talk.batch(n(0), n(1), {"/a": b"1"}, last=n(1), more=True)
    talk.batch(n(2), n(3), {"/c": b"3"}, last=n(3), more=False)
    assert talk.stats["holes"] == 1 and talk.requests[-1][2]["from"] == n(0) and talk.map == {}


def test_several_subtrees_have_their_own_positions() -> None:
    talk = Talk("/a/", "/b/").joined()
    assert [s for _, s, _ in talk.requests] == ["/a/", "/b/"]
    talk.batch(n(0), n(1), {"/a/x": b"1"}, on="/a/")
    talk.batch(n(5), n(6), {"/b/x": b"1"}, on="/b/")
    assert talk.map == {"/a/x": b"1"} and talk.requests[-1][1] == "/b/"


def test_a_client_follows_a_server_that_restarts_with_a_lower_number() -> None:
    talk = Talk().joined(n(500), **{"/a": n(500)})
    talk.greet(told=n(0), uuid=b"T" * 16)
    assert talk.stats["histories_restarted"] == 1 and talk.requests[-1][2]["from"] == 0
    talk.snapshot(n(0), {})
    assert talk.map == {} and talk.core.state is State.SYNCED
    talk.batch(n(0), n(1), {"/b": b"1"})
    assert talk.map == {"/b": b"1"}


class TestFailover:
    def pair(self) -> Talk:
        talk = Talk(servers=2)
        talk.greet(told=n(0))
        talk.greet(PASSIVE, n(0), server=1)
        talk.up(0)
        talk.up(1)
        talk.snapshot(n(0), {})
        return talk

    def test_the_passive_is_not_followed(self) -> None:
        talk = self.pair()
        assert talk.core.active is talk.core.links[0]
        talk.batch(n(0), n(1), {"/a": b"1"}, server=1)
        assert talk.map == {} and talk.stats["stale_messages"] == 1

    def test_a_client_becomes_stale_by_silence_and_votes_without_limit(self) -> None:
        talk = self.pair()
        talk.wait(0.9)
        assert talk.core.state is State.SYNCED
        before = len(talk.requests)
        talk.wait(2.1)
        assert talk.core.state is State.STALE
        votes = talk.requests[before:]
        assert len(votes) >= 9 and {i for i, _, _ in votes} == {1} and talk.stats["votes"] == len(votes)
        talk.wait(3600)
        assert len(talk.requests) > 10_000, "there is no limit on retries"

    def test_a_vote_names_the_highest_number_of_the_subtrees_that_the_server_allows(self) -> None:
        talk = Talk("/a/", "/b/", "/c/", servers=2)
        talk.joined()
        talk.greet(PASSIVE, server=1)
        talk.up(1)
        talk.batch(n(0), n(4), {"/b/1": b"1"}, on="/b/")
        talk.batch(n(0), n(2), {"/c/1": b"1"}, on="/c/")
        talk.wait(1.5)
        _, subtree, vote = talk.requests[-1]
        assert (subtree, vote["from"]) == ("/b/", n(4))
        talk.reply(n(0), [7, vote["id"], "access", "user 'x' may not read '/b/'"], server=1)
        talk.wait(0.25)
        _, subtree, vote = talk.requests[-1]
        assert (subtree, vote["from"]) == ("/c/", n(2))

    def test_a_client_resumes_at_the_new_active_from_its_position(self) -> None:
        talk = self.pair()
        talk.batch(n(0), n(1), {"/a": b"1"})
        talk.wait(1.5)
        talk.reply(n(0), [7, talk.last_id(), "passive", PASSIVE], server=1)
        talk.greet(ACTIVE, n(1, epoch=2), server=1)
        server, _, request = talk.requests[-1]
        assert (server, request["from"]) == (1, n(1)) and talk.core.epoch == 2
        talk.reply(n(1, 2), [5, request["id"], n(1, 2), 1, n(1), None, True, 0, 0, WHOSE], server=1)
        assert talk.core.state is State.SYNCED and talk.stats["failovers"] == 1
        talk.batch(n(1, 2), n(2, 2), {"/b": b"2"}, server=1)
        assert talk.map == {"/a": b"1", "/b": b"2"}

    def test_a_server_that_answers_a_vote_is_followed_as_active(self) -> None:
        talk = self.pair()
        talk.wait(1.5)
        talk.reply(n(0, 2), [5, talk.last_id(), n(0, 2), 0, 0, None, True, 0, 0, WHOSE], server=1)
        assert talk.core.active is talk.core.links[1]

    def test_a_server_that_acknowledges_in_a_higher_epoch_is_followed(self) -> None:
        """A server of a lower epoch lacks what was acknowledged, so it must not be followed after that."""
        talk = self.pair()
        talk.set({"/a": b"1"})
        talk.update(message(own_topic(), n(9, 3), [6, [[1, 1, n(9, 3)]], 1]), server=1)
        assert talk.core.active is talk.core.links[1] and talk.core.epoch == 3
        talk.greet(ACTIVE, n(7, 2), server=0)
        assert talk.core.active is talk.core.links[1]

    def test_a_stale_active_is_not_believed(self) -> None:
        talk = self.pair()
        talk.greet(ACTIVE, n(0, 2), server=1)
        talk.snapshot(n(0, 2), {})
        talk.batch(n(0), n(1), {"/stale": b"1"}, server=0)
        talk.heartbeat(n(7), server=0)
        assert talk.map == {} and talk.core.active is talk.core.links[1]

    def test_an_active_that_steps_down_is_left_at_once(self) -> None:
        talk = self.pair()
        talk.greet(PASSIVE, n(0))
        assert talk.core.active is None and talk.core.state is State.STALE
        talk.greet(ACTIVE, n(0, 2), server=1)
        assert talk.core.active is talk.core.links[1]

    def test_a_client_follows_the_active_with_the_higher_epoch(self) -> None:
        talk = self.pair()
        talk.heartbeat(n(3, 2), server=1)
        assert talk.core.epoch == 2 and talk.core.active is talk.core.links[1]
        talk.heartbeat(n(3, 1), server=0)
        assert talk.core.epoch == 2

    def test_a_snapshot_that_comes_slowly_is_not_asked_for_again(self) -> None:
        talk = Talk(timing=Timing(sync_retry_s=0.5))
        talk.greet()
        for index in range(6):
            talk.wait(0.4)
            talk.reply(n(9), [3, talk.last_id(), index], segment({f"/{index}": b"1"}, r=[[n(1), 1]]))
        assert len({r["id"] for _, _, r in talk.requests}) == 1
        talk.reply(n(9), [5, talk.last_id(), n(9), 6, 6 * n(1), None, False, 0, 0, WHOSE])
        assert talk.core.state is State.SYNCED and len(talk.map) == 6

    def test_an_active_of_a_lower_epoch_is_followed_after_a_long_silence(self) -> None:
        """A client follows such an active in the end.

        A memory store began anew, and no server has the old epoch.
        """
        talk = Talk(servers=2)
        talk.greet(told=n(0, 2))
        talk.up(1)
        talk.snapshot(n(0, 2), {})
        for _ in range(5):
            talk.wait(0.55)
            talk.heartbeat(n(5, 1), server=1)
            assert talk.core.active is talk.core.links[0]
        talk.wait(0.55)
        talk.heartbeat(n(5, 1), server=1)
        assert talk.core.active is talk.core.links[1] and talk.requests[-1][2]["from"] == 0

    def test_a_sync_without_progress_is_asked_for_again(self) -> None:
        talk = Talk(timing=Timing(sync_retry_s=0.3))
        talk.greet()
        for _ in range(4):
            talk.wait(0.35)
            talk.heartbeat(n(0))
        assert len({r["id"] for _, _, r in talk.requests}) >= 3
        talk.snapshot(n(0), {}, id=talk.requests[0][2]["id"])
        assert talk.core.state is State.CONNECTING, "an answer to a request given up is not taken"
        talk.snapshot(n(0), {})
        assert talk.core.state is State.SYNCED

    def test_a_client_waits_longer_each_time_for_a_slow_snapshot_to_begin(self) -> None:
        """A very large map's image takes longer than the first wait, as on a busy machine; each asking began anew."""
        talk = Talk(timing=Timing(sync_retry_s=0.3))
        talk.greet()
        for _ in range(57):
            talk.wait(0.35)
            talk.heartbeat(n(0))
        assert len({r["id"] for _, _, r in talk.requests}) <= 7, "in twenty seconds"
        talk.snapshot(n(0), {})
        assert talk.core.state is State.SYNCED


def test_a_refused_request_is_described_and_sent_again_later() -> None:
    talk = Talk("/secret/")
    talk.greet()
    talk.reply(n(0), [7, talk.last_id(), "access", "no"])
    assert "refused: access: no" in talk.core.describe(talk.now) and talk.stats["requests_refused"] == 1
    asked = len(talk.requests)
    for wait_s, more in ((0.5, 0), (0.4, 0), (0.2, 1)):
        talk.heartbeat(n(0))
        talk.wait(wait_s)
        assert len(talk.requests) == asked + more


def test_a_denied_request_is_sent_again_ever_later_up_to_a_bound() -> None:
    """A denied client asks ever later, up to a bound.

    So it makes little work, and soon sees a new grant (seeds 512, 40182, 40744).
    """
    talk = Talk("/a/", "/secret/")
    talk.greet()
    talk.snapshot(n(0), {}, id=next(asked["id"] for _, subtree, asked in talk.requests if subtree == "/a/"))
    waits = []
    for _ in range(5):
        asked = [request["id"] for _, subtree, request in talk.requests if subtree == "/secret/"]
        talk.reply(n(0), [7, asked[-1], "access", "no"])
        began = talk.now
        while [request["id"] for _, subtree, request in talk.requests if subtree == "/secret/"] == asked:
            talk.heartbeat(n(0), on="/a/")
            talk.wait(0.25)
        waits.append(talk.now - began)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_write_only_client_asks_for_nothing_and_hears_the_pulse() -> None:
    talk = Talk(write_only=True)
    talk.greet(told=n(4))
    assert talk.requests == [] and talk.core.state is State.SYNCED
    talk.wait(0.9)
    talk.heartbeat(n(5))
    talk.wait(0.9)
    assert talk.core.state is State.SYNCED
    talk.wait(0.2)
    assert talk.core.state is State.STALE


def test_lag_is_measured_against_the_fastest_message() -> None:
    talk = Talk(max_lag_s=2.0)
    talk.joined()
    talk.heartbeat(n(0), wall=50_000)
    talk.now += 0.5
    talk.heartbeat(n(0), wall=50_500)
    assert talk.lags == []
    talk.now += 3.0
    talk.heartbeat(n(0), wall=50_600)
    assert talk.lags == [pytest.approx(2.9)] and talk.stats["lags"] == 1
    talk.core.refetch(talk.now)
    talk.take()
    assert talk.requests[-1][2]["from"] == 0


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\x02\x03"],
        [topic(""), b"12345678", b"", b"", b"\xc1"],
        [topic(""), b"1234567", b"", b"", b"\x90"],
        message(topic(""), n(1), [99]),
        message(topic(""), n(1), [1, n(0), n(1)]),
        message(topic(""), n(1), [1, n(0), n(1), "x", 0, [], False], segment({"/a": b"1"})),
        message(topic(""), n(1), [1, n(0), n(1), n(1), 0, 7, False], segment({"/a": b"1"})),
        message(topic(""), n(1), [1, n(0), n(1), n(1), 0, [[1]], False], segment({"/a": b"1"})),
        message(topic(""), n(1), [1, n(0), n(1), n(1), 0, [], False], [["/a"], [], None]),
        message(topic(""), n(1), [1, n(0), n(1), n(1), 0, [], False], [["/a"], ["text"], None]),
        message(topic(""), n(1), [2, 3, n(1), None, 0, 0, 250, 0]),
        message(topic(""), n(1), [0, 2, "x", n(0), 250, b"", ""]),
        message(own_topic(), n(1), [6, [["a", 2, 3]], 2]),
        message(own_topic(), n(1), [6, None, 2]),
        message(own_topic(), n(1), [6, [], 9]),
        [b"HUGZ", b"short", b"", b"", b""],
    ],
)
def test_garbage_is_counted_and_changes_nothing(frames: list[bytes]) -> None:
    talk = Talk().joined()
    talk.update(frames)
    assert talk.stats["garbage"] == 1 and talk.map == {} and talk.core.state is State.SYNCED


@pytest.mark.parametrize("origins", [7, [[1]], [7], [[SESSION, "1"]]])
def test_malformed_origins_are_garbage_while_an_own_set_is_pending(origins: Any) -> None:
    talk = Talk().joined()
    talk.set({"/a": b"1"})
    talk.batch(n(0), n(1), {"/a": b"1"}, origins=origins)
    assert talk.stats["garbage"] == 1 and talk.core.channels[0].at == n(0)


def test_garbage_in_a_snapshot_is_counted_and_the_snapshot_asked_for_again() -> None:
    talk = Talk()
    talk.greet()
    talk.reply(n(0), [3, talk.last_id(), 0], ["not a segment"])
    assert talk.stats["garbage"] == 1 and len(talk.requests) == 2
    talk.reply(n(0), [3, talk.last_id(), 1], segment({}))
    talk.snapshot(n(0), {})
    assert talk.core.state is State.SYNCED
