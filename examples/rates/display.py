"""What the demo shows: a live table on a terminal (with rich, if it is installed), plain lines elsewhere.

display.say("...")        a fact, once
display.show(rates, ...)  the rates as they are now; plain lines show a few, and not too often

The table is cut to the terminal, 80x24 or more: columns and pairs that don't fit are left out, the facts never are.
"""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .figures import CROSSES

PAIRS = [("EUR", "USD"), ("EUR", "GBP"), ("EUR", "JPY"), ("EUR", "CHF"), ("EUR", "PLN"), ("EUR", "SEK"), *CROSSES[:5]]
COLUMNS = ("last", "change", "average_30", "average_90", "volatility", "high_1y", "low_1y", "day")
NARROW = ("last", "change", "average_30", "volatility", "high_1y", "low_1y", "day")
# All columns fit on a terminal of this width.
WIDE = 92
PLAIN_EVERY_S = 3.0
# The table leaves at least this many lines for facts.
EVENTS_MIN = 9
# The headline, the names of the columns, a rule and the cursor take this many lines.
HEADING = 4


class Plain:
    """The display for a pipe or a log: plain lines."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown_at = 0.0

    def say(self, text: str) -> None:
        """Print a fact, with the seconds since the beginning."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def show(self, rates: Mapping[str, bytes], headline: str) -> None:
        """Print a few rates, at most once every few seconds."""
        if time.monotonic() - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = time.monotonic()
            some = [f"{b}/{q} {rate}" for b, q in PAIRS[:3] if (rate := number(rates, b, q, "last"))]
            self.say(", ".join([headline, *some]))

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class Table(Plain):
    """The display for a terminal: a table that is drawn again, and the latest facts below the table."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live

        self._live: Any = Live(auto_refresh=False, screen=False, redirect_stdout=False, redirect_stderr=False)
        self._events: list[str] = []
        self._rates: Mapping[str, bytes] = {}
        self._headline = ""

    def say(self, text: str) -> None:
        """Add a fact below the table."""
        self._events.append(f"{time.monotonic() - self._began:5.1f} s  {text}")
        self._draw()

    def show(self, rates: Mapping[str, bytes], headline: str) -> None:
        """Draw the table anew."""
        self._rates, self._headline = rates, headline
        self._draw()

    def _draw(self) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        width, height = self._live.console.size
        columns = COLUMNS if width >= WIDE else NARROW
        pairs = PAIRS[: max(3, height - HEADING - EVENTS_MIN)]
        headline = self._headline or "exchange rates"
        table = RichTable(title=headline, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
        for name in ("pair", *columns):
            table.add_column(name, justify="left" if name in ("pair", "day") else "right", no_wrap=True)
        for base, quote in pairs:
            table.add_row(f"{base}/{quote}", *(number(self._rates, base, quote, name) or "-" for name in columns))
        facts = self._events[-max(EVENTS_MIN, height - HEADING - len(pairs)) :]
        text = Text("\n".join(facts), no_wrap=True, overflow="ellipsis")
        self._live.update(Group(table, text), refresh=True)

    def __enter__(self) -> "Table":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()


def number(rates: Mapping[str, bytes], base: str, quote: str, figure: str) -> str:
    """Return a figure as text for people; "" if there is none."""
    value = rates.get(f"/rates/{base}/{quote}/{figure}")
    if value is None or figure == "day":
        return (value or b"").decode()
    if figure in ("change", "volatility"):
        return f"{100 * float(value):+.2f} %" if figure == "change" else f"{100 * float(value):.1f} %"
    return f"{float(value):.6g}"


def display() -> Plain:
    """Return a table if standard output is a terminal and rich is installed, else plain lines."""
    if sys.stdout.isatty():
        try:
            return Table()
        except ImportError:
            pass
    return Plain()
