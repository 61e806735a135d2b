"""Tests that a record which a server makes by itself, as large as the map, goes in parts that fit a frame and a row."""

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import BATCH, Segment, packb, split
from chp.keys import RESERVED_KEY, channel_topic, public_session
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.state.record_log import LoggedRow
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.turn import Append, Turn
from chp_server.shell.copies import difference
from chp_server.store.journal_rows import stored

SECRET, LEASE, TX = b"1" * 16, b"L" * 16, b"T" * 16
SESSION = public_session(SECRET)
# These are 20 MB of keys.
KEYS = [f"/{i:06d}/".ljust(1000, "x") for i in range(20_000)]
A_BATCH = 10_000


class Lone:
    """A lone server. A replica follows its records, and a list keeps them as a journal would."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.core = ServerCore(CoreConfig(), b"s" * 16, 0.0, limits)
        self.replica = Committed(DEFAULT)
        self.no = 0
        self.largest = 0
        # The headers of the last turn's BATCHes.
        self.published: list[list[Any]] = []
        self.core.begin_turn(0.0, 0.0)
        self.core.subscription([b"1", b"\x01" + channel_topic("/")])
        self.end(0.0)

    def end(self, now: float) -> None:
        turn: Turn = self.core.end_turn()
        appended = [op for op in turn.journal if isinstance(op, Append)]
        stored(0, self.replica.followed, 0, [LoggedRow(op.first, op.last, op.body) for op in appended])
        for op in appended:
            self.replica.follow(op.body, now)
        self.published = [h for m in turn.publish if m[-1] and (h := split(m[-1])[0])[0] == BATCH]
        self.largest = max([self.largest, *(len(m[-1]) for m in turn.publish), *(len(op.body) for op in appended)])

    def turn(self, now: float, *segments: Segment) -> None:
        self.core.begin_turn(now, now)
        for segment in segments:
            self.no += 1
            self.core.collect([RESERVED_KEY, pack(self.no), SECRET, b"", segment.encode()])
        self.end(now)

    def to_the_end(self, now: float) -> None:
        """Take turns as long as there is something to do at once."""
        while self.core.next_deadline() <= now:
            self.turn(now)

    def fill(self, **extras: object) -> None:
        for i, start in enumerate(range(0, len(KEYS), A_BATCH)):
            part = KEYS[start : start + A_BATCH]
            self.turn(1.0 + i / 10, Segment(part, [b"v"] * len(part), dict(extras) or None))
        assert len(self.core.state.map) == len(KEYS)

    def check(self, keys: set[str]) -> None:
        assert self.largest <= DEFAULT.frame_bytes_max
        assert set(self.core.state.map.values) == set(self.replica.state.map.values) == keys
        assert self.core.state.number == self.replica.state.number
        self.core.state.check()


@pytest.fixture
def lone() -> Lone:
    return Lone()


def test_the_expiry_of_all_keys_by_ttl_fits_the_frame_limit(lone: Lone) -> None:
    lone.fill(t=5000)
    lone.turn(9.0)
    lone.to_the_end(9.0)
    lone.check(set())


def test_the_expiry_of_a_large_lease_fits_the_frame_limit(lone: Lone) -> None:
    lone.fill(l=LEASE, lease=[LEASE, 5000])
    lone.turn(9.0)
    lone.to_the_end(9.0)
    lone.check(set())


def test_a_large_lease_ended_by_its_holder_fits_the_frame_limit(lone: Lone) -> None:
    lone.fill(l=LEASE, lease=[LEASE, 60_000])
    lone.turn(9.0, Segment(["/left"], [b"v"]), Segment([], [], {"unlease": LEASE}))
    lone.to_the_end(9.0)
    lone.check({"/left"})
    assert lone.replica.state.sessions[SESSION].no == lone.no


def test_only_the_last_part_of_a_large_record_names_its_client_batches() -> None:
    """The last part must name its batches, since a client would otherwise go on showing its own older value."""
    lone = Lone(replace(DEFAULT, ending_keys_max=1 << 20))
    lone.fill(l=LEASE, lease=[LEASE, 60_000])
    lone.turn(9.0, Segment(["/left"], [b"v"]), Segment([], [], {"unlease": LEASE}))
    assert len(lone.published) > 1
    assert [header[5] for header in lone.published] == [[]] * (len(lone.published) - 1) + [[[SESSION, lone.no]]]


def test_a_commit_that_replaces_all_keys_fits_the_frame_limit(lone: Lone) -> None:
    lone.fill()
    staged = Segment(["/new"], [b"v"], {"stage": [TX, "0.0"]})
    lone.turn(9.0, staged, Segment([], [], {"commit": [TX, "job", 1, [["0.0", 1]], ""]}))
    lone.check({"/new"})


def test_a_takeover_with_thousands_of_clients_keeps_each_record_small() -> None:
    core = ServerCore(CoreConfig(primary=False, has_peer=True, solo_wait_s=1.0, bootstrap=True), b"s" * 16, 0.0)
    core.begin_turn(0.0, 0.0)
    body = Segment([], []).encode()
    for i in range(5000):
        core.collect([RESERVED_KEY, pack(1), i.to_bytes(12) + bytes(4), b"", body])
    core.end_turn()
    turns = []
    # The server hears all the time, and no peer comes.
    for n in range(1, 8):
        core.begin_turn(n / 4, n / 4)
        turns.append(core.end_turn())
    assert len(core.state.sessions) == 5000
    assert max(len(op.body) for turn in turns for op in turn.journal if isinstance(op, Append)) < 1 << 16


def test_a_restored_map_of_large_values_is_cut_by_bytes() -> None:
    ours, wanted = Committed(DEFAULT), Committed(DEFAULT)
    wanted.state.map.apply(Segment([f"/{i}" for i in range(3000)], [bytes(10_000)] * 3000), 7, 0.0)
    wanted.state.map.apply(Segment(["/large"], [bytes(DEFAULT.value_bytes_max)]), 7, 0.0)
    segments = list(difference(ours, wanted, 0.0))
    assert sum(len(segment.keys) for segment in segments) == 3001
    assert all(len(s.encode()) <= 2 * DEFAULT.part_bytes for s in segments if s.keys != ["/large"])
    assert ["/large"] in [segment.keys for segment in segments]


def test_a_feed_is_divided_even_if_each_record_has_many_clients() -> None:
    core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
    core.begin_turn(0.0, 0.0)
    after = core.state.number
    for no in (1, 2, 3):
        core.begin_turn(no, no)
        for i in range(500):
            body = Segment([f"/{i}"], [b"v"]).encode()
            core.collect([RESERVED_KEY, pack(no), i.to_bytes(12) + bytes(4), b"", body])
        core.end_turn()
    core.begin_turn(4.0, 4.0)
    options = {"chp": 3, "id": 1, "feed": True, "from": after, "probe": 600}
    core.request([b"reader", b"ICANHAZ?", b"", packb(options)])
    (reply,) = [messages[0] for identity, messages in core.end_turn().replies if identity == b"reader"]
    assert after < split(reply[4])[0][2]["number"] < core.state.number
