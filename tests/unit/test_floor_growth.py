"""A test that the judgement of endurance tells a leak from memory that goes up and down.

covers: tests/process/endurance.py
"""

from __future__ import annotations

import pytest

from tests.process.endurance import STEADY_MB_MAX, floor_growth

# The memory of two servers in each minute, in MiB, as two runs measured it.
WAVES = (
    [149.1, 150.3, 149.0, 147.2, 147.1, 150.0, 152.3, 151.0],
    [148.2, 150.4, 149.3, 147.5, 146.5, 149.7, 153.5, 153.0],
)


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize(("leak", "grows"), [(0.0, False), (0.8, True)])
def test_floor_growth_tells_a_leak_from_waves_of_memory(wave: list[float], leak: float, grows: bool) -> None:
    minutes = [mb + leak * minute for minute, mb in enumerate(wave)]
    assert (floor_growth(minutes) > STEADY_MB_MAX) is grows
