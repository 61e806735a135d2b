"""Results for people: a table in the terminal."""

from __future__ import annotations

from typing import Any

# The table shows the spread of these figures of a case.
FIGURES = ("rate", "bytes_a_key", "us_a_key", "p50_us", "seconds")


def table(result: dict[str, Any]) -> str:
    """Return the medians with their spread, one line for each contender."""
    took = f"{result['took_s']} s, {result['cpu_s']} s of processor time"
    busy = "; AT A LOAD ABOVE 1, NOT FOR QUOTING" if result.get("busy") else ""
    lines = [f"\n{result['title']}  ({result['command']}, {took}{busy})"]
    for name, case in result["cases"].items():
        lines.append(f"  {name}")
        for who, figures in case["contenders"].items():
            shown = [_figure(key, figures) for key in figures if not key.endswith("_spread") and key != "rounds"]
            lines.append(f"    {who:18} {'  '.join(filter(None, shown))}")
        ratios = [f"{key.replace('_', ' ')} {value:.2f}" for key, value in case.items() if key.startswith("ratio")]
        if ratios:
            lines.append(f"    {', '.join(ratios)}")
    lines += result.get("markdown", [])
    return "\n".join(lines)


def _figure(key: str, figures: dict[str, Any]) -> str:
    value = figures[key]
    if not isinstance(value, int | float):
        return ""
    spread = figures.get(key + "_spread")
    text = f"{key} {_number(value)}"
    if spread and spread[0] != spread[1] and key in FIGURES:
        text += f" ({_number(spread[0])}..{_number(spread[1])})"
    return text


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
