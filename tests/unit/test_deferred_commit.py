"""Tests that a large commit may leave the server before it is in the map, while each reader finds all of it."""

import os
from typing import Any

import pytest

from chp.batch import ACK, BATCH, GREETING, HEARTBEAT, Segment, split
from chp.keys import RESERVED_KEY, channel_topic, public_session, session_topic
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.state.staging import StagedBatch
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.resource_limits import ResourceLimits
from chp_server.core.updates.turn import Append, Turn

SESSION, TRANSACTION = b"s" * 16, b"t" * 16
KEYS = [f"/bench/{i}" for i in range(DEFAULT.deferred_items_min + 1)]


class Server:
    """A lone core, a session that numbers its batches, and a clock."""

    def __init__(self) -> None:
        self.core, self.now, self.no = ServerCore(CoreConfig(), os.urandom(16), 0.0), 0.0, 0
        self.records: list[bytes] = []
        self.turn()

    def turn(self, *messages: list[bytes], subscribe: bytes = b"", after_s: float = 0.001) -> Turn:
        self.now += after_s
        self.core.begin_turn(self.now, 1e9 + self.now)
        if subscribe:
            self.core.subscription([b"1", b"\x01" + subscribe])
        for frames in messages:
            self.core.collect(frames)
        turn = self.core.end_turn()
        self.records += [op.body for op in turn.journal if isinstance(op, Append)]
        return turn

    def kvset(self, keys: list[str], values: list[bytes], **extras: object) -> list[bytes]:
        self.no += 1
        return [RESERVED_KEY, pack(self.no), SESSION, b"", Segment(keys, values, extras or None).encode()]

    def stage(self, value: bytes, keys: list[str] = KEYS) -> None:
        self.turn(self.kvset(keys, [value] * len(keys), stage=[TRANSACTION, "0"]))

    def commit(self, batches: int = 1) -> list[bytes]:
        return self.kvset([], [], commit=[TRANSACTION, "job", self.no, [["0", batches]], None])


def bodies(messages: list[list[bytes]], topic: bytes, kind: int) -> list[list[Any]]:
    return [parts for m in messages if m[0] == topic and (parts := split(m[4]))[0][0] == kind]


def test_a_large_commit_is_acknowledged_and_published_before_the_map_has_it() -> None:
    server, topic = Server(), channel_topic("/bench/")
    server.turn(subscribe=topic)
    server.stage(b"1")
    turn = server.turn(server.commit())
    assert server.core.state.deferred
    assert bodies(turn.acks, session_topic(public_session(SESSION)), ACK) and turn.journal
    published = bodies(turn.publish, topic, BATCH)
    assert [key for parts in published for segment in parts[1:] for key in segment[0]] == KEYS
    assert server.core.state.map.values == dict.fromkeys(KEYS, b"1") and not server.core.state.deferred
    server.core.state.check()


def test_a_condition_later_in_the_turn_sees_the_commit() -> None:
    server = Server()
    server.stage(b"1")
    commit, condition = server.commit(), server.kvset(["/bench/0"], [b"2"], c=[[0], [0]])
    server.turn(commit, condition)
    assert server.core.committer.counts["refused_revision"] == 1
    assert server.core.state.map.values["/bench/0"] == b"1"


def test_a_ttl_that_ends_in_a_commits_turn_spares_the_new_value() -> None:
    server = Server()
    server.turn(server.kvset(["/bench/0"], [b"0"], t=1000))
    server.stage(b"1")
    server.turn(server.commit(), after_s=2.0)
    server.turn()
    assert server.core.state.map.values["/bench/0"] == b"1" and not server.core.state.map.deadlines


def test_the_fingerprint_of_a_channel_is_right_after_a_deferred_commit() -> None:
    server, topic = Server(), channel_topic("/bench/")
    server.turn(server.kvset(["/bench/0", "/other/0"], [b"0", b"0"]), subscribe=topic)
    # This turn has a heartbeat, so the sum is known from here on.
    server.turn(after_s=1.0)
    server.stage(b"1")
    server.turn(server.commit())
    while server.core.state.deferred:
        server.turn()
    beats = bodies(server.turn(after_s=1.0).publish, topic, HEARTBEAT)
    revisions = [r for k, r in server.core.state.map.revisions.items() if k.startswith("/bench/")]
    assert beats[-1][0][4:6] == [len(revisions), sum(revisions)] and len(revisions) == len(KEYS)


def test_a_commit_that_is_small_beside_the_map_is_applied_at_once() -> None:
    server = Server()
    many = [f"/other/{i}" for i in range(60_000)]
    server.turn(server.kvset(many, [b""] * len(many)))
    server.turn(server.kvset([key + "/more" for key in many], [b""] * len(many)))
    server.stage(b"1")
    server.turn(server.commit())
    assert not server.core.state.deferred and server.core.state.map.values["/bench/0"] == b"1"


