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
    while taken := intake.take(1000):
        out.append(taken)
    return out


def test_a_turn_reads_up_to_its_bytes_and_the_message_that_exceeds_them(
    ends: tuple[zmq.Socket[bytes], Intake],
) -> None:
    one, intake = ends
    for body in (b"x" * 60, b"y" * 60, b"z"):
        one.send(body)
    assert [len(turn) for turn in turns(intake)] == [2, 1]


def test_a_socket_is_read_later_if_there_is_no_room(
    ends: tuple[zmq.Socket[bytes], Intake],
) -> None:
    one, intake = ends
    one.send(b"x")
    one.send(b"y")
    assert intake.take(0) == [] and intake.left
    assert intake.take(1000) == [[b"x"], [b"y"]] and not intake.left


def test_batches_without_keys_count_a_share_of_their_bytes(
    ends: tuple[zmq.Socket[bytes], Intake],
) -> None:
    one, intake = ends
    with_keys, without = (Segment(keys, [b"v"] * len(keys), {"x": bytes(40)}).encode() for keys in (["/k"], []))
    for body, expected in ((without, [8]), (with_keys, [2] * 4)):
        for _ in range(8):
            one.send_multipart([b"", b"", b"", b"", body])
        assert [len(turn) for turn in turns(intake)] == expected
