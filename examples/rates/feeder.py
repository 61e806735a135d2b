"""Drops days of exchange rates into a folder, as if they were published now.

    python -m examples.rates.feeder FOLDER --from 2026-01-05 --days 60 --backlog-days 420 --pace 4

The first file has the backlog, the days before `--from`. Then each day has a file of its own, and `--pace` files come
each second. A file has a line for each rate: day,currency,rate. Each file is written under a hidden name and then
renamed, so that no reader sees half of a file.
"""

import argparse
import datetime as dt
import os
from pathlib import Path

from . import leash
from .ecb import Day, history


def write_days(folder: Path, name: str, days: list[Day]) -> Path:
    """Write one file with these days, which appears at once; return its path."""
    lines = [f"{day.isoformat()},{currency},{rate}\n" for day, rates in days for currency, rate in rates.items()]
    draft, target = folder / f".{name}.part", folder / f"{name}.csv"
    draft.write_text("".join(lines))
    os.replace(draft, target)
    return target


def main(argv: list[str] | None = None) -> int:
    """Feed until the days are used up, or the parent says stop."""
    options = _options().parse_args(argv)
    orders = leash.orders(options.leash)
    days = history(last=options.last)
    backlog = [day for day in days if day[0] < options.first][-options.backlog_days or len(days) :]
    live = [day for day in days if day[0] >= options.first][: options.days]
    options.folder.mkdir(parents=True, exist_ok=True)
    if backlog:
        write_days(options.folder, "backlog", backlog)
        print(f"backlog {len(backlog)} days to {backlog[-1][0]}", flush=True)
    if options.hold:
        leash.next_order(orders, None)
    for day in live:
        if leash.next_order(orders, 1 / options.pace) == leash.STOP:
            break
        write_days(options.folder, day[0].isoformat(), [day])
        print(f"day {day[0]}", flush=True)
    print("done", flush=True)
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="feeder", description="Drop days of exchange rates into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="first", type=dt.date.fromisoformat, default=dt.date(2026, 1, 5), metavar="DATE")
    parser.add_argument("--to", dest="last", type=dt.date.fromisoformat, default=dt.date.max, metavar="DATE")
    parser.add_argument("--days", type=int, default=None, help="at most so many; default: all there are")
    parser.add_argument("--backlog-days", type=int, default=420, help="days before --from, as one file; default 420")
    parser.add_argument("--pace", type=_pace, default=4.0, help="days a second; default 4")
    parser.add_argument("--hold", action="store_true", help="after the backlog, wait for an order on the leash")
    parser.add_argument("--leash", action="store_true", help="end when standard input does")
    return parser


def _pace(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} days a second; give a number above 0 and at most 1000")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
