"""Requests of the right form with values that no client of ours sends: each is answered, and the server goes on."""

from typing import Any

import pytest

from chp_server.testing import TestServer
from tests.wire.hand import Hand, parts_of, receive

OPTIONS: list[dict[str, Any]] = [
    {"from": None},
    {"feed": True, "until": -1},
    {"feed": True, "until": None},
    {"feed": True, "probe": -1},
    {"credit": -1},
    {"image": 1, "part": 0, "parts": -1},
    {"image": 1, "part": 0, "parts": 4097},
    {"image": b"0123456789abcdef"},
    {"image": 0, "prefix": b"/"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_request_with_invalid_options_is_refused(server: TestServer, options: dict[str, Any]) -> None:
    with Hand(server.address) as hand:
        dealer = hand.dealer()
        request = hand.ask(dealer, "", **options)
        assert parts_of(receive(dealer))[0][:3] == [7, request, "bad"]
        assert hand.sync()[-1][0][0] == 5, "the server goes on"


def test_a_feed_from_a_negative_number_is_not_retained(server: TestServer) -> None:
    with Hand(server.address) as hand:
        assert hand.sync("", feed=True, **{"from": -1})[-1][0][2] == "retained"
        assert hand.sync()[-1][0][0] == 5, "the server goes on"
