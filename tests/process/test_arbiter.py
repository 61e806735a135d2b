"""Tests with a real ZooKeeper or etcd as the arbiter: only the holder of its lease acknowledges and is active."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp.limits import DEFAULT
from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.core.asks import Vote
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.arbitration import Members
from chp_server.settings.config import Config
from chp_server.shell.arbiter import Arbiter, ArbiterError, open_store
from chp_server.shell.lease_store import LeaseStore
from tests.talk import WAIT_S, until
from tests.wire.hand import Hand

from .cluster import ProcessPair, ServerProcess
from .etcd import Etcd, EtcdError
from .faults import AckEar, Load, both_kept_all, equal, nothing_lost, other, wait_active
from .zookeeper import ZooKeeper, ZooKeeperError

Keeper = ZooKeeper | Etcd
slow = pytest.mark.slow


class Keepers:
    """The arbiters that were started, by kind; each starts once, when a test first wants it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Keeper] = {}

    def get(self, kind: str) -> Keeper:
        """Return a running arbiter, or skip the test."""
        if kind not in self._made:
            if kind == "zookeeper":
                pytest.importorskip("kazoo", reason="kazoo is not installed")
            directory = self._directory / kind
            directory.mkdir(exist_ok=True)
            if kind == "zookeeper":
                made: Keeper = ZooKeeper(directory)
            else:
                made = Etcd(directory, tls=kind == "etcd-tls")
            try:
                self._made[kind] = made.start()
            except (ZooKeeperError, EtcdError) as error:
                pytest.skip(f"no {kind} here: {error}")
        return self._made[kind]

    def end(self) -> None:
        """Kill all arbiters."""
        for made in self._made.values():
            made.kill()


@pytest.fixture(scope="module")
def keepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keepers]:
    made = Keepers(tmp_path_factory.mktemp("keepers"))
    yield made
    made.end()


@pytest.fixture(params=["zookeeper", "etcd"])
def keeper(request: pytest.FixtureRequest, keepers: Keepers) -> Keeper:
    return keepers.get(request.param)


@pytest.fixture
def zookeeper(keepers: Keepers) -> Keeper:
    return keepers.get("zookeeper")


@pytest.fixture
def pair(keeper: Keeper, tmp_path: Path) -> ProcessPair:
    return ProcessPair(tmp_path, *keeper.flags(f"/chp/{tmp_path.name}"))


def store_of(url: str, name: str) -> LeaseStore:
    """Return the store of a server with this name, not connected yet."""
    return open_store(Config(role="primary", peer="tcp://127.0.0.1:1", name=name, arbiter=url))


def state(server: ServerProcess) -> str | None:
    """Return the state of a server, or None if it does not answer."""
    return (server.status() or {}).get("state")


def test_the_session_limit_of_zookeeper_bounds_the_lease(zookeeper: Keeper) -> None:
    """The maxSessionTimeout of this ZooKeeper is 20 s."""
    arbiter = Arbiter(store_of(zookeeper.url("/chp/long", session_s=60.0), "a"))
    arbiter.start()
    try:
        arbiter.want(True)
        until(lambda: 0 < arbiter.until < time.monotonic() + 20, "the lease")
    finally:
        arbiter.close()


@slow
def test_the_active_is_killed_and_the_other_takes_over_when_the_session_ends(pair: ProcessPair) -> None:
    with pair, Load(pair.servers) as load:
        assert pair.primary.status() is not None
        for _ in range(3):
            victim = pair.active()
            assert victim is not None
            since = time.monotonic()
            victim.kill()
            load.go_on()
            print(f"takeover after kill -9, sessions of 1 s: outage {load.outage_s(since):.2f} s")
            victim.start()
            pair.wait_in_sync()
            load.go_on()
        both_kept_all(pair, load)


