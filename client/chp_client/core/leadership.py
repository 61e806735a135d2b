"""Which server a client follows: a table, as the servers have one for Binary Star (SPEC.md, section 39).

A client takes a server for ACTIVE if a greeting or a HEARTBEAT says so, or if the server acts so: it answers a request,
or publishes records of a higher epoch. The move depends on the epoch, and on the server that the client follows now:

                                                    follows none       and hears it  and it is silent
    HIGHER  an ACTIVE of a higher epoch             FOLLOW             FOLLOW        FOLLOW
    EQUAL   another ACTIVE, of our epoch            FOLLOW             -             FOLLOW
    LOWER   another ACTIVE, of a lower epoch        -                  -             -
    LATE    like LOWER, but no server of our        ANEW               -             ANEW
            epoch was heard for 3 * `silence_s`
    SAME    the followed ACTIVE                                        -             -
    AGAIN   the followed ACTIVE, which restarted                       ANEW          ANEW
    GONE    the followed server is not ACTIVE                          LEAVE         LEAVE

FOLLOW asks on every channel for the changes since the channel's number. ANEW asks for everything, because numbers may
have another meaning at that server. While the client hears no active, it asks the other servers for a snapshot. A
passive takes this request as a vote.
"""

from __future__ import annotations

from enum import Enum, auto

from chp.headers import State
from chp.numbers import epoch_of

from .server_view import ServerView
from .timing import Timing

# A server of a lower epoch is believed after this time, even if no vote could be sent to it: its port P+2 may be cut
# off while the others are not.
UNTOLD_S = 30.0


class FollowState(Enum):
    """The columns of the table: whether the client follows a server, and whether it hears it."""

    NOBODY = 0
    HEARD = 1
    SILENT = 2


class FollowEvent(Enum):
    """The rows of the table: what a server said about itself."""

    HIGHER = auto()
    EQUAL = auto()
    LOWER = auto()
    LATE = auto()
    SAME = auto()
    AGAIN = auto()
    GONE = auto()


class Move(Enum):
    """The action that follows from an event."""

    STAY = "-"
    FOLLOW = "FOLLOW"
    ANEW = "ANEW"
    LEAVE = "LEAVE"


# Each row has a move for each FollowState. SAME, AGAIN and GONE can't happen while the client follows no server.
TABLE: dict[FollowEvent, tuple[Move, Move, Move]] = {
    FollowEvent.HIGHER: (Move.FOLLOW, Move.FOLLOW, Move.FOLLOW),
    FollowEvent.EQUAL: (Move.FOLLOW, Move.STAY, Move.FOLLOW),
    FollowEvent.LOWER: (Move.STAY, Move.STAY, Move.STAY),
    FollowEvent.LATE: (Move.ANEW, Move.STAY, Move.ANEW),
    FollowEvent.SAME: (Move.STAY, Move.STAY, Move.STAY),
    FollowEvent.AGAIN: (Move.STAY, Move.ANEW, Move.ANEW),
    FollowEvent.GONE: (Move.STAY, Move.LEAVE, Move.LEAVE),
}


