"""Tests that columns which no version, or not the other server, knows are refused by name and never dropped.

covers: a segment with an unknown column; a pair that works at the lower version of its two
"""

import msgpack
import pytest

from chp import versions
from chp_server.core.updates import intake
from chp_server.core.updates.turn import Turn

from .server_talk import ONE, Talk

# msgpack can still read this depth within a segment, but not within a record.
DEEPEST = 1022


def talk_of(extras: bytes, version: int = versions.VERSION) -> tuple[Talk, Turn]:
    """Take a turn with one batch that has these columns."""
    talk = Talk()
    talk.core.committer.view.version = version
    talk.send(ONE, 1, b"\x93" + msgpack.packb(["/k"]) + msgpack.packb([b"v"]) + extras)
    return talk, talk.turn()


@pytest.mark.parametrize("depth", [0, 1, DEEPEST])
def test_an_unknown_column_is_refused_by_name(depth: int) -> None:
    unknown = msgpack.packb("x") + b"\x91" * depth + b"\xc0"
    talk, turn = talk_of(b"\x82" + msgpack.packb("t") + msgpack.packb(500) + unknown)
    ((_, code, detail),) = talk.refusals(ONE)
    assert code == "bad" and "'x'" in str(detail)
    assert not turn.journal and not talk.map, "nothing of it is done, and its session is new"


def test_a_column_of_a_later_version_is_refused_while_the_other_server_is_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of an upgrade the older server would lose such a column, though the newer one knows it."""
    monkeypatch.setitem(versions.COLUMN_SINCE, "t", 4)
    monkeypatch.setattr(intake, "VERSION", 4)
    extras = msgpack.packb({"t": 500})
    talk, _ = talk_of(extras, version=3)
    ((_, code, detail),) = talk.refusals(ONE)
    assert code == "bad" and "'t' needs version 4" in str(detail) and "works at 3" in str(detail)
    talk, _ = talk_of(extras, version=4)
    assert talk.map == {"/k": b"v"} and not talk.refusals(ONE)
