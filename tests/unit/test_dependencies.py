"""Who may import whom, as docs/architecture.md says, and what a pure module may not: sockets, clocks, files, chance."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE_NAMES_MAX = 15
PACKAGES = {"chp": ROOT / "chp/chp", "chp_server": ROOT / "server/chp_server", "chp_client": ROOT / "client/chp_client"}
FORBIDDEN = {"chp": {"chp_server", "chp_client"}, "chp_server": {"chp_client"}, "chp_client": {"chp_server"}}
IMPURE = {
    "zmq", "socket", "threading", "asyncio", "time", "os", "random", "uuid", "logging", "datetime", "secrets", "select",
    "selectors", "subprocess", "sqlite3", "pathlib", "io", "multiprocessing", "concurrent", "queue", "signal",
}  # fmt: skip
PURE = {
    "chp_server": [
        "listeners", "subscribing",
        "acks", "intake", "openrecord", "records",
        "binary_star", "state", "staging", "commit", "channels", "syncs", "pending", "recordlog", "follow",
        "suffix", "replay", "plain", "peerlink", "requests", "image", "images", "shares", "core", "turn", "verdicts",
        "leases", "performing", "snapshots", "committed", "history", "epochs", "meeting", "status", "scrub",
        "scrubber", "arbitration", "room", "unwritten", "resting", "pulse", "ending", "leaving", "standing",
    ],
    "chp_client": [
        "core", "leadership", "session", "freshness", "ownsets", "channels", "holding", "timing", "classic", "channel",
        "link", "outbox", "replica", "leases", "events", "backlog", "speaking", "question",
        "keyorder",
    ],
}  # fmt: skip


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """The full name of each module that a file imports, as far as the file says; and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno


def files(package: str) -> list[Path]:
    """All of a package."""
    return sorted(PACKAGES[package].rglob("*.py"))


def pure_files() -> list[Path]:
    """The modules that have to be pure."""
    named = [PACKAGES[package] / f"{name}.py" for package, names in PURE.items() for name in names]
    return files("chp") + named


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_what_it_may_not(package: str) -> None:
    for path in files(package):
        for name, line in imports(path):
            assert name.split(".")[0] not in FORBIDDEN[package], f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_pure_modules_do_no_io_and_know_no_time(path: Path) -> None:
    for name, line in imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path}:{line} imports {name}: pass it in as an argument"


def test_pure_modules_of_the_server_lean_on_nothing_impure_of_it() -> None:
    """A relative import may not bring in by the back door what the front door refuses."""
    pure = set(PURE["chp_server"]) | {"journal"}  # what all stores have is pure too
    for path in (PACKAGES["chp_server"] / f"{name}.py" for name in PURE["chp_server"]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                named = {node.module} if node.module else {alias.name for alias in node.names}
                assert named <= pure, f"{path}:{node.lineno} imports {named - pure}"


def siblings(path: Path) -> set[str]:
    """The modules of its own package that a file imports, for its types only too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("package", ["chp", "chp_server"])
def test_no_module_leads_back_to_itself(package: str) -> None:
    """Who knows whom has one direction, also where only a type is named."""
    knows = {path.stem: siblings(path) for path in files(package)}
    for start in knows:
        seen: set[str] = set()
        left = [start]
        while left:
            for name in knows.get(left.pop(), set()) - seen:
                assert name != start, f"{package}: {start} leads back to itself, by {sorted(seen)}"
                seen.add(name)
                left.append(name)


@pytest.mark.parametrize("path", ["server/chp_server/reactor.py", "tests/sim/servers.py"])
def test_who_runs_the_core_knows_little_of_it(path: str) -> None:
    """h11's Connection has 11 public names, raft's RawNode 18 methods."""
    used = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            of = node.value
            if (isinstance(of, ast.Name) and of.id == "core") or (isinstance(of, ast.Attribute) and of.attr == "core"):
                used.add(node.attr)
    assert len(used) <= CORE_NAMES_MAX, f"{path} uses of the core: {sorted(used)}"


def test_the_parts_of_the_server_s_core_do_not_know_the_core() -> None:
    """They are told, and ask (standing.py); who knows it stands around it."""
    knowing = {path.stem for path in files("chp_server") if "core" in siblings(path)}
    assert knowing == {"performing", "snapshots", "copies", "reactor"}


def test_only_packages_lie_in_the_three_folders() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    for folder in ("chp", "server", "client"):
        found = {path.name for path in (ROOT / folder).iterdir() if not path.name.startswith((".", "__"))}
        assert {f"{folder}/{name}" for name in found} <= packages, f"{folder}/ has more than what is installed"


def test_the_page_on_the_architecture_names_every_module() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for package, folder in PACKAGES.items():
        table = page.partition(f"| {folder.relative_to(ROOT)} |")[2].partition("\n\n")[0]
        named = set(re.findall(r"\b(\w+)\.py", table))
        there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert named == there, f"{package}: {there ^ named} is named or there, not both"