class Leadership:
    """The followed server, its epoch, and the time when the other servers are asked."""

    def __init__(self, links: list[ServerView], timing: Timing, now: float) -> None:
        self.active: ServerView | None = None
        self.epoch = 0
        self._links = links
        self._timing = timing
        self.vote_at = now + timing.silence_s

    def learned(self, link: ServerView, state: int, number: int, now: float, restarted: bool = False) -> Move:
        """Note the state and the number that a server told. Return the move for `follow` or `leave`."""
        if link.unspoken:
            return Move.STAY
        link.state, link.heard_at = state, now
        link.epoch, link.number = epoch_of(number), number
        lower = state == State.ACTIVE and link.epoch < self.epoch
        link.lower_since = min(link.lower_since, now) if lower else float("inf")
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
        return FollowEvent.LATE if self.is_history_over(now) and self._was_told(link, now) else FollowEvent.LOWER

    def is_history_over(self, now: float) -> bool:
        """Return True if no server of our epoch was heard for long.

        Only servers of lower epochs are left then, as after a restart of servers with memory stores.
        """
        heard = max((link.heard_at for link in self._links if link.epoch >= self.epoch), default=float("-inf"))
        return now - heard > 3 * self.silence_s()

    def _was_told(self, link: ServerView, now: float) -> bool:
        """Return True if a server of a lower epoch had time to learn our epoch by a vote, and to open a higher one.

        A server of CHP/1 and a replica take no vote. A client can't vote while its link to the collector is down.
        """
        voted = link.up_at <= link.voted_at < now - self._timing.silence_s
        untold = now - link.lower_since > UNTOLD_S
        return voted or untold or link.protocol == 1 or link.replica is not None

    def follow(self, link: ServerView) -> None:
        """Follow this server, as `learned` said."""
        self.active, self.epoch = link, link.epoch

    def leave(self, now: float) -> None:
        """Follow no server, and vote soon."""
        self.active = None
        self.vote_at = now + self._timing.vote_s

    # -- silence

    def silence_s(self) -> float:
        """Return how long the active may be silent.

        Its heartbeat interval counts only while its connection is up.
        """
        heartbeat_s = self.active.heartbeat_s if self.active is not None and self.active.collector_up else 0.0
        return max(self._timing.silence_s, 4 * heartbeat_s)

    def silent(self, now: float) -> bool:
        """Return True if no server is followed, or the followed one is silent."""
        return self.active is None or now - self.active.heard_at > self.silence_s()

    def standing(self, now: float) -> FollowState:
        """Return the column of the table."""
        if self.active is None:
            return FollowState.NOBODY
        return FollowState.SILENT if self.silent(now) else FollowState.HEARD

    def hurry(self, now: float) -> None:
        """Ask the other servers as soon as the active is silent, because the copy is no longer current."""
        self.vote_at = min(self.vote_at, now)

    def electorate(self, now: float) -> list[ServerView]:
        """Return the servers to ask for a snapshot as a vote, and set the time of the next vote."""
        self.vote_at = now + self._timing.vote_s
        return [link for link in self._links if link is not self.active and self._may_be_asked(link, now)]

    def _may_be_asked(self, link: ServerView, now: float) -> bool:
        """Return True if a request of CHP/2 would reach this server at once and would do no harm.

        A CHP/2 server sends a greeting at once. If the greeting was lost, the server counts as CHP/2 after
        `unheard_s`, because a CHP/1 server would have sent a HUGZ by then.
        """
        known = link.protocol == 2 or (link.protocol == 0 and now - link.up_at >= self._timing.unheard_s)
        return link.collector_up and known and not link.unspoken

    def deaf(self, now: float) -> list[ServerView]:
        """Return the servers whose SUB socket must connect again.

        Such a server lives, as its collector shows, but no server was heard on P+1 for long. A subscriber that was full
        when the server raised its mark hears nothing more on that connection (SPEC.md, section 15). A SUB socket sends
        nothing, so it may not notice a dead connection.
        """
        wait_s = max(self._timing.deaf_s, 2 * self.silence_s())
        if now - max(link.update_at for link in self._links) <= wait_s:
            return []
        # A server that refuses a subscription was heard.
        heard = [link for link in self._links if link.used or link.looked]
        deaf = [link for link in heard if link.collector_up and link.protocol == 2 and not link.refused]
        for link in deaf:
            link.update_at = now
        return deaf

    def next_deadline(self, silence_s: float, synced: bool) -> float:
        """Return the time when silence begins, or when the other servers are asked again."""
        if self.active is None:
            return self.vote_at
        silent_at = self.active.heard_at + silence_s + 0.001
        return silent_at if synced else max(self.vote_at, silent_at)
