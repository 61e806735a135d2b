"""Tests of the snapshotter over a real store, turn by turn: when snapshots are made, and the ttls in them."""

from pathlib import Path

import pytest

from chp.batch import Segment
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.snapshots import PUT_OFF_BYTES, Snapshotter, recover_snapshot
from chp_server.core.state.journal import Journal
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.resource_limits import ResourceUsage
from chp_server.store.store_url import open_journal

VALUE = bytes(1 << 20)


def core() -> ServerCore:
    return ServerCore(CoreConfig(), b"s" * 16, 0.0)


def turn(server: ServerCore, snapshotter: Snapshotter, journal: Journal, now: float, segment: Segment) -> None:
    server.begin_turn(now, now)
    server.collect([RESERVED_KEY, pack(round(now)), b"1" * 16, b"", segment.encode()])
    snapshotter.write(server.end_turn().journal, server)
    journal.sync()
    snapshotter.step(server)


@pytest.mark.parametrize("sync", ["always", "interval", "off"])
def test_row_bytes_stay_bounded_in_each_sync_mode(tmp_path: Path, sync: str) -> None:
    journal = open_journal(f"sqlite:{tmp_path}", sync=sync, retain_bytes=16 << 20)
    journal.load()
    server, snapshotter = core(), Snapshotter(journal, DEFAULT)
    for now in range(1, 61):
        turn(server, snapshotter, journal, now, Segment(["/k"], [VALUE]))
    assert int(journal.stats()["row_bytes"]) < 40 * len(VALUE)
    journal.close()


def test_a_ttl_in_a_snapshot_counts_from_the_write_of_its_chunk(tmp_path: Path) -> None:
    """A snapshot of a large map takes a while, and what is left of a ttl is measured chunk by chunk."""
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    server, snapshotter = core(), Snapshotter(journal, DEFAULT)
    turn(server, snapshotter, journal, 1.0, Segment(["/k"], [b"v"], {"t": 100_000}))
    snapshotter.begin(server)
    server.begin_turn(31.0, 31.0)
    while not snapshotter.step(server):
        pass
    found = Committed(DEFAULT)
    recover_snapshot(found, journal.load().snapshot, DEFAULT, 1000.0, 41.0)
    assert found.state.map.remaining_ms("/k", 1000.0) == 60_000
    journal.close()


def test_a_turn_with_records_puts_chunks_only_when_many_are_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    server, snapshotter = core(), Snapshotter(journal, DEFAULT)
    put: list[int] = []
    monkeypatch.setattr(journal, "put_snapshot", lambda body: put.append(len(body)))
    for now in range(1, 33):
        turn(server, snapshotter, journal, now, Segment([f"/{now}"], [VALUE]))
    snapshotter.give_up(0.0)
    put.clear()
    snapshotter.begin(server)
    # The image is gathered in the turns.
    for now in range(33, 43):
        turn(server, snapshotter, journal, now, Segment(["/small"], [VALUE]))
    assert not put and snapshotter.busy
    snapshotter.step(server)
    assert len(put) == 1, "a turn with nothing else puts a chunk"
    for now in range(43, 43 + PUT_OFF_BYTES // len(VALUE) - 12):
        turn(server, snapshotter, journal, now, Segment(["/small"], [VALUE]))
    assert len(put) == 1
    for now in range(47, 57):
        turn(server, snapshotter, journal, now, Segment(["/small"], [VALUE]))
    assert 4 <= len(put) <= 10, "as much as was written beyond what may be put off"
    journal.close()


MIB = 1 << 20


def short(server: ServerCore, free: int) -> None:
    """Tell the core how much of the disk is free."""
    server.measured(ResourceUsage(disk_free=free))


def test_no_snapshot_begins_if_the_disk_has_no_room_for_it(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    server = ServerCore(CoreConfig(disk_free_min=8 * MIB), b"s" * 16, 0.0)
    snapshotter = Snapshotter(journal, DEFAULT)
    for now in range(1, 21):
        short(server, 23 * MIB)
        turn(server, snapshotter, journal, now, Segment([f"/{now}"], [VALUE]))
    assert journal.snapshot_due() and not snapshotter.busy, "16 MiB would leave 7 free"
    short(server, 30 * MIB)
    server.begin_turn(20.5, 20.5)
    snapshotter.step(server)
    assert not snapshotter.busy, "that is asked again after some seconds"
    server.begin_turn(30.0, 30.0)
    snapshotter.step(server)
    assert snapshotter.busy
    short(server, 3 * MIB)
    snapshotter.step(server)
    assert not snapshotter.busy, "it is abandoned when half of the reserve is used"
    journal.close()


def test_deletes_make_room_on_a_short_disk(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:{tmp_path}")
    journal.load()
    server = ServerCore(CoreConfig(disk_free_min=8 * MIB), b"s" * 16, 0.0)
    snapshotter = Snapshotter(journal, DEFAULT)
    for now in range(1, 13):
        turn(server, snapshotter, journal, now, Segment([f"/{now}"], [VALUE]))
    short(server, 7 * MIB)
    turn(server, snapshotter, journal, 13, Segment(["/1"], [b""], {"d": [0]}))
    assert not snapshotter.busy, "the journal has about as much as the map"
    everything = [f"/{n}" for n in range(2, 13)]
    turn(server, snapshotter, journal, 14, Segment(everything, [b""] * 11, {"d": list(range(11))}))
    server.begin_turn(20.0, 20.0)
    snapshotter.step(server)
    assert snapshotter.busy, "the map is empty now, and the journal is not"
    journal.close()
