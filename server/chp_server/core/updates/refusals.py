"""Batches that leave no row in the journal: refused ones, and those that change nothing (SPEC.md, sections 14 and 18).

A refusal is a row, so that whoever serves next refuses the batch again. But anybody could fill the disk with rows of
what is refused. So a row is saved, and the refusal kept here,

    of a session that nothing was done for yet, if no server would ever do the batch: it is ill-formed, or too large
    the same, if the rules of access deny it: those are written before the rules change
    of any session, for want of room, when the disk has little left

So is the row of a batch that changes nothing (a client's `sync`) while nothing may be written: it is done without one.

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
class UnloggedRefusal:
    """The batches of a session that were refused since its last row, and its last number.

    Batches that change nothing and were done without a row are between and behind those. One between two refused ones
    counts as refused.
    """

    last: int
    first_refused: int = 0
    last_refused: int = 0
    code: str = ""
    detail: Any = None


class UnloggedRefusals:
    """What left no row, by session."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self.kept: OrderedDict[bytes, UnloggedRefusal] = OrderedDict()

    def note(self, session_id: bytes, no: int, code: str, detail: Any) -> None:
        """Keep the refusal of a batch, which is its session's next."""
        kept = self._next(session_id, no)
        kept.first_refused = kept.first_refused or no
        kept.last_refused, kept.code, kept.detail = no, code, detail

    def note_done(self, session_id: bytes, no: int) -> None:
        """Keep the number of a batch that changed nothing, which is its session's next."""
        self._next(session_id, no)

    def _next(self, session_id: bytes, no: int) -> UnloggedRefusal:
        kept = self.kept.pop(session_id, None) or UnloggedRefusal(no)
        kept.last = max(kept.last, no)
        self.kept[session_id] = kept
        if len(self.kept) > self._max:
            self.kept.popitem(last=False)
        return kept

    def last(self, session_id: bytes) -> int:
        """Return the number of the last batch of a session that left no row; 0 if none is known."""
        kept = self.kept.get(session_id)
        return 0 if kept is None else kept.last

    def first(self, session_id: bytes) -> int:
        """Return the number of a session's first batch that was refused and is kept; 0 if none is."""
        kept = self.kept.get(session_id)
        return 0 if kept is None else kept.first_refused

    def get(self, session_id: bytes, no: int) -> tuple[str, Any] | None:
        """Return how a batch was refused."""
        kept = self.kept.get(session_id)
        return None if kept is None or not kept.first_refused <= no <= kept.last_refused else (kept.code, kept.detail)

    def take(self, session_id: bytes) -> list[tuple[int, str, Any]]:
        """Forget a session, and return its refusals that are to be written now."""
        kept = self.kept.pop(session_id, None)
        if kept is None or not kept.last_refused:
            return []
        first = max(kept.first_refused, kept.last_refused - WRITTEN_MAX + 1)
        return [(no, kept.code, kept.detail) for no in range(first, kept.last_refused + 1)]

    def that_may_be_done(self) -> list[bytes]:
        """Return the sessions of which another server might do what was refused here."""
        return [session_id for session_id, kept in self.kept.items() if kept.code and kept.code not in FOR_EVER]

    def clear(self) -> None:
        """Forget all: another server serves."""
        self.kept.clear()
