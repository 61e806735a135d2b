"""Tests that the sections of the specification and the pages of docs/decisions which the code names exist.
covers: the references from the code to the sections of SPEC.md and spec/, and to docs/decisions
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "SPEC.md", *sorted((ROOT / "spec").glob("*.md"))]
SPEC = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
NUMBERED = [int(number) for number in re.findall(r"^## (\d+)\. ", SPEC, re.M)]
SECTIONS = set(NUMBERED)
FILES = [path for folder in ("chp", "server", "client") for path in (ROOT / folder).rglob("*.py")]


def test_sections_are_numbered_without_a_gap_and_each_is_on_one_page() -> None:
    assert sorted(NUMBERED) == list(range(1, max(SECTIONS) + 1))


def test_sections_that_the_specification_names_exist() -> None:
    named = {int(number) for number in re.findall(r"\bsection (\d+)", SPEC)}
    assert named and named <= SECTIONS


def test_sections_of_the_client_page_name_no_later_sections_of_the_page() -> None:
    """No section of client.md names one of it that comes later."""
    text = (ROOT / "spec" / "client.md").read_text(encoding="utf-8")
    begins = {int(found[1]): found.start() for found in re.finditer(r"^## (\d+)\. ", text, re.M)}
    for found in re.finditer(r"\bsections? (\d+)", text):
        assert begins.get(int(found[1]), 0) < found.start(), f"section {found[1]} is named before it is there"
    assert len(begins) > 12


def test_sections_that_the_code_names_exist() -> None:
    found = 0
    for path in FILES:
        for reference in re.findall(r"SPEC\.md,\s+(.*?)[;:).]", path.read_text(encoding="utf-8"), re.S):
            numbers = re.fullmatch(r"sections? (\d+)(?: and (\d+))?", " ".join(reference.split()))
            assert numbers, f"{path}: name a section of SPEC.md by its number, not {reference!r}"
            assert {int(n) for n in numbers.groups() if n} <= SECTIONS, f"{path}: no {reference} in SPEC.md"
            found += 1
    assert found > 15


def test_decisions_that_the_code_names_exist_and_are_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = {path.name for path in folder.glob("0*.md")}
    named = {n for path in FILES for n in re.findall(r"docs/decisions/(\d{4})", path.read_text(encoding="utf-8"))}
    assert named and named <= {name[:4] for name in pages}
    assert set(re.findall(r"\]\((0[^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"))) == pages
