"""covers: the programs that stand in the pages of docs/: each runs as it stands there, with only the ports changed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import ProcessPair

ROOT = Path(__file__).parents[2]
# Pages whose programs other tests run, because they need Spark, pytest or another package: page -> test.
ELSEWHERE = {
    "spark.md": "tests/spark/test_documents.py", "spark-cluster.md": "tests/spark/test_cluster.py",
    "spark-state.md": "tests/spark/test_state_page.py", "spark-pipelines.md": "tests/spark/test_connect.py",
    "library.md": "tests/process/test_documents.py",
    "testing.md": "tests/process/test_pytest_plugin.py", "metrics.md": "tests/wire/test_measured.py",
}  # fmt: skip
OTHERS = {
    "cli.md": {"console"},
    "gateway/start.md": {"console"},
    "gateway/watch.md": {"js"},
    "spark-cluster.md": {"bash"},
    "spark-pipelines.md": {"bash", "yaml"},
    "spark-lake.md": {"bash"},
    "spark.md": {"bash"},
}


def pages() -> list[Path]:
    return sorted(path for path in (ROOT / "docs").rglob("*.md"))


def programs(path: Path) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT / "docs"))


# A long peer timeout avoids failovers, which are not tested here.
pytestmark = pytest.mark.process_pair(peer_timeout_s=60.0)
RUN = [(path, i) for path in pages() if shown(path) not in ELSEWHERE for i in range(len(programs(path)))]


@pytest.mark.parametrize(("path", "i"), RUN, ids=[f"{shown(path)}-{i}" for path, i in RUN])
def test_a_program_of_a_page_runs_and_prints(process_pair: ProcessPair, tmp_path: Path, path: Path, i: int) -> None:
    text = programs(path)[i]
    for port, address in zip(("5556", "5566"), process_pair.servers, strict=True):
        text = text.replace(f"127.0.0.1:{port}", address.removeprefix("tcp://"))
    argv = [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "it shows what it does"


def test_each_page_with_a_program_has_a_test_that_runs_it() -> None:
    for path in pages():
        languages = set(re.findall(r"^```(\w+)", path.read_text(encoding="utf-8"), re.M)) - {"text"}
        known = {"python"} | OTHERS.get(shown(path), set())
        assert languages <= known, f"{shown(path)} has {languages - known}, which nothing runs"
    assert len(RUN) >= 12
    for page, test in ELSEWHERE.items():
        assert page.partition(".")[0] in (ROOT / test).read_text(encoding="utf-8") or (ROOT / test).exists()
