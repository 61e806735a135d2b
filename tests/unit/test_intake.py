"""Tests of the verdict on a KVSET, and that judging changes nothing. covers: intake.py, verdicts.py"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import Segment
from chp.errors import BadInput
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.state.verdicts import (
    KEY_IN_OPEN_RECORD,
    UNHEARD,
    Accept,
    AcceptChp1,
    Commit,
    Duplicate,
    Expected,
    Refuse,
    Verdict,
)
from chp_server.core.updates.commit import Committer
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.intake import judge
from chp_server.core.updates.resource_limits import ResourceLimits
from chp_server.core.updates.turn import CurrentTurn

ONE, TWO = b"1" * 12 + bytes(4), b"2" * 12 + bytes(4)
JOB = b"t" * 16


def batch(session: bytes, no: int, *keys: str, **extras: object) -> list[bytes]:
    return [RESERVED_KEY, pack(no), session, b"", Segment(list(keys), [b"v"] * len(keys), extras or None).encode()]


def plain(key: bytes, uuid: bytes, value: bytes = b"v") -> list[bytes]:
    return [key, bytes(8), uuid, b"", value]


@pytest.fixture
def committer() -> Committer:
    """Make a committer: ONE has set /a in a record and /b in the open one, and has a refusal and a staged part."""
    made = Committer(Committed(replace(DEFAULT, value_bytes_max=1000)), ResourceLimits(keys_max=4), 0)
    turn = CurrentTurn(0.0)
    for frames in (batch(ONE, 1, "/a"), batch(ONE, 2, "/a", c=[[0], [0]]), plain(b"/p", b"u" * 16)):
        made.collect(frames, turn)
    made.collect(batch(ONE, 3, "/s", stage=[JOB, "0"]), turn)
    made.commit(turn)
    made.collect(batch(ONE, 4, "/b"), turn)
    return made


def seen(committer: Committer) -> tuple[Any, ...]:
    """Return all that a verdict could have changed."""
    state, open_record, room = committer.committed.state, committer.open, committer.room
    return (
        list(state.rest(0.0))[-1], dict(state.map.values), dict(state.map.revisions), repr(state.staging.transactions),
        dict(open_record.origins), list(open_record.whose), list(open_record.bodies), open_record.bytes,
        len(open_record.chp1), room.taken, room.full, dict(committer.unwritten.kept), dict(committer.counts),
    )  # fmt: skip


STAGED = {"commit": [JOB, "job", 1, [["0", 1]], None]}


@pytest.mark.parametrize(
    ("frames", "wanted"),
    [
        (batch(ONE, 5, "/c"), Accept),
        (batch(TWO, 1, "/c"), Accept),
        (batch(TWO, 1, "/b"), KEY_IN_OPEN_RECORD),
        (batch(ONE, 5, "/b"), Accept),
        (plain(b"/b", b"w" * 16), KEY_IN_OPEN_RECORD),
        (plain(b"/a", b"w" * 16), AcceptChp1),
        (plain(b"/a", b"u" * 16), Duplicate),
        (plain(b"/new/1", b"w" * 16), AcceptChp1),
        (batch(ONE, 1, "/a"), Duplicate),
        (batch(ONE, 2, "/a"), Duplicate),
        (batch(ONE, 6, "/c"), Expected),
        (batch(TWO, 2, "/c"), Expected),
        (batch(ONE, 5, "/a", c=[[0], [7]]), Refuse),
        (batch(ONE, 5, "/1", "/2", "/3"), Refuse),
        (batch(ONE, 5, "/c", odd=1), Refuse),
        (batch(ONE, 5, **STAGED), Commit),
        (batch(ONE, 5, "/t", stage=[b"x" * 16, "0"]), Accept),
    ],
)
def test_judging_a_kvset_gives_its_verdict_and_changes_nothing(
    committer: Committer, frames: list[bytes], wanted: type[Verdict] | Verdict
) -> None:
    before = seen(committer)
    verdict = judge(frames, committer.view, committer.open, 0.0)
    assert verdict is wanted or type(verdict) is wanted, verdict
    assert seen(committer) == before
    assert judge(frames, committer.view, committer.open, 0.0) == verdict, "asked again, it says the same"


def test_a_repeated_batch_is_answered_with_its_first_result(committer: Committer) -> None:
    done, refused = (judge(batch(ONE, no, "/a"), committer.view, committer.open, 0.0) for no in (1, 2))
    assert isinstance(done, Duplicate) and done.refusal is None
    assert done.revision == committer.committed.state.map.revisions["/a"]
    assert isinstance(refused, Duplicate) and refused.refusal is not None and refused.refusal[0] == "revision"


def test_a_gap_is_told_the_expected_number_unless_a_suffix_is_awaited(committer: Committer) -> None:
    view = committer.view
    assert judge(batch(ONE, 7, "/c"), view, committer.open, 1.0) == Expected((ONE, 7), "expected", 5)
    assert judge(batch(TWO, 7, "/c"), view, committer.open, 1.0) == Expected((TWO, 7), "session", 1)
    committer.await_suffix(2.0)
    assert judge(batch(ONE, 7, "/c"), view, committer.open, 1.0) is UNHEARD
    assert isinstance(judge(batch(ONE, 7, "/c"), view, committer.open, 2.0), Expected)


def test_items_that_are_not_newer_are_left_out_and_counted(committer: Committer) -> None:
    frames = batch(ONE, 5, "/a", "/c", n=[[0, 1], [0, 0]])
    verdict = judge(frames, committer.view, committer.open, 0.0)
    assert isinstance(verdict, Accept) and verdict.segment.keys == ["/c"] and verdict.older == 1
    assert verdict.body == verdict.segment.encode(), "the record has what is done, not what came"
    assert verdict.segment.extras is None, "readers see nothing of the column"
    frames = batch(ONE, 5, "/a", "/c", n=[[0], [0]], d=[1])
    verdict = judge(frames, committer.view, committer.open, 0.0)
    assert isinstance(verdict, Accept) and verdict.segment.extras == {"d": [0]}, "indices count what is left"


def test_an_ill_formed_kvset_raises(committer: Committer) -> None:
    for frames in (batch(ONE, 0, "/a"), [RESERVED_KEY, b"short", ONE, b"", b""], plain(b"/a", b"u")):
        with pytest.raises(BadInput):
            judge(frames, committer.view, committer.open, 0.0)


def test_collect_marks_the_room_full_and_judge_does_not() -> None:
    room = ResourceLimits()
    committer = Committer(Committed(DEFAULT), room, 0)
    room.measured(replace(room.measurement, memory=99, memory_max=100))
    frames = batch(ONE, 1, "/a")
    assert isinstance(judge(frames, committer.view, committer.open, 0.0), Refuse) and not room.full
    committer.collect(frames, CurrentTurn(0.0))
    assert room.full
    room.measured(replace(room.measurement, memory=0))
    assert not room.full
