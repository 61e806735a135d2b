"""Ticks derived from the daily rates by Brownian bridges from one day's rate to the next day's rate.

A *tick* is a trade: pair, time, price in hundred-thousandths, size, and a number that no other tick of the pair has. A
day's ticks fill `minutes` from 07:00 UTC. Their log price is a Brownian bridge, so the first tick lies near the rate of
the day before. The last tick *is* the day's rate, rounded, so the close of the last bar can be compared with the ECB's
own figure.

    key /ticks/EUR/USD     value {"time": ms since 1970, "price": 117215, "size": 250000, "no": 17}

A tick arrives up to 1.5 s after its time, but one in twelve arrives up to 90 s after it. So the ticks do not arrive in
the order of their times. `too_late` returns ticks that arrive when everything is over. All random numbers come from a
seed, so each run makes the same ticks.
"""

import datetime as dt
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chp.numbers import number
from chp_client.port.feed import FeedRecord
from chp_client.recording.recorder import RecordingWriter

from ..rates.ecb import Day, history

SCALE = 100_000
OPENING = dt.time(7, tzinfo=dt.UTC)
# The standard deviation of the log price over one day.
SIGMA_DAY = 0.006
DELAY_S_MAX = 90.0
PAIRS = ("USD", "JPY", "GBP", "CHF")
FIRST = dt.date(2026, 1, 5)


@dataclass(frozen=True, slots=True, order=True)
class Tick:
    """One trade; ordered by arrival."""

    arrival_ms: int
    pair: str
    no: int
    time_ms: int
    price: int
    size: int

    @property
    def key(self) -> str:
        """The key of the pair's newest tick."""
        return f"/ticks/{self.pair}"

    @property
    def value(self) -> bytes:
        """The tick as JSON."""
        return json.dumps({"time": self.time_ms, "price": self.price, "size": self.size, "no": self.no}).encode()


def derive(days: int = 1, minutes: int = 60, per_minute: int = 12, seed: int = 2026) -> list[Tick]:
    """Return the ticks of `days` days, in the order of their arrival."""
    rates = history(first=FIRST - dt.timedelta(days=14))
    start = next(i for i, (day, _) in enumerate(rates) if day >= FIRST)
    ticks: list[Tick] = []
    for i in range(start, start + days):
        for currency in PAIRS:
            ticks += _bridge(currency, (rates[i - 1], rates[i]), minutes, minutes * per_minute, seed)
    return sorted(ticks)


def _bridge(currency: str, days: tuple[Day, Day], minutes: int, count: int, seed: int) -> Iterator[Tick]:
    before, this = days
    rng = random.Random(f"{seed}/{currency}/{this[0]}")
    moments = [*sorted(rng.random() for _ in range(count - 1)), 1.0]
    opening_ms = int(dt.datetime.combine(this[0], OPENING).timestamp() * 1000)
    length_ms = minutes * 60_000 - 1
    end, x, t = math.log(float(this[1][currency])), math.log(float(before[1][currency])), 0.0
    for no, moment in enumerate(moments):
        if moment < 1:
            left = 1 - t
            mean = x + (moment - t) / left * (end - x)
            x = rng.gauss(mean, SIGMA_DAY * math.sqrt((moment - t) * (1 - moment) / left))
        else:
            x = end
        t = moment
        time_ms = opening_ms + int(moment * length_ms)
        delay_s = rng.uniform(0.1, 1.5) + (rng.uniform(0, DELAY_S_MAX - 1.5) if rng.random() < 1 / 12 else 0)
        size = int(rng.lognormvariate(11, 1)) // 1000 * 1000 + 1000
        yield Tick(time_ms + int(delay_s * 1000), f"EUR/{currency}", no, time_ms, round(math.exp(x) * SCALE), size)


def too_late(ticks: list[Tick], every: int = 40, seed: int = 2026) -> list[Tick]:
    """Return ticks of the first half of the day that arrive half an hour after its end, at doubled prices."""
    rng = random.Random(f"late/{seed}")
    first, end = ticks[0].time_ms, ticks[-1].arrival_ms
    old = [tick for tick in ticks if tick.time_ms < (first + end) / 2][::every]
    arrivals = sorted(end + 1_800_000 + rng.randrange(5000) for _ in old)
    return [
        Tick(at, tick.pair, 1_000_000 + tick.no, tick.time_ms, tick.price * 2, tick.size)
        for at, tick in zip(arrivals, old, strict=True)
    ]


def write_recording(folder: Path, ticks: list[Tick], first_sequence: int = 1) -> int:
    """Write ticks as `chp record` would, one record for each tick; return the last sequence."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RecordingWriter(folder, "/ticks/", every_s=3600, file_bytes=1 << 20)
    writer.begin(number(1, first_sequence))
    for sequence, tick in enumerate(ticks, first_sequence + 1):
        at = number(1, sequence)
        writer.take(FeedRecord(at, at, tick.arrival_ms, [tick.key], [tick.value]))
    writer.rotate(writer.reached)
    return first_sequence + len(ticks)
