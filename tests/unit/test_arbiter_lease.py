"""Tests that a server which stopped serving releases the lease's node, since no server could serve otherwise."""

from types import SimpleNamespace
from typing import Any

import pytest

from chp_server.shell import arbiter as module
from chp_server.shell.arbiter import Arbiter

kazoo = pytest.importorskip("kazoo.exceptions", reason="kazoo is not installed")
OURS, THEIRS = 7, 8


class Keeper:
    """A ZooKeeper and kazoo's client of it, with one node at most; `lost` answers never arrive."""

    connected = True
    client_id = (OURS, b"")

    def __init__(self) -> None:
        self.owner: int | None = None
        self.lost = False
        self._connection = SimpleNamespace(_connect=None)

    def add_listener(self, _listener: Any) -> None:
        pass

    def create(self, _path: str, _value: bytes, **_options: Any) -> None:
        if self.owner is not None:
            raise kazoo.NodeExistsError
        self.owner = OURS
        if self.lost:
            raise kazoo.ConnectionLoss

    def exists(self, _path: str, **_options: Any) -> Any:
        return None if self.owner is None else SimpleNamespace(ephemeralOwner=self.owner)

    def sync(self, _path: str) -> None:
        pass

    def get(self, _path: str, **_options: Any) -> Any:
        raise kazoo.NoNodeError

    def delete(self, _path: str) -> None:
        self.owner = None


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    made = Keeper()
    monkeypatch.setattr(module, "_client", lambda *_: made)
    return made


@pytest.fixture
def arbiter(keeper: Keeper) -> Arbiter:
    return Arbiter("zk://host:2181/chp", "a")


def test_a_lease_in_doubt_that_is_not_wanted_any_more_is_released(arbiter: Arbiter, keeper: Keeper) -> None:
    arbiter.want(True)
    arbiter.check()
    assert arbiter.until > 0 and keeper.owner == OURS
    # The server steps down at once, and no longer wants the lease.
    arbiter.on_connection("SUSPENDED")
    arbiter.want(False)
    # The session is the same, so the node is still there.
    arbiter.on_connection("CONNECTED")
    arbiter.check()
    assert keeper.owner is None


def test_a_node_that_was_made_without_an_answer_is_released(arbiter: Arbiter, keeper: Keeper) -> None:
    keeper.lost = True
    arbiter.want(True)
    arbiter.check()
    assert arbiter.until == 0 and keeper.owner == OURS
    arbiter.want(False)
    arbiter.check()
    assert keeper.owner is None


def test_another_s_lease_is_left_alone(arbiter: Arbiter, keeper: Keeper) -> None:
    keeper.owner = THEIRS
    for wanted in (True, False):
        arbiter.want(wanted)
        arbiter.check()
    assert arbiter.until == 0 and keeper.owner == THEIRS
