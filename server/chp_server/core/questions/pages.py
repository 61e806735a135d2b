"""Pages of the journal, for whoever needs records that the log in memory has no longer.

    ask      a page that follows on a number; whoever asks goes on when it has come, a turn later at the soonest
    due      what is to be read at the end of this turn: some, as each may be megabytes
    came     what was read (performing.py)

The core reads nothing: a page is an effect of one turn and an input before the next. Who asks for the same shares it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..state.recordlog import Record, Row
from ..turn import Read

PAGE_BYTES = 4 << 20
READS_A_TURN = 4  # the others get their sets and heartbeats in between


@dataclass(slots=True)
class Page:
    """Records that follow on a number; None if what is kept does not reach back to it."""

    waits: bool = True
    records: list[Record] | None = field(default=None)


class Pages:
    """What was asked for and has not come."""

    def __init__(self) -> None:
        self._asked: dict[Read, Page] = {}

    def ask(self, after: int, bytes_max: int) -> Page:
        """A page that will have come when it no longer waits."""
        return self._asked.setdefault(Read(after, bytes_max), Page())

    def due(self) -> list[Read]:
        """What was asked for first."""
        return list(self._asked)[:READS_A_TURN]

    def came(self, read: Read, rows: Sequence[Row] | None) -> None:
        """What the journal has."""
        page = self._asked.pop(read, None)
        if page is not None:  # else whoever asked has left
            page.waits = False
            page.records = None if rows is None else [Record(row.first - 1, *row) for row in rows]

    def clear(self) -> None:
        """Nobody waits any more."""
        self._asked.clear()
