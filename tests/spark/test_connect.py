"""Tests of the connector through Spark Connect: what works without a sparkContext, and what says that it needs one.

covers: docs/spark.md, "Spark Connect", and docs/spark-pipelines.md. The packages of the Connect client are no part of
the extra `spark`, so these tests are left out where they are missing. `python -m tests.spark.versions` has them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from chp_server.testing import TestServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_through_connect(server: TestServer, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the packages of the Connect client are not there")
    argv = [sys.executable, "-m", "tests.spark.connect_job", server.address, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0 and "finished" in done.stdout, done.stdout + done.stderr[-5000:]


def test_the_page_on_pipelines(server: TestServer, tmp_path: Path) -> None:
    for name in ("grpc", "yaml", "pyspark.pipelines"):
        pytest.importorskip(name, reason="spark-pipelines needs it")
    argv = [sys.executable, "-m", "tests.spark.pipelines_job", server.address, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0 and "finished" in done.stdout, done.stdout + done.stderr[-5000:]
