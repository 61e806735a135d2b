"""covers: the wheel: it builds, its base needs pyzmq and msgpack only and runs, its types are used by mypy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = {"chp-clone", "pyzmq", "msgpack"}
SAMPLE = """
from chp_client import Ack, Clone, Change
from chp_client.recipes import Lock

def use(clone: Clone) -> Ack:
    with Lock(clone, "/locks/a"):
        ticket = clone.set("/a", b"1", ttl=3)

    @clone.on("/a")
    def changed(change: Change) -> None:
        print(change.key, change.expired)

    reveal_type(changed)
    reveal_type(ticket)
    clone.set(3, b"")
    return ticket.wait(timeout=1)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def pip(python: str, *args: str, cwd: Path | None = None) -> None:
    """Run pip. Skip the test if pip reaches no index of packages."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=500, cwd=cwd)
    if done.returncode and any(
        word in done.stderr for word in ("No matching distribution", "Connection", "Could not find")
    ):
        pytest.skip(f"no index of packages is reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(out), str(ROOT))
    [found] = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the bin directory of a new environment that has only the wheel without extras."""
    home = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=200)
    pip(str(home / "bin" / "python"), "install", str(wheel))
    return home / "bin"  # type: ignore[return-value]


def test_the_steps_of_the_container_image_make_programs_that_run(tmp_path: Path) -> None:
    """Do the Containerfile's steps without a container engine: only the files that it copies are there."""
    steps = (ROOT / "ops" / "Containerfile").read_text().split("\nFROM ")[1].splitlines()
    for line in steps:
        if line.startswith("COPY "):
            *given, to = line.split()[1:]
            for name in given:
                place = tmp_path / "src" / (to if (ROOT / name).is_dir() else name)
                place.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
    installs = [line.split("/opt/chp/bin/pip ")[1].split() for line in steps if "/opt/chp/bin/pip " in line]
    assert ["--require-hashes" in each for each in installs] == [True, False]
    assert {"--no-deps", "--no-build-isolation"} <= set(installs[1])
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "chp")], check=True, timeout=200)
    for given in installs:
        pip(str(tmp_path / "chp/bin/python"), *given, cwd=tmp_path / "src")
    pip(str(tmp_path / "chp/bin/python"), "check")
    for name in ("chp-server", "chp", "chp-gateway"):
        done = subprocess.run(
            [str(tmp_path / "chp/bin" / name), "--help"], capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_wheel_contains_five_packages_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        names = set(found.namelist())
        [metadata] = [found.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        [points] = [found.read(name).decode() for name in names if name.endswith(".dist-info/entry_points.txt")]
    assert {"chp/py.typed", "chp_client/py.typed", "chp_server/py.typed"} <= names
    assert {"pytest_chp/__init__.py", "pyspark_chp/__init__.py"} <= names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"chp", "chp_client", "chp_server", "pyspark_chp", "pytest_chp"}, "no tests, no examples"
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert len(needs) == 2 and "License-Expression: Apache-2.0" in metadata and "# chp-clone" in metadata
    assert "[pytest11]\npytest_chp = pytest_chp" in points and "chp-server = " in points


def test_the_base_install_runs_and_needs_two_packages(fresh: Path) -> None:
    listed = subprocess.run(
        [fresh / "python", "-m", "pip", "list", "--format", "freeze"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert {line.split("==")[0] for line in listed.splitlines()} - {"pip", "setuptools"} == BASE
    code = (
        "from chp_client import Clone; from chp_server.testing import Pair\\n"
        "with Pair() as pair, Clone(pair.servers) as clone:\\n"
        "    clone.wait_until_synced(30); print(clone.set('/a', b'1').wait(30).durability, clone['/a'])"
    ).replace("\\n", "\n")
    done = subprocess.run([fresh / "python", "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["replicated", "b'1'"], done.stderr


@pytest.mark.parametrize(("command", "extra"), [("chp", "cli"), ("chp-gateway", "gateway")])
def test_a_command_without_its_extra_says_what_to_install(fresh: Path, command: str, extra: str) -> None:
    done = subprocess.run([fresh / command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and f"[{extra}]" in done.stderr and "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_mypy_uses_the_types_of_the_wheel(fresh: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "sample.py").write_text(SAMPLE)
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(fresh / "python"), "--config-file", ""]
    done = subprocess.run([*argv, "sample.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and 'Argument 1 to "set"' in errors[0] and 'expected "str"' in errors[0], done.stdout
    assert 'Revealed type is "chp_client.agent.tickets.Ticket"' in done.stdout
    assert "def (change:" in done.stdout
