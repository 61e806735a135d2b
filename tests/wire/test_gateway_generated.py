"""covers: good and bad requests that a generator makes from the gateway's /openapi.json: none is answered with 500.

Schemathesis (the extra `generated`) makes them. The run is bounded by time. Each run has another seed, which the output
of a failed run shows.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

RUN_S = 120
# A run with fewer requests has tested nothing.
FEW = 500
# Schemathesis first tries the limits of each parameter, and then random values.
PHASES = "coverage,fuzzing"


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None,
    reason="NO REQUESTS ARE GENERATED: pip install schemathesis, or the extra `generated`",
)
def test_no_generated_request_causes_a_server_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Pair(heartbeat_s=0.2, peer_timeout_s=2.0) as pair, RunningGateway(pair.servers) as gateway:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json", "--no-color",
            "--checks", "not_a_server_error", "--phases", PHASES, "--max-time", str(RUN_S), "--continue-on-failure",
            "--exclude-path", "/v1/watch", "--suppress-health-check", "all", "--request-timeout", "60",
        ]  # fmt: skip
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S + 120, check=False)
        said = ended.stdout + ended.stderr
        made = re.search(r"([0-9]+) generated", said)
        assert made is not None and int(made[1]) > FEW, said
        assert "Server error" not in said, said
        assert [each.getMessage() for each in caplog.records if each.name == "chp_client" and each.exc_info] == []
        assert gateway.client.get("/ready").status_code == 200
        assert gateway.client.put("/v1/keys/after/all", content=b"1").status_code == 200
