"""Tests of the times of turns, and of the waits that they cause. covers: turn_clock.py, chp_turn_seconds"""

import time
from collections import Counter, deque
from typing import Any

import pytest

from chp_server.core.updates.acks import Acks
from chp_server.core.updates.turn import Turn
from chp_server.shell import turn_clock
from chp_server.shell.turn_clock import BUCKETS_S, TurnClock, WaitTimes


class Clocks:
    """Both clocks, which a test moves."""

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
    monkeypatch.setattr(turn_clock.log, "limited", lambda event, **facts: lines.append({"event": event, **facts}))
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


def test_a_long_turn_is_logged_with_its_longest_steps(clocks: Clocks, said: list[dict[str, Any]]) -> None:
    clock = TurnClock()
    turn(clock, clocks, collector=0.001, commit=0.15, sending=0.05)
    assert said == [{"event": "a long turn", "cpu_ms": 201, "did": "commit 150 ms, sending 50 ms"}]
    assert clock.facts()["longest_ms"] == 201 and clock.facts()["longest_did"] == said[0]["did"]
    turn(clock, clocks, collector=0.05)
    assert len(said) == 1, "what others may do is told, not logged"


def counted(waits: WaitTimes) -> dict[str, float]:
    """Return the number of acknowledgements in each bucket that has any."""
    found, before = dict[str, float](), 0.0
    for bound, count in waits.acks.told()[0]:
        if count > before:
            found[bound], before = count - before, count
    return found


def test_the_age_of_an_answer_counts_from_the_turn_of_its_set(clocks: Clocks) -> None:
    acks = Acks(1, Counter())
    waits = WaitTimes(acks, deque())
    for number in (1, 2):
        acks.acknowledge(b"s" * 16, number, number)
        acks.commit(Turn(), number)
        waits.decided(clocks.wall)
        clocks.wall += 0.2
    # Nothing is new in this turn.
    waits.decided(clocks.wall)
    acks.release(Turn(), 1, 2)
    waits.answered(clocks.wall)
    assert counted(waits) == {"0.5": 1}
    clocks.wall += 1
    acks.release(Turn(), 2, 2)
    waits.answered(clocks.wall)
    assert counted(waits) == {"0.5": 1, "2.5": 1} and waits.acks.sum_s == pytest.approx(1.6)


def test_a_same_turn_answer_is_counted_and_a_dropped_answer_is_not(
    clocks: Clocks,
) -> None:
    acks = Acks(1, Counter())
    waits = WaitTimes(acks, deque())
    began = clocks.wall
    acks.acknowledge(b"s" * 16, 1, 1)
    acks.commit(Turn(), 1)
    acks.release_alone(Turn(), 1)
    waits.decided(began)
    clocks.wall += 0.02
    waits.answered(began)
    assert counted(waits) == {"0.025": 1}
    acks.owe(2)
    waits.decided(clocks.wall)
    # The server is not active any more.
    acks.waiting.clear()
    waits.decided(clocks.wall)
    clocks.wall += 100
    acks.answered = 3
    waits.answered(clocks.wall)
    assert counted(waits) == {"0.0001": 1, "0.025": 1}


def test_copies_are_counted_once(clocks: Clocks) -> None:
    waits = WaitTimes(Acks(1, Counter()), deque([0.5, 70.0]))
    waits.count_copies()
    waits.count_copies()
    assert waits.copies.told()[0][-1] == ("+Inf", 2.0) and waits.copies.told()[1] == 70.5
