"""The reads that a replica passes to upstream, because its own records do not reach back to them.

    a resume    upstream resumes too, or refuses; then this replica sends a snapshot
    a feed      the client gets the answer of upstream, whatever it is

A client whose read got no answer asks again, and this replica answers then. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from chp import headers

from ..updates.turn import Frames
from .own_channels import header_in

# A client repeats a read after 2 s without an answer. A read that comes within this time is one for other records.
PATIENCE_S = 1.5


@dataclass(slots=True)
class PassedRead:
    """A read that upstream answers."""

    subtree: str
    asked_at: float
    # The question of a resume, which this replica answers if upstream refuses; None for a feed.
    question: Frames | None = None
    answered: bool = False


class PassedReads:
    """The reads of all clients that upstream has not answered to the end."""

    def __init__(self) -> None:
        self._reads: dict[bytes, dict[int, PassedRead]] = {}

    def begin(self, identity: bytes, request_id: int, read: PassedRead, most: int) -> bool:
        """Keep a client's read; return False if the client asked in vain before, or has too many reads."""
        reads = self._reads.setdefault(identity, {})
        before = [each for each, other in reads.items() if _in_vain(other, read)]
        for each in before:
            del reads[each]
        if before or len(reads) >= most:
            return False
        reads[request_id] = read
        return True

    def heard(self, identity: bytes, frames: Frames) -> Frames | None:
        """Note an answer of upstream. Return the question if upstream can't resume, and this replica answers it."""
        reads, header = self._reads.get(identity), header_in(frames[-1])
        request_id = None if header is None else headers.request_of(header)
        read = reads.get(request_id) if reads and request_id is not None else None
        if reads is None or read is None or request_id is None:
            return None
        read.answered = True
        if isinstance(header, headers.Refused | headers.Kthxbai | headers.Reply):
            del reads[request_id]
            if isinstance(header, headers.Refused) and header.code == "retained":
                return read.question
        return None

    def forget(self, identity: bytes) -> None:
        """Forget the reads of a client whose connection to upstream has ended."""
        self._reads.pop(identity, None)


def _in_vain(before: PassedRead, again: PassedRead) -> bool:
    """Return True if a client repeats a read because it got no answer."""
    waits = not before.answered and before.subtree == again.subtree
    same_kind = (before.question is None) == (again.question is None)
    return waits and same_kind and again.asked_at - before.asked_at > PATIENCE_S
