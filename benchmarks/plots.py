"""Results as pictures with one scale each: the axis says which end is better, the caption says what was measured.

A result has figures of several kinds (rates, times, bytes), and each kind has a picture of its own. A case is a group
of bars. All cases with a single contender form one group. A bar that has no other bar beside it is not drawn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

OURS, THEIRS, INK, SOFT = "#0b6e6e", "#b3b9c2", "#1a232d", "#5c6a79"
# In inches: the height of a bar, and the gap above a group.
ROW, GAP = 0.30, 0.55


class Kind(NamedTuple):
    """A kind of figure: its key in results, its name in file names and on the axis, and which end is better."""

    key: str
    slug: str
    axis: str
    better: str


class Bar(NamedTuple):
    """One figure of a contender, with its spread; `text` stands behind the bar."""

    label: str
    value: float
    low: float
    high: float
    text: str
    ours: bool


KINDS = (
    Kind("rate", "rate", "{things} a second", "more is better"),
    Kind("bytes_a_key", "bytes", "bytes a key", "less is better"),
    Kind("us_a_key", "cost", "microseconds a key", "less is better"),
    Kind("longest_turn_ms", "turns", "the server's longest turn, milliseconds", "less is better"),
    Kind("p50_us", "time", "milliseconds, half of all took no longer", "less is better"),
    Kind("seconds", "time", "seconds", "less is better"),
)
# The axis shows a figure times this factor.
SCALE = {"p50_us": 1 / 1000}
ONE = "one server that keeps all in memory"
PAIR = "a pair of servers, each with its journal on disk (SQLite)"
# For each benchmark: what the rates count, and the servers that were measured.
MEASURED = {
    "sets": ("sets", f"{ONE}; Redis without persistence"),
    "latency": ("sets", f"{ONE}; Redis without persistence; a relay of bare pyzmq, which is the floor under both"),
    "reads": ("reads", f"{ONE}: a client reads its own memory, Redis is asked over the loopback"),
    "loops": ("updates", f"{ONE}; Redis without persistence"),
    "values": ("sets", f"{ONE}; Redis without persistence"),
    "idle": ("turns", ONE),
    "fairness": ("sets", ONE),
    "mounts": ("sets", "four pairs without journals, one Clone over all of them"),
    "replicas": ("records", "a pair without journals, and replicas of it, on the same two cores"),
    "readers": ("messages", "a pair without journals, and ten replicas of it, on the same two cores"),
    "security": ("sets", f"{ONE}, with keys and without"),
    "memory": ("keys", f"{ONE}, and one client"),
    "sync": ("keys", f"{ONE}, while 10,000 updates a second go on; Redis without persistence"),
    "pair": ("sets", f"{PAIR}; one Redis with appendfsync always"),
    "recording": ("updates", ONE),
    "spark": ("rows", f"{ONE}; Spark in local[2] on the same two cores"),
    "chp1": ("messages", f"{ONE}, spoken to in plain CHP/1; relays of bare pyzmq in its place"),
    "topics": ("messages", f"{PAIR}; one Redis with appendfsync always"),
    "gateway": ("requests", f"{ONE}, and one gateway process"),
    "growth": ("keys", PAIR),
    "stalls": ("turns", ONE),
}
WORDS = {
    "chp": "chp-clone", "redis": "Redis", "relay": "bare pyzmq relay", "dict": "a Python dict",
    "helpers": "relay, whole messages", "frames": "relay, frame by frame", "server": "chp-clone, the server",
    "client": "chp-clone, a client", "clone": "chp-clone, a client", "active": "chp-clone, the active",
    "passive": "chp-clone, the passive", "chp pair": "chp-clone, a pair", "one set a row": "chp-clone, one set a row",
    "chp-gateway": "chp-gateway, HTTP", "chp AsyncClone.set": "AsyncClone.set, no HTTP",
    "old": "before", "new": "after",
}  # fmt: skip
OWN = ("chp-clone", "chp-gateway", "after")


def plot(result: dict[str, Any], path: Path) -> list[Path]:
    """Draw `path`, and a file beside it for each further kind; return the files. Draw nothing without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        return []
    drawn: list[Path] = []
    for kind in KINDS:
        if groups := _groups(result, kind):
            drawn.append(path.with_name(f"{path.stem}-{kind.slug}.png") if drawn else path)
            _draw(result, kind, groups, drawn[-1])
    return drawn


def _groups(result: dict[str, Any], kind: Kind) -> dict[str, list[Bar]]:
    """Return the bars of a kind by case; all cases with one contender form one group."""
    groups: dict[str, list[Bar]] = {}
    single: list[Bar] = []
    for name, case in result["cases"].items():
        if _kind(case) != kind:
            continue
        bars = [_bar(kind, who, figures) for who, figures in case["contenders"].items() if kind.key in figures]
        if len(bars) > 1:
            groups[name] = bars
        else:
            single += [bar._replace(label=spelled(name)) for bar in bars]
    return {**groups, "": single} if len(single) > 1 else groups


