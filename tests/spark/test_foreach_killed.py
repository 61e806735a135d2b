"""kill -9 of the workers and the driver of a query with `foreach_writer`: each number is in the store once."""

import json
from pathlib import Path

import pytest

from chp_server.testing import TestServer

from .foreach_job import PARTITIONS, POINTS
from .kills import Job, Readers, numbers, once, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1000)]
A_FILE, KILLS = 1000, 20
A_PARTITION = A_FILE // PARTITIONS


@pytest.mark.long
def test_twenty_kills_of_worker_and_driver_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each second epoch loses a worker, and each other one its driver, at each point of a partition in turn."""
    faults = {epoch: (("worker", "driver")[epoch % 2], POINTS[epoch // 2 % len(POINTS)]) for epoch in range(KILLS)}
    write_files(tmp_path, KILLS + 1, A_FILE)
    with TestServer(heartbeat_s=0.1) as server, Readers([server.address], ["/n/"], A_PARTITION) as readers:
        with Job("tests.spark.foreach_job", tmp_path, server.address, str(tmp_path), json.dumps(faults)) as job:
            for epoch, (who, point) in faults.items():
                if who == "driver":
                    job.until((tmp_path / f"at.{epoch}").exists, f"epoch {epoch} is {point}")
                    job.restart()
            job.finish()
        assert all((tmp_path / f"at.{epoch}").exists() for epoch in faults), "each kill happened"
        once([server.address], "/n/", numbers("/n/", 0, (KILLS + 1) * A_FILE), A_PARTITION)
        readers.check()
        assert server.server is not None
        counts = server.server.core.committer.counts
        assert counts["commits"] == (KILLS + 1) * PARTITIONS
        # A partition runs again after it was committed.
        assert counts["commits_repeated"] >= KILLS // len(POINTS)
        assert not server.server.core.state.staging.transactions
