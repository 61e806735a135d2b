"""kill -9 of the market-data pipeline's driver and JVM: its bars are those of a run that nothing has disturbed."""

import json
from pathlib import Path

import pytest

from chp_client import Clone
from chp_client.recording.replayer import replay
from chp_server.testing import TestServer
from examples.marketdata import bars, ticks
from tests.talk import until

from .kills import Job, changes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
JOB = "tests.spark.bars_job"
FAULTS = {1: ["staged"], 2: ["committed"]}
PARTS = 3


def record(folder: Path, made: list[ticks.Tick]) -> list[Path]:
    """Write the ticks as consecutive recordings in the order of arrival, and then those that are too late."""
    size, last, found = -(-len(made) // PARTS), 1, []
    shares = [made[i * size : (i + 1) * size] for i in range(PARTS)] + [ticks.too_late(made, every=10)]
    for i, share in enumerate(shares):
        last = ticks.write_recording(folder / f"part{i}", share, last)
        found.append(folder / f"part{i}")
    return found


def test_bars_equal_an_undisturbed_run_after_kills_of_the_driver(server: TestServer, tmp_path: Path) -> None:
    """State and bars are as if the query had never died; what comes too late changes nothing."""
    made = ticks.derive(minutes=15)
    undisturbed = bars.reference(made)
    parts = record(tmp_path, made)
    arguments = (JOB, tmp_path, server.address, str(tmp_path), json.dumps(FAULTS))
    with Clone(server.address, "/bars/") as application, Clone(server.address, None) as player:
        application.wait_until_synced(60)
        with Job(*arguments) as job:
            job.until((tmp_path / "ready").exists, "the query has begun")
            replay(parts[0], player, speed=None)
            job.until((tmp_path / "at.bars.1.staged").exists, "a batch is staged")
        replay(parts[1], player, speed=None)
        with Job(*arguments) as job:
            job.until((tmp_path / "at.bars.2.committed").exists, "a batch is committed")
            job.until(lambda: len(application), "bars are there")
            assert len(application) < len(undisturbed)
        replay(parts[2], player, speed=None)
        with Job(*arguments) as job:
            equal = lambda: bars.parse(application.items()) == undisturbed  # noqa: E731
            job.until(equal, "the bars are those of an undisturbed run")
            replay(parts[3], player, speed=None)
            (tmp_path / "end").touch()
            job.finish()
        until(equal, "the bars to stay")
    check_increments(server.address, len(made))


def check_increments(server: str, ticks_made: int) -> None:
    """Check that the ticks of a bar only grow, and that in the end each tick was counted once."""
    counts: dict[str, list[int]] = {}
    for _, key, value in changes([server], "/bars/"):
        counts.setdefault(key, []).append(json.loads(value or b"{}")["ticks"])
    assert all(said == sorted(set(said)) for said in counts.values()), "a bar was published twice, or went back"
    assert sum(said[-1] for said in counts.values()) == ticks_made
