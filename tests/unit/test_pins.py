"""covers: ops/requirements.txt: what the image installs is pinned with hashes, and is what pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = (ROOT / "ops" / "requirements.txt").read_text()
PIN = re.compile(r"([a-z0-9-]+)==([^ ;]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def test_each_package_has_a_version_and_hashes_and_no_host_is_named() -> None:
    lines = [line for line in PIN.sub("", PINS).splitlines() if not line.lstrip().startswith("#")]
    assert lines == [], "a line that is no pin"
    assert "://" not in PINS and "index" not in PINS


def test_the_pins_are_allowed_by_pyproject() -> None:
    pinned = {canonicalize_name(name): version for name, version, _ in PIN.findall(PINS)}
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = read["project"]["optional-dependencies"]
    given = [*read["build-system"]["requires"], *read["project"]["dependencies"]]
    given += [each for name in ("cli", "metrics", "gateway") for each in extras[name]]
    for each in map(Requirement, given):
        version = pinned.get(canonicalize_name(each.name), "0")
        assert each.specifier.contains(version), f"{each}: {version} is pinned; run make pins"


def test_the_image_installs_only_the_pinned_packages() -> None:
    image = (ROOT / "ops" / "Containerfile").read_text()
    installs = [line for line in image.splitlines() if "pip install" in line]
    assert len(installs) == 2 and "--require-hashes -r ops/requirements.txt" in installs[0]
    assert "--no-deps --no-build-isolation ." in installs[1]
    bases = [line.split()[1] for line in image.splitlines() if line.startswith("FROM ")]
    assert bases == ["${BASE}"] * 2 and "ARG BASE=" in image.partition("FROM ")[0]
