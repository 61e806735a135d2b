"""Fixtures for all tests: servers in this process, on ports that nobody uses, and clients' sockets by hand."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from chp_server import testing
from chp_server.testing import Pair, TestServer
from tests.wire.hand import Hand

settings.register_profile("busy", deadline=None)  # a busy machine misses any deadline
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` records the traces of tests/scenarios and the vectors of SPEC.md anew; review the difference."""
    parser.addoption("--rewrite", action="store_true", help="record the traces and the vectors of SPEC.md anew")


def pytest_configure(config: pytest.Config) -> None:
    """Of test processes beside each other (`-n 2`), each takes its ports from a part of its own."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        part = int(worker["workerid"].removeprefix("gw")) * testing.PORTS // int(worker["workercount"])
        testing._PORTS = testing.ports_from(os.getppid() * 97 + part)


@pytest.fixture
def lone() -> Iterator[TestServer]:
    """A server without a peer, in memory, with a quick heartbeat."""
    with TestServer(heartbeat_s=0.1, retain_bytes=64 << 20) as server:
        yield server


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and a backup, in memory."""
    with Pair(heartbeat_s=0.1, peer_timeout_s=1.0) as both:
        yield both


@pytest.fixture
def hand(lone: TestServer) -> Iterator[Hand]:
    """A client's sockets at the lone server."""
    with Hand(lone.address) as made:
        yield made
