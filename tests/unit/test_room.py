"""covers: server/chp_server/core/room.py and measuring.py: what is refused for want of room, and what is not."""

import os
import re
from typing import Any

import pytest

from chp.batch import ACK, REFUSED, Segment, split
from chp.keys import RESERVED_KEY
from chp.messages import kvset
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.room import MIB, Measured
from chp_server.shell import measuring
from chp_server.shell.measuring import Gauge

ONE = b"1" * 16
LEASE, NEW, TRANSACTION = b"L" * 16, b"N" * 16, b"T" * 16
SET = Segment(["/a"], [b"1"])


class Lone:
    """A lone server, and one client of it."""

    def __init__(self, **settings: Any) -> None:
        self.core = ServerCore(CoreConfig(**settings), b"s" * 16, 0.0)
        self.now, self.no = 0.0, 0
        self.core.begin_turn(0.0, 0.0)
        self.core.end_turn()

    def told(self, *segments: Segment, seen: Measured | None = None) -> list[list[Any]]:
        """What a turn that begins with a measurement answers to some batches."""
        self.now += 1.0
        self.core.begin_turn(self.now, self.now)
        if seen is not None:
            self.core.measured(seen)
        for segment in segments:
            self.no += 1
            self.core.collect([RESERVED_KEY, pack(self.no), ONE, b"", segment.encode()])
        return [split(frames[4])[0] for frames in self.core.end_turn().acks]

    def refused(self, *segments: Segment, seen: Measured | None = None) -> list[str]:
        """The codes and details of what was refused."""
        return [f"{header[2]} {header[3]}" for header in self.told(*segments, seen=seen) if header[0] == REFUSED]


def memory(used: int, of: int = 1000) -> Measured:
    """So many MiB of memory in use."""
    return Measured(memory=used * MIB, memory_max=of * MIB)


def disk(free: int) -> Measured:
    """So many MiB free."""
    return Measured(disk_free=free * MIB)


KEPT = {"disk_free_min": 64 * MIB}


@pytest.mark.parametrize(
    ("seen", "figures"),
    [
        (memory(1001), "memory: 1,001 MiB of 1,000 MiB are in use.*--max-memory"),
        (disk(63), "disk: 63 MiB are free, and 64 MiB have to stay so.*--min-free-disk"),
        (Measured(memory=300 * MIB, address_left=-1), "memory: at 300 MiB.*ulimit -v"),
        (Measured(journal_full=True), "the journal had no room"),
    ],
)
def test_sets_without_room_are_refused_with_figures_and_the_remedy(seen: Measured, figures: str) -> None:
    lone = Lone(**KEPT)
    (said,) = lone.refused(SET, seen=seen)
    assert said.startswith("full ")
    assert re.search(figures, said)
    assert not lone.refused(SET, seen=Measured()), "and there is room again"


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


def begun(**settings: Any) -> Lone:
    """One that holds something of each kind."""
    lone = Lone(**settings)
    things = [
        Segment(["/kept"], [b"1"]), Segment([], [], {"lease": [LEASE, 5000]}),
        Segment(["/x"], [b"1"], {"stage": [TRANSACTION, "0"]}),
    ]  # fmt: skip
    assert not lone.refused(*things)
    return lone


@pytest.mark.parametrize("segment", GROWING, ids=Segment.describe)
def test_what_makes_the_map_larger_is_refused(segment: Segment) -> None:
    assert len(begun().refused(segment, seen=memory(1001))) == 1


@pytest.mark.parametrize("segment", OTHERS, ids=lambda segment: str(segment.extras))
def test_deletes_and_ends_are_done(segment: Segment) -> None:
    assert [header[0] for header in begun().told(segment, seen=memory(1001))] == [ACK]


