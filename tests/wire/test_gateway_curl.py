"""covers: the curl session of docs/gateway.md, line by line, at a pair and a gateway of its own."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

NUMBER = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])")  # a refused set takes one too, or it does not: they are learned
PAGE = Path(__file__).parents[2] / "docs/gateway.md"


def session() -> list[tuple[str, str]]:
    """Each command of the page, and what it says there that it prints."""
    page = PAGE.read_text(encoding="utf-8")
    parts = [page.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in ("A session", "Groups")]
    lines = [line.removeprefix("    ") for line in "\n".join(parts).splitlines() if line.startswith("    ")]
    found = re.split(r"^\$ ", "\n".join(lines), flags=re.MULTILINE)[1:]
    return [(command, printed) for command, _, printed in (each.rstrip("\n").partition("\n") for each in found)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the session is curl's, which is not installed")
def test_the_session_of_the_page_is_as_it_says(pair: Pair, tmp_path: Path) -> None:
    said = session()
    assert len(said) > 15
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
