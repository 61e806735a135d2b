"""Live tables on executors in processes of their own: a standalone cluster as the documents say, and local-cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chp_client.port.admin import Admin
from chp_client.spark import find_java
from chp_server.testing import TestServer, free_port
from tests.talk import WAIT_S

from .repeating_job import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 500.0


def block(name: str) -> str:
    """Return the commands in the block of this name in docs/spark-cluster.md."""
    text = (ROOT / "docs" / "spark-cluster.md").read_text()
    match = re.search(rf"^```bash {name}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert match is not None, name
    return match[1]


def snapshots(server: TestServer) -> int:
    with Admin([server.address]) as admin:
        return int(admin.ask(server.address, "status").facts["counts"].get("snapshots", 0))


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a shell with the project's Python, and without this test's Spark.

    Its JVMs start quickly.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "CHP_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    quick = f"{QUICK_JAVA} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"  # with the classes of classes.py
    return kept | {"PATH": path, "JAVA_TOOL_OPTIONS": quick} | more


def run(script: str, folder: Path, **more: str) -> dict[str, Any]:
    """Run commands in a shell; what the job printed. All that they started is ended, by its process group."""
    with (folder / "out").open("w+") as out, (folder / "log").open("w+") as log:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script + "\nexit 0"], cwd=folder, env=environment(**more), stdout=out, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            # The programs that it left in the background run on.
            shell.wait(TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            log.seek(0)
            print(log.read()[-4000:])
        out.seek(0)
        found = [line for line in out.read().splitlines() if line.startswith("{")]
    assert found, "the job printed no result; see its log above"
    said: dict[str, Any] = json.loads(found[0])
    return said


def check(said: dict[str, Any], tasks: int) -> None:
    assert (said["tasks"], said["executors"], said["followers"], said["values"]) == (tasks, 2, 2, ["1.0832"])
    assert said["changes_seen"] == 5 and 0 < said["slowest_s"] < WAIT_S
    # This is the package that travelled, not the installed one.
    assert all("chp.zip" in path for path in said["package"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Make a checkout in which commands run, with the zip that travels."""
    for name in ("chp", "client", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(["bash", "-e", "-c", block("zip")], cwd=tmp_path, env=environment(), check=True, timeout=60)
    yield tmp_path


def test_a_thousand_tasks_on_a_standalone_cluster_as_documented(server: TestServer, folder: Path) -> None:
    commands = block("standalone").replace("tcp://127.0.0.1:5556", server.address)
    master = str(free_port())
    for port, other in (("7077", master), ("8080", "0"), ("8081", "0"), ("8082", "0")):
        commands = commands.replace(port, other)
    said = run(commands, folder)
    print(said)
    check(said, 1000)
    # Each executor has one core.
    assert said["processes"] == 2
    # The driver has its own Clone.
    assert snapshots(server) == said["processes"] + 1


# The test takes a minute, and the standalone cluster shows most of it too.
@pytest.mark.long
def test_local_cluster(server: TestServer, folder: Path) -> None:
    import pyspark

    # local-cluster writes into its home, so it gets one of links.
    home = folder / "spark"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (home / each.name).symlink_to(each)
    command = (
        '"$SPARK_HOME/bin/spark-submit" --master "local-cluster[2,1,1024]" --executor-memory 512m --py-files chp.zip '
        f"examples/live_on_cluster.py --servers {server.address} --tasks 40"
    )
    more = {"SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    said = run(command, folder, SPARK_LOCAL_IP="127.0.0.1", **more)
    print(said)
    check(said, 40)
    assert snapshots(server) == said["processes"] + 1
