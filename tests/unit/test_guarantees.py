"""covers: docs/guarantees.md: each promise names a test, and the test is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `(tests/[a-z0-9_/]+\.py)::(\w+)` \|$", PAGE, re.M)


def test_every_row_of_the_page_is_a_promise_with_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line != "| promise | held by |"]
    assert len(rows) == len(ROWS) > 20


@pytest.mark.parametrize(("promise", "path", "name"), ROWS)
def test_the_test_of_each_promise_exists(promise: str, path: str, name: str) -> None:
    file = ROOT / path
    assert file.exists(), f"{promise!r} names {path}, which is not there"
    assert re.search(rf"^ *(async )?def {name}\(", file.read_text(encoding="utf-8"), re.M), f"{path} has no {name}"
