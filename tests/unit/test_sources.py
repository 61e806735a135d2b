"""covers: docs/sources.md: each demand of the sources has its row, and the tests that it names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!demand )(\S+) \| ([^|]+) \| ([^|]*)\| ?([^|]*)\|$", PAGE, re.M)
NAMED = [(demand, *named) for demand, _, _, by in ROWS for named in re.findall(r"`(tests/[a-z0-9_/]+\.py)::(\w+)`", by)]
# The demands are R1a and so on.
REQUIREMENTS = ("1abc", "2", "3abcdefghijkl", "4ab", "5abcd", "6abcd", "7ab", "8", "9")
# The tests are T1.1 to T1.4 and so on.
TESTS = (4, 1, 3, 2, 2, 1, 1, 1, 1, 3)
DEMANDS = [
    *(f"002-{n:02}" for n in range(1, 27)),
    *(f"000-{n:02}" for n in range(1, 20)),
    *(f"001-{n:02}" for n in range(1, 19)),
    "003-00",
    *(f"R{each[0]}{part}" for each in REQUIREMENTS for part in each[1:] or ("",)),
    "R10",
    *(f"T{n}.{i}" for n, last in enumerate(TESTS, 1) for i in range(1, last + 1)),
    *("W1", "W2", "W3"),
    *(f"004-{n:02}" for n in range(1, 15)),
    *(f"G-{n:02}" for n in range(1, 25)),
]


def test_each_demand_has_one_row_in_order() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| demand |")]
    assert len(lines) == len(ROWS), "each row has four cells"
    assert [demand for demand, *_ in ROWS] == DEMANDS


@pytest.mark.parametrize(("demand", "how", "by"), [(demand, how, by) for demand, _, how, by in ROWS])
def test_each_demand_names_a_test_or_a_reason(demand: str, how: str, by: str) -> None:
    why_not = re.match(r"(otherwise|not there): \S", how)
    assert bool(why_not) != bool(by.strip()), f"{demand}: name a test, or say why there is none"


@pytest.mark.parametrize(("demand", "path", "name"), NAMED)
def test_each_named_test_exists(demand: str, path: str, name: str) -> None:
    file = ROOT / path
    assert file.exists(), f"{demand} names {path}, which is not there"
    assert re.search(rf"^ *(async )?def {name}\(", file.read_text(encoding="utf-8"), re.M), f"{path} has no {name}"
