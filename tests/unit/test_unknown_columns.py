"""Columns that no version knows go no further than the server: it passes on what it has checked, and nothing else."""

import msgpack
import pytest

from chp.batch import Segment, split
from chp.keys import RESERVED_KEY
from chp.numbers import pack
from chp_server.core import CoreConfig, ServerCore
from chp_server.turn import Append, Turn

DEEPEST = 1022  # within a segment msgpack can still read it; within a record it can not


def commit(extras: bytes) -> Turn:
    core = ServerCore(CoreConfig(), b"s" * 16, 0.0)
    core.begin_turn(0.0, 0.0)
    core.end_turn()
    core.begin_turn(1.0, 1.0)
    body = b"\x93" + msgpack.packb(["/k"]) + msgpack.packb([b"v"]) + extras
    core.collect([RESERVED_KEY, pack(1), b"1" * 16, b"", body])
    return core.end_turn()


@pytest.mark.parametrize("depth", [0, 1, DEEPEST])
def test_a_record_can_be_read_whatever_a_client_put_into_a_column_of_its_own(depth: int) -> None:
    unknown = msgpack.packb("x") + b"\x91" * depth + b"\xc0"
    turn = commit(b"\x82" + msgpack.packb("t") + msgpack.packb(500) + unknown)
    (append,) = turn.journal
    assert isinstance(append, Append)
    assert split(append.body)[1:] == [[["/k"], [b"v"], {"t": 500}]]


def test_a_segment_of_which_nothing_is_known_but_its_keys_has_no_extras() -> None:
    (append,) = commit(msgpack.packb({"y": 1})).journal
    assert isinstance(append, Append)
    assert append.body.endswith(Segment(["/k"], [b"v"]).encode())
