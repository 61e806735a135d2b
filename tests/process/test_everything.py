"""A test of everything together, with keys, for an hour: all accounts agree. covers: tests/process/everything.py

CHP_TEST_MINUTES shortens it. Three minutes have some of the faults.
"""

import json
import os
from pathlib import Path

import pytest

from .everything import run


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_an_hour_of_everything(tmp_path: Path) -> None:
    result = run(tmp_path, float(os.environ.get("CHP_TEST_MINUTES", "60")))
    assert result["transfers"] > 50 and result["added"] > 50 and result["published"] > 50 and result["put"] > 10
    assert result["holders"] > 10 and result["faults"] and result["spark"] != 0, json.dumps(result)
