"""Tests of the times when the connection to the peer's P+3 comes up and breaks, as libzmq reports them.

covers: sockets.py
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from chp_server.ports.sockets import PeerWatch

PATIENCE_MS = 20_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


def dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    made = context.socket(zmq.DEALER)
    made.linger = 0
    made.reconnect_ivl = 50
    return made


def next_changes(watch: PeerWatch) -> list[bool]:
    assert watch.events.poll(PATIENCE_MS), "libzmq tells nothing"
    return list(watch.changes())


def test_it_stands_with_the_handshake_breaks_with_the_other_end_and_stands_again(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    router, ours = context.socket(zmq.ROUTER), dealer(context)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    watch = PeerWatch(ours)
    ours.connect(f"tcp://127.0.0.1:{port}")
    assert next_changes(watch) == [True] and list(watch.changes()) == []
    router.close(0)
    assert next_changes(watch)[0] is False
    again = context.socket(zmq.ROUTER)
    again.bind(f"tcp://127.0.0.1:{port}")
    while not (came := next_changes(watch))[-1]:
        pass
    assert came[-1] is True
    watch.close()
    ours.close(0)
    again.close(0)


def test_a_connection_that_the_kernel_takes_is_none_without_a_handshake(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """A stopped process looks like that."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = dealer(context)
        watch = PeerWatch(ours)
        ours.connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        # The socket connects, is cut off, and connects again.
        for _ in range(2):
            taken, _ = listening.accept()
            with taken:
                assert taken.recv(1), "libzmq greets"
        assert True not in next_changes(watch)
        watch.close()
        ours.close(0)


def test_a_peer_with_another_key_has_no_connection(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    (public, secret), (other, _) = zmq.curve_keypair(), zmq.curve_keypair()
    router, ours = context.socket(zmq.ROUTER), dealer(context)
    router.curve_server, router.curve_secretkey = 1, secret
    heard = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ours.curve_publickey, ours.curve_secretkey = zmq.curve_keypair()
    ours.curve_serverkey = other
    watch = PeerWatch(ours)
    ours.connect(f"tcp://127.0.0.1:{port}")
    assert heard.poll(PATIENCE_MS) and public != other
    assert True not in list(watch.changes())
    watch.close()
    ours.close(0)
    router.disable_monitor()
    router.close(0)
