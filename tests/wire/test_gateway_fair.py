"""Tests that at a gateway's limits the user with most connections makes room for others (SPEC.md, section 38).

covers: gateway.lines, Line.make_room; BoundedProtocol's connections.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest

from chp_client.gateway.channels.websocket import BINARY, CLOSE, PING, PONG, put
from tests.talk import until
from tests.unit.test_websocket import masked
from tests.wire import keys
from tests.wire.gateways import RunningGateway
from tests.wire.test_gateway_access import GATE, TOKENS, USERS, Keyed
from tests.wire.test_gateway_websocket import Stranger

MOST = 8
READER = {"read": ["/pub/"]}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    base = tmp_path_factory.mktemp("shares")
    with keys.pair_with_keys(base, ("gate", GATE)) as pair:
        found = Keyed(pair, base)
        found.give({**USERS, "bob": {**USERS["bob"], **READER}})
        yield found


@pytest.fixture
def gateway(keyed: Keyed) -> Iterator[RunningGateway]:
    with keyed.gateway() as running:
        until(lambda: not running.gateway.callers.why, "the gateway knows the rules")
        yield running


def websocket(gateway: RunningGateway, user: str) -> Stranger:
    return Stranger(gateway, Authorization=f"Bearer {TOKENS[user]}")


def test_a_user_with_all_websockets_loses_the_longest_unused_ones(gateway: RunningGateway) -> None:
    gateway.gateway.lines.most = MOST
    alice = [websocket(gateway, "alice") for _ in range(MOST)]
    refused = websocket(gateway, "alice")
    assert [each.status for each in (*alice, refused)] == [101] * MOST + [429]
    alice[0].socket.sendall(masked(BINARY, put(0, 1, [b"\1\2/pub/\3"])) + masked(PING, b"used"))
    assert alice[0].hear(PONG) == b"used"
    bob = [websocket(gateway, "bob") for _ in range(MOST // 2 + 1)]
    assert [each.status for each in bob] == [101] * (MOST // 2) + [429], "nobody has more than bob by then"
    for each in alice[1 : 1 + MOST // 2]:
        closed = each.hear(CLOSE)
        assert int.from_bytes(closed[:2], "big") == 1001 and b"your user has most" in closed
    for each in (alice[0], *alice[1 + MOST // 2 :], *bob[:-1]):
        each.socket.sendall(masked(PING, b"there?"))
        assert each.hear(PONG) == b"there?"
    assert len(gateway.gateway.lines) == MOST


class Kept:
    """A connection that stays open between two requests of a user."""

    def __init__(self, gateway: RunningGateway, path: str = "/v1/keys/pub/none") -> None:
        self.socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        self._path = path

    def status(self, user: str) -> int:
        """Send a GET as a user, and return the status of the answer, or 0 if the connection is closed."""
        lines = [f"GET {self._path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKENS[user]}", "", ""]
        try:
            self.socket.sendall("\r\n".join(lines).encode())
            # The head and the body of the answer may come in several pieces.
            answer = HTTPResponse(self.socket)
            answer.begin()
            answer.read()
        except OSError:
            return 0
        return answer.status


def test_a_user_with_all_connections_makes_room_for_another_user(gateway: RunningGateway) -> None:
    protocol = gateway.server.config.http_protocol_class
    protocol.bounds = replace_connections(gateway, MOST)  # type: ignore[attr-defined]
    alice = [Kept(gateway) for _ in range(MOST - 1)]
    assert {each.status("alice") for each in alice} == {404}
    assert alice[0].status("alice") == 404
    bob = [Kept(gateway) for _ in range(3)]
    for each in bob:
        assert each.status("bob") == 404
    assert [each.status("alice") for each in alice].count(0) == 2 and alice[0].status("alice") == 404
    assert [each.status("bob") for each in bob] == [404, 404, 404]


def replace_connections(gateway: RunningGateway, most: int) -> object:
    return gateway.gateway.limits._replace(connections=most)