def test_between_two_measurements_what_was_taken_is_added_up() -> None:
    lone, half = Lone(**KEPT), Segment(["/a"], [bytes(3 * MIB)])
    assert not lone.refused(half, half, seen=disk(80))
    assert len(lone.refused(half)) == 1, "12 of 16 MiB are spoken for, as a set is written twice"
    assert not lone.refused(half, seen=disk(80)), "it was looked at, and no more is in use"


def test_a_server_at_its_bound_does_not_change_its_mind_with_every_set() -> None:
    lone = Lone()
    assert lone.refused(SET, seen=memory(1001))
    assert lone.refused(SET, seen=memory(951)), "a twentieth has to be free"
    assert not lone.refused(SET, seen=memory(949))
    assert not lone.refused(SET, seen=memory(999)), "and then up to the bound"


def test_keys_are_counted_and_those_that_are_here_may_be_set() -> None:
    lone = Lone(keys_max=3)
    assert not lone.refused(Segment(["/1", "/2"], [b"", b""]))
    (said,) = lone.refused(Segment(["/2", "/3", "/4"], [b"", b"", b""]))
    assert "2 are here, and 3 may be" in said and "--max-keys" in said
    assert not lone.refused(Segment(["/2", "/3", "/3"], [b"", b"", b""]))
    assert lone.refused(Segment(["/4"], [b""])) and not lone.refused(Segment(["/3"], [b"new"]))
    assert lone.core.status()["room"]["why"]
    assert not lone.refused(Segment(["/3"], [b""], {"d": [0]}), Segment(["/4"], [b""]))


def test_sets_of_chp1_without_room_are_dropped_and_counted_and_deletes_are_done() -> None:
    lone = begun()
    lone.core.begin_turn(9.0, 9.0)
    lone.core.measured(memory(1001))
    for key, value in (("/new", b"1"), ("/kept", b"")):
        lone.core.collect(kvset(key, value))
    lone.core.end_turn()
    assert not lone.core.state.map.values and lone.core.commits.counts["refused_full"] == 1


def test_what_expires_goes_without_room_too() -> None:
    lone = Lone()
    lone.told(Segment(["/a"], [b"1"], {"t": 500}))
    lone.told(seen=memory(1001))
    assert not lone.core.state.map.values


def test_the_status_has_the_figures() -> None:
    lone = Lone(keys_max=5, **KEPT)
    lone.refused(SET, seen=Measured(10 * MIB, 20 * MIB, None, 63 * MIB))
    room = lone.core.status()["room"]
    assert room.pop("why").startswith("disk: 63 MiB")
    assert room == {
        "full": True, "memory": 10 * MIB, "memory_max": 20 * MIB, "disk_free": 63 * MIB, "disk_free_min": 64 * MIB,
        "keys_max": 5, "read_only": False,
    }  # fmt: skip


# -- looking


def test_without_settings_the_bounds_are_shares_of_what_there_is(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "bounds", lambda: iter((1000 * MIB, 500 * MIB)))
    gauge = Gauge(None, None, f"sqlite:{tmp_path}")
    seen = gauge.measure(journal_full=False)
    assert seen.memory_max == 400 * MIB and 0 < seen.memory < 64 << 30
    disk = os.statvfs(str(tmp_path))
    assert gauge.disk_free_min == min(64 * MIB, disk.f_blocks * disk.f_frsize // 16) and seen.disk_free


def test_zero_is_no_bound_and_what_is_not_on_a_disk_is_not_measured() -> None:
    gauge = Gauge(0, 0, "memory:")
    seen = gauge.measure(journal_full=False)
    assert (seen.memory_max, seen.address_left, seen.disk_free, gauge.disk_free_min) == (None, None, None, 0)


def test_a_limit_on_address_space_is_looked_at_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    address, resident = measuring.used()
    monkeypatch.setattr(measuring, "address_max", lambda: 2 * address)
    seen = Gauge(None, None, "memory:").measure(journal_full=False)
    assert seen.memory_max is not None and resident <= seen.memory_max <= 1.6 * address
    assert seen.address_left is not None and 0 < seen.address_left < 2 * address
