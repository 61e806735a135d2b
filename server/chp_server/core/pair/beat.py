"""The sign of life that a server sends in the middle of a turn: BEAT (SPEC.md, section 21).

STATE leaves with a turn. So a server in a long turn would be silent, and be replaced although it is well. A thread
beside the turns calls `due` again and again, and sends the BEAT that it returns to the peer. BEAT proves only that this
process is alive: it tells the state after the last turn that was done, never the turn under way.

    begins, done, hush      are called by the thread that takes the turns
    due, stuck              are called by the other thread

A process that is stopped sends nothing. So the longest gap between two BEATs (`silent_s`) tells whether this server was
stopped, or was in a long turn. A server also sends no BEAT if it has been in one turn for STUCK_S, or if it waits for
room, for a disk or for a database: it takes no processor time then. In both cases the peer should become active.

Pure, and without locks: each field is written by one thread only, and as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

from chp.batch import packb, unpackb
from chp.errors import BadFrame
from chp.headers import State
from chp.unpacking import QUESTION

from ..state.history import Position
from ..updates.turn import Frames

BEAT = b"BEAT"
# A turn that takes longer is an endless loop.
STUCK_S = 10.0
# A turn that works uses this much processor time between two looks: a twentieth of what a busy thread gets on a
# crowded machine.
WORKED_S = 0.001


class BeatMessage(NamedTuple):
    """A BEAT: the run of the server, the age of its turn, and its state and position when the last turn was done."""

    server: bytes
    turn_ms: int
    state: State
    at: Position

    @staticmethod
    def of(body: bytes) -> BeatMessage:
        """Return the BEAT that a peer sent; raise `BadFrame` if it is malformed."""
        said = unpackb(body, "the peer's BEAT", QUESTION)
        if not isinstance(said, list) or len(said) < 4 or type(said[0]) is not bytes or type(said[1]) is not int:
            raise BadFrame("a BEAT is a list of server, age of its turn, state and position")
        return BeatMessage(said[0], said[1], State(said[2]), Position.of(said[3]))

    def frames(self) -> Frames:
        """Return the frames of the message."""
        return [BEAT, packb([self.server, self.turn_ms, int(self.state), list(self.at)])]


class BeatTimer:
    """The times at which a server sends BEAT, and how long it was silent."""

    def __init__(self, server: bytes, now: float, beat_s: float) -> None:
        self._server = server
        self.beat_s = beat_s
        self._begun = now
        # The state and the position that BEAT tells; None if no BEAT may be sent.
        self._done: tuple[State, Position] | None = None
        self._used_s = 0.0
        # The begin of the turn, the time of the last BEAT, and the longest silence in that turn.
        self._spoke = (now, now, 0.0)

    def begins(self, now: float) -> None:
        """Note that a turn begins."""
        self._begun = now

    def silent_s(self, now: float) -> float:
        """Return the longest silence of this server since its last turn began."""
        begun, last, longest = self._spoke
        return max(longest, now - last) if begun == self._begun else now - self._begun

    def done(self, state: State, at: Position) -> None:
        """Note that a turn is done with all its effects; BEAT tells this state and position from now on."""
        self._done = state, at

    def hush(self) -> None:
        """Send no BEAT until a turn is done."""
        self._done = None

    def stuck(self, now: float) -> bool:
        """Return whether the turn takes so long that the peer should become active."""
        return now - self._begun > STUCK_S

    def due(self, now: float, used_s: float) -> Frames | None:
        """Return the BEAT to send if the turn is long, works, and is not stuck; `used_s`: all processor time."""
        begun, done = self._begun, self._done
        worked, self._used_s = used_s - self._used_s >= WORKED_S, used_s
        if done is None or not worked or now - begun <= self.beat_s or self.stuck(now):
            return None
        of, last, longest = self._spoke if self._spoke[0] == begun else (begun, begun, 0.0)
        self._spoke = of, now, max(longest, now - last)
        return BeatMessage(self._server, round((now - begun) * 1000), *done).frames()
