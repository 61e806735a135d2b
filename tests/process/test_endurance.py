"""A test of an hour of load with hand-overs: no memory grows, no set is lost. covers: tests/process/endurance.py

CHP_TEST_MINUTES shortens it. The warm-up alone takes some minutes, so a short run may fail.
"""

import os
from pathlib import Path

import pytest

from .endurance import check, run


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_a_pair_that_works_for_an_hour_grows_in_nothing(tmp_path: Path) -> None:
    check(run(tmp_path, 60 * float(os.environ.get("CHP_TEST_MINUTES", "60"))))
