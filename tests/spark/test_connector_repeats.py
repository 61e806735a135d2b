"""Tasks that run more than once, one after the other or at the same time: each row is written once, all at once."""

from collections import Counter
from pathlib import Path

import pytest

from chp_server.testing import TestServer
from tests.talk import until

from .kills import Job, Readers, numbers, once, write_files
from .repeating_job import BATCHES, ROWS, SAVES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def attempts(folder: Path, which: str) -> list[tuple[int, int]]:
    """Return the partition and attempt number of each task that began."""
    names = [path.name.removeprefix(f"began.{which}.") for path in folder.glob(f"began.{which}.*")]
    return sorted((int(name.split(".")[0]), int(name.split(".")[1])) for name in names)


def test_speculative_failed_and_repeated_tasks_write_once(tmp_path: Path) -> None:
    write_files(tmp_path, len(BATCHES), ROWS)
    with (
        TestServer(heartbeat_s=0.1) as server,
        Readers([server.address], ["/save/", "/stream/"], ROWS) as readers,
        Job("tests.spark.repeating_job", tmp_path, server.address, str(tmp_path)) as job,
    ):
        job.finish()
        for which in ("save.0", "stream.1"):
            assert {(0, 0), (0, 1)} <= set(attempts(tmp_path, which)), f"{which}: no speculative copy ran"
            assert list(tmp_path.glob(f"ended.{which}.0.0.*")), f"{which}: the slow attempt did not end"
        for which in ("save.1", "stream.0"):
            assert {(0, 0), (0, 1)} <= set(attempts(tmp_path, which)), f"{which}: no second attempt ran"
        firsts = Counter(partition for partition, attempt in attempts(tmp_path, "save.2") if attempt == 0)
        assert max(firsts.values()) > 1, f"the stage was not repeated: {attempts(tmp_path, 'save.2')}"
        once([server.address], "/save/", numbers("/save/", 0, len(SAVES) * ROWS), ROWS)
        once([server.address], "/stream/", numbers("/stream/", 0, len(BATCHES) * ROWS), ROWS)
        readers.check()
        assert server.server is not None
        core = server.server.core
        assert core.committer.counts["commits"] == len(SAVES) + len(BATCHES)
        until(lambda: not core.state.staging.transactions, "nothing to be left staged", 10)
