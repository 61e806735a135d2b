"""Results for people: a table in the terminal, and a plot beside the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# the figure of a case that is plotted, the first that it has
FIGURES = ("rate", "bytes_a_key", "us_a_key", "p50_us", "seconds")
UNITS = {"rate": "/s", "bytes_a_key": "bytes a key", "us_a_key": "us a key"}
OURS, THEIRS = "#0b6e6e", ("#c9ccd1", "#a9adb5", "#8a8f99", "#6b717c")


def table(result: dict[str, Any]) -> str:
    """The medians with their spread, a line each."""
    lines = [f"\n{result['title']}  ({result['command']}, {result['took_s']} s)"]
    for name, case in result["cases"].items():
        lines.append(f"  {name}")
        for who, figures in case["contenders"].items():
            shown = [_figure(key, figures) for key in figures if not key.endswith("_spread") and key != "rounds"]
            lines.append(f"    {who:18} {'  '.join(filter(None, shown))}")
        ratios = [f"{key.replace('_', ' ')} {value:.2f}" for key, value in case.items() if key.startswith("ratio")]
        if ratios:
            lines.append(f"    {', '.join(ratios)}")
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


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < 1000 else f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def plot(result: dict[str, Any], path: Path) -> None:
    """A bar for each contender of each case, with its spread; nothing if matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    cases = {name: (case, figure) for name, case in result["cases"].items() if (figure := _plotted(case)) is not None}
    heights = [max(1.0, 0.42 * len(case["contenders"]) + 0.5) for case, _ in cases.values()]
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 10}):
        figure, axes = plt.subplots(
            len(cases), 1, figsize=(9, sum(heights) + 1.3), squeeze=False, height_ratios=heights, layout="constrained"
        )
        for axis, (name, (case, key)) in zip(axes[:, 0], cases.items(), strict=True):
            _bars(axis, name, case, key)
        figure.suptitle(result["title"], x=0.02, ha="left", fontsize=14, fontweight="bold")
        figure.supxlabel(_caption(result), x=0.02, ha="left", fontsize=7.5, color="#6b717c")
        figure.savefig(path, dpi=144)
        plt.close(figure)


def _plotted(case: dict[str, Any]) -> str | None:
    first = next(iter(case["contenders"].values()))
    return next((key for key in FIGURES if key in first), None)


def _bars(axis: Any, name: str, case: dict[str, Any], key: str) -> None:
    names = list(case["contenders"])
    figures = [case["contenders"][who] for who in names]
    values = [f.get(key, 0) for f in figures]
    low_high = [f.get(key + "_spread", [v, v]) for f, v in zip(figures, values, strict=True)]
    errors = [[v - low for v, (low, _) in zip(values, low_high, strict=True)],
              [high - v for v, (_, high) in zip(values, low_high, strict=True)]]  # fmt: skip
    ours = {who for who in names if who.startswith(("chp", "server", "client", "active", "passive", "clone"))}
    others = iter(THEIRS * 3)
    colours = [OURS if who in ours else next(others) for who in names]
    places = range(len(names))
    axis.barh(places, values, color=colours, height=0.68, xerr=errors,
              error_kw={"ecolor": "#33373d", "elinewidth": 1, "capsize": 3})  # fmt: skip
    most = max([high for _, high in low_high] + values)
    for place, value, (_, high), f in zip(places, values, low_high, figures, strict=True):
        if key == "p50_us":
            text = f"p50 {_time(value)}, p99 {_time(f['p99_us'])}"
        else:
            text = _time(value * 1e6) if key == "seconds" else f"{_number(value)} {UNITS[key]}"
        axis.text(max(value, high) + most * 0.015, place, text, va="center", fontsize=9, color="#33373d")
    axis.set_yticks(list(places), names)
    axis.set_xlim(0, most * 1.35)
    room = 0.5 if len(names) > 1 else 0.8
    axis.set_ylim(len(names) - 1 + room, -room)
    axis.set_title(name, loc="left", fontsize=10.5, color="#33373d")
    axis.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.spines["left"].set_color("#a9adb5")
    axis.tick_params(axis="y", length=0)


def _caption(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    return (
        f"{result['command']}, {result['date']}, commit {result['commit']}; "
        "medians, whiskers from the lowest to the highest round\n"
        f"{machine['cores']} cores {machine['model']}, {machine['memory_gib']} GiB; Python {versions['python']}, "
        f"libzmq {versions['libzmq']}, pyzmq {versions['pyzmq']}, Redis {versions['redis-server']}"
    )
