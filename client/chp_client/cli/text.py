"""Keys, values, numbers and times as text, and back. No function here has an effect.

A value is bytes. JSON has a value as the text "value" if it is UTF-8, else as "base64", so that a reader can restore
every value exactly. On a terminal, control characters are shown as escapes: a stored value must not move the cursor.

A revision is shown as `epoch.sequence`. JSON has the same text, because a revision is too large a number for most JSON
readers to keep exactly.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chp.limits import DEFAULT
from chp.numbers import Revision, describe

_DURATION = re.compile(r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+) ?(?P<unit>ms|s|m|h|d|)\Z")
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SHOWN_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"))
_BARS = " ▁▂▃▄▅▆▇█"


# -- values


def value_fields(value: bytes) -> dict[str, str]:
    """Return a value as one JSON field: "value" if it is UTF-8, else "base64"."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def value_of(fields: dict[str, Any]) -> bytes:
    """Return the value in a JSON object. Raise ValueError if "value" or "base64" is missing or wrong."""
    text, coded = fields.get("value"), fields.get("base64")
    if (text is None) == (coded is None):
        raise ValueError('give one of "value" (text) and "base64"')
    if type(text) is str:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ValueError('"value" has a lone surrogate; give the bytes as "base64"') from None
    if type(coded) is not str:
        raise ValueError('"value" and "base64" are text')
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError('"base64" is not base64 (RFC 4648, with padding)') from None


def escape(text: str, keep: str = "") -> str:
    """Return text that is safe on a terminal: characters that do not print, except `keep`, become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def show_value(value: bytes, keep: str = "") -> str:
    """Return a value for a terminal."""
    return escape(value.decode(errors="backslashreplace"), keep)


# -- numbers


def show_revision(revision: int) -> str:
    """Return `epoch.sequence`."""
    return describe(revision)


def read_revision(text: str) -> Revision:
    """Read a revision from `epoch.sequence`, or from one number. Raise ValueError for another text."""
    return Revision(text)


def read_delay(text: str) -> float:
    """Return the seconds of a delay in the form of `read_duration`, from 0 to a hundred years; ValueError otherwise."""
    found = _DURATION.match(text.strip().lower())
    seconds = float(found["number"]) * _UNIT_S[found["unit"]] if found else math.nan
    if not 0 <= seconds <= DEFAULT.delay_s_max:
        raise ValueError("give seconds from 0 to a hundred years, such as 30, 500ms, 5m, 2h or 1d")
    return seconds


def read_duration(text: str) -> float:
    """Return the seconds of `30`, `0.5`, `500ms`, `5m`, `2h`, `1d`; ValueError otherwise."""
    found = _DURATION.match(text.strip().lower())
    seconds = float(found["number"]) * _UNIT_S[found["unit"]] if found else math.nan
    if not 0 < seconds <= DEFAULT.ttl_s_max:
        raise ValueError(f"give seconds above 0 and up to {DEFAULT.ttl_s_max:.0f}, such as 30, 500ms, 5m, 2h or 1d")
    return seconds


def show_duration(seconds: float | None) -> str:
    """Return `4.2s`, `12m`, `3h 5m`: two units at most; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"
    for i, (size, unit) in enumerate(_SHOWN_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            below = _SHOWN_UNITS[i + 1] if i + 1 < len(_SHOWN_UNITS) else (1.0, "s")
            part = int(rest // below[0])
            return f"{whole:.0f}{unit} {part}{below[1]}" if part else f"{whole:.0f}{unit}"
    return f"{seconds:.0f}s"


def show_latency(seconds: float) -> str:
    """Return `87 us`, `1.2 ms`, `2.1 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def show_bytes(size: float | None) -> str:
    """Return `512 B`, `3.1 KiB`, `17 MiB`; `-` for None."""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_count(n: float | None) -> str:
    """Return a number with thousands marked; `-` for None."""
    return "-" if n is None else f"{n:,.0f}"


def counted(n: int, noun: str) -> str:
    """Return `1 key`, `2,000 keys`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def sparkline(numbers: Sequence[float]) -> str:
    """Return a small bar for each number, the largest one full."""
    top = max(numbers, default=0)
    return "".join(_BARS[math.ceil(8 * n / top) if top else 0] for n in numbers)


def percentile(ordered: Sequence[float], p: float) -> float:
    """Return the nearest-rank percentile of numbers in ascending order; nan if there are no numbers."""
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] if ordered else math.nan


# -- keys


def smallest_subtree(prefix: str) -> str:
    """Return the smallest subtree that holds every key beginning with `prefix`: the prefix up to its last slash."""
    return prefix[: prefix.rfind("/") + 1] if prefix.startswith("/") else ""


def covering_subtrees(prefixes: Iterable[str]) -> list[str]:
    """Return the fewest subtrees that hold all of these keys or prefixes, none within another."""
    kept: list[str] = []
    for subtree in sorted({smallest_subtree(prefix) for prefix in prefixes}):
        if not kept or not subtree.startswith(kept[-1]):
            kept.append(subtree)
    return kept if len(kept) <= DEFAULT.subtrees_max else [""]


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: str = "  ") -> list[str]:
    """Return lines with aligned cells and no trailing blanks; the columns in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    justify = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return [
        gap.join(j(cell, width) for j, cell, width in zip(justify, row, widths, strict=True)).rstrip() for row in rows
    ]


# -- a tree of folders
#
#     /rates/ (3)
#     ├── EUR/ (2)
#     │   ├── JPY
#     │   └── USD
#     └── asof


@dataclass(slots=True)
class Folder:
    """The keys under one name: their number, and the parts below."""

    keys: int = 0
    below: dict[str, "Folder"] = field(default_factory=dict)


def draw(keys: Iterable[str], depth: int | None = None, folder: Callable[[str], str] = str) -> list[str]:
    """Return the lines of the tree, at most `depth` levels; `folder` may colour a folder's name.

    A folder is the text before a slash, with the slash. If a key is a folder's name without the slash, both are shown.
    A folder at the last level shows only the number of its keys.
    """
    root = Folder()
    for key in keys:
        here = root
        for part in _parts(key):
            here = here.below.setdefault(part, Folder())
            here.keys += 1
    lines: list[str] = []
    _draw_level(root, "", depth, folder, lines, top=True)
    return lines


def _parts(key: str) -> list[str]:
    pieces = key.split("/")
    parts = [piece + "/" for piece in pieces[:-1]]
    if len(parts) > 1 and parts[0] == "/":
        # The slash at the beginning of a key is no folder of its own.
        parts[:2] = [parts[0] + parts[1]]
    return [*parts, pieces[-1]] if pieces[-1] else parts


def _draw_level(
    here: Folder, indent: str, depth: int | None, style: Callable[[str], str], lines: list[str], *, top: bool = False
) -> None:
    if depth == 0:
        return
    names = sorted(here.below)
    for name in names:
        below = here.below[name]
        last = name == names[-1]
        branch = "" if top else ("└── " if last else "├── ")
        label = f"{style(escape(name))} ({below.keys:,})" if below.below else escape(name)
        lines.append(indent + branch + label)
        deeper = indent if top else indent + ("    " if last else "│   ")
        _draw_level(below, deeper, None if depth is None else depth - 1, style, lines)
