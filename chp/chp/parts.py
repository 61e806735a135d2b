"""A record that comes in several BATCHes is held until the last is here (SPEC.md, section 16).

Each part but the last says that more follow; together they are one record, with the revision of the first. Nobody sees
a half of one: who holds parts has not moved on, and when the rest won't come (a hole, another server) drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .batch import Segment
from .headers import Batch


@dataclass(slots=True)
class WholeRecord:
    """All parts of a record: keys that it wrote have `first` as their revision."""

    prev: int
    first: int
    last: int
    wall_ms: int
    origins: list[Any]
    segments: list[Segment]
    whose: list[Any] | None = None  # which segments are of which batch, as in `Batch`


class Parts:
    """At most one record under way; what `add` is given follows on what it was given before."""

    def __init__(self) -> None:
        self._partial: WholeRecord | None = None

    def __bool__(self) -> bool:
        """Whether parts are held that wait for others."""
        return self._partial is not None

    @property
    def last(self) -> int:
        """The number that the next part has to follow on; 0 while none is held."""
        return 0 if self._partial is None else self._partial.last

    def revision(self, batch: Batch) -> int:
        """The revision of the record that `batch` is, or is the next part of."""
        return batch.first if self._partial is None else self._partial.first

    def add(self, batch: Batch, segments: list[Segment]) -> WholeRecord | None:
        """The record that this completes; None while more of it follow."""
        held, self._partial = self._partial, None
        if held is None:
            held = WholeRecord(batch.prev, batch.first, batch.last, batch.wall_ms, batch.origins, segments, batch.whose)
            if not batch.more:
                return held
            held.origins, held.segments = list(batch.origins), list(segments)  # they will grow
        else:
            held.last, held.whose = batch.last, batch.whose  # the last part tells
            held.origins += [origin for origin in batch.origins if origin not in held.origins]
            held.segments += segments
        self._partial = held if batch.more else None
        return None if batch.more else held

    def drop(self) -> bool:
        """Forget what is held, since the rest won't come; whether there was anything."""
        held, self._partial = self._partial is not None, None
        return held
