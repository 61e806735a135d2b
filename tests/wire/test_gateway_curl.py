"""covers: the curl sessions in docs/gateway/, line by line, at a pair and a gateway of their own."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

# The numbers of a page differ from those of a run, because a refused set may or may not take a number. So the test
# learns which number stands for which.
NUMBER = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])")
FOLDER = Path(__file__).parents[2] / "docs/gateway"


def session(name: str) -> list[tuple[str, str]]:
    """Return each command of a page, and the text that it prints there."""
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    lines = [line.removeprefix("    ") for line in page.splitlines() if line.startswith("    ")]
    found = re.split(r"^\$ ", "\n".join(lines), flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (each.rstrip("\n").partition("\n") for each in found)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the session is curl's, which is not installed")
@pytest.mark.parametrize(("name", "commands"), [("start", 10), ("keys", 4), ("topics", 7), ("watch", 2), ("routes", 1)])
def test_a_curl_session_prints_its_documented_output(pair: Pair, tmp_path: Path, name: str, commands: int) -> None:
    said = session(name)
    assert len(said) >= commands
    real: dict[str, str] = {}
    with RunningGateway(pair.servers) as gateway:
        for command, printed in said:
            there = NUMBER.sub(lambda found: real[found[0]], command.replace("http://127.0.0.1:8080", gateway.url))
            run = subprocess.run(
                ["bash", "-c", there], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
            came = run.stdout.replace("\r", "").strip()
            for written, number in zip(NUMBER.findall(printed), NUMBER.findall(came), strict=False):
                real.setdefault(written, number)
            assert came == NUMBER.sub(lambda found: real[found[0]], printed), command
