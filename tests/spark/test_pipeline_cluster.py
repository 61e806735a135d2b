"""A real cluster under kills: changes of keys go through a topic to Parquet, and every count equals a recomputation.

A standalone master and two workers of their own addresses, speculation, servers with keys, an event log. While a client
writes, an executor, the driver and the active server are killed. Every change is in the topic once and in the files
once, the changes of a key in their order, and no log has a secret.
"""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chp_client import Clone
from tests.talk import until
from tests.wire import keys

from .kills import GENEROUS_S, Job

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]
ALICE = keys.new_pair()
WRITES, KEYS = 40, 25


@contextmanager
def started_cluster(folder: Path) -> Iterator[str]:
    """Start the master and the workers in a process group of their own; return the master's address."""
    folder.mkdir()
    with Job("tests.spark.pipeline_job", folder, "cluster", str(folder)):
        until((folder / "master").exists, "the cluster", GENEROUS_S)
        yield (folder / "master").read_text()


def executors(folder: Path) -> list[int]:
    """Return the processes of the executors that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            where = os.readlink(path.parent / "cwd")
        except OSError:
            continue
        if any(b"CoarseGrainedExecutorBackend" in word for word in words) and where.startswith(str(folder)):
            found.append(int(path.parent.name))
    return found


def committed_files(folder: Path) -> list[str]:
    """Return the files that Spark's file sink has committed; a batch that was killed leaves others beside them."""
    found: dict[str, str] = {}
    for log in (folder / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            for line in log.read_text().splitlines()[1:]:
                path = json.loads(line)["path"]
                found[path] = path.removeprefix("file://")
    return list(found.values())


def test_each_change_reaches_the_topic_and_the_files_once_despite_kills(tmp_path: Path) -> None:
    with (
        keys.pair_with_keys(tmp_path / "keys", ("alice", ALICE), heartbeat_s=0.1, peer_timeout_s=5.0) as pair,
        started_cluster(tmp_path / "cluster") as master,
    ):
        file = keys.client_file(tmp_path / "alice.toml", ALICE, keys.known(pair))
        (tmp_path / "events").mkdir()
        with Clone(client_file=file) as clone:
            topic = clone.topic("changes")
            topic.create("size", max_messages=1_000_000)
            written: list[tuple[str, str]] = []

            def write() -> None:
                n = len(written)
                batch = {f"/src/{i}": str(n + i) for i in range(KEYS)}
                clone.set_many({key: value.encode() for key, value in batch.items()}).wait(GENEROUS_S)
                written.extend(batch.items())

            def taken(part: float) -> Callable[[], bool]:
                return lambda: topic.facts()["next"] >= part * len(written)

            with Job("tests.spark.pipeline_job", tmp_path, "run", str(tmp_path), master, str(file)) as job:
                for n in range(WRITES):
                    write()
                    if n == WRITES // 4:
                        job.until(taken(0.5), "the first changes are in the topic")
                        os.kill(executors(tmp_path / "cluster")[0], signal.SIGKILL)
                    if n == WRITES // 2:
                        job.until(taken(0.6), "the job goes on without the executor")
                        job.restart()
                    if n == 3 * WRITES // 4:
                        job.until(taken(0.7), "the job goes on with a new driver")
                        pair.kill()
                (tmp_path / "stop").touch()
                job.finish()
            messages = [message for batch in topic.read(wait=False) for message in batch]
            lag = next(group["lag"] for group in topic.groups() if group["name"] == "parquet")
    rows = [row for path in committed_files(tmp_path / "files") for row in pq.read_table(path).to_pylist()]
    assert len(messages) == len(rows) == len(written) == WRITES * KEYS
    assert sorted((m.key, m.value.decode()) for m in messages) == sorted(written)
    assert sorted((row["key"], row["value"]) for row in rows) == sorted(written)
    assert sorted(row["offset"] for row in rows) == list(range(len(written)))
    of_keys: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        of_keys[str(message.key)].append(int(message.value))
    assert all(values == sorted(values) for values in of_keys.values()), "a key's changes are in their order"
    assert lag == 0
    looked_at = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    looked_at += [path for path in (tmp_path / "cluster").rglob("std*") if path.is_file()] + [tmp_path / "log"]
    assert len(looked_at) > 4
    for path in looked_at:
        text = path.read_text(errors="replace")
        for half in (ALICE.secret.decode()[:20], ALICE.secret.decode()[20:]):
            assert half not in text, path
