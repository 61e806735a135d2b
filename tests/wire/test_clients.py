"""covers: `chp clients`, `chp status --epochs`, /v1/clients: clients as they report themselves; actives by epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

pytestmark = pytest.mark.slow


def chp(servers: Sequence[str], *args: str, text: bool = False) -> Any:
    environ = {**os.environ, "CHP_SERVERS": ",".join(servers), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "chp_client.cli", *args, *([] if text else ["--json"])]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=90, check=False)
    # 1 means that a server of the pair is missing, and 3 that none is active yet.
    assert done.returncode in (0, 1, 3), (args, done)
    return done.stdout if text else [json.loads(line) for line in done.stdout.splitlines()]


def listed(servers: Sequence[str], name: str) -> dict[str, Any] | None:
    return next((each for each in chp(servers, "clients") if each["name"] == name), None)


def until_listed(servers: Sequence[str], name: str) -> dict[str, Any]:
    end = time.monotonic() + 60
    while (found := listed(servers, name)) is None:
        assert time.monotonic() < end, f"{name} was never listed"
        threading.Event().wait(0.2)
    return found


def test_a_clone_is_listed_by_the_active_and_by_its_successor(pair: Pair) -> None:
    with Clone(pair.servers, subtrees=["/a/", "/b/"], name="mine") as clone, RunningGateway(pair.servers) as gateway:
        clone.set("/a/x", b"1").wait(10)
        found = until_listed(pair.servers, "mine")
        assert found["pid"] == os.getpid() and found["subtrees"] == ["/a/", "/b/"] and found["state"] == "SYNCED"
        assert found["address"].startswith("127.0.0.1:") and found["program"] and found["host"]
        assert "mine" in chp(pair.servers, "clients", text=True) and "gateway" in chp(
            pair.servers, "clients", text=True
        )
        shown = gateway.client.get("/v1/clients").json()
        assert {each["name"] for each in shown["clients"]} >= {"mine", "gateway"} and shown["count"] >= 2
        with Admin(pair.servers) as admin:
            assert admin.ask_active("clients", after=1 << 40).facts["clients"] == [], "nobody is behind the last place"
        pair.primary.kill()
        assert until_listed(pair.servers, "mine")["failovers"] == 1
    epochs = chp(pair.servers[1:], "status", "--epochs")
    assert [each["epoch"] for each in epochs] == [2, 1] and epochs[0]["because"]
    assert "BECAUSE" in chp(pair.servers[1:], "status", "--epochs", text=True)
