"""Tests of examples/lake.py: a table in Parquet equals a subtree, deletes included, also after kills of both sides."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_server.testing import TestServer
from examples import lake
from tests.process.cluster import ProcessPair
from tests.talk import until

from .kills import ROOT, Job
from .repeating_job import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]
PAGE = (ROOT / "docs" / "spark-lake.md").read_text(encoding="utf-8")


def rows(table: Path) -> dict[str, bytes]:
    """Return the table's keys and values, each key once."""
    import pyarrow.parquet as pq

    whole = list(lake.folders(table).values())
    if not whole:
        return {}
    found = pq.read_table(whole[-1]).to_pydict()
    assert len(set(found["key"])) == len(found["key"])
    return dict(zip(found["key"], found["value"], strict=True))


def run_page(action: str, servers: str, table: Path) -> None:
    """Run the command of the page that has this action, on these servers and this table."""
    found = re.findall(rf"^python (-m examples.lake {action} .*)$", PAGE, re.M)
    assert len(found) == 1
    words = found[0].replace("tcp://127.0.0.1:5556,tcp://127.0.0.1:5566", servers).replace("lake/rates", str(table))
    argv, environ = [sys.executable, *words.split()], {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_table_follows_a_subtree_and_is_loaded_back(
    spark: Any, server: TestServer, clone: Clone, tmp_path: Path
) -> None:
    table = tmp_path / "rates"
    clone.set_many({"/rates/a": b"1", "/rates/b": b"2", "/other": b"3"})
    clone.flush(60)
    lake.follow(spark, server.address, "/rates/", table, once=True)
    assert rows(table) == {"/rates/a": b"1", "/rates/b": b"2"}
    for _ in range(3):
        clone.set("/rates/a", b"0")
        clone.set("/rates/a", b"9").wait(60)
        clone.delete("/rates/b")
        clone.set("/rates/c", b"")
    clone.flush(60)
    run_page("follow", server.address, table)
    assert rows(table) == {"/rates/a": b"9", "/rates/c": b""}
    # A batch that Spark runs again writes the same folder.
    number = max(lake.folders(table))
    lake.merge(table, spark.createDataFrame([("/rates/a", b"9", 1, 9)], lake.SCHEMA), number)
    assert rows(table) == {"/rates/a": b"9", "/rates/b": b"2"}, "made of the table before it"
    run_page("load", server.address, table)
    until(lambda: dict(clone) == {"/rates/a": b"9", "/rates/b": b"2", "/other": b"3"})


def test_a_table_is_right_after_kills_of_the_driver_and_of_the_active(tmp_path: Path) -> None:
    """At the end the table equals the store, with one row a key, and the number of each row is that of its key."""
    chance, table = random.Random(1), tmp_path / "lake"
    for name in ("job", "pair"):
        (tmp_path / name).mkdir()
    with ProcessPair(tmp_path / "pair", heartbeat_s=0.1, peer_timeout_s=5.0) as pair, Clone(pair.servers) as clone:
        arguments = ("follow", ",".join(pair.servers), "/src/", str(table))
        with Job("examples.lake", tmp_path / "job", *arguments) as job:

            def write(rounds: int) -> None:
                for _ in range(rounds):
                    some = chance.sample(range(200), 40)
                    clone.set_many({f"/src/{i}": str(chance.random()).encode() for i in some[:30]})
                    clone.delete_many([f"/src/{i}" for i in some[30:]])
                clone.flush(60)

            def equal() -> bool:
                return rows(table) == {key: clone[key] for key in clone if key.startswith("/src/")}

            write(20)
            job.until(equal, "the first batches")
            for kill in ("driver", "active", "driver"):
                write(10)
                active = pair.active()
                assert active is not None
                if kill == "driver":
                    job.restart()
                else:
                    active.kill()
                write(10)
                job.until(equal, f"the table after a kill of the {kill}")
                if kill == "active":
                    active.start()
                    pair.wait_in_sync()
