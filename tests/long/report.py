"""The report of the long proofs: what was proved for this commit, and for each package as it is now.

A line of tests/long.jsonl proves something for a package if the package is the same in the line's commit and in this
one. Comments, docstrings and the files that the part does not run may differ. A line proves something for "this commit"
if all files but tests/long.jsonl are the same. Of several lines the report shows the last one that is green or red and
not dirty, or else the last one. A line is dirty if its tree differed from its commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from .parts import Part
from .tree import ALL, code_of

PACKAGES = ("chp", "server", "client")
COLUMNS = ("this commit", *PACKAGES)
NEEDED = {"part": str, "commit": str, "dirty": bool, "at": str, "result": str, "rounds": int}
SHALLOW = "the report leaves out {} of a commit that this clone does not have; `git fetch --unshallow` gets all"
Line = dict[str, Any]
Git = Callable[..., str]


def report(lines: Path, parts: Sequence[Part], git: Git) -> tuple[str, list[str]]:
    """Return the report as a table, with a row for each part, and what is wrong with the lines."""
    told, wrong = read(lines)
    spares = {part.name: part.spares for part in parts}
    code = cache(lambda blob: code_of(git("cat-file", "blob", blob)))
    changed = {commit: _changed(commit, git, code) for commit in {line["commit"] for line in told}}
    shown: dict[tuple[str, str], Line] = {}
    for line in sorted(told, key=lambda line: (_rank(line), line["at"])):
        names = changed[line["commit"]]
        if names is not None:
            columns = _proved(names, spares.get(line["part"], ()))
            shown |= {(line["part"], column): line for column in columns}
    if unknown := sum(changed[line["commit"]] is None for line in told):
        wrong.append(SHALLOW.format("a line" if unknown == 1 else f"{unknown} lines"))
    rows = [["part", *COLUMNS]]
    rows += [[part.name, *(_text(shown.get((part.name, column))) for column in COLUMNS)] for part in parts]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sums = (f"{sum(row[i].startswith('green') for row in rows[1:])} of {len(parts)} are green for {name}"
            for i, name in enumerate(rows[0]) if i)  # fmt: skip
    return "\n".join([*table, "", *sums]), wrong


def read(lines: Path) -> tuple[list[Line], list[str]]:
    """Return the lines of a file, and what is wrong with the others."""
    told, wrong = [], []
    for no, text in enumerate(lines.read_text().splitlines() if lines.exists() else (), 1):
        try:
            line = json.loads(text)
            good = all(isinstance(line[name], kind) for name, kind in NEEDED.items())
        except (ValueError, KeyError, TypeError):
            good = False
        if not good or not re.fullmatch("[0-9a-f]{7,40}", line["commit"]):
            wrong.append(f"{lines}:{no}: this is not the line of a run; mend or remove it")
            continue
        if line["result"] == "green" and not line["rounds"] and line.get("skipped"):
            line["result"] = "skipped"
        told.append(line)
    return told, wrong


def _changed(commit: str, git: Git, code: Callable[[str], str]) -> dict[str, bool] | None:
    """Return the files that differ between a commit and this one, each with True if its code differs.

    Returns None if this clone does not have the commit. `code` returns the code of a blob.
    """
    try:
        told = git("diff", "--raw", "--no-abbrev", "--no-renames", commit, "HEAD", *ALL).splitlines()
    except CalledProcessError:
        return None
    files = [(name, *about.split()[2:]) for about, name in (line.split("\t") for line in told)]
    return {name: not _by_words(name, how) or code(old) != code(new) for name, old, new, how in files}


def _by_words(name: str, how: str) -> bool:
    """Return True if a file may differ in comments and docstrings alone."""
    return how == "M" and name.startswith(PACKAGES) and name.endswith(".py")


def _proved(changed: dict[str, bool], spares: tuple[str, ...]) -> list[str]:
    """Return the columns for which a line proves something, by the files that changed since."""
    touched = {name.partition("/")[0] for name, code in changed.items() if code and not name.startswith(spares)}
    return [*([] if changed else ["this commit"]), *(package for package in PACKAGES if package not in touched)]


def _rank(line: Line) -> bool:
    return line["result"] in ("green", "red") and not line["dirty"]


def _text(line: Line | None) -> str:
    """Return the cell of a line, or "-" if there is none."""
    if line is None:
        return "-"
    rounds = f" {line['rounds']}" if line["rounds"] else ""
    notes = [f"{line[name]} {name}" for name in ("skipped", "again") if line.get(name)]
    noted = f" ({', '.join(notes)})" if notes else ""
    return f"{'dirty ' * line['dirty']}{line['result']}{rounds}{noted} {line['at'][:10]}"
