"""The tree of files that a part runs on, without tests/long.jsonl."""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
LINES = "tests/long.jsonl"
# The pathspec of all files but tests/long.jsonl.
ALL = ("--", ".", f":!{LINES}")


@dataclass(frozen=True)
class Tree:
    """A commit, the name that git gives to the content of all files, and whether the commit has another content."""

    commit: str
    content: str
    dirty: bool


def git(*words: str, **environ: str) -> str:
    """Return what git prints; raise CalledProcessError if it fails."""
    argv, env = ["git", *words], {**os.environ, **environ}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip()


def look() -> Tree:
    """Return the present tree, with the last commit that changed more than tests/long.jsonl."""
    with TemporaryDirectory() as place:
        index = {"GIT_INDEX_FILE": f"{place}/index"}
        git("read-tree", "HEAD", **index)
        contents = []
        for change in (("rm", "--quiet", "--cached", "--ignore-unmatch", LINES), ("add", "--all", *ALL)):
            git(*change, **index)
            contents.append(git("write-tree", **index))
    committed, content = contents
    return Tree(git("log", "-1", "--format=%H", *ALL)[:12], content, content != committed)


def code_of(text: str) -> str:
    """Return the code of a Python file, without comments and docstrings."""
    module = ast.parse(text)
    for node in ast.walk(module):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if ast.get_docstring(node):
                del node.body[0]
    return ast.dump(module)
