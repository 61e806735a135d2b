"""kill -9 at every point where it could hurt: nothing acknowledged is lost, nothing is applied twice, writers go on."""

import shutil
import time
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import WAIT_S, until
from tests.wire.hand import Hand

from .faults import DyingPair, DyingServer, Load, both_kept_all, nothing_lost, other, wait_active

pytestmark = pytest.mark.slow
TURN = ("before-append", "before-sync", "before-publish", "before-ack")
SNAPSHOT = ("snapshot-chunk", "snapshot-commit", "snapshot-done")
# The values make several chunks of a snapshot.
FILLING = {f"/fill/{i}": bytes([i]) * 400_000 for i in range(16)}


def alone(directory: Path) -> DyingServer:
    """Return a server without a peer."""
    return DyingServer(directory, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1")


def fill(servers: list[str]) -> None:
    """Set values that fill several chunks of a snapshot."""
    with Clone(servers, None) as clone:
        clone.set_many(FILLING).wait(WAIT_S)


def test_the_active_dies_at_each_point_of_a_turn(tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair, Load(pair.servers) as load:
        for point in TURN:
            victim = pair.active()
            assert isinstance(victim, DyingServer), f"{point}: {pair.statuses()}"
            began = time.monotonic()
            victim.arm(point)
            victim.died()
            load.go_on()
            print(f"active killed {point}: outage {load.outage_s(began):.2f} s")
            victim.start()
            pair.wait_in_sync()
            load.go_on()
        both_kept_all(pair, load)


def test_the_passive_dies_at_each_point_of_a_turn(tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair, Load(pair.servers) as load:
        # A passive sends no acknowledgements, so leave out before-ack. At before-publish it dies before it confirms.
        for point in TURN[:3]:
            active = pair.active()
            assert active is not None, f"{point}: {pair.statuses()}"
            victim = other(pair, active)
            assert isinstance(victim, DyingServer)
            victim.arm(point)
            victim.died()
            load.go_on()
            assert wait_active(active)["in_sync"] is False
            victim.start()
            pair.wait_in_sync()
        both_kept_all(pair, load)


def test_a_pair_loses_nothing_if_both_servers_die_in_a_turn(tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair, Load(pair.servers) as load:
        for point in ("before-publish", "before-sync"):
            for server in (pair.primary, pair.backup):
                server.arm(point)
            victim = next(s for s in (pair.primary, pair.backup) if s is pair.active() or s.process)
            until(lambda: any(s.process and s.process.poll() for s in pair.both), "one to die")
            for server in (pair.primary, pair.backup):
                server.kill()
                server.disarm()
            assert victim.process is None
            pair.primary.start()
            pair.backup.start()
            pair.wait_in_sync()
            load.go_on()
        both_kept_all(pair, load)


def test_a_lone_server_dies_at_each_point_of_turns_and_snapshots(tmp_path: Path) -> None:
    server = alone(tmp_path).start()
    try:
        fill([server.address])
        with Load([server.address]) as load:
            for point in TURN + SNAPSHOT:
                server.arm(point)
                server.died()
                server.start()
                load.go_on()
            load.end()
            nothing_lost([server], load)
            with Clone([server.address], "/fill/") as clone:
                clone.wait_until_synced(WAIT_S)
                assert dict(clone) == FILLING
    finally:
        server.kill()


def test_the_active_dies_while_it_writes_its_snapshot(tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair:
        fill(pair.servers)
        with Load(pair.servers) as load:
            for point in SNAPSHOT[:2]:
                pair.wait_in_sync()
                victim = pair.active()
                assert isinstance(victim, DyingServer)
                victim.arm(point)
                victim.died()
                load.go_on()
                victim.start()
            both_kept_all(pair, load)


@pytest.mark.parametrize("point", ["replace-chunk", "replace-commit", "replace-done"])
def test_a_passive_dies_while_it_takes_over_a_whole_state(tmp_path: Path, point: str) -> None:
    # The active keeps so few records that an empty server gets the whole state.
    with DyingPair(tmp_path, "--retain-memory-bytes", "1MiB") as pair:
        fill(pair.servers)
        with Load(pair.servers, 1) as load:
            active = pair.active()
            assert active is not None
            victim = other(pair, active)
            assert isinstance(victim, DyingServer)
            victim.kill()
            shutil.rmtree(victim.data)
            victim.arm(point)
            victim.start()
            victim.died()
            victim.start()
            pair.wait_in_sync()
            load.end()
            # Now only the server that was empty has the data.
            active.kill()
            with Clone(pair.servers) as clone:
                clone.wait_until_synced(WAIT_S)
                missing = [key for key, value in {**load.acked, **FILLING}.items() if clone.get(key) != value]
                assert not missing


@pytest.mark.parametrize("point", ["before-publish", "before-ack"])
def test_a_batch_sent_again_after_a_restart_is_applied_once(tmp_path: Path, point: str) -> None:
    """The batch has a condition that does not hold a second time, so a second application would be refused."""
    server = alone(tmp_path).start()
    try:
        wait_active(server)
        session_id = bytes(range(16))
        with Hand(server.address) as hand:
            session = hand.session(session_id)
            session.put({"/first": b"1"})
            server.arm(point)
            session.send(["/a"], [b"once"], {"c": [[0], [0]]})
            server.died()
        server.start()
        number = wait_active(server)["sequence"]
        with Hand(server.address) as hand:
            session = hand.session(session_id)
            session.send(["/a"], [b"once"], {"c": [[0], [0]]}, no=2)
            assert session.acked(2)[0] > 0 and not session.refusals
            assert hand.status()["sequence"] == number, "nothing was applied again"
            session.send(["/b"], [b"next"], None, no=3)
            session.acked(3)
            assert hand.snapshot()[0] == {b"/first": b"1", b"/a": b"once", b"/b": b"next"}
    finally:
        server.kill()


@pytest.mark.parametrize("peer_timeout_s", [0.5, 20.0], ids=["beyond", "within"])
def test_the_active_returns_within_and_beyond_the_timeout(tmp_path: Path, peer_timeout_s: float) -> None:
    with DyingPair(tmp_path, peer_timeout_s=peer_timeout_s) as pair, Load(pair.servers) as load:
        victim = pair.active()
        assert victim is not None
        successor = other(pair, victim)
        victim.kill()
        if peer_timeout_s < 1:
            wait_active(successor)
        victim.start()
        pair.wait_in_sync()
        load.go_on()
        both_kept_all(pair, load)