def test_a_channel_gets_greetings_and_no_heartbeats_while_a_commit_is_applied() -> None:
    server, topic = Server(), channel_topic("/bench/")
    server.turn(subscribe=topic)
    for n in range(3):
        server.stage(b"1", [f"/bench/{n}/{i}" for i in range(DEFAULT.deferred_slice_items)])
    server.turn(server.commit(3))
    for _ in range(2):
        published = server.turn(after_s=1.0).publish
        assert server.core.state.deferred and server.core.next_deadline() == server.now
        assert bodies(published, topic, GREETING) and not bodies(published, topic, HEARTBEAT)
    server.turn()
    # The last turn of the commit has no items.
    server.turn()
    assert not server.core.state.deferred
    # A pass over the map begins here, with one slice in each turn.
    server.turn(after_s=1.0)
    while server.core.state.gathering:
        server.turn()
    assert bodies(server.turn(after_s=1.0).publish, topic, HEARTBEAT)
    assert len(server.core.state.map) == 3 * DEFAULT.deferred_slice_items


def test_a_passive_defers_a_commit_too_and_its_channels_have_right_fingerprints() -> None:
    server, passive = Server(), Committed(DEFAULT)
    channel = passive.channels.subscribe(channel_topic("/bench/"), ReplicatedState(DEFAULT), b"1", 0.0)
    assert channel is not None
    server.turn(server.kvset(["/bench/0", "/other/0"], [b"0", b"0"]))
    server.stage(b"1")
    server.turn(server.commit())
    for body in server.records:
        passive.follow(body, 0.0)
    assert passive.state.deferred and passive.state.number == channel.last == server.core.state.number
    active = server.core.state.map
    assert passive.state.map.values == active.values and passive.state.map.revisions == active.revisions
    revisions = [r for k, r in active.revisions.items() if k.startswith("/bench/")]
    assert channel.fingerprint(passive.state.map) == (len(revisions), sum(revisions))


def a_server_with_a_late_commit() -> Server:
    """Return a server whose map has one slice of a commit of four, which writes each key and deletes the last."""
    server, slice_items = Server(), DEFAULT.deferred_slice_items
    for n in range(4):
        keys = [f"/bench/{n}/{i}" for i in range(slice_items)]
        gone = {"d": [slice_items - 1]} if n == 3 else {}
        server.turn(server.kvset(keys, [b"1"] * len(keys), stage=[TRANSACTION, "0"], **gone))
    server.turn(server.commit(4))
    server.turn()
    assert len(server.core.state.map_so_far) == slice_items and server.core.state.deferred
    return server


def test_sets_go_on_while_a_commit_is_applied_and_later_values_stay() -> None:
    server = a_server_with_a_late_commit()
    server.turn(
        server.kvset(["/bench/0/0", "/bench/3/0", "/new"], [b"2"] * 3), server.kvset(["/bench/3/1"], [b""], d=[0])
    )
    state = server.core.state
    assert state.deferred, "a set does not wait for the whole commit"
    assert state.map_so_far.values["/bench/3/0"] == b"2"
    number = state.number
    while state.deferred:
        server.turn()
    values, revisions = state.map.values, state.map.revisions
    assert values["/bench/0/0"] == values["/bench/3/0"] == values["/new"] == b"2" and "/bench/3/1" not in values
    assert revisions["/bench/3/0"] == number - 3 and values["/bench/3/2"] == b"1"
    assert len(values) == 4 * DEFAULT.deferred_slice_items - 1
    state.check()


def test_conditions_see_a_commit_that_the_map_does_not_have_yet() -> None:
    server = a_server_with_a_late_commit()
    made = server.core.state.map_so_far.revisions["/bench/0/0"]
    last = f"/bench/3/{DEFAULT.deferred_slice_items - 1}"
    refused = [
        server.kvset(["/bench/3/0"], [b"2"], c=[[0], [0]]),
        server.kvset([last], [b"2"], c=[[0], [made]]),
        server.kvset(["/other"], [b"2"], expect=[["/bench/3/0", 0]]),
    ]
    done = [
        server.kvset(["/bench/3/0"], [b"2"], c=[[0], [made]]),
        server.kvset([last], [b"2"], c=[[0], [0]]),
        server.kvset(["/bench/3/1"], [b"2"], n=[[0], [made - 1]]),
    ]
    server.turn(*refused, *done)
    state = server.core.state
    assert state.deferred and server.core.committer.counts["refused_revision"] == 3
    assert state.map.values["/bench/3/0"] == state.map.values[last] == b"2"
    assert state.map.values["/bench/3/1"] == b"1" and "/other" not in state.map.values


def test_two_commits_and_a_set_between_them_are_applied_in_order() -> None:
    server, first, second = Server(), b"1" * 16, b"2" * 16
    for transaction, value in ((first, b"1"), (second, b"2")):
        server.turn(server.kvset(KEYS, [value] * len(KEYS), stage=[transaction, "0"]))
    commits = [
        server.kvset([], [], commit=[transaction, "job", version, [["0", 1]], None])
        for version, transaction in enumerate((first, second), 1)
    ]
    between, after = server.kvset(KEYS[:2], [b"x"] * 2), server.kvset(KEYS[1:2], [b"y"])
    server.no -= 4
    numbered = [server.kvset([], []) for _ in range(4)]
    order = [commits[0], between, commits[1], after]
    server.turn(*[[*head[:4], message[4]] for head, message in zip(numbered, order, strict=True)])
    state = server.core.state
    assert len(state.deferred) == 2
    assert state.revisions()(KEYS[0], 0) == state.deferred[1].number
    assert state.map.values == {**dict.fromkeys(KEYS, b"2"), KEYS[1]: b"y"}
    state.check()