@slow
def test_an_active_stopped_past_its_session_acknowledges_nothing(pair: ProcessPair) -> None:
    with pair:
        stopped = pair.active()
        assert stopped is not None
        with AckEar(stopped.address) as ear, Hand(stopped.address) as hand, Clone(pair.servers) as clone:
            session = hand.session()
            session.put({"/before": b"1"})
            until(ear.heard, "the ear to hear")
            stopped.signal(signal.SIGSTOP)
            meanwhile = session.send(["/meanwhile"], [b"2"])
            clone.set("/clone", b"2").wait(WAIT_S)
            ear.heard()
            stopped.signal(signal.SIGCONT)
            pair.wait_in_sync()
            session.hear()
            assert meanwhile not in session.acks and ear.heard() == []
            assert state(stopped) == "passive"


@slow
def test_a_pair_acknowledges_nothing_while_its_arbiter_is_stopped(pair: ProcessPair, keeper: Keeper) -> None:
    """The arbiter is stopped and not ended, so the lease lives on, and no other server could have taken it."""
    with pair, Clone(pair.servers) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
        active = pair.active()
        assert active is not None
        keeper.signal(signal.SIGSTOP)
        try:
            until(lambda: state(active) == "passive", "the active to stop serving")
            ticket = clone.set("/a", b"2")
            assert {state(server) for server in pair.both} == {"passive"}
            epochs = {(server.status() or {})["epoch"] for server in pair.both}
            with pytest.raises(TimeoutError):
                # The wait is three sessions long.
                ticket.wait(3.0)
            assert {state(server) for server in pair.both} == {"passive"}
            assert {(server.status() or {})["epoch"] for server in pair.both} == epochs
        finally:
            keeper.signal(signal.SIGCONT)
        ticket.wait(WAIT_S)
        pair.wait_in_sync()
        equal(pair.both)


@slow
def test_a_pair_serves_again_after_its_arbiter_is_killed_and_restarted(pair: ProcessPair, keeper: Keeper) -> None:
    with pair, Load(pair.servers) as load:
        keeper.kill()
        until(lambda: {state(server) for server in pair.both} == {"passive"}, "nobody to serve")
        stopped_at = time.monotonic()
        until(lambda: time.monotonic() > stopped_at + 1.0, "a while")
        assert all(writer.times[-1] <= stopped_at + 0.5 for writer in load.writers), "acknowledged without a lease"
        keeper.start()
        load.go_on()
        pair.wait_in_sync()
        load.end()
        nothing_lost(pair.both, load)


@slow
def test_switch_hands_over_the_lease(pair: ProcessPair) -> None:
    with pair, Load(pair.servers) as load:
        for n in range(2):
            active = pair.active()
            assert active is not None
            # There is a pause between two hand-overs.
            time.sleep(DEFAULT.switch_pace_s if n else 0)
            since = time.monotonic()
            with Admin([active.address], WAIT_S) as admin:
                admin.ask(active.address, "switch")
            wait_active(other(pair, active))
            pair.wait_in_sync()
            load.go_on()
            assert pair.active() is other(pair, active)
            print(f"outage of a switch with an arbiter: {1000 * load.outage_s(since):.0f} ms")
        both_kept_all(pair, load)


@slow
def test_a_pair_waits_while_another_program_holds_the_lease(pair: ProcessPair, keeper: Keeper, tmp_path: Path) -> None:
    somebody = open_store(Config(role="primary", peer="tcp://a:1", arbiter=keeper.url(f"/chp/{tmp_path.name}", 2.0)))
    other_one = Arbiter(somebody)
    other_one.start()
    try:
        other_one.want(True)
        until(lambda: other_one.until, "the lease of somebody else")
        for server in pair.both:
            server.start()
        until(lambda: all(((s.status() or {}).get("peer") or {}).get("alive") for s in pair.both), "both to meet")
        with Clone(pair.servers) as clone:
            ticket = clone.set("/a", b"1")
            with pytest.raises(TimeoutError):
                ticket.wait(2.0)
            assert all(state(server) != "active" for server in pair.both)
            other_one.want(False)
            ticket.wait(WAIT_S)
            pair.wait_in_sync()
    finally:
        other_one.close()
        for server in pair.both:
            server.kill()


