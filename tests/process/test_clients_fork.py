"""Tests of a process that forks while it has a Clone: the child may only read, and does not disturb its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from chp_server.testing import TestServer
from tests.talk import WAIT_S

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_a_forked_child_can_only_read_the_clone_of_its_parent(server: TestServer) -> None:
    argv = [sys.executable, "-m", "tests.process.forking", server.address]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=3 * WAIT_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    child, parent = (json.loads(line) for line in done.stdout.splitlines())
    assert child.pop("state") == "CLOSED" and child.pop("read") == child.pop("own") == "1"
    assert set(child.values()) == {"Forked"}, child
    assert parent == {"child": 7, "saw": ["/after", "/child", "/load", "/parent"], "holes": 0}
