"""A server's sign of life in the middle of a turn (SPEC.md, section 21).

STATE leaves with a turn, so a server that is busy with a long one would be silent, and be replaced though it is well. A
thread beside the turns asks `due` ever again, and sends what it says to the peer (BEAT), which then knows no more than
that this run of the server lives: what it tells of is the last turn that was done whole, never the one under way.

    begins, done, hush      by the thread that takes the turns
    due, stuck              by the other one

A process that is stopped says nothing, so `begins` tells a stop from a long turn by the gaps between the words. One
that is stuck in a turn says nothing either after STUCK_S, nor does one that waits, for room or for a disk or a database
that does not answer: it is not busy, as it takes no processor time, and the other server is to serve.

Pure, and without locks: each field is written by one of the two threads only, and as a whole.
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
STUCK_S = 10.0  # what takes longer is no turn any more, but an endless loop
WORKED_S = 0.001  # of processor time between two looks: a twentieth of what a busy thread gets on a crowded machine


class BeatMessage(NamedTuple):
    """What a busy server says: which run of it, how old its turn is, and where it was when the last one was done."""

    server: bytes
    turn_ms: int
    state: State
    at: Position

    @staticmethod
    def of(body: bytes) -> BeatMessage:
        """What the peer said; `BadFrame` if it makes no sense."""
        said = unpackb(body, "the peer's BEAT", QUESTION)
        if not isinstance(said, list) or len(said) < 4 or type(said[0]) is not bytes or type(said[1]) is not int:
            raise BadFrame("a BEAT tells a server, the age of its turn, a state and a place in a history")
        return BeatMessage(said[0], said[1], State(said[2]), Position.of(said[3]))

    def frames(self) -> Frames:
        """As it is sent."""
        return [BEAT, packb([self.server, self.turn_ms, int(self.state), list(self.at)])]


class BeatTimer:
    """When a server says that it lives, and what its own silence means."""

    def __init__(self, server: bytes, now: float, beat_s: float) -> None:
        self._server = server
        self.beat_s = beat_s
        self._begun = now
        self._done: tuple[State, Position] | None = None  # None: it says nothing
        self._used_s = 0.0
        self._spoke = (now, now, 0.0)  # the turn it was in, the last word, and the longest silence in that turn

    def begins(self, now: float) -> float:
        """A turn begins; how long this server was silent since the last one began."""
        silent_s = self.silent_s(now)
        self._begun = now
        return silent_s

    def silent_s(self, now: float) -> float:
        """The longest that this server has been silent since its last turn began."""
        begun, last, longest = self._spoke
        return max(longest, now - last) if begun == self._begun else now - self._begun

    def done(self, state: State, at: Position) -> None:
        """A turn is done, with all its effects: this is what may be told."""
        self._done = state, at

    def hush(self) -> None:
        """Say nothing until a turn is done."""
        self._done = None

    def stuck(self, now: float) -> bool:
        """Whether the turn takes so long that the other server had better serve."""
        return now - self._begun > STUCK_S

    def due(self, now: float, used_s: float) -> Frames | None:
        """What is to be sent now, if the turn is long and not too long; `used_s`: processor time of all turns."""
        begun, done = self._begun, self._done
        worked, self._used_s = used_s - self._used_s >= WORKED_S, used_s
        if done is None or not worked or now - begun <= self.beat_s or self.stuck(now):
            return None
        of, last, longest = self._spoke if self._spoke[0] == begun else (begun, begun, 0.0)
        self._spoke = of, now, max(longest, now - last)
        return BeatMessage(self._server, round((now - begun) * 1000), *done).frames()
