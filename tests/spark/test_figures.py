"""Spark's figures and those of the plain Python reference are the same, on real rates and on every edge case."""

import datetime as dt
import math
from typing import Any

import pytest

from examples.rates import ecb, figures
from examples.rates.figures import CROSSES, FIGURES, Figures, Rate

pytestmark = pytest.mark.spark
START = dt.date(2026, 1, 5)


def by_spark(spark: Any, rates: list[Rate]) -> dict[figures.Pair, Figures]:
    schema = "day date, currency string, rate double, arrived long"
    frame = spark.createDataFrame([(*rate, number) for number, rate in enumerate(rates)], schema)
    rows = figures.compute(figures.clean(frame)).collect()
    return {(row.base, row.quote): Figures(*(row[name] for name in FIGURES)) for row in rows}


def assert_same(spark: Any, rates: list[Rate]) -> dict[figures.Pair, Figures]:
    expected, found = figures.reference(rates), by_spark(spark, rates)
    assert found.keys() == expected.keys()
    for pair, want in expected.items():
        for name in FIGURES:
            a, b = getattr(want, name), getattr(found[pair], name)
            close = isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
            assert close or a == b, f"{pair} {name}: {a} without Spark, {b} with it"
    return expected


def run_of(days: int, currency: str = "USD", start: dt.date = START, step: int = 1) -> list[Rate]:
    """Return one rate for each day, which goes up and down."""
    return [(start + dt.timedelta(days=step * n), currency, 1.0 + n % 7 / 10) for n in range(days)]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        # Bulgaria joins the euro on 1 January.
        (dt.date(2024, 11, 1), dt.date(2026, 1, 20)),
        # Slovakia joins, and Iceland's krona is suspended.
        (dt.date(2007, 11, 1), dt.date(2009, 1, 16)),
        # The beginning has 30 averages and few returns.
        (dt.date(1999, 1, 1), dt.date(1999, 2, 17)),
    ],
)
def test_spark_and_the_reference_agree_on_real_rates(spark: Any, first: dt.date, last: dt.date) -> None:
    found = assert_same(spark, list(ecb.flat(ecb.history(first, last))))
    assert {("EUR", "USD"), ("USD", "JPY")} <= found.keys()
    assert len(found) > 35


def test_the_last_figure_is_the_published_rate(spark: Any) -> None:
    days = ecb.history(dt.date(2025, 12, 1), dt.date(2026, 1, 20))
    found = by_spark(spark, list(ecb.flat(days)))
    day, rates = days[-1]
    assert found["EUR", "USD"].last == float(rates["USD"]) and found["EUR", "USD"].day == day
    assert found["USD", "JPY"].last == float(rates["JPY"]) / float(rates["USD"])


def test_a_currency_that_ended_has_no_figures(spark: Any) -> None:
    found = assert_same(spark, list(ecb.flat(ecb.history(dt.date(2025, 6, 1), dt.date(2026, 1, 20)))))
    assert found["EUR", "BGN"] == Figures()
    assert found["EUR", "USD"].last is not None


@pytest.mark.parametrize("days", [1, 2, 29, 30, 31, 89, 90])
def test_figures_need_enough_days_of_history(spark: Any, days: int) -> None:
    found = assert_same(spark, run_of(days))["EUR", "USD"]
    assert (found.change is not None) == (days >= 2)
    assert (found.average_30 is not None) == (days >= 30)
    assert (found.volatility is not None) == (days >= 31)
    assert (found.average_90 is not None) == (days >= 90)


def test_no_return_is_computed_across_a_gap(spark: Any) -> None:
    before, after = run_of(40), run_of(1, start=START + dt.timedelta(days=60))
    found = assert_same(spark, [*before, (after[0][0], "USD", 1000.0)])["EUR", "USD"]
    assert found.change is None and found.high_1y == 1000.0
    assert found.volatility is not None and found.volatility < 10


def test_the_year_ends_after_365_days(spark: Any) -> None:
    rates = [(START, "USD", 99.0), *run_of(53, start=START + dt.timedelta(days=1), step=7)]
    newest = rates[-1][0]
    assert (newest - START).days == 365
    assert assert_same(spark, rates)["EUR", "USD"].high_1y == pytest.approx(1.6)
    assert assert_same(spark, rates[:-1])["EUR", "USD"].high_1y == 99.0


def test_no_rates_give_no_figures(spark: Any) -> None:
    assert assert_same(spark, []) == {}


def test_invalid_rates_are_left_out_and_the_last_correction_counts(spark: Any) -> None:
    day = START + dt.timedelta(days=1)
    bad: list[Rate] = [(day, "USD", value) for value in (None, 0.0, -1.0, math.nan, math.inf)]
    corrected: list[Rate] = [(START, "USD", 7.0), (START, "USD", 2.0)]
    assert assert_same(spark, corrected + bad)["EUR", "USD"] == Figures(last=2.0, day=START, high_1y=2.0, low_1y=2.0)


def test_a_cross_rate_needs_both_currencies_on_one_day(spark: Any) -> None:
    base, quote = CROSSES[0]
    rates: list[Rate] = [(START, base, 2.0), (START, quote, 300.0), (START + dt.timedelta(days=1), quote, 310.0)]
    found = assert_same(spark, rates)
    assert found[base, quote].day == START and found[base, quote].last == 150.0


def test_figures_become_rows_of_keys_and_decimal_text(spark: Any) -> None:
    values = {
        "EUR/AAA": 1.0832,
        "EUR/BBB": 0.0,
        "EUR/CCC": 1e-9,
        "EUR/DDD": 372274.0,
        "EUR/EEE": -0.5,
        "EUR/FFF": 100.0,
    }
    schema = "base string, quote string, " + ", ".join(f"{n} {'date' if n == 'day' else 'double'}" for n in FIGURES)
    wide = [(*pair.split("/"), value, START, value, None, None, None, None, None) for pair, value in values.items()]
    rows = figures.to_rows(spark.createDataFrame(wide, schema), 60).collect()
    found = {row.key: (row.value, row.ttl) for row in rows}
    assert len(rows) == len(found) == len(values) * len(FIGURES)
    for pair, value in values.items():
        assert found[f"/rates/{pair}/last"] == (figures.value_text(value), 60.0)
        assert found[f"/rates/{pair}/day"] == ("2026-01-05", 60.0)
        assert found[f"/rates/{pair}/average_30"] == (None, None)
    assert [found[f"/rates/EUR/{name}/last"][0] for name in ("AAA", "BBB", "CCC", "DDD", "FFF")] == [
        "1.0832", "0", "0.000000001", "372274", "100",
    ]  # fmt: skip
