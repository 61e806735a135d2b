"""The time of a turn, as its parts are given it: they read no clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """The times of a turn.

    `at` is when it began, by the monotonic clock. By `arrival` all that it has in hand has arrived: times to live count
    from then. `wall_s` is the wall clock.
    """

    at: float
    arrival: float
    wall_s: float