@slow
def test_a_pair_trusts_an_etcd_whose_certificate_it_knows(keepers: Keepers, tmp_path: Path) -> None:
    etcd = keepers.get("etcd-tls")
    with ProcessPair(tmp_path, *etcd.flags("/chp/tls")) as pair, Clone(pair.servers) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
    wrong = open_store(Config(role="primary", peer="tcp://a:1", arbiter=etcd.url("/chp/tls")))
    with pytest.raises(ArbiterError, match="certificate"):
        wrong.start(lambda _: None, lambda: None, lambda: True)


@slow
def test_a_pair_logs_in_to_etcd_by_user_and_password(keepers: Keepers, tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    try:
        etcd.start()
    except EtcdError as error:
        pytest.skip(f"no etcd here: {error}")
    try:
        for words in ("user add root:r@ot", "role add root", "user grant-role root root", "auth enable"):
            assert etcd.control(*words.split()).returncode == 0, words
        url = etcd.url("/chp/auth").replace("etcd://", "etcd://root:r%40ot@")
        with ProcessPair(tmp_path, "--arbiter", url) as pair, Clone(pair.servers) as clone:
            clone.set("/a", b"1").wait(WAIT_S)
            # The authentication tokens of an etcd member are lost when the member ends.
            etcd.kill()
            etcd.start()
            clone.set("/a", b"2").wait(WAIT_S)
        for secret in ("root:wrong@", ""):
            refused = store_of(etcd.url("/chp/auth").replace("etcd://", f"etcd://{secret}"), "a")
            with pytest.raises(ArbiterError, match=r"authentication failed|user name is empty"):
                refused.start(lambda _: None, lambda: None, lambda: False)
    finally:
        etcd.kill()


def leased_core(until: float) -> ServerCore:
    """Return an active that has the lease until a time, and has not heard its peer yet."""
    config = CoreConfig(has_peer=True, has_arbiter=True, peer_timeout_s=10.0, solo_wait_s=0.0, bootstrap=True)
    core = ServerCore(config, bytes(16), 100.0)
    core.pair.arbitration.hear(until, Members(-1, frozenset(), 0))
    core.begin_turn(100.1, 0.0)
    core.end_turn()
    assert core.active
    return core


def test_a_server_withholds_acknowledgements_if_its_lease_ends_within_the_turn() -> None:
    """When the lease has ended, the other server may have it, even if peer_timeout_s is longer."""
    core = leased_core(101.6)
    acks = [[b"ack"]]
    assert core.release.may_leave(acks, core.turn.now, 101.5) == acks
    assert core.release.may_leave(acks, core.turn.now, 101.7) == []
    core.begin_turn(101.8, 0.0)
    assert not core.active and core.end_turn().acks == []


def test_a_core_without_its_lease_ignores_votes() -> None:
    core = leased_core(101.6)
    core.begin_turn(102.0, 0.0)
    core.end_turn()
    assert not core.active and not core.do(Vote()) and core.pair.asks_arbiter()[0]
    core.pair.arbitration.hear(104.0, core.pair.arbitration.members)
    core.begin_turn(102.5, 0.0)
    assert core.do(Vote())


def test_the_arbiters_thread_ends_with_the_server(keeper: Keeper, tmp_path: Path) -> None:
    from chp_server.testing import TestServer, free_port

    before = threading.active_count()
    peer = f"tcp://127.0.0.1:{free_port()}"
    with TestServer(
        peer=peer, role="primary", arbiter=keeper.url("/chp/threads"), solo_wait_s=0.1, bootstrap=True
    ) as server:
        until(lambda: server.server is not None and server.server.core.active, "it to serve")
    until(lambda: threading.active_count() <= before, "its threads to end")
