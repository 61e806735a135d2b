"""covers: docs/site/make.py: each page is on the site, links lead somewhere, the reference has what is public."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import chp_client
from chp_client import recipes

ROOT = Path(__file__).parents[2]
MAKE = ROOT / "docs" / "site" / "make.py"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return runpy.run_path(str(MAKE))


@pytest.fixture(scope="module")
def source(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site") / "source"
    # Spark may not be installed.
    made["API"].pop("spark", None)
    made["make_source"](to)
    return to


def test_every_page_is_in_one_group(made: dict[str, Any], source: Path) -> None:
    groups = tomllib.loads((source / "zensical.toml").read_text())["project"]["nav"]
    shown = [page for group in groups for pages in group.values() for page in pages]
    there = {str(path.relative_to(source / "docs")) for path in (source / "docs").rglob("*.md")}
    assert sorted(shown) == sorted(there), "each page once"
    named = {page for pages in made["NAV"].values() for page in pages} - {"api/spark.md"}
    assert named <= there, f"{named - there} are in NAV and not there"


def test_links_lead_to_pages(source: Path) -> None:
    found = 0
    for path in (source / "docs").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
            if ":" not in target:
                found += 1
                assert (path.parent / target).resolve().exists(), f"{path.name} links to {target}"
    assert found > 40


def test_a_link_without_a_page_is_shown_as_its_path(made: dict[str, Any]) -> None:
    known, readme = made["pages"](), ROOT / "README.md"
    text = "see [the demo](examples/rates), [ops/](ops), [SPEC.md](SPEC.md#x), [us](https://a.b/) ![x](docs/c.png)"
    shown = made["linked"](text, "index.md", readme, known)
    assert shown == "see the demo (`examples/rates`), ops/, [SPEC.md](spec.md#x), [us](https://a.b/) ![x](c.png)"
    below = made["linked"]("[g](../guarantees.md)", "recipes/lock.md", ROOT / "docs/recipes/lock.md", known)
    assert below == "[g](../guarantees.md)"


def test_the_reference_has_every_public_name(source: Path) -> None:
    for page, module in (("clone", chp_client), ("recipes", recipes)):
        text = (source / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
        assert all(f"\n## {name}\n" in text for name in module.__all__), page
    text = (source / "docs" / "api" / "clone.md").read_text(encoding="utf-8")
    assert "\n### Clone.set\n" in text and "set(key, value, ttl=None, if_revision=None, timeout=None)" in text


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    argv = [sys.executable, str(MAKE), "--source", str(tmp_path / "source"), "--out", str(tmp_path / "site")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists() and (tmp_path / "site" / "search.json").exists()
