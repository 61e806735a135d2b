"""The runs of batches that a server remembers: one compact table for all sessions (SPEC.md, section 14).

A run is the first and the last batch of one session that a record holds, and the revision of that record. A client that
sends a batch again gets this revision. The table is a ring of columns. So a run takes 28 bytes, and no Python object:

    place       0    1    2    3    4           a run's place is the number of runs that were added before it
    first       1    1    4    6    2
    last        3    1    5    6    9
    revision   10   11   14   15   19
    back        0    0    2    1    3           the distance to the session's run before; 0 if there is none

A session knows the place of its latest run and walks back from there. The newest run overwrites the oldest one, which
is forgotten without a look at its session. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

# The place of the latest run of a session that has none.
NO_RUN = -1
Run = tuple[int, int, int]


class RunTable:
    """The latest `most` runs of all sessions."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._added = 0
        self._first, self._last, self._revision, self._back = array("Q"), array("Q"), array("Q"), array("I")

    def __len__(self) -> int:
        """Return the number of runs that the table holds."""
        return len(self._first)

    def add(self, before: int, first: int, last: int, revision: int) -> int:
        """Add a run of the session whose latest run is at `before`; return its place."""
        place = self._added
        self._added = place + 1
        back = 0 if before == NO_RUN or place - before > self.most else place - before
        if place < self.most:
            self._first.append(first)
            self._last.append(last)
            self._revision.append(revision)
            self._back.append(back)
        else:
            at = place % self.most
            self._first[at], self._last[at], self._revision[at], self._back[at] = first, last, revision, back
        return place

    def _places(self, place: int) -> Iterator[int]:
        """Yield the indexes of a session's runs in the columns, from its latest run at `place` back to the oldest."""
        back, most, oldest = self._back, self.most, self._added - self.most
        while place >= oldest and place != NO_RUN:
            at = place % most
            yield at
            if not (step := back[at]):
                return
            place -= step

    def of(self, place: int) -> list[Run]:
        """Return the runs of the session whose latest run is at `place`, the oldest first."""
        first, last, revision = self._first, self._last, self._revision
        found = [(first[at], last[at], revision[at]) for at in self._places(place)]
        found.reverse()
        return found

    def revision_of(self, place: int, no: int) -> int | None:
        """Return the revision of a batch of the session whose latest run is at `place`; None if it is forgotten."""
        first = self._first
        for at in self._places(place):
            if first[at] <= no:
                # Numbers only rise within a session, so no earlier run has the batch.
                return self._revision[at] if no <= self._last[at] else None
        return None

    def copy(self) -> RunTable:
        """Return a copy, which later runs do not change."""
        copied = RunTable(self.most)
        copied._added = self._added
        copied._first, copied._last = self._first[:], self._last[:]
        copied._revision, copied._back = self._revision[:], self._back[:]
        return copied
