"""covers: leadership.py, channel.py, replica.py: the most that a wrong server may cost a client."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from chp.limits import DEFAULT
from tests.unit.client_frames import OTHER, WHOSE, Talk, n, own_topic, segment, topic


class TestAsking:
    """A copy that differs is mended at once, then ever more rarely, and not by all clients at the same time."""

    def wrong(self, told: dict[str, Any], chance: float = 0.5) -> list[float]:
        """Return the times of snapshot requests in a minute, if heartbeats or counts never fit."""
        talk = Talk(chance=lambda: chance).joined(n(1), **{"/a": n(1)})
        asked: list[float] = []
        answered, until = len(talk.requests), talk.now + 60
        while talk.now < until:
            # The client asks as fast as answers come.
            while len(talk.requests) > answered and len(asked) < 50:
                answered = len(talk.requests)
                asked.append(talk.now)
                talk.snapshot(n(1), {"/a": (b"", n(1))})
                talk.heartbeat(n(1), **told)
            talk.heartbeat(n(1), **told)
            talk.wait(0.1)
        assert talk.stats["resyncs_put_off"] > 0
        return asked

    @pytest.mark.parametrize("told", [{"count": 9}, {"revsum": 9}])
    def test_snapshot_requests_become_rare_if_heartbeats_never_match(self, told: dict[str, int]) -> None:
        asked = self.wrong(told)
        assert 4 <= len(asked) <= 15
        assert asked[-1] - asked[-2] > 10 * (asked[2] - asked[1])

    def test_chance_spreads_the_times_of_snapshot_requests(self) -> None:
        assert self.wrong({"count": 9}, 0.0)[2:] != self.wrong({"count": 9}, 1.0)[2:]

    def test_snapshot_requests_become_rare_if_snapshots_never_match_their_sum(self) -> None:
        talk = Talk()
        talk.greet()
        for _ in range(300):
            if talk.requests[-1][2].get("from") == 0:
                talk.snapshot(n(1), {"/a": (b"", n(1))}, revsum=7)
            talk.wait(0.1)
        assert len(talk.requests) <= 15 and len(talk.states) == 0

    def test_a_copy_that_was_equal_meanwhile_is_fetched_anew_at_once(self) -> None:
        talk = Talk().joined(n(1), **{"/a": n(1)})
        for _ in range(20):
            known = len(talk.requests)
            talk.heartbeat(n(1), count=9)
            assert len(talk.requests) == known + 1
            talk.snapshot(n(1), {"/a": (b"", n(1))})
            talk.heartbeat(n(1))

    def test_a_client_still_fetches_a_differing_copy_after_matching_heartbeats(self) -> None:
        talk = Talk().joined(n(1), **{"/a": n(1)})
        talk.heartbeat(n(1), count=9)
        for _ in range(12):  # no answer
            talk.heartbeat(n(1))
            talk.wait(0.25)
        assert len(talk.requests) == 3 and talk.requests[-1][2]["from"] == 0


class TestStrangers:
    """Keys outside the subtree are refused and counted."""

    def test_keys_outside_the_subtree_are_dropped_from_a_batch(self) -> None:
        talk = Talk("/a/").joined()
        talk.core.subscriptions.watch(True)
        talk.batch(n(0), n(1), {"/a/1": b"1", "/b/1": b"x"}, {"/b/2": b"x"}, {"/a/2": b"2"}, on="/a/")
        replica = talk.core.channels[0].replica
        assert talk.map == {"/a/1": b"1", "/a/2": b"2"} and replica.map.fingerprint() == (2, 2 * n(1))
        assert talk.stats["outside_subtree"] == 2 and talk.stats["updates_applied"] == 2
        assert [key for changed in talk.changes for key in changed.keys] == ["/a/1", "/a/2"]

    def test_keys_outside_the_subtree_are_dropped_beside_a_delete(self) -> None:
        talk = Talk("/a/").joined(n(1), **{"/a/1": n(1)})
        talk.batch(n(1), n(2), {"/a/1": None, "/b/1": b"x"}, on="/a/")
        assert talk.map == {} and talk.stats["outside_subtree"] == 1
        assert talk.core.channels[0].replica.map.fingerprint() == (0, 0)

    def test_keys_outside_the_subtree_are_dropped_from_a_snapshot(self) -> None:
        talk = Talk("/a/")
        talk.greet()
        request_id = talk.last_id()
        runs = {"r": [[n(1), 2], [n(2), 1]], "t": [[1], [9000]]}
        talk.reply(n(2), [3, request_id, 0], [["/b/1", "/a/1", "/a/2"], [b"x", b"1", b"2"], runs])
        talk.reply(n(2), [5, request_id, n(2), 2, n(1) + n(2), None, False, 0, 0, WHOSE])
        replica = talk.core.channels[0].replica
        assert talk.map == {"/a/1": b"1", "/a/2": b"2"} and talk.stats["outside_subtree"] == 1
        assert replica.map.revisions == {"/a/1": n(1), "/a/2": n(2)} and list(replica.map.deadlines) == ["/a/1"]


class TestMemory:
    """Tests that an answer without an end is not gathered without a bound."""

    def chunks(self, talk: Talk, made: Any) -> int:
        """Return the number of chunks of a snapshot that the client takes."""
        request_id = talk.last_id()
        for i in range(200):
            talk.reply(n(9), [3, request_id, i], made(i))
            if talk.stats.get("garbage"):
                return i
        return 200

    def chunk(self, i: int, value: bytes = b"", same: bool = False) -> list[Any]:
        keys = {f"/{0 if same else i}/{j}": value for j in range(1000)}
        return segment(keys, r=[[n(1), 1000]])

    def test_a_snapshot_larger_than_copy_bytes_max_is_dropped(self) -> None:
        talk = Talk(limits={"copy_bytes_max": 10_000_000})
        talk.greet()
        assert self.chunks(talk, lambda i: self.chunk(i, b"x" * 1000)) < 12
        sync = talk.core.channels[0].sync
        assert sync is not None and len(sync.fresh) == 0, "what was gathered is let go, and asked for anew"

    def test_a_snapshot_that_repeats_keys_is_garbage(self) -> None:
        talk = Talk()
        talk.greet()
        assert self.chunks(talk, lambda i: self.chunk(i, same=True)) == 1

    def test_a_snapshot_with_far_more_keys_than_announced_is_garbage(self) -> None:
        talk = Talk()
        talk.greet()
        talk.heartbeat(n(9), count=10_000)
        assert 60 < self.chunks(talk, self.chunk) < 100

    def test_an_endless_record_is_replaced_by_a_snapshot(self) -> None:
        talk = Talk(limits={"join_buffer_bytes": 1_000_000}).joined()
        for i in range(100):
            talk.batch(n(i), n(i + 1), {f"/{i}": b"x" * 100_000}, more=True)
        channel = talk.core.channels[0]
        assert talk.stats["endless_records"] == 1 and channel.reached == channel.at
        assert [options["from"] for _, _, options in talk.requests] == [0, 0] and channel._buffered < 10_000_000
        talk.snapshot(n(200), {"/a": (b"1", n(100))})
        assert talk.map == {"/a": b"1"} and channel.live and not channel.differs

    @pytest.mark.parametrize("snapshot", [False, True])
    def test_expired_keys_leave_no_memory_behind(self, snapshot: bool) -> None:
        """200,000 sets with ttls, of which a hundred live at a time: after the first of them nothing more is held."""
        talk, held, at = Talk(), [], n(0)
        talk.greet()
        if snapshot:
            talk.reply(at, [3, talk.last_id(), 0], [["/0"], [b""], {"r": [[n(0), 1]], "t": [[0], [9000]]}])
            talk.reply(at, [5, talk.last_id(), at, 1, n(0), None, False, 0, 0, WHOSE])
        else:
            talk.snapshot(at, {})
        before: dict[str, bytes | None] = {}
        for i in range(2000):
            keys: dict[str, bytes | None] = {f"/{i}/{k}": b"v" for k in range(100)}
            talk.batch(at, at + 1, segment(keys, t=2000 + i % 7), segment(dict.fromkeys(before)), last=at + 200)
            at, before = at + 200, keys
            if i in (10, 1999):
                gc.collect()
                held.append(sys.getallocatedblocks())
        replica = talk.core.channels[0].replica
        assert replica.map.deadlines.keys() - {"/0"} == before.keys() == talk.map.keys() - {"/0"}
        assert held[1] - held[0] < 1000, "blocks of memory"


class TestDeaf:
    """Tests that a client which hears nothing on a channel subscribes again before it tries another server."""

    def test_a_client_subscribes_again_to_a_silent_active_before_voting(self) -> None:
        talk = Talk(servers=2).joined()
        talk.heartbeat(n(0))
        talk.wait(0.9)
        assert talk.stats["subscribed_again"] == 1 and talk.core.state == "SYNCED" and "votes" not in talk.stats
        talk.heartbeat(n(0))
        talk.wait(0.4)
        assert talk.stats["subscribed_again"] == 1

    def test_a_client_subscribes_again_if_one_of_two_channels_is_silent(self) -> None:
        talk = Talk("/a/", "/b/").joined()
        for _ in range(4):
            talk.heartbeat(n(0), on="/a/")
            talk.wait(0.22)
        assert talk.stats["subscribed_again"] == 1 and topic("/b/") in talk.topics[0]
        for _ in range(4):
            talk.heartbeat(n(0), on="/a/")
            talk.wait(0.25)
        assert talk.core.state == "STALE", "nobody knows whether /b/ is current"
        talk.heartbeat(n(0), on="/b/")
        assert talk.core.state == "SYNCED" and "failovers" not in talk.stats

    def test_a_client_reconnects_if_a_channel_stays_silent(self) -> None:
        talk = Talk("/a/", "/b/").joined()
        for _ in range(30):
            talk.heartbeat(n(0), on="/a/")
            talk.wait(0.25)
        assert 1 <= talk.stats["reconnects"] <= 3

    def test_a_missing_acknowledgement_makes_a_client_resubscribe_to_its_own_topic(self) -> None:
        talk = Talk().joined()
        talk.set({"/a": b"1"})
        cancelled: list[bytes] = []
        take = talk.core.take

        def noting() -> Any:
            effects = take()
            cancelled.extend(name for _, name in effects.unsubscribe)
            return effects

        talk.core.take = noting  # type: ignore[method-assign]
        for _ in range(9):
            talk.heartbeat(n(0))
            talk.wait(0.25)
        assert cancelled == [own_topic()] and own_topic() in talk.topics[0]
        talk.batch(n(0), n(1), {"/a": b"1"}, origins=[[OTHER, 1]])
        talk.ack(1, 1, n(1))
        assert len(talk.settled) == 1


def test_a_clone_with_the_most_subtrees_needs_fewer_topics_than_allowed() -> None:
    talk = Talk(*[f"/{i}/" for i in range(DEFAULT.subtrees_max)])
    assert len(talk.topics[0]) <= 67 < DEFAULT.topics_of_one_max, "SPEC.md, section 15, says that a client must"
