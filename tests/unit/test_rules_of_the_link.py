"""covers: a server's treatment of peer messages that say more than they should, or that no part waits for."""

from __future__ import annotations

import msgpack
import pytest

from chp.batch import Segment, packb
from chp.numbers import number
from chp_server.core.updates.turn import Append
from tests.wire.played import PEER, SERVER, Frames, Servers, kvset


@pytest.fixture
def pair() -> Servers:
    servers = Servers(pair=True)
    servers.settle(lambda core: core.collect(kvset(1, ["/a"], [b"1"])))
    for _ in range(4):
        servers.turn()
    return servers


def said(pair: Servers, name: bytes, server: int) -> Frames:
    """Return the last message of a name that a server sent to the other one."""
    return next(frames for i, frames in reversed(pair.to_peer) if i == server and frames[0] == name)


def hear(pair: Servers, frames: Frames) -> int:
    """Let the first server hear it; return how much of what it heard was none."""
    core = pair.cores[0]
    before = core.committer.counts["garbage_peer"]
    pair.turn(lambda core: core.peer_message(frames), beat=False)
    return core.committer.counts["garbage_peer"] - before


def test_a_state_may_have_names_that_are_not_known(pair: Servers) -> None:
    state = msgpack.unpackb(said(pair, b"STATE", 1)[1])
    assert hear(pair, [b"STATE", packb({**state, "colour": "blue"})]) == 0
    assert pair.cores[0].pair.in_sync()


def test_a_state_of_the_server_itself_is_refused(pair: Servers) -> None:
    state = msgpack.unpackb(said(pair, b"STATE", 1)[1])
    assert hear(pair, [b"STATE", packb({**state, "server": SERVER})]) == 1


def test_the_active_drops_a_record_silently(pair: Servers) -> None:
    record = next(frames for i, frames in pair.to_peer if i == 0 and frames[0] == b"RECORD")
    before, number = len(pair.to_peer), pair.cores[0].state.number
    assert hear(pair, record) == 0, "the active takes no RECORD, and counts none"
    assert pair.cores[0].state.number == number
    assert b"WANT" not in [frames[0] for i, frames in pair.to_peer[before:] if i == 0]


def test_a_record_is_passed_on_and_journaled_as_it_was(pair: Servers) -> None:
    rows: list[list[bytes]] = [[], []]
    pair.turn(lambda core: core.collect(kvset(2, ["/b"], [b"2"])))
    for _ in range(4):
        for row, turn in zip(rows, pair.turns, strict=True):
            row += [op.body for op in turn.journal if isinstance(op, Append)]
        pair.turn()
    sent = said(pair, b"RECORD", 0)[1]
    assert rows[0] == rows[1] == [sent]


def test_a_repeated_replay_is_done_once_and_answered_alike(pair: Servers) -> None:
    batch = [[], True, [Segment(["/r"], [b"1"], None).encode()], {}]
    replay = [b"REPLAY", packb([PEER, 7, number(1, 1), [batch]])]
    assert hear(pair, replay) == 0
    for _ in range(3):
        pair.turn()
    first, reached = said(pair, b"REPLAYED", 0), pair.cores[0].state.number
    assert "/r" in pair.cores[0].state.map.revisions and msgpack.unpackb(first[1])[0] == 7
    before = len(pair.to_peer)
    hear(pair, replay)
    for _ in range(3):
        pair.turn()
    again = [frames for i, frames in pair.to_peer[before:] if i == 0 and frames[0] == b"REPLAYED"]
    assert again and all(frames == first for frames in again) and pair.cores[0].state.number == reached
