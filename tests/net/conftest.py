"""The fixtures of tests/net: hosts whose links can be cut, and a pair on them with an arbiter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.net.cutting import Net, NetPair, NoNet
from tests.process.zookeeper import ZooKeeper, ZooKeeperError


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    try:
        with Net() as made:
            yield made
    except NoNet as error:
        pytest.skip(f"links can't be cut here: {error}")


@pytest.fixture
def arbitrated(net: Net, tmp_path: Path) -> Iterator[NetPair]:
    """Start a pair with an arbiter on host z."""
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    net.heal()
    keeper = ZooKeeper(tmp_path, net.address("z"), net.prefix("z"))
    try:
        keeper.start()
        with NetPair(net, tmp_path, "--arbiter", keeper.url(session_s=3.0)) as made:
            yield made
    except ZooKeeperError as error:
        pytest.skip(f"no ZooKeeper here: {error}")
    finally:
        net.heal()
        keeper.kill()
