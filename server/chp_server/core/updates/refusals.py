"""Batches that leave no row in the journal: some are refused, some change nothing (SPEC.md, sections 14 and 18).

A refusal is a row of the journal, so that a successor refuses the batch again. But any client could fill the disk with
such rows. So this server keeps some refusals here, in memory, and writes no row:

    - the batch is malformed or too large for any server, and nothing was done for its session yet
    - the rules deny the batch, and nothing was done for its session yet; these are written before the rules change
    - there is no room for the batch, and the disk has little space left; here the session does not matter

A batch that changes nothing (a client's `sync`) leaves no row either, while the server may write nothing.

When a later batch of the session is done, or is refused with a row, the refusals kept here are written with it. The
last number and the last reason of each session are kept. If there are too many sessions, the session that was heard
longest ago is forgotten. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

# At most this many of a session's latest refusals are written. Copies of earlier batches can't be under way any more.
WRITTEN_MAX = 64
# The codes of batches that no server would ever do.
FOR_EVER = frozenset({"bad", "size"})
NO_ROW = FOR_EVER | {"access"}


@dataclass(slots=True)
class UnloggedRefusal:
    """The batches of a session that were refused since its last row, and the session's last number.

    Batches that change nothing may be between and behind these batches. Between two refused batches, such a batch
    counts as refused.
    """

    last: int
    first_refused: int = 0
    last_refused: int = 0
    code: str = ""
    detail: Any = None


class UnloggedRefusals:
    """The batches that left no row, by session."""

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
        """Return the number of the first batch of a session whose refusal is kept; 0 if there is none."""
        kept = self.kept.get(session_id)
        return 0 if kept is None else kept.first_refused

    def get(self, session_id: bytes, no: int) -> tuple[str, Any] | None:
        """Return the code and the detail of a batch's refusal; None if it is not kept here."""
        kept = self.kept.get(session_id)
        return None if kept is None or not kept.first_refused <= no <= kept.last_refused else (kept.code, kept.detail)

    def take(self, session_id: bytes) -> list[tuple[int, str, Any]]:
        """Forget a session, and return its refusals that must be written now."""
        kept = self.kept.pop(session_id, None)
        if kept is None or not kept.last_refused:
            return []
        first = max(kept.first_refused, kept.last_refused - WRITTEN_MAX + 1)
        return [(no, kept.code, kept.detail) for no in range(first, kept.last_refused + 1)]

    def that_may_be_done(self) -> list[bytes]:
        """Return the sessions whose refused batches another server might do."""
        return [session_id for session_id, kept in self.kept.items() if kept.code and kept.code not in FOR_EVER]

    def clear(self) -> None:
        """Forget all, because another server is active."""
        self.kept.clear()
