"""Which server a client follows: a table, as Binary Star has one (SPEC.md, section 39).

A server is believed to be ACTIVE when it says so, in a greeting or a HEARTBEAT, or when it serves: it answers a
request, or publishes records of a higher epoch. What that means is a matter of its epoch and of whom we follow:

                                                    we follow nobody   and hear it   and it is silent
    HIGHER  an ACTIVE of a higher epoch             FOLLOW             FOLLOW        FOLLOW
    EQUAL   another ACTIVE, of our epoch            FOLLOW             -             FOLLOW
    LOWER   another ACTIVE, of a lower epoch        -                  -             -
    LATE    the same; for three silences nobody     ANEW               -             ANEW
            of our epoch has been heard
    SAME    the ACTIVE that we follow                                  -             -
    AGAIN   the same, which began anew                                 ANEW          ANEW
    GONE    the one that we follow is not ACTIVE                       LEAVE         LEAVE

FOLLOW asks on every channel for what changed since its number; ANEW asks for everything, as numbers may mean something
else there. While nobody is heard, the others are asked for a snapshot, which a passive takes as a vote.
"""

from __future__ import annotations

from enum import Enum, auto

from chp.headers import State
from chp.numbers import epoch_of

from .server_view import ServerView
from .timing import Timing


class FollowState(Enum):
    """Whom we follow, and whether it is heard."""

    NOBODY = 0
    HEARD = 1
    SILENT = 2


class FollowEvent(Enum):
    """What a server said of itself."""

    HIGHER = auto()
    EQUAL = auto()
    LOWER = auto()
    LATE = auto()
    SAME = auto()
    AGAIN = auto()
    GONE = auto()


class Move(Enum):
    """What is to be done."""

    STAY = "-"
    FOLLOW = "FOLLOW"
    ANEW = "ANEW"
    LEAVE = "LEAVE"


TABLE: dict[
    FollowEvent, tuple[Move, Move, Move]
] = {  # by Standing; what follows nobody hears nothing of whom it follows
    FollowEvent.HIGHER: (Move.FOLLOW, Move.FOLLOW, Move.FOLLOW),
    FollowEvent.EQUAL: (Move.FOLLOW, Move.STAY, Move.FOLLOW),
    FollowEvent.LOWER: (Move.STAY, Move.STAY, Move.STAY),
    FollowEvent.LATE: (Move.ANEW, Move.STAY, Move.ANEW),
    FollowEvent.SAME: (Move.STAY, Move.STAY, Move.STAY),
    FollowEvent.AGAIN: (Move.STAY, Move.ANEW, Move.ANEW),
    FollowEvent.GONE: (Move.STAY, Move.LEAVE, Move.LEAVE),
}


class Leadership:
    """Who is followed, in which epoch, and when the others are asked."""

    def __init__(self, links: list[ServerView], timing: Timing, now: float) -> None:
        self.active: ServerView | None = None
        self.epoch = 0
        self._links = links
        self._timing = timing
        self.vote_at = now + timing.silence_s

    def learned(self, link: ServerView, state: int, number: int, now: float, restarted: bool = False) -> Move:
        """A server said which state it is in, and how far it is; what is to be done, by `follow` or `leave`."""
        if link.unspoken:
            return Move.STAY
        link.state, link.heard_at = state, now
        link.epoch = epoch_of(number)
        event = self._event(link, restarted, now)
        return Move.STAY if event is None else TABLE[event][self.standing(now).value]

    def _event(self, link: ServerView, restarted: bool, now: float) -> FollowEvent | None:
        ours = link is self.active
        if link.state != State.ACTIVE:
            return FollowEvent.GONE if ours else None
        if link.epoch > self.epoch:
            return FollowEvent.HIGHER
        if ours:
            return FollowEvent.AGAIN if restarted else FollowEvent.SAME
        if link.epoch == self.epoch:
            return FollowEvent.EQUAL
        return FollowEvent.LATE if self._is_history_over(now) else FollowEvent.LOWER

    def _is_history_over(self, now: float) -> bool:
        """Nobody of our epoch has been heard for long: what has a lower one is all there is (a memory store)."""
        heard = max((link.heard_at for link in self._links if link.epoch >= self.epoch), default=float("-inf"))
        return now - heard > 3 * self.silence_s()

    def follow(self, link: ServerView) -> None:
        """Whom `told` said to follow."""
        self.active, self.epoch = link, link.epoch

    def leave(self, now: float) -> None:
        """Follow nobody."""
        self.active = None
        self.vote_at = now + self._timing.vote_s

    # -- silence

    def silence_s(self) -> float:
        """How long the active may be silent: where its connection has ended, its heartbeats need not be waited for."""
        heartbeat_s = self.active.heartbeat_s if self.active is not None and self.active.collector_up else 0.0
        return max(self._timing.silence_s, 4 * heartbeat_s)

    def silent(self, now: float) -> bool:
        """Whether nobody is followed, or who is says nothing."""
        return self.active is None or now - self.active.heard_at > self.silence_s()

    def standing(self, now: float) -> FollowState:
        """The column of the table."""
        if self.active is None:
            return FollowState.NOBODY
        return FollowState.SILENT if self.silent(now) else FollowState.HEARD

    def hurry(self, now: float) -> None:
        """The copy is current no longer: ask the others as soon as the active is silent."""
        self.vote_at = min(self.vote_at, now)

    def electorate(self, now: float) -> list[ServerView]:
        """It is time for a vote: whom to ask for a snapshot, every server but the silent one."""
        self.vote_at = now + self._timing.vote_s
        return [link for link in self._links if link is not self.active and self._may_be_asked(link, now)]

    def _may_be_asked(self, link: ServerView, now: float) -> bool:
        """Whether a request of CHP/2 arrives now (and does not wait in a queue), and harms nobody.

        A server of CHP/2 greets at once; if the greeting was lost, it is taken for one when no HUGZ of CHP/1 has come.
        """
        known = link.protocol == 2 or (link.protocol == 0 and now - link.up_at >= self._timing.unheard_s)
        return link.collector_up and known and not link.unspoken

    def deaf(self, now: float) -> list[ServerView]:
        """Whose SUB socket is to be connected anew: it lives, as its collector shows, and nobody is heard for long.

        A subscriber that was full when the server raised its mark hears nothing more on that connection (SPEC.md,
        section 15), and a SUB socket, which sends nothing, may not notice that its connection is dead.
        """
        wait_s = max(self._timing.deaf_s, 2 * self.silence_s())
        if now - max(link.update_at for link in self._links) <= wait_s:
            return []
        # who refuses is heard
        deaf = [link for link in self._links if link.collector_up and link.protocol == 2 and not link.refused]
        for link in deaf:
            link.update_at = now
        return deaf

    def next_deadline(self, synced: bool) -> float:
        """When silence begins, or the others are asked again."""
        if self.active is None:
            return self.vote_at
        silent_at = self.active.heard_at + self.silence_s() + 0.001
        return silent_at if synced else max(self.vote_at, silent_at)
