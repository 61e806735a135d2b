"""The commands and programs that README shows are run as they stand there, with only the ports changed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chp import facts
from chp_server.settings import config
from tests.talk import WAIT_S, synced

from .cluster import ProcessPair

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# These commands are not run here. `make`, `pip` and `python3 -m venv` set the machine up. The fixture starts the
# servers, and `chp dev` has tests of its own.
NOT_HERE = ("make ", "pip ", "python3 -m venv ", "chp-server ", "chp dev")
ENDLESS = ("chp watch ",)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.S)


def commands(page: str) -> list[str]:
    lines = [line[2:] for block in blocks("console", page) for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith(NOT_HERE)]


@pytest.fixture
def empty_pair(process_pair: ProcessPair) -> ProcessPair:
    """Empty the map of the shared pair."""
    with synced(process_pair.servers) as clone:
        clone.delete_prefix("/", timeout=WAIT_S)
    return process_pair


def here(text: str, pair: ProcessPair) -> str:
    return text.replace("tcp://127.0.0.1:5556", pair.servers[0]).replace("tcp://127.0.0.1:5566", pair.servers[1])


def environ(pair: ProcessPair) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CHP_SERVERS": ",".join(pair.servers)}


@pytest.mark.parametrize(("page", "count"), [("README.md", 5), ("docs/cli.md", 10)])
def test_every_command_of_a_page_works(page: str, count: int, empty_pair: ProcessPair, tmp_path: Path) -> None:
    assert len(commands(page)) >= count
    for command in commands(page):
        # `timeout` interrupts an endless command as Ctrl-C does, and then ends with code 124 itself.
        endless = command.startswith(ENDLESS)
        done = subprocess.run(
            f"timeout --signal INT 5 {here(command, empty_pair)}" if endless else here(command, empty_pair),
            shell=True,
            cwd=tmp_path,
            env=environ(empty_pair),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == (124 if endless else 0), f"$ {command}\n{done.stdout}{done.stderr}"


def run_program(program: str, empty_pair: ProcessPair, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", here(program, empty_pair)],
        cwd=tmp_path,
        env=environ(empty_pair),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_in_readme_works(empty_pair: ProcessPair, tmp_path: Path) -> None:
    program = next(block for block in blocks("python") if "with Clone(" in block)
    shown = run_program(program, empty_pair, tmp_path)
    assert re.fullmatch(r"\{'requests': 10\}\nreplicated\nset /config/\w+ .+\n", shown)


def test_the_programs_of_the_library_work(empty_pair: ProcessPair, tmp_path: Path) -> None:
    program = "".join(blocks("python", "docs/library.md"))
    shown = run_program(f"{program}clone.close()\n", empty_pair, tmp_path)
    assert shown.startswith("replicated\nset /config/")


def test_the_program_of_the_recipes_works(empty_pair: ProcessPair, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert run_program(program, empty_pair, tmp_path).endswith("led\n1\n{'host-1': b'10.0.0.2:80'}\n")


def test_the_servers_in_readme_have_flags_that_exist(tmp_path: Path) -> None:
    lines = [line for block in blocks("console") for line in block.splitlines() if "$ chp-server " in line]
    assert len(lines) == 2
    for line in lines:
        command = line.partition("$ ")[2].replace("/etc/chp/keys", str(tmp_path)).replace("/var/lib/chp", str(tmp_path))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        argv = ["sh", "-c", f"{command} --show-config"]
        done = subprocess.run(
            argv, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "SPEC.md",
        *(str(p.relative_to(ROOT)) for f in ("docs", "spec") for p in sorted(ROOT.glob(f"{f}/**/*.md"))),
    ],
)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which is not there"


def test_the_table_of_options_in_the_spark_page_is_current() -> None:
    options = pytest.importorskip("chp_client.spark.options")
    assert options.table() in (ROOT / "docs/spark.md").read_text(encoding="utf-8")


def test_the_table_in_the_settings_page_is_current() -> None:
    assert config.table() in (ROOT / "docs/settings.md").read_text(encoding="utf-8")


def test_every_setting_that_the_operators_page_explains_exists() -> None:
    page = "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/operations*/*.md")))
    table = page.partition("| setting | when to change it |\n|---|---|\n")[2].partition("\n\n")[0]
    names = {name for line in table.splitlines() for name in line.split("|")[1].strip().split(", ")}
    assert len(names) > 9 and names <= config.BY_NAME.keys()


def test_the_tables_of_facts_in_the_metrics_page_are_current() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for table in facts.tables().split("\n\n"):
        assert table in page, "docs/metrics.md has another table than chp.facts.tables()"


def test_every_metric_and_event_of_the_operators_page_exists() -> None:
    page = "\n".join(path.read_text() for path in sorted(ROOT.glob("docs/operations*/*.md")))
    known = {
        fact.metric_name for fact in (*facts.GAUGES, *facts.GROUP_GAUGES, *facts.REPLICA_GAUGES)
    } | facts.MEASURE.keys()
    shown = {name.removesuffix("_bucket") for name in re.findall(r"\bchp_[a-z_]+", page)}
    assert len(shown) > 5 and shown <= known
    sources = "".join(path.read_text() for path in (ROOT / "server" / "chp_server").rglob("*.py"))
    table = page.partition("| event | means |\n")[2].partition("\n\n")[0]
    events = [event for line in table.splitlines() for event in re.findall(r"`([a-z_ ]+)`", line.split("|")[1])]
    assert len(events) > 5 and all(f'"{event}"' in sources for event in events)
