"""Tests of the bound on what is under way to the passive. covers: throttle.py"""

import pytest

from chp_server.core.pair.throttle import AHEAD, DRAIN_S, PROBE_S, TURN_S, UNDER_WAY_S, Pace, Throttle

BYTE_S = 1e-8
ENOUGH = round(UNDER_WAY_S / BYTE_S)


def measured(latency_s: float = 0.0, slow_s: float = 10.0) -> Throttle:
    """Return the throttle of a passive whose latency was measured at 0 s."""
    pace = Pace()
    pace.took(1000, 1000 * BYTE_S)
    throttle = Throttle(pace, slow_s)
    throttle.sent_alone(1, 0, -latency_s)
    throttle.confirmed(1, 0.0)
    return throttle


def test_a_turn_takes_the_bytes_that_fit_its_time_or_its_sync() -> None:
    pace = Pace()
    assert pace.turn_bytes == float("inf"), "nothing is measured yet"
    pace.took(1000, 1000 * BYTE_S)
    assert pace.turn_bytes == pytest.approx(TURN_S / BYTE_S)
    pace.synced(0.03)
    assert pace.turn_bytes == pytest.approx(0.03 / BYTE_S)


def test_one_stopped_turn_hardly_changes_the_measured_pace() -> None:
    pace = Pace()
    pace.took(1000, 1000 * BYTE_S)
    pace.took(1000, 60.0)
    assert pace.byte_s < 2 * BYTE_S


def test_the_throttle_allows_a_fixed_time_plus_twice_the_latency() -> None:
    near, far = measured(), measured(latency_s=0.03)
    assert not near.holds(ENOUGH - 1000, 1.0) and near.holds(ENOUGH + 1000, 1.0)
    assert not far.holds(ENOUGH + round(0.059 / BYTE_S), 1.0) and far.holds(ENOUGH + round(0.061 / BYTE_S), 1.0)


def test_small_sets_are_throttled_later_than_large_ones() -> None:
    throttle = measured()
    assert throttle.holds(2 * ENOUGH, 1.0) and not throttle.holds_all(2 * ENOUGH)
    assert throttle.holds_all((AHEAD + 1) * ENOUGH)


def test_the_work_of_a_record_is_no_latency() -> None:
    throttle = measured(latency_s=0.03)
    throttle.sent_alone(2, 10 * ENOUGH, 1.0)
    throttle.confirmed(2, 1.0 + 20 * UNDER_WAY_S + 0.001)
    assert throttle.latency_s == pytest.approx(0.001)


def test_the_latency_is_the_lowest_of_the_last_probes() -> None:
    throttle = measured(latency_s=0.001)
    for no in range(3):
        at = (no + 1) * (PROBE_S + 1)
        throttle.sent_alone(no + 2, 0, at - 0.02)
        throttle.confirmed(no + 2, at)
    assert throttle.latency_s == pytest.approx(0.02)


def test_the_way_drains_once_if_nothing_travelled_alone_for_long() -> None:
    throttle, later = measured(), PROBE_S + 1
    assert throttle.holds(1, later), "the way is to drain"
    assert not throttle.holds(0, later)
    throttle.sent_alone(2, 100, later)
    assert not throttle.holds(100, later)


def test_draining_holds_up_large_sets_only_for_a_moment() -> None:
    throttle, later = measured(), PROBE_S + 1
    assert throttle.holds(1, later) and throttle.holds(1, later + DRAIN_S / 2)
    assert not throttle.holds(1, later + DRAIN_S * 1.01) and not throttle.holds(1, later + 2 * DRAIN_S)


def test_a_passive_is_slow_if_it_confirms_too_little_while_sets_wait() -> None:
    tenth = round(1.0 / BYTE_S)
    slow, quick, at_times = measured(), measured(), measured()
    for second in range(11):
        assert slow.is_slow(second, second * tenth // 11, waits=True) is (second == 10)
        assert not quick.is_slow(second, second * tenth // 9, waits=True)
        assert not at_times.is_slow(second, 0, waits=second != 5)


def test_a_pause_of_the_active_is_no_slowness_of_the_passive() -> None:
    throttle = measured()
    throttle.is_slow(1.0, 0, waits=True)
    throttle.excuse()
    assert not throttle.is_slow(60.0, 0, waits=True)
