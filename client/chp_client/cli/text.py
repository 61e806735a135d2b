"""How keys, values, numbers and times are shown and read: pure text in, pure text out.

A value is bytes. In JSON it stands as "value" when it is UTF-8, and as "base64" when it is not, so that every value
comes back as it was. On a terminal, control characters are shown as escapes: what somebody stored in a key must not
move the reader's cursor.

A revision is shown as `epoch.sequence`, and travels as that text in JSON too: as one number it is beyond what most
JSON readers keep exactly.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from chp.errors import BadInput
from chp.limits import DEFAULT
from chp.numbers import Revision, describe

_DURATION = re.compile(r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+) ?(?P<unit>ms|s|m|h|d|)\Z")
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SHOWN_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"))
_BARS = " ▁▂▃▄▅▆▇█"


# -- values


def value_fields(value: bytes) -> dict[str, str]:
    """A value as the one JSON field that brings it back: "value" or "base64"."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def value_of(fields: dict[str, Any]) -> bytes:
    """The value in a JSON object; ValueError that says what is missing or wrong."""
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
    """Text that is safe on a terminal: what does not print, save `keep`, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def show_value(value: bytes, keep: str = "") -> str:
    """A value for a terminal."""
    return escape(value.decode(errors="backslashreplace"), keep)


def clip(text: str, width: int) -> str:
    """At most `width` characters, the last an ellipsis if something is left out."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


# -- numbers


def show_revision(revision: int) -> str:
    """`epoch.sequence`."""
    return describe(revision)


def read_revision(text: str) -> Revision:
    """A revision as shown, or as the one number; ValueError otherwise."""
    try:
        return Revision(text)
    except BadInput as error:
        raise ValueError(str(error)) from None


def read_duration(text: str) -> float:
    """Seconds from `30`, `0.5`, `500ms`, `5m`, `2h`, `1d`; ValueError otherwise."""
    found = _DURATION.match(text.strip().lower())
    seconds = float(found["number"]) * _UNIT_S[found["unit"]] if found else math.nan
    if not 0 < seconds <= DEFAULT.ttl_s_max:
        raise ValueError(f"give seconds above 0 and up to {DEFAULT.ttl_s_max:.0f}, such as 30, 500ms, 5m, 2h or 1d")
    return seconds


def show_duration(seconds: float | None) -> str:
    """`4.2s`, `12m`, `3h 5m`: two units at most; `-` for None."""
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
    """`87 us`, `1.2 ms`, `2.1 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def show_bytes(size: float | None) -> str:
    """`512 B`, `3.1 KiB`, `17 MiB`; `-` for None."""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_count(n: float | None) -> str:
    """A number with thousands marked; `-` for None."""
    return "-" if n is None else f"{n:,.0f}"


def sparkline(numbers: Sequence[float]) -> str:
    """A small bar a number, the largest one full."""
    top = max(numbers, default=0)
    return "".join(_BARS[math.ceil(8 * n / top) if top else 0] for n in numbers)


def percentile(ordered: Sequence[float], p: float) -> float:
    """The nearest-rank percentile of numbers in ascending order; nan for none."""
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] if ordered else math.nan


# -- keys


def smallest_subtree(prefix: str) -> str:
    """The smallest subtree that holds every key beginning with `prefix`: up to its last slash."""
    return prefix[: prefix.rfind("/") + 1] if prefix.startswith("/") else ""


def covering_subtrees(prefixes: Iterable[str]) -> list[str]:
    """The fewest subtrees that hold all of these keys or prefixes, none within another."""
    kept: list[str] = []
    for subtree in sorted({smallest_subtree(prefix) for prefix in prefixes}):
        if not kept or not subtree.startswith(kept[-1]):
            kept.append(subtree)
    return kept if len(kept) <= DEFAULT.subtrees_max else [""]


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: str = "  ") -> list[str]:
    """Lines with their cells aligned; those of the columns in `right` to the right; no trailing blanks."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    justify = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return [
        gap.join(j(cell, width) for j, cell, width in zip(justify, row, widths, strict=True)).rstrip() for row in rows
    ]
