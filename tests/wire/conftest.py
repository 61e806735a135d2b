"""The fixtures of tests/wire: a gateway for all tests of a file, and a pair with keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_server.testing import Pair
from tests import talk
from tests.wire import keys
from tests.wire.gateways import RunningGateway


@pytest.fixture(scope="module")
def gateway(request: pytest.FixtureRequest) -> Iterator[RunningGateway]:
    """Start a gateway to a pair of its own; the file's mark `gateway` has its flags and limits."""
    mark = request.node.get_closest_marker("gateway")
    flags, limits = (mark.args, mark.kwargs) if mark else ((), {})
    with Pair(**talk.PATIENT) as pair, RunningGateway(pair.servers, *flags, **limits) as made:
        yield made


@pytest.fixture
def keyed_pair(tmp_path: Path) -> Iterator[Pair]:
    """Start two servers with keys, which know each other and alice."""
    with keys.pair_with_keys(tmp_path, ("alice", keys.ALICE)) as made:
        yield made
