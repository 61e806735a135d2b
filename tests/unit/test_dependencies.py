"""Tests of imports: their one direction, and pure modules without sockets, clocks, files and chance."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_server.core.core import CoreConfig, ServerCore

ROOT = Path(__file__).parents[2]
CORE_NAMES_MAX = 15
PACKAGES = {"chp": ROOT / "chp/chp", "chp_server": ROOT / "server/chp_server", "chp_client": ROOT / "client/chp_client"}
FORBIDDEN = {"chp": {"chp_server", "chp_client"}, "chp_server": {"chp_client"}, "chp_client": {"chp_server"}}
IMPURE = {
    "zmq", "socket", "threading", "asyncio", "time", "os", "random", "uuid", "logging", "datetime", "secrets", "select",
    "selectors", "subprocess", "sqlite3", "pathlib", "io", "multiprocessing", "concurrent", "queue", "signal",
}  # fmt: skip
# All modules under these folders are pure.
PURE = ("chp/chp", "server/chp_server/core", "client/chp_client/core")
# Modules outside these folders that the cores may import.
PURE_BESIDES = {
    "chp_server": {"chp_server.settings.config", "chp_server.settings.readers"},
    "chp_client": {"chp_client.errors"},
}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full name of each module that a file imports, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno


def files(package: str) -> list[Path]:
    """Return all files of a package."""
    return sorted(PACKAGES[package].rglob("*.py"))


def pure_files() -> list[Path]:
    """Return the files of all pure modules."""
    folders = [path for folder in PURE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*folders, *(MODULES[name] for names in PURE_BESIDES.values() for name in sorted(names))]


def name_of(path: Path) -> str:
    """Return the dotted name of a module, or of a package for its `__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")


MODULES = {name_of(path): path for package in PACKAGES for path in files(package)}


def knows(path: Path) -> set[str]:
    """Return the modules of its own package that a file imports, also for types only."""
    here = list(path.relative_to(ROOT).parts[1:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])
            below = {f"{base}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= below or {base}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_a_forbidden_package(package: str) -> None:
    for path in files(package):
        for name, line in imports(path):
            assert name.split(".")[0] not in FORBIDDEN[package], f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", pure_files(), ids=name_of)
def test_pure_modules_do_no_io_and_know_no_time(path: Path) -> None:
    for name, line in imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path}:{line} imports {name}: pass it in as an argument"


@pytest.mark.parametrize("package", ["chp_server", "chp_client"])
def test_pure_modules_import_only_pure_modules(package: str) -> None:
    """A pure module may not get an impure one by a relative import either."""
    pure = {name_of(path) for path in pure_files()}
    for path in [*(PACKAGES[package] / "core").rglob("*.py"), *(MODULES[name] for name in PURE_BESIDES[package])]:
        assert knows(path) <= pure, f"{path} imports {knows(path) - pure}"


def test_each_folder_has_a_docstring() -> None:
    for package in ("chp_server", "chp_client"):
        for folder in {path.parent for path in files(package)}:
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_of_a_package_form_no_cycle(package: str) -> None:
    """Imports go in one direction, also where they only name a type."""
    arrows = {name: knows(path) for name, path in MODULES.items() if name.startswith(f"{package}.")}
    for start in arrows:
        seen: set[str] = set()
        left = [start]
        while left:
            for name in arrows.get(left.pop(), set()) - seen:
                assert name != start, f"{package}: {start} leads back to itself, by {sorted(seen)}"
                seen.add(name)
                left.append(name)


def beside(folder: str) -> dict[str, set[str]]:
    """Return the imports among the modules and the subfolders of a folder."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name.startswith(f"{folder}."):
            here = name.split(".")[folder.count(".") + 1]
            known = {other.split(".")[folder.count(".") + 1] for other in knows(path) if other.startswith(f"{folder}.")}
            found.setdefault(here, set()).update(known - {here})
    return found


def circle(arrows: dict[str, set[str]]) -> set[str]:
    """Return what is left when all without imports or importers is taken away again and again."""
    left = set(arrows)
    while True:
        known = set().union(*(arrows[name] for name in left)) if left else set()
        stay = {name for name in left & known if arrows[name] & left}
        if stay == left:
            return left
        left = stay


CORE_ORDER = ("state", "updates", "pair", "asks", "peer", "questions", "core", "replica")


def test_the_folders_of_the_server_core_import_in_one_direction() -> None:
    """Assert that no folder of the core imports one that stands behind it in `CORE_ORDER`."""
    arrows = beside("chp_server.core")
    for number, name in enumerate(CORE_ORDER):
        above = arrows[name] & set(CORE_ORDER[number + 1 :])
        assert not above, f"core/{name} imports {sorted(above)}"


# The parts that may read and write all that is known of the pair. Every other part is given a view of it, or nothing.
KNOW_THE_PAIR = {
    "core.core", "core.heartbeats", "peer.handshake", "peer.peerlink", "peer.replay", "questions.status",
}  # fmt: skip
# The number of names that a view may have.
VIEW_NAMES_MAX = 8
# The number of arguments that a part may have when it is made.
GIVEN_MAX = 8
# Its turns, what comes in, what it decides; the parts that the shell, `performing` and tests look at.
CORE_NAMES = {
    "begin_turn", "subscription", "collect", "request", "peer_message", "page", "measured", "end_turn", "next_deadline",
    "begin_short_turn", "end_short_turn", "do", "status", "state", "active",
    "promote", "stand_still",
    "turn", "committer", "pair", "link", "requests", "heartbeats", "release",
}  # fmt: skip


def test_the_server_core_has_exactly_the_listed_public_names() -> None:
    core = ServerCore(CoreConfig(), bytes(16), 0.0)
    assert {name for name in dir(core) if not name.startswith("_")} == CORE_NAMES


def test_only_listed_parts_of_the_server_core_import_the_pair_state() -> None:
    knowing = set()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and "PairState" in {alias.name for alias in node.names}:
                knowing.add(".".join(name.split(".")[-2:]))
    assert knowing == KNOW_THE_PAIR


def test_views_in_the_server_core_have_few_names() -> None:
    for path in sorted((PACKAGES["chp_server"] / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases) and "View" in node.name:
                names = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AnnAssign)]
                assert len(names) <= VIEW_NAMES_MAX, f"{path}:{node.lineno} shows {len(names)} names"


def test_parts_of_the_server_core_take_few_arguments() -> None:
    """A part that needs more is two parts, or decides what its owner should."""
    for path in sorted((PACKAGES["chp_server"] / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                given = [*node.args.args[1:], *node.args.kwonlyargs]
                assert len(given) <= GIVEN_MAX, f"{path}:{node.lineno} is given {len(given)} things"


FOLDERS = sorted(name for name, path in MODULES.items() if path.stem == "__init__")


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_inside_each_folder_have_one_direction(folder: str) -> None:
    """Of two folders side by side, or of a folder and a module, only one imports the other."""
    assert circle(beside(folder)) == set()


@pytest.mark.parametrize("path", ["server/chp_server/shell/reactor.py", "tests/sim/servers.py"])
def test_the_reactor_and_the_simulation_use_few_names_of_the_core(path: str) -> None:
    """h11's Connection has 11 public names, raft's RawNode 18 methods."""
    used = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            of = node.value
            if (isinstance(of, ast.Name) and of.id == "core") or (isinstance(of, ast.Attribute) and of.attr == "core"):
                used.add(node.attr)
    assert len(used) <= CORE_NAMES_MAX, f"{path} uses of the core: {sorted(used)}"


def test_the_parts_of_the_server_core_do_not_import_the_core() -> None:
    """A part of the core is given what it needs; only modules around the core, and a replica's core, import it."""
    knowing = {path.stem for path in files("chp_server") if "chp_server.core.core" in knows(path)}
    assert knowing == {"performing", "snapshots", "copies", "resources", "reactor", "cores", "core"}


def test_only_agent_port_and_gateway_channels_connect_to_a_server() -> None:
    """Assert that no other module of the client makes a DEALER; a browser's frames go by the gateway's."""
    made = set()
    for path in files("chp_client"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "DEALER":
                made.add(name_of(path))
    allowed = {"chp_client.agent.sockets", "chp_client.port.connection", "chp_client.gateway.channels.connection"}
    assert made == allowed


def test_the_source_folders_contain_only_installed_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    for folder in ("chp", "server", "client"):
        found = {path.name for path in (ROOT / folder).iterdir() if not path.name.startswith((".", "__"))}
        assert {f"{folder}/{name}" for name in found} <= packages, f"{folder}/ has more than what is installed"


def test_the_page_on_the_architecture_names_every_module() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        for room in sorted({path.parent for path in files(package)}):
            shown = room.relative_to(ROOT)
            there = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
            row = re.search(rf"^\| {re.escape(str(shown))}/ \|(.*)$", page, re.MULTILINE)
            assert row, f"the page has no row for {shown}/"
            named = set(re.findall(r"\b(\w+)\.py", row[1]))
            assert named == there, f"{shown}: {there ^ named} is named or there, not both"


def defined() -> dict[str, set[str]]:
    """Return the names that each module and each class defines, with fields, by its last name."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.Module):
                owner = node.name if isinstance(node, ast.ClassDef) else name.rpartition(".")[2]
                inside = {each.name for each in node.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
                found.setdefault(owner, set()).update(inside)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.setdefault("", set()).add(node.attr)
    return found


def test_names_in_the_architecture_journeys_exist() -> None:
    """In `A.b`, A is a class or a module that has b; a single name is a class, a function or a field."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    journeys = page[page.index("## A KVSET's journey") : page.index("## From KVSETs to records")]
    names = [name for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", journeys) if not name.endswith(".py")]
    there = defined()
    everything = set().union(*there.values()) | {name for name in there if name[:1].isupper()}
    settings = {"peer_timeout_s", "clone.set", "dict.update"}  # of configuration; what an application writes
    for name in set(names) - settings:
        owner, _, last = name.rpartition(".")
        assert last in (there.get(owner, ()) if owner else everything), f"{name} is nowhere"
    assert len(set(names)) > 80, "and they are many"


def test_the_journeys_name_the_file_of_each_ambiguous_class() -> None:
    """A paragraph that names an ambiguous class, such as `Channels`, says which file is meant."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    journeys = page[page.index("## A KVSET's journey") : page.index("## From KVSETs to records")]
    places: dict[str, set[str]] = {}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    long = {"S": "server/chp_server", "C": "client/chp_client", "chp": "chp/chp"}
    for step in re.split(r"\n(?:\n|\d\. )", journeys):
        named = {f"{long[side]}/{rest}" for side, rest in re.findall(r"\*\*(S|C|chp)/([\w/.]+)\*\*", step)}
        for owner in re.findall(r"`([A-Z]\w*)\.\w+`", step):
            assert len(places[owner]) == 1 or named & places[owner], f"{owner} is in {sorted(places[owner])}: {step}"


def test_each_place_that_the_glossary_names_exists() -> None:
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (\S+\.py) \|$", page, re.MULTILINE)
    long = {"S/": "server/chp_server/", "C/": "client/chp_client/"}
    for place in rows:
        path = long.get(place[:2], place[:2]) + place[2:]
        assert (ROOT / path).is_file(), f"the glossary names {path}, which is not there"
    assert len(rows) > 50, "and they are many"
