"""The small examples, run as their first lines say; the pipelines have tests of their own (tests/spark)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chp_server.testing import Pair

ROOT = Path(__file__).parents[2]
SAYS = {
    "asynchronous": "the highest of 3 bids is 120",
    "competing_consumers": "2000 jobs of 50 customers: 0 lost, 0 twice, each customer's in order",
    "black_box": "nothing is missing",
    "configuration": "12 requests: served",
    "counter": "the counter is 100",
    "lazy_pirate": "10 requests, 10 right, 10 answers",
    "queue_library": "3 producers, 2 consumers with 300 messages each, each producer's in order",
    "espresso": "GREETING PASSIVE 1.2",
    "last_value_cache": "a Clone has 1000 topics, 042 is b'save 42'",
    "queue_http": "0 are left",
    "suicidal_snail": "the subscriber was stopped for 2 s and ended with exit code 75",
    "services": "/services/web/1 and /services/web/2 are gone: they ended",
}


def test_the_list_of_last_lines_covers_the_examples() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - set(SAYS) == {
        "__init__", "lake", "live_on_cluster", "other_language", "pair",
    }  # fmt: skip


@pytest.mark.parametrize("name", SAYS)
def test_an_example_ends_with_its_expected_last_line(name: str) -> None:
    assert run(name).endswith(SAYS[name] + "\n")


def test_examples_use_the_servers_that_they_are_given(pair: Pair) -> None:
    assert run("counter", CHP_SERVERS=",".join(pair.servers)).endswith("the counter is 100\n")
    assert pair.primary.server is not None
    assert pair.primary.server.core.state.map.values["/counters/visits"] == b"100"


def run(name: str, **more: str) -> str:
    module = f"examples.{name}"
    assert f"python -m {module}" in (ROOT / "examples" / f"{name}.py").read_text()
    environ = {k: v for k, v in os.environ.items() if k != "CHP_SERVERS"} | more
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
