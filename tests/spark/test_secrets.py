"""Tests that with a client file Spark shows no secret of a job: in its pages, REST answers and event logs.

covers: the option `clientFile` (docs/spark.md), and the part of SPEC.md, section 25, that concerns Spark
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chp_server.testing import TestServer
from tests.wire import keys

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(300),
    # A JVM with its pages takes two minutes on two cores.
]
ALICE, EVE = keys.new_pair(), keys.new_pair()


def test_no_page_answer_or_log_of_spark_has_a_secret(tmp_path: Path) -> None:
    folder = keys.pair_of_directories(tmp_path, ("alice", ALICE))[0]
    with TestServer(keys=str(folder)) as server:
        known = {server.address: keys.public_of(folder)}
        files = [keys.client_file(tmp_path / f"{name}.toml", pair, known) for name, pair in (("a", ALICE), ("e", EVE))]
        argv = [sys.executable, "-m", "tests.spark.pages_job", *map(str, files), str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = [path.read_text() for path in (tmp_path / "shown").iterdir()]
    events = [path.read_text(errors="replace") for path in (tmp_path / "events").rglob("*") if path.is_file()]
    kept = [path.read_text(errors="replace") for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert len(shown) > 12 and events and kept
    assert any("/SQL/execution/" in text for text in shown) and any("spark.eventLog" in text for text in events)
    assert "does not know this client's key" in done.stdout, "the stranger is told"
    for secret in (ALICE.secret.decode(), EVE.secret.decode()):
        for half in (secret[:20], secret[20:]):
            assert not [text[:200] for text in (*shown, *events, *kept, done.stdout, done.stderr) if half in text]