def _kind(case: dict[str, Any]) -> Kind | None:
    first = next(iter(case["contenders"].values()))
    return next((kind for kind in KINDS if kind.key in first), None)


def _bar(kind: Kind, who: str, figures: dict[str, Any]) -> Bar:
    scale, value = SCALE.get(kind.key, 1.0), figures[kind.key]
    low, high = figures.get(f"{kind.key}_spread", (value, value))
    text = rounded(value * scale)
    if kind.key == "p50_us" and "p99_us" in figures:
        text += f", 99 % within {rounded(figures['p99_us'] * scale)}"
    label = named(who)
    return Bar(label, value * scale, low * scale, high * scale, text, label.startswith(OWN))


def named(who: str) -> str:
    """Return the name of a contender as a reader of the plots knows it."""
    if who in WORDS:
        return WORDS[who]
    for word in ("chp", "redis", "active", "passive", "clone"):
        if who.startswith((f"{word} ", f"{word},")):
            return f"{WORDS[word]}, {who[len(word) :].lstrip(', ')}"
    return who


def spelled(case: str) -> str:
    """Return the name of a case in words that need no explanation."""
    case = re.sub(r"(\d) bytes\b", r"\1-byte values", case)
    return case.replace("set_many, ", "set_many of 1,000 keys, ").replace("watcher", "watching client")


def rounded(value: float) -> str:
    """Return a value with three significant digits."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def _draw(result: dict[str, Any], kind: Kind, groups: dict[str, list[Bar]], path: Path) -> None:
    import matplotlib.pyplot as plt

    bars = sum(map(len, groups.values()))
    height = ROW * bars + GAP * len(groups) + 1.55
    font = {"font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "axes.labelcolor": SOFT}
    with plt.rc_context(font):
        figure, axis = plt.subplots(figsize=(9, height), layout="constrained")
        most = max(max(bar.high, bar.value) for group in groups.values() for bar in group)
        place = 0.0
        for name, group in groups.items():
            place += GAP / ROW * (0.9 if name else 0.3)
            axis.text(0, place - 0.75, spelled(name), fontsize=10.5, fontweight="bold", va="bottom")
            for bar in group:
                _draw_bar(axis, bar, place, most)
                place += 1
        _axis(axis, [bar.label for group in groups.values() for bar in group], most, place)
        things, on = MEASURED.get(result.get("name", ""), ("", ""))
        axis.set_xlabel(f"{kind.axis.format(things=things or 'how many')}: {kind.better}", fontsize=10, loc="left")
        figure.suptitle(result["title"], x=0.015, ha="left", fontsize=14, fontweight="bold")
        figure.supxlabel(_caption(result, on), x=0.015, ha="left", fontsize=8, color=SOFT)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _draw_bar(axis: Any, bar: Bar, place: float, most: float) -> None:
    axis.barh(place, bar.value, color=OURS if bar.ours else THEIRS, height=0.72, zorder=2, label=bar.label)
    if bar.low != bar.high:
        axis.plot([bar.low, bar.high], [place, place], color=INK, linewidth=1, marker="|", markersize=6, zorder=3)
    axis.text(max(bar.value, bar.high) + most * 0.012, place, bar.text, va="center", fontsize=9)


def _axis(axis: Any, labels: list[str], most: float, end: float) -> None:
    places = [patch.get_y() + patch.get_height() / 2 for patch in axis.patches]
    axis.set_yticks(places, labels)
    axis.set_ylim(end - 0.3, -0.2)
    axis.set_xlim(0, most * 1.3)
    axis.xaxis.set_major_locator(_ticks())
    axis.xaxis.set_major_formatter(lambda value, _: rounded(value) if value else "0")
    axis.grid(axis="x", color="#e3e7ec", linewidth=0.8, zorder=0)
    axis.tick_params(axis="both", length=0, labelcolor=INK)
    axis.tick_params(axis="x", labelcolor=SOFT, labelsize=9)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    axis.spines["left"].set_color("#a9b1bb")


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])


def _caption(result: dict[str, Any], on: str) -> str:
    machine, versions = result["machine"], result["versions"]
    first = f"Measured on {on}.\n" if on else ""
    return (
        f"{first}Everything on one machine: {machine['cores']} cores {machine['model']}, {machine['memory_gib']} GiB; "
        f"Python {versions['python']}, libzmq {versions['libzmq']}, pyzmq {versions['pyzmq']}, "
        f"Redis {versions['redis-server']}.\n"
        f"Bars are medians, lines go from the lowest to the highest round. {result['command']}, {result['date'][:10]}, "
        f"commit {result['commit']}."
    )
