"""Tests of the arbiter's lease: when it counts as held, and that a server which stopped serving releases it."""

from types import SimpleNamespace
from typing import Any

import pytest

from chp_server.shell import zookeeper as module
from chp_server.shell.arbiter import Arbiter
from chp_server.shell.etcd import EtcdError, EtcdStore
from chp_server.shell.zookeeper import ZooKeeperStore

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
    return Arbiter(ZooKeeperStore("host:2181", "/chp", "a", 2.0))


def test_a_lease_in_doubt_that_is_not_wanted_any_more_is_released(arbiter: Arbiter, keeper: Keeper) -> None:
    arbiter.want(True)
    arbiter.check()
    assert arbiter.until > 0 and keeper.owner == OURS
    # The server steps down at once, and no longer wants the lease.
    arbiter.doubt("suspended")
    arbiter.want(False)
    # The session is the same, so the node is still there.
    arbiter.look()
    arbiter.check()
    assert keeper.owner is None


def test_a_node_is_released_although_the_answer_to_its_creation_was_lost(arbiter: Arbiter, keeper: Keeper) -> None:
    keeper.lost = True
    arbiter.want(True)
    arbiter.check()
    assert arbiter.until == 0 and keeper.owner == OURS
    arbiter.want(False)
    arbiter.check()
    assert keeper.owner is None


def test_the_lease_of_another_server_is_left_alone(arbiter: Arbiter, keeper: Keeper) -> None:
    keeper.owner = THEIRS
    for wanted in (True, False):
        arbiter.want(wanted)
        arbiter.check()
    assert arbiter.until == 0 and keeper.owner == THEIRS


class Etcd:
    """An etcd with one lease and one key at most. `stale` is a leader of an older term that answers keep-alives."""

    def __init__(self) -> None:
        self.lease = self.owner = ""
        self.term, self.stale = "2", False
        self.asked: list[str] = []
        # The next answers that are lost on their way.
        self.lost = 0

    def post(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer as the JSON gateway does."""
        self.asked.append(method)
        answer = getattr(self, method.replace("/", "_"))(fields)
        if self.lost:
            self.lost -= 1
            raise OSError("timed out")
        return {"header": {"raft_term": self.term, "revision": "7"}, **answer}

    def kv_range(self, _fields: dict[str, Any]) -> dict[str, Any]:
        return {"kvs": [{"lease": self.owner}]} if self.owner else {}

    def lease_grant(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.lease = str(len(self.asked))
        return {"ID": self.lease, "TTL": str(fields["TTL"])}

    def lease_keepalive(self, fields: dict[str, Any]) -> dict[str, Any]:
        lives = self.stale or fields["ID"] == self.lease
        header = {"raft_term": "1" if self.stale else self.term}
        return {"result": {"header": header, **({"TTL": "2"} if lives else {})}}

    def lease_revoke(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields["ID"] == self.owner:
            self.owner = self.lease = ""
        return {}

    def kv_txn(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.owner:
            return {"responses": [{"response_range": self.kv_range({})}]}
        self.owner = fields["success"][0]["request_put"]["lease"]
        return {"succeeded": True}


@pytest.fixture
def etcd() -> Etcd:
    return Etcd()


@pytest.fixture
def store(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> EtcdStore:
    made = EtcdStore(["e1:1", "e2:1"], "/chp", "a", 2.0)
    monkeypatch.setattr(made, "_post", etcd.post)
    return made


def test_an_etcd_lease_is_taken_once_and_then_renewed(store: EtcdStore, etcd: Etcd) -> None:
    assert store.hold() and store.hold()
    assert etcd.asked == ["kv/range", "lease/grant", "kv/txn", "lease/keepalive", "kv/range"]
    assert store.release() and not etcd.owner


def test_no_lease_of_etcd_is_asked_for_while_another_server_has_the_key(store: EtcdStore, etcd: Etcd) -> None:
    etcd.owner = "of the other"
    assert not store.hold() and etcd.asked == ["kv/range"]


def test_a_keep_alive_of_a_leader_that_was_replaced_does_not_count(store: EtcdStore, etcd: Etcd) -> None:
    """The key lives on for a while under the new leader, whose time for the lease began earlier."""
    assert store.hold()
    etcd.stale = True
    assert not store.hold()


def test_a_lease_of_etcd_that_has_ended_is_taken_anew(store: EtcdStore, etcd: Etcd) -> None:
    assert store.hold()
    etcd.lease = etcd.owner = ""
    assert store.hold() and etcd.owner == etcd.lease != ""


@pytest.mark.parametrize("method", ["kv/range", "lease/grant", "kv/txn"])
def test_a_request_whose_answer_is_lost_is_sent_to_the_next_endpoint(
    store: EtcdStore, etcd: Etcd, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that is sent again finds the key of the first one, which is its own."""

    def post(asked: str, fields: dict[str, Any]) -> dict[str, Any]:
        etcd.lost = int(asked == method and method not in etcd.asked)
        return etcd.post(asked, fields)

    monkeypatch.setattr(store, "_post", post)
    assert store.hold() and etcd.asked.count(method) == 2


def test_an_etcd_that_does_not_answer_at_all_is_an_error(store: EtcdStore, etcd: Etcd) -> None:
    etcd.lost = 99
    with pytest.raises(EtcdError, match="timed out"):
        store.hold()
    assert len(etcd.asked) == 3
