"""The style rules that a program can check: length of functions, no sleeping, docstrings, names of files in them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("chp/chp", "server/chp_server", "client/chp_client") for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
NAMED = [
    path.relative_to(ROOT).as_posix()
    for folder in ("chp", "server", "client", "tests", "examples", "docs", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
]
FUNCTION_LINES_MAX = 70


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_style(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert not text.strip() or ast.get_docstring(tree), f"{path}: say what the module is, its rules, and why"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno
            assert lines <= FUNCTION_LINES_MAX, f"{path}:{node.lineno} {node.name} has {lines} lines"
        if isinstance(node, ast.Attribute) and node.attr == "sleep":
            sleeper = node.value.id if isinstance(node.value, ast.Name) else ""
            assert sleeper != "time", f"{path}:{node.lineno} sleeps: an event should wake it"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_that_a_test_says_it_covers_is_there(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for name in re.findall(r"[\w./]+\.py\b", said):
        assert any(f"/{found}".endswith(f"/{name}") for found in NAMED), f"{path}: there is no {name}"
