"""How long turns take, and what the long ones did. covers: turnclock.py, chp_turn_seconds"""

import time
from typing import Any

import pytest

from chp_server.shell import turnclock
from chp_server.shell.turnclock import BUCKETS_S, TurnClock


class Clocks:
    """Both clocks, by hand."""

    cpu = wall = 100.0

    def pass_s(self, seconds: float) -> None:
        self.cpu += seconds
        self.wall += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(time, "thread_time", lambda: made.cpu)
    monkeypatch.setattr(time, "monotonic", lambda: made.wall)
    return made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(turnclock.log, "limited", lambda event, **facts: lines.append({"event": event, **facts}))
    return lines


def turn(clock: TurnClock, clocks: Clocks, **laps: float) -> None:
    clock.begin(clocks.wall)
    for name, seconds in laps.items():
        clocks.pass_s(seconds)
        clock.lap(name)
    clock.end()


def test_turns_are_counted_by_the_processor_time_they_took(clocks: Clocks) -> None:
    clock = TurnClock()
    for seconds in (0.00005, 0.003, 0.003, 5.0):
        turn(clock, clocks, all=seconds)
    buckets, total = clock.histogram()
    assert dict(buckets) == {
        str(bound): float(sum(s <= bound for s in (0.00005, 0.003, 0.003, 5.0))) for bound in BUCKETS_S
    } | {"+Inf": 4.0}
    assert total == pytest.approx(5.00605)


def test_a_turn_that_waited_for_its_processor_is_not_a_long_one(clocks: Clocks, said: list[dict[str, Any]]) -> None:
    clock = TurnClock()
    clock.begin(clocks.wall)
    clocks.wall += 10
    clock.lap("nothing")
    clock.end()
    assert not said and clock.longest_s == 0


def test_a_long_turn_is_told_with_what_it_did(clocks: Clocks, said: list[dict[str, Any]]) -> None:
    clock = TurnClock()
    turn(clock, clocks, collector=0.001, commit=0.15, sending=0.05)
    assert said == [{"event": "a long turn", "cpu_ms": 201, "did": "commit 150 ms, sending 50 ms"}]
    assert clock.facts()["longest_ms"] == 201 and clock.facts()["longest_did"] == said[0]["did"]
    turn(clock, clocks, collector=0.05)
    assert len(said) == 1, "what others may do is told, not logged"
