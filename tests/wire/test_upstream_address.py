"""Tests of the kind of address by which a replica reaches a server that has a host name.

covers: upstream.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from chp.limits import DEFAULT
from chp_server.ports.sockets import Poller
from chp_server.ports.upstream import UpstreamSockets
from chp_server.testing import free_port
from tests.talk import until


@pytest.fixture
def upstream() -> Iterator[tuple[UpstreamSockets, int]]:
    """Open the sockets of a replica whose server has a host name, and yield them and the port of that server."""
    port = free_port()
    with zmq.Context() as context:
        sockets = UpstreamSockets(context, [f"tcp://localhost:{port}"], DEFAULT, Poller(), [])
        sockets.connect()
        yield sockets, port
        sockets.close()


def kind(upstream: UpstreamSockets) -> bool:
    """Return whether the sockets use IPv6, and check that all use the same kind."""
    kinds = {bool(socket.ipv6) for socket in upstream._lines.values()}
    assert len(kinds) == 1
    return kinds.pop()


def test_ipv4_and_ipv6_alternate_while_the_server_is_not_reached(upstream: tuple[UpstreamSockets, int]) -> None:
    sockets, _ = upstream
    found = [kind(sockets)]
    for _ in range(3):
        sockets.connect_anew()
        found.append(kind(sockets))
    assert found[1] is not found[0] and found[2:] == found[:2]


def test_ipv4_or_ipv6_is_kept_once_the_server_is_reached(upstream: tuple[UpstreamSockets, int]) -> None:
    sockets, port = upstream
    with zmq.Context() as context, context.socket(zmq.XPUB) as updates:
        updates.bind(f"tcp://127.0.0.1:{port + 1}")

        def came() -> bool:
            updates.send(b"HUGZ")
            return bool(list(sockets.take()))

        until(came, "a message of the server")
        reached = kind(sockets)
        sockets.connect_anew()
        assert kind(sockets) is reached
