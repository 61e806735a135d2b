"""kill -9 of what takes part in a write: each number of each file is in the store once, no reader saw half a batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_server.testing import Pair, TestServer
from tests.talk import until

from .kills import Job, Readers, changes, numbers, once, sum_of_increments, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
A_FILE = 1000
JOB = "tests.spark.connector_job"
INCREMENTS = ("inc", "each", "save")


class Source:
    """The subtree that is copied, and what it held at times."""

    def __init__(self, server: str) -> None:
        self._clone = Clone(server, subtree="/src/")
        self._clone.wait_until_synced(60)
        self._clone.set("/src/short-lived", b"1", ttl=2).wait(60)
        self.change({f"{n}": b"first" for n in range(500)})

    def change(self, values: dict[str, bytes], deleted: tuple[str, ...] = ()) -> None:
        """Set some keys, delete others."""
        self._clone.set_many({f"/src/{name}": value for name, value in values.items()}).wait(60)
        self._clone.delete_many([f"/src/{name}" for name in deleted])
        self._clone.flush(60)

    def held(self) -> dict[str, bytes]:
        """Return the contents, with the keys that the copy has."""
        return {key.replace("/src/", "/copy/"): value for key, value in self._clone.items()}

    def let_expire(self) -> None:
        """Wait until the key with a ttl is gone."""
        until(lambda: "/src/short-lived" not in self._clone, "a key to expire")


def points(folder: Path, where: dict[str, tuple[int, str]]) -> Callable[[], bool]:
    """Return a function that is True once each write has come to its point."""
    return lambda: all((folder / f"at.{name}.{version}.{point}").exists() for name, (version, point) in where.items())


def test_writes_count_once_after_kills_of_the_driver(spark: Any, tmp_path: Path) -> None:
    """All ways to write run at the same time, with a copy that is killed in its first batch."""
    write_files(tmp_path, 3, A_FILE)
    faults = json.dumps(
        {name: {0: ["staged"], 1: ["committed"]} for name in INCREMENTS} | {"copy": {0: ["staging", "committed"]}}
    )
    first = dict.fromkeys(INCREMENTS, (0, "staged")) | {"copy": (0, "staging")}
    second = dict.fromkeys(INCREMENTS, (1, "committed")) | {"copy": (0, "committed")}
    subtrees = [f"/{name}/" for name in INCREMENTS]
    with TestServer(heartbeat_s=0.1) as server, Readers([server.address], subtrees, A_FILE) as readers:
        source = Source(server.address)
        before = source.held()
        with Job(JOB, tmp_path, server.address, str(tmp_path), faults) as job:
            job.until(points(tmp_path, first), "all have staged")
        source.change({"1": b"second", "2": b"second", "new": b"second"}, deleted=("3", "4"))
        source.let_expire()
        unchanged = {key: value for key, value in source.held().items() if before.get(key) == value}
        with Job(JOB, tmp_path, server.address, str(tmp_path), faults) as job:
            job.until(points(tmp_path, second), "all have committed")
        source.change({"2": b"third", "4": b"third", "5": b"third"}, deleted=("6", "new"))
        with Job(JOB, tmp_path, server.address, str(tmp_path), faults) as job:
            job.finish()
        for subtree in subtrees:
            wanted = numbers(subtree, 0, 3 * A_FILE)
            once([server.address], subtree, wanted, A_FILE)
            assert sum_of_increments(spark, [server.address], subtree, tmp_path) == sum(range(3 * A_FILE))
        readers.check()
        check_copy(server.address, unchanged, source.held())
        assert server.server is not None
        core = server.server.core
        assert core.committer.counts["commits"] == 3 * len(INCREMENTS) + 2
        # These are the first two of `save`, and the last one of each other part.
        assert core.committer.counts["commits_repeated"] >= 5
        assert not core.state.staging.transactions


def check_copy(server: str, unchanged: dict[str, bytes], held: dict[str, bytes]) -> None:
    """Check that the first batch has the unchanged keys, that the rest came as changes, and that nothing is lost."""
    with Clone(server, subtree="/copy/") as copy:
        copy.wait_until_synced(60)
        assert dict(copy) == held
    found = changes([server], "/copy/")
    first = min(number for number, _, _ in found)
    assert {key: value for number, key, value in found if number == first} == unchanged
    later = [(key, value) for number, key, value in found if number > first]
    assert ("/copy/1", b"second") in later and ("/copy/6", None) in later and len(unchanged) == 496


def test_increments_count_once_after_kills_of_a_worker_and_the_active(tmp_path: Path) -> None:
    write_files(tmp_path, 4, A_FILE)
    with (
        Pair(heartbeat_s=0.1, peer_timeout_s=1.0, solo_wait_s=1.0) as pair,
        Readers(pair.servers, ["/inc/"], A_FILE) as readers,
    ):
        in_sync = lambda: any(  # noqa: E731
            s.server is not None and s.server.core.active and s.server.core.pair.in_sync()
            for s in (pair.primary, pair.backup)
        )
        faults = {0: "worker", 1: "staging", 2: "staged"}
        given = json.dumps({"inc": {version: [point] for version, point in faults.items()}})
        with Job(JOB, tmp_path, ",".join(pair.servers), str(tmp_path), given) as job:
            for batch, active, other in ((1, pair.primary, pair.backup), (2, pair.backup, pair.primary)):
                which = f"inc.{batch}.{faults[batch]}"
                job.until((tmp_path / f"at.{which}").exists, f"{which} is reached")
                job.until(in_sync, "the pair is in sync")
                assert active.server is not None and active.server.core.active
                if faults[batch] == "staged":
                    # The commit comes while the active is killed.
                    (tmp_path / f"go.{which}").touch()
                active.kill()
                (tmp_path / f"go.{which}").touch()
                job.until(
                    lambda up=other: up.server is not None and up.server.core.active,  # type: ignore[misc]
                    "the other has taken over",
                )
                active.start()
            job.finish()
        assert (tmp_path / "at.inc.0.worker").exists(), "a worker was killed"
        once(pair.servers, "/inc/", numbers("/inc/", 0, 4 * A_FILE), A_FILE)
        readers.check()
