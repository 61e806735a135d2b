"""covers: resource_limits.py and shell/resources.py: which sets are refused for want of room, and which are not."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chp.batch import ACK, REFUSED, Segment
from chp.messages import kvset
from chp_server.core.state.journal import JournalFull
from chp_server.core.updates.resource_limits import MIB, ResourceLimits, ResourceUsage
from chp_server.shell import resources
from chp_server.shell.resources import NO_ROOM_S, DiskMonitor, Gauge
from chp_server.store.sql.sqlite import log_bytes

from .server_talk import Talk

LEASE, NEW, TRANSACTION = b"L" * 16, b"N" * 16, b"T" * 16
SET = Segment(["/a"], [b"1"])


def refused(talk: Talk, *segments: Segment, seen: ResourceUsage | None = None) -> list[str]:
    """Return the codes and details of the refusals of a turn after a measurement."""
    return [f"{header[2]} {header[3]}" for header in talk.do(*segments, seen=seen) if header[0] == REFUSED]


def memory(used: int, of: int = 1000) -> ResourceUsage:
    """Return a measurement with so many MiB of memory in use."""
    return ResourceUsage(memory=used * MIB, memory_max=of * MIB)


def disk(free: int) -> ResourceUsage:
    """Return a measurement with so many MiB of free disk."""
    return ResourceUsage(disk_free=free * MIB)


KEPT: dict[str, Any] = {"disk_free_min": 64 * MIB}


@pytest.mark.parametrize(
    ("seen", "figures"),
    [
        (memory(1001), "memory: 1,001 MiB of 1,000 MiB are in use.*--max-memory"),
        (disk(63), "disk: 63 MiB are free, and 64 MiB must stay free.*--min-free-disk"),
        (ResourceUsage(memory=300 * MIB, address_left=-1), "memory: at 300 MiB.*ulimit -v"),
        (ResourceUsage(journal_full=True), "the journal had no room"),
    ],
)
def test_sets_without_room_are_refused_with_figures_and_the_remedy(seen: ResourceUsage, figures: str) -> None:
    server = Talk(**KEPT)
    (said,) = refused(server, SET, seen=seen)
    assert said.startswith("full ")
    assert re.search(figures, said)
    assert not refused(server, SET, seen=ResourceUsage()), "and there is room again"


GROWING = [
    SET,
    Segment(["/a", "/b"], [b"", b"1"], {"d": [0]}),
    Segment([], [], {"lease": [NEW, 5000]}),
    Segment(["/x"], [b"1"], {"stage": [TRANSACTION, "1"]}),
    Segment([], [], {"commit": [TRANSACTION, "job", 1, [["0", 1]], None]}),
]
OTHERS = [
    Segment(["/kept"], [b""], {"d": [0]}),
    Segment([], [], {"lease": [LEASE, 5000]}),
    Segment([], [], {"unlease": LEASE}),
    Segment([], [], {"abort": TRANSACTION}),
]


def begun(**settings: Any) -> Talk:
    """Return a server that holds something of each kind."""
    server = Talk(**settings)
    things = [
        Segment(["/kept"], [b"1"]), Segment([], [], {"lease": [LEASE, 5000]}),
        Segment(["/x"], [b"1"], {"stage": [TRANSACTION, "0"]}),
    ]  # fmt: skip
    assert not refused(server, *things)
    return server


@pytest.mark.parametrize("segment", GROWING, ids=Segment.describe)
def test_batches_that_make_the_state_larger_are_refused_without_room(segment: Segment) -> None:
    assert len(refused(begun(), segment, seen=memory(1001))) == 1


@pytest.mark.parametrize("segment", OTHERS, ids=lambda segment: str(segment.extras))
def test_deletes_and_ends_are_done_without_room(segment: Segment) -> None:
    assert [header[0] for header in begun().do(segment, seen=memory(1001))] == [ACK]


def test_bytes_taken_between_two_measurements_are_added_up() -> None:
    server, half = Talk(**KEPT), Segment(["/a"], [bytes(3 * MIB)])
    assert not refused(server, half, half, seen=disk(80))
    assert len(refused(server, half)) == 1, "12 of 16 MiB are spoken for, as a set is written twice"
    assert not refused(server, half, seen=disk(80)), "it was looked at, and no more is in use"


def test_a_full_server_refuses_sets_until_a_twentieth_is_free() -> None:
    server = Talk()
    assert refused(server, SET, seen=memory(1001))
    assert refused(server, SET, seen=memory(951)), "a twentieth has to be free"
    assert not refused(server, SET, seen=memory(949))
    assert not refused(server, SET, seen=memory(999)), "and then up to the bound"


def test_the_number_of_keys_is_bounded_and_existing_keys_may_be_set() -> None:
    server = Talk(keys_max=3)
    assert not refused(server, Segment(["/1", "/2"], [b"", b""]))
    (said,) = refused(server, Segment(["/2", "/3", "/4"], [b"", b"", b""]))
    assert "the map has 2, and may have 3" in said and "--max-keys" in said
    assert not refused(server, Segment(["/2", "/3", "/3"], [b"", b"", b""]))
    assert refused(server, Segment(["/4"], [b""])) and not refused(server, Segment(["/3"], [b"new"]))
    assert server.core.status()["room"]["why"]
    assert not refused(server, Segment(["/3"], [b""], {"d": [0]}), Segment(["/4"], [b""]))


def test_sets_of_chp1_without_room_are_dropped_and_counted() -> None:
    server = begun()
    server.core.measured(memory(1001))
    for key, value in (("/new", b"1"), ("/kept", b"")):
        server.core.collect(kvset(key, value))
    server.turn()
    assert not server.core.state.map.values and server.core.committer.counts["refused_full"] == 1


def test_keys_expire_without_room_too() -> None:
    server = Talk()
    server.do(Segment(["/a"], [b"1"], {"t": 500}))
    server.do(seen=memory(1001))
    assert not server.core.state.map.values


def test_the_status_has_the_figures() -> None:
    server = Talk(keys_max=5, **KEPT)
    refused(server, SET, seen=ResourceUsage(10 * MIB, 20 * MIB, None, 63 * MIB))
    room = server.core.status()["room"]
    assert room.pop("why").startswith("disk: 63 MiB")
    assert room == {
        "full": True, "memory": 10 * MIB, "memory_max": 20 * MIB, "disk_free": 63 * MIB, "disk_free_min": 64 * MIB,
        "keys_max": 5, "read_only": False,
    }  # fmt: skip


# -- looking


def test_default_bounds_are_shares_of_memory_and_disk(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "bounds", lambda: iter((1000 * MIB, 500 * MIB)))
    gauge = Gauge(None, None, f"sqlite:{tmp_path}")
    seen = gauge.measure(journal_full=False)
    assert seen.memory_max == 400 * MIB and 0 < seen.memory < 64 << 30
    disk = os.statvfs(str(tmp_path))
    assert gauge.disk_free_min == min(64 * MIB, disk.f_blocks * disk.f_frsize // 16) and seen.disk_free


@pytest.mark.parametrize("size", [8, 24, 512, 1024, 100_000])
def test_the_default_reserve_of_a_disk_has_room_for_a_checkpoint_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    disk = SimpleNamespace(f_blocks=size * 256, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert Gauge(None, None, f"sqlite:{tmp_path}").disk_free_min >= 4 * log_bytes(tmp_path / "journal.sqlite")


def test_zero_is_no_bound_and_a_memory_store_measures_no_disk() -> None:
    gauge = Gauge(0, 0, "memory:")
    seen = gauge.measure(journal_full=False)
    assert (seen.memory_max, seen.address_left, seen.disk_free, gauge.disk_free_min) == (None, None, None, 0)


def test_a_limit_on_address_space_gives_a_memory_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    address, resident = resources.used()
    monkeypatch.setattr(resources, "address_max", lambda: 2 * address)
    seen = Gauge(None, None, "memory:").measure(journal_full=False)
    assert seen.memory_max is not None and resident <= seen.memory_max <= 1.6 * address
    assert seen.address_left is not None and 0 < seen.address_left < 2 * address


def test_a_removed_journal_file_makes_the_server_read_only(tmp_path: Path) -> None:
    file = tmp_path / "journal.sqlite"
    gauge = Gauge(None, None, f"sqlite:{file}")
    assert not gauge.measure(journal_full=False).gone, "it is not there yet"
    file.write_bytes(b"1")
    assert not gauge.measure(journal_full=False).gone
    file.rename(tmp_path / "elsewhere")
    room = ResourceLimits()
    room.measured(gauge.measure(journal_full=False))
    assert "file was removed" in room.read_only and "chp dump" in room.why_not(1)
    file.write_bytes(b"another")
    assert gauge.measure(journal_full=False).gone


# -- a journal that had no room


class Disk(Gauge):
    """A gauge for which the test sets how much of the disk is free."""

    free = 0

    def __init__(self) -> None:
        super().__init__(0, 64 * MIB, "memory:")

    def _disk_free(self) -> int:
        return self.free * MIB


class Told:
    """A core that remembers what it was told of the room."""

    def measured(self, seen: ResourceUsage, *, aside: bool = False) -> str:
        self.seen = seen
        return ""


def test_the_journal_retains_less_below_four_times_the_reserve() -> None:
    core: Any = Told()
    disk = Disk()
    space = DiskMonitor(disk, 0.0)
    for free, lacks in ((256, 0), (255, 1), (100, 156)):
        disk.free = free
        space.look(core, 0.0)
        assert space.lacks == lacks * MIB
    disk.free = 1000
    space.no_room(core, JournalFull(""), 0.0)
    assert space.lacks == 256 * MIB, "a quota is not seen"
    space.look(core, 0.0)
    assert space.lacks == 0


@pytest.mark.parametrize(("free_then", "held"), [(0, False), (30, False), (500, True)])
def test_a_server_stays_read_only_until_room_is_seen_or_time_passes(
    monkeypatch: pytest.MonkeyPatch, free_then: int, *, held: bool
) -> None:
    now, told, disk = [100.0], Told(), Disk()
    monkeypatch.setattr("chp_server.shell.resources.time", SimpleNamespace(monotonic=lambda: now[0]))
    core: Any = told
    space = DiskMonitor(disk, now[0])
    disk.free = free_then
    space.no_room(core, JournalFull(""), now[0])
    assert told.seen.read_only and told.seen.journal_full
    now[0] += 0.1
    space.look(core, now[0])
    assert told.seen.read_only
    disk.free = 70
    space.look(core, now[0])
    assert told.seen.read_only, "the reserve that is let go is no room"
    disk.free = 500
    space.look(core, now[0])
    assert (told.seen.read_only, told.seen.journal_full) == (held, held), "a quota is not seen"
    now[0] += NO_ROOM_S
    space.look(core, now[0])
    assert not told.seen.read_only and not told.seen.journal_full


def test_a_snapshot_leaves_the_reserve_or_part_of_a_used_reserve() -> None:
    room = ResourceLimits(disk_free_min=100)
    fits = []
    for free, size in ((None, 1000), (200, 100), (200, 101), (124, 74), (124, 75), (60, 10), (60, 11), (12, 0)):
        room.measured(ResourceUsage(disk_free=free))
        fits.append(room.has_disk_for(size))
    assert fits == [True, True, False, True, False, True, False, False]
    room.measured(ResourceUsage(disk_free=124, journal_full=True))
    assert not room.has_disk_for(0)
