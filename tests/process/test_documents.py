"""The commands and programs that README shows are run as they stand there, with only the ports changed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_server.core.updates.resource_limits import ResourceLimits
from chp_server.shell import metrics
from chp_server.store.store_url import open_journal

from .cluster import ProcessPair

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_HERE = ("make ", "pip ", "python3 -m venv ", "chp-server ")  # set-up, and what the fixture starts


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith(NOT_HERE)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPair]:
    with ProcessPair(tmp_path_factory.mktemp("pair")) as started:
        yield started


def here(text: str, pair: ProcessPair) -> str:
    return text.replace("tcp://127.0.0.1:5556", pair.servers[0]).replace("tcp://127.0.0.1:5566", pair.servers[1])


def environ(pair: ProcessPair) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CHP_SERVERS": ",".join(pair.servers)}


def test_readme_shows_commands() -> None:
    assert len(commands()) >= 8


def test_every_command_of_readme_works(pair: ProcessPair, tmp_path: Path) -> None:
    for command in commands():
        done = subprocess.run(
            here(command, pair),
            shell=True,
            cwd=tmp_path,
            env=environ(pair),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


def test_the_library_in_readme_works(pair: ProcessPair, tmp_path: Path) -> None:
    program = next(block for block in blocks("python") if "with Clone(" in block)
    done = subprocess.run(
        [sys.executable, "-c", here(program, pair)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("b'1.0832' replicated\nset /rates/EUR/")


def test_the_program_of_the_recipes_works(pair: ProcessPair, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    argv = [sys.executable, "-c", here(program, pair)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("led\n1\n{'host-1': b'10.0.0.2:80'}\n")


def test_readme_shows_the_servers_that_the_tests_start() -> None:
    shown = [line for block in blocks("console") for line in block.splitlines() if "chp-server " in line]
    assert shown == [
        "$ chp-server --primary --peer tcp://127.0.0.1:5566 &",
        "$ chp-server --backup --peer tcp://127.0.0.1:5556 &",
    ]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SPEC.md",
        *(f"{p.parent.name}/{p.name}" for f in ("docs", "spec") for p in sorted(ROOT.glob(f"{f}/*.md"))),
    ],
)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which is not there"


def test_the_page_of_spark_has_the_options_as_they_are() -> None:
    options = pytest.importorskip("chp_client.spark.options")
    assert options.table() in (ROOT / "docs/spark.md").read_text(encoding="utf-8")


def test_every_metric_and_event_of_the_operators_page_exists(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    journal = open_journal(f"sqlite:{tmp_path}")
    known = {f"chp_{name}" for name in (*metrics._FLAGS, *metrics._GAUGES)} | {"chp_events_total"}
    known |= {"chp_turn_seconds_bucket", "chp_subscribers"} | {f"chp_{name}_seconds" for name in metrics._WAITS}
    known |= {f"chp_scrub_{name}" for name in metrics._SCRUB}
    known |= {f"chp_topics_{name}" for name in metrics._TOPICS} | {f"chp_group_{name}" for name in metrics._GROUPS}
    known |= {f"chp_room_{name}" for name in ResourceLimits().status(0)}
    known |= {f"chp_journal_{name}" for name in journal.stats()}
    journal.close()
    shown = set(re.findall(r"\bchp_[a-z_]+", page))
    assert len(shown) > 5 and shown <= known
    sources = "".join(path.read_text() for path in (ROOT / "server" / "chp_server").rglob("*.py"))
    table = page.partition("| event | means |\n")[2].partition("\n\n")[0]
    events = [event for line in table.splitlines() for event in re.findall(r"`([a-z_ ]+)`", line.split("|")[1])]
    assert len(events) > 5 and all(f'"{event}"' in sources for event in events)
