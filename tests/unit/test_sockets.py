"""Tests of the sets that one turn takes of those that have arrived. covers: sockets.py"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import zmq

from chp.batch import Segment
from chp.limits import DEFAULT
from chp_server.ports.sockets import Frames, Intake

LIMITS = replace(DEFAULT, turn_bytes_max=100, turn_messages_max=10)


@pytest.fixture
def ends() -> Iterator[tuple[zmq.Socket[bytes], Intake]]:
    """Return a socket that sends sets, and the intake that takes them."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://intake")
        other.connect("inproc://intake")
        yield one, Intake(other, LIMITS, set(), lambda fd: None)


def turns(intake: Intake) -> list[list[Frames]]:
    """Return the sets that each turn takes until none is left."""
    out = []
    while taken := intake.take():
        out.append(taken)
    return out


def test_a_large_message_waits_for_a_turn_of_its_own_and_holds_up_nobody_before_it(
    ends: tuple[zmq.Socket[bytes], Intake],
) -> None:
    one, intake = ends
    large = b"x" * 101
    for body in (b"a", b"b", large, b"c", large, large):
        one.send_multipart([b"k", body])
    taken = [[frames[1] for frames in turn] for turn in turns(intake)]
    assert taken == [[b"a", b"b"], [large], [b"c"], [large], [large]]
    assert not intake.waiting


def test_what_waited_leaves_room_for_others_if_it_is_small(ends: tuple[zmq.Socket[bytes], Intake]) -> None:
    one, intake = ends
    for body in (b"x" * 60, b"y" * 60, b"z"):
        one.send(body)
    assert [len(turn) for turn in turns(intake)] == [1, 2]


def test_messages_for_topics_count_a_share_as_nothing_of_them_is_published(
    ends: tuple[zmq.Socket[bytes], Intake],
) -> None:
    one, intake = ends
    with_keys, without = (Segment(keys, [b"v"] * len(keys), {"x": bytes(40)}).encode() for keys in (["/k"], []))
    for body, expected in ((without, [8]), (with_keys, [1] * 8)):
        for _ in range(8):
            one.send_multipart([b"", b"", b"", b"", body])
        assert [len(turn) for turn in turns(intake)] == expected
