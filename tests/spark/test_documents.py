"""The blocks of docs/spark.md, run one after the other as the page says, with only the ports changed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.cluster import ProcessPair

from .repeating_job import QUICK_JAVA

# A page is no failover, so a slow peer is not taken for dead
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.process_pair(peer_timeout_s=60.0),
]
PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def program() -> str:
    """Return the page's Python, and its commands without the set-up, in order."""
    parts = []
    for language, name, text in re.findall(r"^```(python|bash) ?(\w*)\n(.*?)^```", PAGE, re.S | re.M):
        if language == "python":
            parts.append(text)
        elif name:
            parts.append(f"import subprocess\n\nsubprocess.run(['bash', '-c', {text!r}])\n")
    return "\n".join(parts)


def test_the_blocks_of_the_spark_page_run_in_order(process_pair: ProcessPair, tmp_path: Path) -> None:
    text = program()
    for port, address in zip(("5556", "5566"), process_pair.servers, strict=True):
        text = text.replace(f"tcp://127.0.0.1:{port}", address)
    (tmp_path / "page.py").write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CHP_SERVERS": ",".join(process_pair.servers), "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    for wanted in (
        # The value is binary.
        r"\|/rates/EUR/USD\|\[7B 22 62 69 64 22",
        # This row comes from the view.
        r"\|/rates/EUR/SEK\|10\.95 *\|",
        # This row has the spread.
        r"\|/rates/USD/JPY\|0\.0\d+\|",
        # This row has 2 euros in dollars.
        r"\|\s*2\.1664\|",
        # This row comes from the recording, with three rates in one record.
        r"\|\s*1\|\s*\d+\|\s*3\|",
    ):
        assert re.search(wanted, done.stdout), f"{wanted} is not in\n{done.stdout}\n{done.stderr[-3000:]}"
    shown = subprocess.run(
        ["chp", "dump", "/"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    keys = set(re.findall(r"/(?:copies|counts)/[\w/]+", shown.stdout))
    assert keys == {"/copies/EUR/USD", "/copies/EUR/GBP", "/copies/EUR/SEK", "/copies/USD/JPY", "/counts/set"}
