"""Tests of the times when the connection to the peer's P+3 comes up and breaks, and of the kind of address it uses.

covers: sockets.py
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from chp.limits import DEFAULT
from chp_server.ports.sockets import LOOK_AGAIN_S, PeerWatch, ServerSockets
from chp_server.settings.config import Config
from chp_server.testing import free_port
from tests.talk import until

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


def test_the_peer_watch_reports_connect_disconnect_and_reconnect(
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


def test_the_peer_watch_reports_no_connection_without_a_handshake(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """A stopped process accepts connections, and makes no handshake."""
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


@pytest.fixture
def named(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[tuple[ServerSockets, str]]:
    """Open the sockets of a server whose peer has a host name. Yield them, and the peer's endpoint."""
    ours, theirs = free_port(), free_port()
    config = Config(role="primary", bind=f"tcp://127.0.0.1:{ours}", peer=f"tcp://localhost:{theirs}")
    sockets = ServerSockets(context, config, DEFAULT, lambda: 0)
    sockets.bind()
    yield sockets, f"tcp://127.0.0.1:{theirs + 3}"
    sockets.close()


def kinds(sockets: ServerSockets, looks: int) -> list[bool]:
    """Look this many times for a peer that does not hear us. Return for each time whether the socket uses IPv6."""
    found = []
    sockets.look_for_peer(0.0, unheard=True, met=False)
    for n in range(1, looks + 1):
        assert sockets.look_for_peer(n * (LOOK_AGAIN_S + 1), unheard=True, met=False)
        dealer = sockets.peer_dealer(1)
        found.append(bool(dealer.ipv6))
        dealer.close(0)
    return found


def test_ipv4_and_ipv6_alternate_while_the_peer_is_not_reached(named: tuple[ServerSockets, str]) -> None:
    sockets, _ = named
    first, *others = kinds(sockets, 4)
    assert others == [not first, first, not first]


def test_the_first_connection_has_time_to_reach_the_peer(named: tuple[ServerSockets, str]) -> None:
    sockets, _ = named
    assert not sockets.look_for_peer(7.0, unheard=True, met=False)
    assert not sockets.look_for_peer(7.0 + LOOK_AGAIN_S - 0.1, unheard=True, met=False)
    assert sockets.look_for_peer(7.0 + LOOK_AGAIN_S, unheard=True, met=False)


def test_ipv4_or_ipv6_without_a_connection_is_changed_though_the_peer_hears_us(
    named: tuple[ServerSockets, str], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """The peer may have heard only the connection before this one. Both servers once waited for each other for ever."""
    sockets, where = named
    sockets.look_for_peer(0.0, unheard=False, met=True)
    assert sockets.look_for_peer(LOOK_AGAIN_S, unheard=False, met=True)
    with context.socket(zmq.ROUTER) as peer:
        peer.bind(where)
        now = LOOK_AGAIN_S

        def reached() -> bool:
            nonlocal now
            if True in sockets.look_at_peer(sockets.waiting.wait(10)):
                return True
            now += 0.05
            sockets.look_for_peer(now, unheard=False, met=True)
            return False

        until(reached, "a connection to the peer")
        assert not sockets.look_for_peer(now + 2 * LOOK_AGAIN_S, unheard=False, met=True)


def test_ipv4_or_ipv6_is_kept_once_the_peer_is_reached(
    named: tuple[ServerSockets, str], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    sockets, where = named
    with context.socket(zmq.ROUTER) as peer:
        peer.bind(where)
        until(lambda: True in sockets.look_at_peer(sockets.waiting.wait(10)), "a connection to the peer")
        dealer = sockets.peer_dealer(1)
        reached = bool(dealer.ipv6)
        dealer.close(0)
        assert kinds(sockets, 1) == [reached]
