"""The requests that a part of the server's core may make in the middle of its work.

    an event of Binary Star    the core decides whether this server becomes active, or passive
    `RiseAbove`, `Vote`        the core may open an epoch, or become active
    a read of the journal      the shell reads it at the end of the turn

A part yields an `Ask`, and goes on when the core has done it. After a read of the journal the part goes on at the
start of the next turn, with the result. So a part need not know the core. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .pair.binary_star import PairEvent
from .updates.turn import ReadMessages, ReadSpans


@dataclass(frozen=True, slots=True)
class RiseAbove:
    """A request: serve above this epoch, which the peer or a client of our store has seen."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A request: take a client's question as its vote for this server."""


Decision = PairEvent | RiseAbove | Vote
Ask = Decision | ReadMessages | ReadSpans
Asking = Generator[Ask, Any, None]
