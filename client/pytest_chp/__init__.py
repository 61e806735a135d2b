"""Fixtures for the tests of programs that use a Clone; pytest finds these fixtures if this package is installed.

    def test_a_rate_is_shown(chp_clone):
        chp_clone["/rates/EUR/USD"] = b"1.0832"
        assert my_program.rate("EUR", "USD") == 1.0832      # its `Clone()` follows the same pair

chp_pair    a primary and a backup inside the test's process, in memory, on free ports: `.servers`, `.kill()`, `.cut()`
chp_clone   a Clone of everything on the pair, synced

Each test has a pair of its own, so it leaves nothing for the next test. While a test runs, CHP_SERVERS names the pair,
and CHP_CLIENT_FILE and CHP_CLIENT are not set. This module imports no other part of the project before a test asks for
a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chp_client import Clone
    from chp_server.testing import Pair

SYNCED_S = 30.0


@pytest.fixture
def chp_pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A pair of servers inside this process, in memory; see `chp_server.testing.Pair`."""
    from chp_server.testing import Pair

    with Pair(heartbeat_s=0.1, peer_timeout_s=1.0) as pair:
        monkeypatch.setenv("CHP_SERVERS", ",".join(pair.servers))
        for other in ("CHP_CLIENT_FILE", "CHP_CLIENT"):
            monkeypatch.delenv(other, raising=False)
        yield pair


@pytest.fixture
def chp_clone(chp_pair: Pair) -> Iterator[Clone]:
    """A Clone of all that the pair holds, synced; its values are bytes."""
    from chp_client import Clone

    with Clone(chp_pair.servers) as clone:
        clone.wait_until_synced(SYNCED_S)
        yield clone
