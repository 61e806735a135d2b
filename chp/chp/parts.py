"""The parts of a record that comes in several BATCHes, held until the last is here (SPEC.md, section 16).

Each part but the last says that more follow. Together they are one record, with the revision of the first part. No
program applies a part of a record. A program holds the parts, and stays at its former number until the record is whole.
It drops the parts if the others won't come: updates are missing, or the program follows another server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .batch import Segment
from .headers import Batch


@dataclass(slots=True)
class WholeRecord:
    """All parts of a record: `first` is the revision of the keys that it wrote.

    `whose` maps segments to batches, as in `Batch`.
    """

    prev: int
    first: int
    last: int
    wall_ms: int
    origins: list[Any]
    segments: list[Segment]
    whose: list[Any] | None = None


class Parts:
    """The parts of at most one record under way; each part that `add` gets follows the one before."""

    def __init__(self) -> None:
        self._partial: WholeRecord | None = None

    def __bool__(self) -> bool:
        """Return True if parts are held that wait for others."""
        return self._partial is not None

    @property
    def last(self) -> int:
        """The number that the next part has to follow; 0 while no part is held."""
        return 0 if self._partial is None else self._partial.last

    def revision(self, batch: Batch) -> int:
        """Return the revision of the record that `batch` is, or is the next part of."""
        return batch.first if self._partial is None else self._partial.first

    def add(self, batch: Batch, segments: list[Segment]) -> WholeRecord | None:
        """Return the record that this part completes, or None while more parts follow."""
        held, self._partial = self._partial, None
        if held is None:
            held = WholeRecord(batch.prev, batch.first, batch.last, batch.wall_ms, batch.origins, segments, batch.whose)
            if not batch.more:
                return held
            # The lists will grow, so they are copies.
            held.origins, held.segments = list(batch.origins), list(segments)
        else:
            # The last part has the number and `whose` of the whole record.
            held.last, held.whose = batch.last, batch.whose
            held.origins += [origin for origin in batch.origins if origin not in held.origins]
            held.segments += segments
        self._partial = held if batch.more else None
        return None if batch.more else held

    def drop(self) -> bool:
        """Drop the parts, since the rest won't come; return True if there were any."""
        held, self._partial = self._partial is not None, None
        return held
