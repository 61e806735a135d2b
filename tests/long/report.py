"""The report of the long proofs: what was proved for this commit, and for the last change of each package.

A line of tests/long.jsonl proves something for a package if its commit has the last change of that package. The report
says "dirty" of a line whose tree differed from its commit. "This commit" is the last one that changed more than the
lines themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGES = ("chp", "server", "client")
Git = Callable[..., str]


def report(lines: Path, parts: list[str], git: Git) -> str:
    """Return the report as a table, with a row for each part."""
    told = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    paths = {"this commit": (".", ":!tests/long.jsonl"), **{name: (name,) for name in PACKAGES}}
    sets = {name: _since(told, git("log", "-1", "--format=%H", "--", *where), git) for name, where in paths.items()}
    rows = [["part", *sets]]
    rows += [[part, *(_shown(commits, told, part) for commits in sets.values())] for part in parts]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sums = (f"{sum(row[i].startswith('green') for row in rows[1:])} of {len(parts)} are green for {name}"
            for i, name in enumerate(rows[0]) if i)  # fmt: skip
    return "\n".join([*table, "", *sums])


def _since(told: list[dict[str, Any]], at: str, git: Git) -> set[str]:
    """Return the commits of the lines that are a commit or follow on it."""
    if not told or not at:
        return set()
    after = {at, *git("rev-list", f"{at}..HEAD", "--ancestry-path").split()}
    return {line["commit"] for line in told if any(each.startswith(line["commit"]) for each in after)}


def _shown(commits: set[str], told: list[dict[str, Any]], part: str) -> str:
    """Return the last result of a part among some commits, or "-" if it did not run there."""
    found = [line for line in told if line["part"] == part and line["commit"] in commits]
    if not found:
        return "-"
    last = found[-1]
    rounds = f" {last['rounds']}" if last["rounds"] else ""
    return f"{'dirty ' * last['dirty']}{last['result']}{rounds} {last['at'][:10]}"
