"""The age of what a replica holds: the time since the active last had nothing more than that.

A word (a sign of life of the active) tells the active's number and wall clock. A word may have waited in a queue, for
example while this process was stopped, and the clocks of two machines can't be compared. So the word that took the
shortest time to arrive counts as new, and each other word is older by the difference. A word counts once the replica
holds everything up to its number. Pure.
"""

from __future__ import annotations

from chp.numbers import epoch_of

# The shortest way is forgotten after one to two windows of this length, because clocks drift apart, by 0.1 s in ten
# minutes. A queue never holds the words of a whole window: a server drops a replica that is silent for a minute.
WINDOW_S = 300.0


class Age:
    """The time at which the active had no more than this replica holds."""

    def __init__(self, now: float) -> None:
        # The time of the last word that counts; before the first word, the start of this process.
        self.current_at = now
        self._heard = False
        # The first and the last of the words that don't count yet, each with its number and its time.
        self._first: tuple[int, float] | None = None
        self._last = (0, now)
        self._asked_at = now
        # The shortest ways in the window before, if there is one, and in this window.
        self._ways: list[float] = []
        # The active's wall clock at the begin of this window and at the last word, and the epoch of that word.
        self._began_s = self._wall_s = 0.0
        self._epoch = 0

    def ask(self, now: float) -> None:
        """Note that upstream is asked anew: all words to come are answers to this question."""
        self._asked_at, self._ways, self._first = now, [], None

    def word(self, number: int, told_s: float, wall_s: float, now: float, held: int) -> bool:
        """Take a word that was `told_s` old when it was sent; return True if it counts already."""
        at = now - max(told_s, self._late_s(epoch_of(number), wall_s, now))
        if number <= held:
            self._first = None
            self._count(at)
            return True
        self._last = number, at
        self._first = self._first or self._last
        return False

    def holds(self, number: int) -> bool:
        """Note that this replica holds everything up to a number; return True if this makes a word count."""
        if self._first is None or number < self._first[0]:
            return False
        self._count(self._first[1])
        if number >= self._last[0]:
            self._count(self._last[1])
            self._first = None
        else:
            self._first = self._last
        return True

    def _count(self, at: float) -> None:
        self.current_at = max(self.current_at, at) if self._heard else at
        self._heard = True

    def _late_s(self, epoch: int, wall_s: float, now: float) -> float:
        """Return how much longer the way of a word was than the shortest way."""
        way, ways = now - wall_s, self._ways
        if not ways or epoch != self._epoch or wall_s < self._wall_s:
            # This is the first word, or it comes from another active, or the active's clock was set back.
            late_s = 0.0 if ways else now - self._asked_at
            self._ways, self._began_s, self._epoch = [way], wall_s, epoch
        else:
            late_s = way - min(ways)
            if wall_s - self._began_s >= WINDOW_S:
                self._ways, self._began_s = [ways[-1], way], wall_s
            else:
                ways[-1] = min(ways[-1], way)
        self._wall_s = wall_s
        return late_s
