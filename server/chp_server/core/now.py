"""The time of a turn, as its parts are given it: they read no clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """When a turn began."""

    at: float  # monotonic
    arrival: float  # by when all in hand has arrived: times to live count from then
    wall_s: float
