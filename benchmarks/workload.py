"""What is written in the rate benchmarks: laps over 10,000 keys, each lap with other values.

Everything is made before the clock starts, for us and for other stores alike, so only the store is measured. The values
of a lap begin with its number, so a watcher whose copy ends with an older lap is detected.
"""

from __future__ import annotations

from functools import cache

KEYS = 10_000
BATCH = 1000
# The values repeat after this many laps.
LAPS = 7
MARKER = "/bench/done"


@cache
def keys() -> list[str]:
    """Return all keys."""
    return [f"/bench/{i:06d}" for i in range(KEYS)]


@cache
def values(size: int, lap: int) -> list[bytes]:
    """Return the values of a lap, in the order of the keys."""
    return [(b"%d:%d" % (lap, i)).ljust(size, b".") for i in range(KEYS)]


def batches(sets: int, size: int) -> list[tuple[list[str], list[bytes]]]:
    """Return `sets` sets as columns (keys, values) of a thousand each."""
    columns = [
        [(keys()[at : at + BATCH], values(size, lap)[at : at + BATCH]) for at in range(0, KEYS, BATCH)]
        for lap in range(LAPS)
    ]
    per_lap = KEYS // BATCH
    return [columns[n // per_lap % LAPS][n % per_lap] for n in range(sets // BATCH)]


def expected(sets: int, size: int) -> dict[str, bytes]:
    """Return the contents of a map after `sets` sets, from the first key on."""
    out: dict[str, bytes] = {}
    for ks, vs in batches(sets, size)[-KEYS // BATCH :]:
        out.update(zip(ks, vs, strict=True))
    return out
