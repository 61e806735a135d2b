"""Memory under saturating load and a slow reader; `python -m tests.process.flat` runs longer."""

from pathlib import Path

import pytest

from .flat import GROWTH_MB_MAX, run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_of_server_and_writer_is_flat_once_warm(tmp_path: Path) -> None:
    result = run(tmp_path, seconds=24)
    growth = result["growth_mb"]
    assert isinstance(growth, dict) and max(growth.values()) < GROWTH_MB_MAX, result
