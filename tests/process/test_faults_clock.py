"""Tests of clocks: steps of the wall clock change nothing, and ttls and leases go on across restarts and failovers."""

import ctypes.util
import glob
import os
import time
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.testing import free_port
from tests.talk import WAIT_S, until
from tests.wire.hand import Hand

from .cluster import ProcessPair, ServerProcess
from .faults import Load, nothing_lost, other, wait_active

HOUR_S = 3600
KVSET = [b"/k", bytes(8), bytes(range(16)), b"ttl=60\n", b"1"]


def faketime() -> str | None:
    """Return the path of the library that shifts a process's clock, or None if the library is not installed."""
    places = glob.glob("/usr/lib/*/faketime/libfaketime.so.1") + glob.glob("/usr/lib*/faketime/libfaketime.so.1")
    return next(iter(places), None) or ctypes.util.find_library("faketime")


class ShiftedServer:
    """A server process whose wall clock a test can step while it runs. Its monotonic clock stays."""

    def __init__(self, server: ServerProcess, library: str) -> None:
        self._file = server.log.with_suffix(".clock")
        self.step(0)
        server.environ |= {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, hours: float) -> None:
        """Set the wall clock of the server this many hours ahead of the real time."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{hours * HOUR_S:+.0f}\n")
        draft.replace(self._file)


@pytest.mark.slow
def test_steps_of_the_wall_clocks_cause_no_failover_or_expiry(tmp_path: Path) -> None:
    library = faketime()
    if library is None:
        pytest.skip("libfaketime is not installed (apt install libfaketime)")
    pair = ProcessPair(tmp_path, peer_timeout_s=5.0)
    clocks = [ShiftedServer(server, library) for server in pair.both]
    with pair, Load(pair.servers) as load, Clone(pair.servers) as clone:
        clone.set("/hour", b"1", ttl=HOUR_S).wait(WAIT_S)
        before = pair.statuses()[0]
        assert before is not None
        for hours in ((3, 0), (3, -5), (-7, 4), (0, 0), (-2, 9)):
            for clock, step in zip(clocks, hours, strict=True):
                clock.step(step)
            load.go_on(5)
            assert "/hour" in clone
        after = pair.statuses()[0]
        assert after is not None and after["epoch"] == before["epoch"], "no failover because of a clock"
        assert after["counts"].get("expired", 0) == 0
        victim = pair.active()
        assert victim is not None
        # The servers' clocks are eleven hours apart now.
        victim.kill()
        load.go_on()
        entry = clone.entry("/hour")
        assert entry is not None and entry.ttl is not None and 0 < entry.ttl <= HOUR_S
        victim.start()
        pair.wait_in_sync()
        load.end()
        nothing_lost(pair.both, load)
        with Clone(pair.servers) as fresh:
            fresh.wait_until_synced(WAIT_S)
            entry = fresh.entry("/hour")
            assert entry is not None and entry.ttl is not None and 0 < entry.ttl <= HOUR_S


def test_the_core_counts_ttls_by_the_monotonic_clock_alone() -> None:
    core = ServerCore(CoreConfig(), bytes(16), 100.0)
    core.begin_turn(100.0, 1.8e9)
    core.end_turn()
    core.begin_turn(100.1, 1.8e9)
    core.collect(KVSET)
    core.end_turn()
    assert core.active and "/k" in core.state.map.values
    for now, wall in ((101.0, 1.8e9 + 10 * HOUR_S), (110.0, 1.8e9 - 10 * HOUR_S), (159.0, 0.0), (160.0, 4e9)):
        core.begin_turn(now, wall)
        core.end_turn()
        assert "/k" in core.state.map.values, f"at {now}"
    core.begin_turn(160.2, 1.8e9)
    core.end_turn()
    assert "/k" not in core.state.map.values and core.active


@pytest.mark.slow
def test_a_ttl_goes_on_across_a_restart(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1").start()
    try:
        with Clone([server.address]) as clone:
            clone.set("/minute", b"1", ttl=60).wait(WAIT_S)
            clone.set("/short", b"1", ttl=0.5).wait(WAIT_S)
            since = time.monotonic()
        server.kill()
        until(lambda: time.monotonic() > since + 0.6, "the short one's end")
        server.start()
        wait_active(server)
        with Clone([server.address]) as clone:
            clone.wait_until_synced(WAIT_S)
            passed = time.monotonic() - since
            entry = clone.entry("/minute")
            assert entry is not None and entry.ttl is not None
            assert entry.ttl <= 60 - 0.6, f"it began anew: {entry.ttl} left after {passed}"
            assert entry.ttl > 0
            until(lambda: "/short" not in clone, "the short one to go")
    finally:
        server.kill()


@pytest.mark.slow
def test_ttls_and_leases_go_on_across_a_failover(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Clone(pair.servers) as clone:
        active = pair.active()
        assert active is not None
        successor = other(pair, active)
        # The holder of this lease never refreshes it.
        with Hand(active.address) as hand:
            hand.session().put({"/gone": b"1"}, lease=[b"g" * 16, 3000], l=b"g" * 16)
        # The Clone goes on refreshing its own lease.
        lease = clone.lease(3.0)
        lease.set("/held", b"1").wait(WAIT_S)
        clone.set("/minute", b"1", ttl=60).wait(WAIT_S)
        clone.set("/for-ever", b"1").wait(WAIT_S)
        since = time.monotonic()
        assert "/gone" in clone
        active.kill()
        clone.set("/after", b"1").wait(WAIT_S)
        assert wait_active(successor)["leases"] == 2
        until(lambda: "/gone" not in clone, "the lease of the one that is gone to end")
        until(lambda: time.monotonic() > since + 4.0, "a ttl of the lease more")
        assert "/held" in clone and "/for-ever" in clone
        with Clone([successor.address]) as fresh:
            fresh.wait_until_synced(WAIT_S)
            entry = fresh.entry("/minute")
            assert entry is not None and entry.ttl is not None and 0 < entry.ttl <= 60 - (time.monotonic() - since) + 1
        lease.close()
        until(lambda: "/held" not in clone, "its keys to go")


def test_the_path_found_for_libfaketime_exists() -> None:
    """LD_PRELOAD takes a path, or a name that the loader looks for."""
    library = faketime()
    assert library is None or os.path.exists(library) or "/" not in library
