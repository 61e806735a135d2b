"""What is computed from the European Central Bank's daily rates, twice: by Spark, and without it.

A *rate* is (day, currency, units of the currency for 1 EUR), published on working days. A *pair* is base/quote. Its
series has a point on every day on which both currencies have a rate. EUR/x is as published; x/y is EUR/y divided by
EUR/x.

    last         the newest point                     average_30  mean of the last 30 points
    day          its date                             average_90  mean of the last 90 points
    change       last / the point before - 1          high_1y     largest point of the year
    volatility   of the year: sample standard         low_1y      smallest point of the year
                 deviation of the log returns, times the root of 252

Edge cases, the same in both computations:
- "30 days" are 30 published days, as traders count; weekends and holidays have no rate and are not filled in.
- The year is all points that are less than 365 days older than the newest point.
- A return, like the change, is computed only from neighbouring points at most `GAP_DAYS_MAX` days apart (Easter takes
  five). So a currency that was suspended for years makes no jump when it is back.
- Too little history: `average_30` needs 30 points, `average_90` 90, `volatility` 30 returns, `change` a neighbour.
  What is not defined is null, and a null figure has no key.
- A currency that ended (Bulgaria joined the euro) has no figures once its last point is more than `GAP_DAYS_MAX` days
  older than the newest point of all.
- A rate that is null, zero, negative or not finite is left out. Of two rates for the same day and currency, the rate
  that arrived last counts.
"""

import datetime as dt
import decimal
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIGURES = ("last", "day", "change", "average_30", "average_90", "volatility", "high_1y", "low_1y")
# These are published with a ttl: a reader wants today's figure or none.
LIVE = ("last", "day", "change")
CROSSES = (
    ("USD", "JPY"), ("USD", "CHF"), ("USD", "CAD"), ("USD", "CNY"), ("GBP", "USD"),
    ("GBP", "JPY"), ("GBP", "CHF"), ("AUD", "USD"), ("NZD", "USD"), ("CHF", "JPY"),
)  # fmt: skip
YEAR_DAYS = 365
GAP_DAYS_MAX = 7
RETURNS_MIN = 30
TRADING_DAYS = 252
# Rates older than this change no figure. It is enough for a year, and for 90 points with room for holidays.
HORIZON_DAYS = YEAR_DAYS + 60

