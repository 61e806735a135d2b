"""Refusals that no record holds: of batches that leave no row in the journal (SPEC.md, section 14).

A refusal is a row, so that whoever serves next refuses the batch again. But anybody could fill the disk with rows of
what is refused. So a row is saved, and the refusal kept here,

    of a session that nothing was done for yet, if no server would ever do the batch: it is ill-formed, or too large
    the same, if the rules of access deny it: those are written before the rules change
    of any session, for want of room, when the disk has little left

A session's later batch that is done, or refused with a row, is written together with what is kept of it here. Of each
session it is its last number, and why; the sessions least heard of are forgotten, and begin anew. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

WRITTEN_MAX = 64  # the latest batches of a session that are written; of earlier ones no copy is on its way any more
FOR_EVER = frozenset({"bad", "size"})  # codes of what no server would ever do
NO_ROW = FOR_EVER | {"access"}


@dataclass(slots=True)
class Refused:
    """The batches of a session that were refused since its last row."""

    first: int
    last: int
    code: str
    detail: Any


class Unwritten:
    """What was refused, by session."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self.kept: OrderedDict[bytes, Refused] = OrderedDict()

    def note(self, session_id: bytes, no: int, code: str, detail: Any) -> None:
        """A batch was refused; it is its session's next."""
        kept = self.kept.pop(session_id, None)
        self.kept[session_id] = Refused(no if kept is None else kept.first, no, code, detail)
        if len(self.kept) > self._max:
            self.kept.popitem(last=False)

    def last(self, session_id: bytes) -> int:
        """The number of the last batch of a session that was refused; 0 if none is known."""
        kept = self.kept.get(session_id)
        return 0 if kept is None else kept.last

    def first(self, session_id: bytes) -> int:
        """Return the number of a session's first batch that was refused and is kept; 0 if none is."""
        kept = self.kept.get(session_id)
        return 0 if kept is None else kept.first

    def get(self, session_id: bytes, no: int) -> tuple[str, Any] | None:
        """How a batch was refused."""
        kept = self.kept.get(session_id)
        return None if kept is None or not kept.first <= no <= kept.last else (kept.code, kept.detail)

    def take(self, session_id: bytes) -> list[tuple[int, str, Any]]:
        """What is to be written now, of a session."""
        kept = self.kept.pop(session_id, None)
        if kept is None:
            return []
        first = max(kept.first, kept.last - WRITTEN_MAX + 1)
        return [(no, kept.code, kept.detail) for no in range(first, kept.last + 1)]

    def that_may_be_done(self) -> list[bytes]:
        """The sessions of which another server might do what was refused here."""
        return [session_id for session_id, kept in self.kept.items() if kept.code not in FOR_EVER]

    def clear(self) -> None:
        """Forget all: another server serves."""
        self.kept.clear()
