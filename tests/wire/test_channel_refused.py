"""Tests of a Clone and an AsyncClone for whose subtree a server has no room.

covers: REFUSED `busy` on a subtree's topic, from the server to what `wait_until_synced` says (SPEC.md, section 15).
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from chp.limits import DEFAULT
from chp_client import AsyncClone, Clone
from chp_server.testing import TestServer
from tests.talk import WAIT_S, run
from tests.wire.hand import REFUSED, Hand, parts_of, receive, topic


@pytest.fixture
def full() -> Iterator[TestServer]:
    """Start a server with room for one channel, which a Clone has."""
    with TestServer(replace(DEFAULT, channels_max=1)) as server, Clone(server.address, "/first/") as first:
        first.wait_until_synced(WAIT_S)
        yield server


def test_a_refused_clone_names_the_reason_and_syncs_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    with TestServer(replace(DEFAULT, channels_max=1)) as server:
        first = Clone(server.address, "/first/")
        first.wait_until_synced(WAIT_S)
        with Clone(server.address, "/second/") as second:
            with caplog.at_level(logging.WARNING, "chp_client"), pytest.raises(TimeoutError, match="too many channels"):
                second.wait_until_synced(2.0)
            assert "refused the subscription of '/second/', busy" in caplog.text
            first.close()
            second.wait_until_synced(WAIT_S)
            assert "refused" not in second.describe()


def test_a_refused_async_clone_names_the_reason(full: TestServer) -> None:
    async def attempt() -> None:
        async with AsyncClone(full.address, "/second/") as second:
            with pytest.raises(TimeoutError, match="too many channels"):
                await second.wait_until_synced(2.0)
            assert "too many channels" in second.refused

    asyncio.run(attempt())


def test_chp_get_reports_a_refused_subscription_without_advice_to_wait(full: TestServer) -> None:
    result = run("--servers", full.address, "--timeout", "2", "get", "/second/x")
    assert result.exit_code == 4
    assert "refuses the subscription of '/second/', busy: too many channels" in result.output
    assert "--timeout" not in result.output


def test_a_client_with_too_many_channels_always_hears_the_refusal() -> None:
    """A thousand greetings fill the high-water mark of the server's socket, which may drop what comes behind them."""
    n = DEFAULT.topics_of_one_max + 1
    with TestServer(heartbeat_s=0.1) as server:
        for _ in range(8):
            with Hand(server.address) as hand:
                heard = hand.subscriber(*(topic(f"/{i}/") for i in range(n)), SNDHWM=0)
                while parts_of(receive(heard))[0][0] != REFUSED:
                    pass