def test_a_passive_follows_sets_while_a_commit_is_applied() -> None:
    server, passive = a_server_with_a_late_commit(), Committed(DEFAULT)
    server.turn(server.kvset(["/bench/3/0"], [b"2"]))
    for body in server.records:
        passive.follow(body, 0.0)
    assert len(passive.state.map_so_far) < DEFAULT.deferred_slice_items, "the set did not wait for the commit"
    assert passive.state.map.values == server.core.state.map.values
    assert passive.state.map.fingerprint() == server.core.state.map.fingerprint()
    passive.state.check()


def test_the_key_limit_needs_the_whole_map_only_close_to_the_limit() -> None:
    server = a_server_with_a_late_commit()
    state, most = server.core.state, 4 * DEFAULT.deferred_slice_items
    assert state.keys_at_most == most
    room = ResourceLimits(keys_max=most)
    room.check(Segment([], []), 0, state)
    assert state.deferred
    room.check(Segment(["/a"], [b"1"]), 1, state)
    assert not state.deferred and state.keys_at_most == most - 1


def test_a_staged_batch_is_decoded_only_when_the_map_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    segment = StagedBatch.segment

    def noted(batch: StagedBatch) -> Segment:
        decoded.append(batch.items)
        return segment(batch)

    monkeypatch.setattr(StagedBatch, "segment", noted)
    server, most = Server(), DEFAULT.deferred_slice_items
    server.turn(subscribe=channel_topic("/bench/"))
    server.turn(server.kvset(["/locks/a"], [b""], lease=[b"l" * 16, 60_000], l=b"l" * 16))
    assert server.core.state.lease_of
    for n in range(4):
        server.stage(b"1", [f"/bench/{n}/{i}" for i in range(most)])
    server.turn(server.commit(4))
    assert server.core.state.deferred and not decoded, "a commit looks into no batch"
    refused = server.kvset(["/bench/2/7"], [b"2"], c=[[0], [0]])
    # The first slice has come, and the look for one key needs the batch with that key alone.
    server.turn(refused, server.kvset(["/other/7"], [b"2"], c=[[0], [0]]))
    assert server.core.committer.counts["refused_revision"] == 1 and decoded == [most] * 2
    server.turn()
    assert decoded == [most] * 3, "the slices of two turns, and the look"
    # A turn with messages does half of it, because somebody waits for its end.
    assert len(server.core.state.map_so_far) == most // 2 + most + 2


def test_a_staged_batch_tells_which_keys_it_writes() -> None:
    keys = [f"/bench/{i:04}" for i in range(0, 1000, 2)]
    batch = StagedBatch.of(Segment(keys, [b"/bench/0001"] * len(keys)))
    assert set(batch.written(["/bench/0000", "/bench/0001", "/bench/0998", "/bench/1", "/a"])) == {keys[0], keys[-1]}
    assert set(batch.written([f"/bench/{i:04}" for i in range(100)])) == set(keys[:50])
    assert not set(batch.written(["/bench/0001", "/other"]))
    assert batch.keys() == keys == batch.segment().keys
    assert batch.plain and batch.prefix == "/bench/0" and batch.segment().bounds == (keys[0], keys[-1])


def test_a_channel_gets_its_part_of_a_staged_batch() -> None:
    batch = StagedBatch.of(Segment(["/a/1", "/a/2", "/b/1"], [b"1", b"2", b"3"], {"d": [2]}))
    assert batch.narrowed("") is batch and batch.narrowed("/") is batch
    part = batch.narrowed("/b/")
    assert isinstance(part, Segment) and part == Segment(["/b/1"], [b"3"], {"d": [0]})
    assert batch.narrowed("/c/") is batch.narrowed("/0/") is batch.narrowed("/a/3") is None


@pytest.mark.parametrize("channels", [1, 6])
def test_each_channel_gets_what_a_commit_writes_in_its_subtree(channels: int) -> None:
    server, topic = Server(), channel_topic("/bench/1/")
    for n in range(channels - 1):
        server.turn(subscribe=channel_topic(f"/bench/1/{n}/" if n else "/"))
    server.turn(subscribe=topic)
    staged = [f"/bench/{n % 3}/{n}" for n in range(DEFAULT.deferred_items_min + 3)]
    server.stage(b"1", staged)
    published = bodies(server.turn(server.commit()).publish, topic, BATCH)
    got = [key for parts in published for segment in parts[1:] for key in segment[0]]
    assert got == [key for key in staged if key.startswith("/bench/1/")] and server.core.state.deferred
