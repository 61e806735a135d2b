"""A message that waits behind a silent descriptor is not missed. covers: `Poller` of ports/sockets.py"""

import os
from collections.abc import Iterator

import pytest
import zmq

from chp_server.ports.sockets import Poller, receive

Ends = tuple[zmq.Socket[bytes], zmq.Socket[bytes], Poller]


def nobody(fd: int | None) -> None:
    """Ignore the sender of messages."""


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return a socket for messages, the socket that receives them, and a poller without pending events."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://waiting")
        other.connect("inproc://waiting")
        waiting = Poller()
        waiting.add(other)
        while waiting.wait(0):
            list(receive(other, 10, 1000, waiting.again, nobody))
        yield one, other, waiting
        waiting.close()


def test_a_socket_is_reported_until_its_messages_are_taken(ends: Ends) -> None:
    one, other, waiting = ends
    for _ in range(3):
        one.send(b"x")
    # Its descriptor signals only once.
    for _ in range(3):
        assert waiting.wait(1000) == {other}
        list(receive(other, 1, 1000, waiting.again, nobody))
    assert waiting.wait(0) == set()


def test_a_socket_that_was_emptied_is_not_asked_again(ends: Ends) -> None:
    one, other, waiting = ends
    one.send(b"x")
    assert waiting.wait(1000) == {other} and other in waiting.again
    assert list(receive(other, 10, 1000, waiting.again, nobody)) == [[b"x"]]
    assert not waiting.again
    one.send(b"y")
    assert waiting.wait(1000) == {other}, "it speaks again"


def test_a_message_that_came_while_the_socket_was_used_is_reported(ends: Ends) -> None:
    one, other, waiting = ends
    one.send(b"x")
    assert int(other.get(zmq.EVENTS)) & int(zmq.POLLIN), (
        "as sending does now and then: it sees to what the descriptor tells"
    )
    assert waiting.wait(0) == set(), "so that says nothing any more"
    waiting.again.add(other)
    assert waiting.wait(1000) == {other}


def test_a_pipe_is_reported_by_its_descriptor(ends: Ends) -> None:
    _, _, waiting = ends
    reader, writer = os.pipe()
    waiting.add_pipe(reader)
    os.write(writer, b"x")
    assert waiting.wait(1000) == {reader} and not waiting.again
    waiting.all_again()
    assert reader not in waiting.again
    os.close(reader)
    os.close(writer)
