"""Keys as a tree of folders: pure text.

A folder is what stands before a slash, and ends with one. A key may be a folder's name without its slash; then both
are shown. Below `depth` a folder shows only how many keys it holds.

    /rates/ (3)
    ├── EUR/ (2)
    │   ├── JPY
    │   └── USD
    └── asof
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..text import escape


@dataclass(slots=True)
class Folder:
    """What is under one name: the number of keys, and the parts below."""

    keys: int = 0
    below: dict[str, Folder] = field(default_factory=dict)


def grow(keys: Iterable[str]) -> Folder:
    """The tree of these keys; a leaf is a name without a slash at its end."""
    root = Folder()
    for key in keys:
        folder = root
        folder.keys += 1
        for part in _parts(key):
            folder = folder.below.setdefault(part, Folder())
            folder.keys += 1
    return root


def _parts(key: str) -> list[str]:
    pieces = key.split("/")
    parts = [piece + "/" for piece in pieces[:-1]]
    if len(parts) > 1 and parts[0] == "/":  # the slash that a key begins with is no folder of its own
        parts[:2] = [parts[0] + parts[1]]
    return [*parts, pieces[-1]] if pieces[-1] else parts


def draw(keys: Iterable[str], depth: int | None = None, folder: Callable[[str], str] = str) -> list[str]:
    """The lines of the tree, at most `depth` levels of it; `folder` may colour a folder's name."""
    lines: list[str] = []
    _draw_level(grow(keys), "", depth, folder, lines, top=True)
    return lines


def _draw_level(
    here: Folder, indent: str, depth: int | None, style: Callable[[str], str], lines: list[str], *, top: bool = False
) -> None:
    if depth == 0:
        return
    names = sorted(here.below)
    for name in names:
        last = name == names[-1]
        branch = "" if top else ("└── " if last else "├── ")
        lines.append(indent + branch + _label(name, here.below[name], style))
        deeper = indent if top else indent + ("    " if last else "│   ")
        _draw_level(here.below[name], deeper, None if depth is None else depth - 1, style, lines)


def _label(name: str, here: Folder, style: Callable[[str], str]) -> str:
    shown = escape(name)
    return f"{style(shown)} ({here.keys:,})" if here.below else shown
