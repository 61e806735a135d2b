"""covers: the lowest versions that pyproject.toml allows: the gateway's tests pass with them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.process.test_wheel import ROOT, pip

EXTRAS = ("cli", "metrics", "gateway")
TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "httpx>=0.27", "hypothesis>=6.100")
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def lowest(text: str) -> str:
    """Return a requirement that takes only the lowest version that another one allows."""
    wanted = Requirement(text)
    (bound,) = [each.version for each in wanted.specifier if each.operator == ">="]
    return f"{wanted.name}=={bound}"


def test_the_tests_of_the_gateway_pass_with_the_lowest_versions(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = [*project["dependencies"], *(each for name in EXTRAS for each in project["optional-dependencies"][name])]
    wanted = [lowest(each) for each in given]
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "low")], check=True, timeout=200)
    python = str(tmp_path / "low" / "bin" / "python")
    pip(python, "install", *wanted, *TOOLS)
    pip(python, "install", "--no-deps", str(ROOT))
    tests = sorted(str(path) for path in (ROOT / "tests" / "wire").glob("test_gateway_*.py"))
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0 and " passed" in done.stdout, f"{wanted}\n{done.stdout[-5000:]}{done.stderr[-2000:]}"
