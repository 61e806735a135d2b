"""Columns that no version knows, or that the other server does not, are refused by name and never dropped.

covers: a segment with an unknown column; a pair that works at the lower version of its two
"""

import msgpack
import pytest

from chp import versions
from chp.batch import REFUSED, split
from chp.keys import RESERVED_KEY
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.turn import Turn
from chp_server.core.updates import intake

DEEPEST = 1022  # within a segment msgpack can still read it; within a record it can not


def commit(extras: bytes, version: int = versions.VERSION) -> Turn:
    core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
    core.committer.view.version = version
    core.begin_turn(0.0, 0.0)
    core.end_turn()
    core.begin_turn(1.0, 1.0)
    body = b"\x93" + msgpack.packb(["/k"]) + msgpack.packb([b"v"]) + extras
    core.collect([RESERVED_KEY, pack(1), b"1" * 16, b"", body])
    turn = core.end_turn()
    assert not core.state.map.values or not refusals(turn)
    return turn


def refusals(turn: Turn) -> list[list[object]]:
    headers = [split(frames[4])[0] for frames in turn.acks]
    return [header[2:] for header in headers if header[0] == REFUSED]


@pytest.mark.parametrize("depth", [0, 1, DEEPEST])
def test_a_column_that_is_not_known_is_refused_by_name_whatever_is_in_it(depth: int) -> None:
    unknown = msgpack.packb("x") + b"\x91" * depth + b"\xc0"
    turn = commit(b"\x82" + msgpack.packb("t") + msgpack.packb(500) + unknown)
    ((code, detail),) = refusals(turn)
    assert code == "bad" and "'x'" in str(detail)
    assert not turn.journal, "nothing of it is done, and its session is new"


def test_a_column_of_a_later_version_is_refused_while_the_other_server_is_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the middle of an upgrade: the newer server could do it, and the older one would lose it."""
    monkeypatch.setitem(versions.COLUMN_SINCE, "t", 4)
    monkeypatch.setattr(intake, "VERSION", 4)
    extras = msgpack.packb({"t": 500})
    ((code, detail),) = refusals(commit(extras, version=3))
    assert code == "bad" and "'t' needs version 4" in str(detail) and "works at 3" in str(detail)
    assert not refusals(commit(extras, version=4))
