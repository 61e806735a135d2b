"""kill -9 of real servers under load: nothing acknowledged is lost, and applications go on."""

from pathlib import Path

import pytest

from .soak import run

pytestmark = pytest.mark.slow


def test_six_rounds_of_killing_either_server_or_both_lose_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, rounds=6)
    assert result["lost"] == 0
    assert int(str(result["sets_acknowledged"])) > 100


def test_the_active_is_killed_ten_times_in_a_row_without_journals(tmp_path: Path) -> None:
    result = run(tmp_path, 10, 3, "--store", "memory:", only_active=True)
    assert result["lost"] == 0
