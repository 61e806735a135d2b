"""Tests of a client's admission by a server, and of the address of a name that it uses.

covers: chp_client.port.admission, and `in_turn` of chp.addresses
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import zmq

from chp.addresses import in_turn, is_name
from chp_client.port.admission import NEVER, Admission

NOT_REACHED, SUCCEEDED = int(zmq.EVENT_CONNECT_RETRIED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)


def told(event: int) -> list[bytes]:
    """Return an event as libzmq's monitor tells it."""
    return [event.to_bytes(2, sys.byteorder) + bytes(4), b"tcp://x:1"]


@pytest.fixture
def sockets() -> Iterator[list[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        made = [context.socket(kind) for kind in (zmq.DEALER, zmq.SUB)]
        yield made
        for socket in made:
            socket.close(0)


def admission(host: str, sockets: list[zmq.Socket[bytes]]) -> Admission:
    ways = [(socket, f"tcp://{host}:{port}") for port, socket in enumerate(sockets, 5556)]
    return Admission(ways[0][1], ways, None)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("tcp://a:1", True),
        ("tcp://10.a:1", True),
        ("tcp://10.0.0.1:1", False),
        ("tcp://*:1", False),
        ("tcp://[fe80::1%eth0]:1", False),
        ("ipc:///run/1", False),
    ],
)
def test_only_a_host_name_alternates_between_ipv4_and_ipv6(address: str, name: bool) -> None:
    assert is_name(address) is name
    assert [in_turn(address, tries) for tries in range(3)] == (
        [False, True, False] if name else [address[6] == "["] * 3
    )


def test_the_first_port_tries_ipv6_and_the_other_ports_follow(
    sockets: list[zmq.Socket[bytes]],
) -> None:
    each = admission("a.invalid", sockets)
    each.heard(told(NOT_REACHED), 1.0)
    # This event belongs to the same try.
    each.heard(told(NOT_REACHED), 1.1)
    assert 1.0 < each.due < 2.0 and not sockets[0].ipv6
    each.step(each.due)
    assert sockets[0].ipv6 and not sockets[1].ipv6
    each.heard(told(SUCCEEDED), 2.0)
    assert sockets[1].ipv6 and each.due == NEVER


def test_a_host_name_that_was_reached_once_keeps_its_address_family(sockets: list[zmq.Socket[bytes]]) -> None:
    each = admission("a.invalid", sockets)
    each.heard(told(SUCCEEDED), 1.0)
    each.heard(told(NOT_REACHED), 2.0)
    assert each.due == NEVER and not sockets[0].ipv6


def test_a_numeric_address_is_not_tried_as_ipv6(sockets: list[zmq.Socket[bytes]]) -> None:
    each = admission("127.0.0.1", sockets)
    each.heard(told(NOT_REACHED), 1.0)
    assert each.due == NEVER
