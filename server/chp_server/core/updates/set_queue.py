"""The sets that have come and are not done yet: a queue for each session. Turns serve the sessions round robin.

A small set of a session that has nothing here is not queued: the core does it at once. So a client that writes much
waits in its own queue, and the others do not wait behind it. `take` goes round the sessions: each visit serves sets of
one session, about `VISIT_BYTES`, and the next turn goes on with the next session. A session's sets stay in their order.

The queue is bounded by the windows of clients, and as a whole by `room`, beyond which the shell reads no sets. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from chp.keys import RESERVED_KEY
from chp.limits import Limits

Frames = list[bytes]

# A visit serves about this many bytes of one session, so sessions with small batches get as much as those with large
# batches.
VISIT_BYTES = 64 << 10
# The sets of CHP/1 have no session, and wait together.
CHP1 = b""
# The body of a KVSET without keys begins with these bytes.
WITHOUT_KEYS = b"\x93\x90\x90"


def turn_bytes(frames: Frames, share: int) -> int:
    """Return the bytes that a KVSET counts for the length of a turn.

    A KVSET without keys, such as one with messages, counts 1/`share` of its size, because messages are not published.
    """
    size = sum(map(len, frames))
    return size // share if len(frames) > 4 and frames[4].startswith(WITHOUT_KEYS) else size


def session_of(frames: Frames) -> bytes:
    """Return the session of a KVSET."""
    return frames[2] if frames[0] == RESERVED_KEY else CHP1


class SetQueue:
    """The waiting sets of all sessions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The sessions are in the order in which they are served next.
        self.sessions: dict[bytes, deque[Frames]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self.sessions.values()))

    @property
    def room(self) -> int:
        """The bytes of sets that may be added."""
        return max(0, self._limits.waiting_sets_bytes_max - self.bytes)

    def add(self, frames: Frames) -> None:
        """Let a set wait, behind those of its session."""
        self.bytes += sum(map(len, frames))
        queue = self.sessions.get(session := session_of(frames))
        if queue is None:
            self.sessions[session] = deque([frames])
        else:
            queue.append(frames)

    def take(self, bytes_max: float) -> Iterator[Frames]:
        """Yield sets, going round the sessions, with about `bytes_max` bytes in all, but at least one set."""
        taken = 0
        while self.sessions and not taken >= bytes_max:
            session, queue = next(iter(self.sessions.items()))
            del self.sessions[session]
            visited = 0
            while queue and visited < VISIT_BYTES and not taken >= bytes_max:
                frames = queue.popleft()
                self.bytes -= sum(map(len, frames))
                size = turn_bytes(frames, self._limits.turn_messages_share)
                visited, taken = visited + size, taken + size
                yield frames
            if queue:
                self.sessions[session] = queue

    def take_all(self) -> Iterator[Frames]:
        """Yield all sets."""
        return self.take(float("inf"))