Pair = tuple[str, str]
Rate = tuple[dt.date, str, float | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one pair; None where one is not defined."""

    last: float | None = None
    day: dt.date | None = None
    change: float | None = None
    average_30: float | None = None
    average_90: float | None = None
    volatility: float | None = None
    high_1y: float | None = None
    low_1y: float | None = None


# -- without Spark: the reference


def reference(rates: Iterable[Rate]) -> dict[Pair, Figures]:
    """Return the figures of every pair, computed in plain Python; `rates` are in the order of their arrival."""
    by_currency: dict[str, dict[dt.date, float]] = defaultdict(dict)
    for day, currency, rate in rates:
        if rate is not None and math.isfinite(rate) and rate > 0:
            by_currency[currency][day] = rate
    newest = max((day for days in by_currency.values() for day in days), default=dt.date.min)
    series = {("EUR", currency): days for currency, days in by_currency.items()}
    for base, quote in CROSSES:
        common = by_currency[base].keys() & by_currency[quote].keys()
        if common:
            series[base, quote] = {day: by_currency[quote][day] / by_currency[base][day] for day in common}
    return {pair: _reference_of_pair(sorted(points.items()), newest) for pair, points in series.items()}


def _reference_of_pair(points: list[tuple[dt.date, float]], newest: dt.date) -> Figures:
    day, last = points[-1]
    if (newest - day).days > GAP_DAYS_MAX:
        return Figures()
    values = [value for _, value in points]
    year = [value for when, value in points if (day - when).days < YEAR_DAYS]
    steps = [
        (when, value / before)
        for (day_before, before), (when, value) in itertools.pairwise(points)
        if (when - day_before).days <= GAP_DAYS_MAX
    ]
    returns = [math.log(step) for when, step in steps if (day - when).days < YEAR_DAYS]
    return Figures(
        last=last,
        day=day,
        change=steps[-1][1] - 1 if steps and steps[-1][0] == day else None,
        average_30=statistics.fmean(values[-30:]) if len(values) >= 30 else None,
        average_90=statistics.fmean(values[-90:]) if len(values) >= 90 else None,
        volatility=statistics.stdev(returns) * math.sqrt(TRADING_DAYS) if len(returns) >= RETURNS_MIN else None,
        high_1y=max(year),
        low_1y=min(year),
    )


# -- with Spark


_CLEAN = """
select day, currency, max_by(rate, arrived) as rate, max(arrived) as arrived
from {rates}
where day is not null and currency is not null and rate > 0 and rate < double('infinity')
group by day, currency
"""

_COMPUTE = f"""
with crosses(base, quote) as (values {", ".join(map(str, CROSSES))}),
series as (
    select 'EUR' as base, currency as quote, day, rate
    from {{rates}}
  union all
    select crosses.base, crosses.quote, quotes.day, quotes.rate / bases.rate as rate
    from crosses
    join {{rates}} as quotes on quotes.currency = crosses.quote
    join {{rates}} as bases on bases.currency = crosses.base and bases.day = quotes.day
),
points as (
    select *,
        row_number() over newest_first as age,
        case when datediff(day, lead(day) over newest_first) <= {GAP_DAYS_MAX}
             then rate / lead(rate) over newest_first end as step,
        datediff(max(day) over (partition by base, quote), day) < {YEAR_DAYS} as of_year
    from series
    window newest_first as (partition by base, quote order by day desc)
),
figures as (
    select base, quote,
        max(rate) filter (where age = 1) as `last`,
        max(day) as day,
        max(step - 1) filter (where age = 1) as change,
        case when count(*) >= 30 then avg(rate) filter (where age <= 30) end as average_30,
        case when count(*) >= 90 then avg(rate) filter (where age <= 90) end as average_90,
        case when count(step) filter (where of_year) >= {RETURNS_MIN}
             then stddev_samp(ln(step)) filter (where of_year) * sqrt({TRADING_DAYS}) end as volatility,
        max(rate) filter (where of_year) as high_1y,
        min(rate) filter (where of_year) as low_1y
    from points
    group by base, quote
),
ages as (
    select *, datediff(max(day) over (), day) <= {GAP_DAYS_MAX} as goes_on from figures
)
select base, quote, {", ".join(f"if(goes_on, `{name}`, null) as `{name}`" for name in FIGURES)}
from ages
"""


def clean(rates: "DataFrame") -> "DataFrame":
    """Return only valid rates, and for each day and currency only the rate that arrived last.

    The columns are day, currency, rate and arrived; `arrived` is a time, or a number that grows.
    """
    return rates.sparkSession.sql(_CLEAN, rates=rates)


def compute(rates: "DataFrame") -> "DataFrame":
    """Return one row for each pair: base, quote and the figures; `rates` are as `clean` returns them."""
    return rates.sparkSession.sql(_COMPUTE, rates=rates)


def to_rows(figures: "DataFrame", ttl_s: float) -> "DataFrame":
    """Return a row to publish for each figure: key, value (text, or null if not defined), ttl (live figures only).

    Numbers are plain decimal text with at most ten decimals and no trailing zeros ("1.0832"). Days are ISO dates.
    """
    entries = ", ".join(f"'{name}', {_text(name)}, {_ttl(name, ttl_s)}" for name in FIGURES)
    rows = figures.selectExpr("base", "quote", f"stack({len(FIGURES)}, {entries}) as (figure, value, ttl)")
    return rows.selectExpr("concat_ws('/', '/rates', base, quote, figure) as key", "value", "ttl")


def _text(name: str) -> str:
    if name == "day":
        return "cast(day as string)"
    return f"regexp_replace(cast(cast(`{name}` as decimal(28, 10)) as string), '[.]?0+$', '')"


def _ttl(name: str, ttl_s: float) -> str:
    return f"double({float(ttl_s)})" if name in LIVE else "double(null)"


def value_text(value: float | dt.date | None) -> str | None:
    """Return the text of a value, as `_text` makes it in Spark, without Spark."""
    if value is None:
        return None
    if isinstance(value, dt.date):
        return value.isoformat()
    exact = decimal.Decimal(repr(value)).quantize(decimal.Decimal("1e-10"), decimal.ROUND_HALF_UP)
    return f"{exact:f}".rstrip("0").rstrip(".")
