"""The time of a turn. The parts of the core are given it, and read no clock themselves."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """The times of a turn.

    `at` is the time when the turn began, by the monotonic clock. `arrival` is a time by which the message in hand had
    arrived; ttls count from it. `wall_s` is the wall clock when the turn began.
    """

    at: float
    arrival: float
    wall_s: float
