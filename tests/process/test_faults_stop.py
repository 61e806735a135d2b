"""Tests that a server which SIGSTOP held beyond all timeouts acknowledges nothing after it goes on.

covers: pair/beat.py, ports/beat_thread.py: a server that is busy for as long is not replaced, a stuck one is replaced
"""

import signal
from pathlib import Path

import pytest

from chp_client import Clone
from tests.talk import WAIT_S, until
from tests.wire.hand import Hand

from .cluster import ProcessPair
from .faults import AckEar, DyingPair, DyingServer, Load, both_kept_all, equal, nothing_lost, other, wait_active

pytestmark = pytest.mark.slow


def test_an_active_that_was_stopped_acknowledges_nothing_after_its_return(tmp_path: Path) -> None:
    """When the server goes on, it is still active, and messages of the meantime wait in its sockets."""
    with ProcessPair(tmp_path) as pair:
        stopped = pair.active()
        assert stopped is not None
        successor = other(pair, stopped)
        with AckEar(stopped.address) as ear, Hand(stopped.address) as hand, Clone(pair.servers) as clone:
            session = hand.session()
            session.put({"/before": b"1"})
            clone.set("/clone", b"1").wait(WAIT_S)
            until(ear.heard, "the ear to hear")
            stopped.signal(signal.SIGSTOP)
            meanwhile = session.send(["/meanwhile"], [b"2"])
            # Its successor acknowledges this set.
            clone.set("/clone", b"2").wait(WAIT_S)
            epoch = wait_active(successor)["epoch"]
            ear.heard()
            stopped.signal(signal.SIGCONT)
            pair.wait_in_sync()
            session.hear()
            assert meanwhile not in session.acks
            assert ear.heard() == [], "an acknowledgement left it after its successor's epoch"
            status = stopped.status()
            assert status is not None and status["state"] == "passive" and status["epoch"] == epoch
            again = session.send(["/again"], [b"3"])
            clone.set("/clone", b"3").wait(WAIT_S)
            equal(pair.both)
            session.hear()
            assert again not in session.acks and ear.heard() == []
            assert clone["/clone"] == b"3"


@pytest.mark.parametrize("point", ["before-append", "before-publish", "before-ack"])
def test_an_active_that_was_stopped_in_the_middle_of_a_turn_acknowledges_nothing(tmp_path: Path, point: str) -> None:
    """When the server goes on, it has already decided to acknowledge, and has not looked at its peer since."""
    with DyingPair(tmp_path) as pair:
        stopped = pair.active()
        assert isinstance(stopped, DyingServer)
        process = stopped.process
        assert process is not None
        with AckEar(stopped.address) as ear, Hand(stopped.address) as hand, Clone(pair.servers) as clone:
            session = hand.session()
            session.put({"/before": b"1"})
            until(ear.heard, "the ear to hear")
            stopped.arm(f"stop {point}")
            session.send(["/meanwhile"], [b"2"])
            status = Path(f"/proc/{process.pid}/status")
            until(lambda: "State:\tT" in status.read_text(), "it to stop")
            clone.set("/clone", b"2").wait(WAIT_S)
            wait_active(other(pair, stopped))
            ear.heard()
            stopped.signal(signal.SIGCONT)
            pair.wait_in_sync()
            assert ear.heard() == [], "an acknowledgement left it after its successor's epoch"
            equal(pair.both)
            assert (stopped.status() or {})["state"] == "passive"


def test_an_active_busy_for_longer_than_every_timeout_is_not_replaced(tmp_path: Path) -> None:
    """The busy active sends BEATs, and acknowledges at once after its turn, since no other server can have served."""
    with DyingPair(tmp_path) as pair, Load(pair.servers) as load:
        busy = pair.active()
        assert isinstance(busy, DyingServer)
        epoch = wait_active(busy)["epoch"]
        busy.arm("busy 4 before-append")
        load.go_on(5)
        busy.arm("busy 3 before-ack")
        load.go_on(5)
        pair.wait_in_sync()
        assert wait_active(busy)["epoch"] == epoch
        assert "paused" not in busy.log.read_text()
        load.end()
        nothing_lost(pair.both, load)


def test_an_active_that_is_stuck_in_a_turn_is_replaced(tmp_path: Path) -> None:
    with DyingPair(tmp_path) as pair, Load(pair.servers) as load:
        stuck = pair.active()
        assert isinstance(stuck, DyingServer)
        # A turn of 10 s counts as stuck. The connection to the peer stays up for another 3 s.
        stuck.arm("busy 20 before-append")
        load.go_on()
        until(lambda: pair.active() is other(pair, stuck), "the other to be the only active")
        pair.wait_in_sync()
        load.end()
        assert "stuck in a turn" in stuck.log.read_text()
        nothing_lost(pair.both, load)


def test_stopping_and_continuing_either_server_under_load_loses_nothing(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        for _ in range(2):
            active = pair.active()
            assert active is not None
            active.signal(signal.SIGSTOP)
            load.go_on()
            active.signal(signal.SIGCONT)
            pair.wait_in_sync()
            load.go_on()
        both_kept_all(pair, load)


def test_writers_go_on_without_a_stopped_passive(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        active = pair.active()
        assert active is not None
        passive = other(pair, active)
        passive.signal(signal.SIGSTOP)
        until(lambda: (active.status() or {}).get("in_sync") is False, "the active to go on alone")
        load.go_on()
        assert all(writer.durabilities[-1] == "journaled" for writer in load.writers)
        passive.signal(signal.SIGCONT)
        pair.wait_in_sync()
        load.go_on(4)
        assert all(writer.durabilities[-1] == "replicated" for writer in load.writers)
        both_kept_all(pair, load)
