"""The fixtures of tests/net: hosts whose links can be cut, and a pair on them with an arbiter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.net.cutting import Net, NetPair, NoNet
from tests.process.etcd import Etcd, EtcdError
from tests.process.zookeeper import ZooKeeper, ZooKeeperError


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    try:
        with Net() as made:
            yield made
    except NoNet as error:
        pytest.skip(f"links can't be cut here: {error}")


def arbitrated_by(net: Net, tmp_path: Path, keeper: ZooKeeper | Etcd) -> Iterator[NetPair]:
    """Start a pair with this arbiter on host z."""
    net.heal()
    try:
        keeper.start()
        with NetPair(net, tmp_path, *keeper.flags(session_s=3.0)) as made:
            yield made
    except (ZooKeeperError, EtcdError) as error:
        pytest.skip(f"no arbiter here: {error}")
    finally:
        net.heal()
        keeper.kill()


@pytest.fixture
def arbitrated(net: Net, tmp_path: Path) -> Iterator[NetPair]:
    """Start a pair with a ZooKeeper on host z."""
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    yield from arbitrated_by(net, tmp_path, ZooKeeper(tmp_path, net.address("z"), net.prefix("z")))


@pytest.fixture
def arbitrated_by_etcd(net: Net, tmp_path: Path) -> Iterator[NetPair]:
    """Start a pair with an etcd on host z."""
    yield from arbitrated_by(net, tmp_path, Etcd(tmp_path, net.address("z"), net.prefix("z")))
