"""Which of several servers to follow: a client that knows replicas looks at them, and chooses by load.

A client of a pair hears both servers all the time. A client that knows replicas, or more than two servers, is a reader
of one server alone. To learn of the others it *looks*: it subscribes to the channel PULSE of each, and waits for the
greetings, which tell state, number and load.

    it follows nobody, or a silent server     look, and follow the best server at once
    the followed replica asks it to move      look, join a better replica, and leave when its channels are live there
    it follows a server of the pair           look now and then, and move to a replica as above

The best server is ACTIVE at the newest epoch, and not behind the copy. A replica comes before a server of the pair. Of
two replicas taken at random the client prefers the one with the lower load. A replica that is alive but not ACTIVE
gets `PATIENCE_S` to find a new active. Without this patience all its readers would turn to the pair at once.

This part knows no channel and sends nothing. Its caller subscribes, follows and leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from chp.headers import Move, State

from .leadership import Leadership
from .server_list import PAIR, ServerList
from .server_view import ServerView
from .timing import NEVER, Chance

# Once a server that may be followed has answered, the others have this long to answer too.
CHOOSE_S = 0.25
# A look ends after this time, even if some servers have not answered. While the client has no server, it begins the
# next look at once. Each look then lasts longer than the one before.
LOOK_S, LOOK_S_MAX = 0.5, 4.0
# A client that follows a server of the pair looks for replicas about once in this time.
HOME_S = 10.0
# How long a client waits for replicas that are alive before it turns to the pair.
PATIENCE_S = 3.0
# The channels of a replica that is joined have to be live after this time.
JOIN_S = 2.0
# A replica that uses this much of a core, in per mille, is overloaded.
BUSY_CPU = 800
Load = tuple[bool, int, int]


class ServerChoice:
    """The looks of one client at its servers, and the choice that follows from each."""

    def __init__(self, links: Sequence[ServerView], lead: Leadership, chance: Chance, now: float) -> None:
        # True once the client is a reader of one server alone.
        self.on = len(links) > PAIR
        # True while a look is under way.
        self.looks = False
        # The time when a look ends, while one is under way.
        self.choose_at = NEVER
        # The time of the next look, while none is under way.
        self.look_at = NEVER
        # The replica that this client moves to, and the time when it gives up.
        self.joining: ServerView | None = None
        self.join_until = NEVER
        # True if the connection to the followed server ended: the server is probably gone.
        self.broken = False
        # Until this time the copy counts as current, although it is completed at another server.
        self.settles_until = 0.0
        # What is known of the list of servers as a whole.
        self.list = ServerList(links, lead)
        self._links, self._lead, self._chance = list(links), lead, chance
        # The server that was followed last.
        self._last: ServerView | None = None
        # The time since which the client has no server.
        self._lost_at: float | None = now
        self._look_s = LOOK_S
        self._floor = 0
        self._move: Move | None = None
        for link in links:
            link.used = not self.on

    # -- looks

    def begin(self, floor: int, now: float, move: Move | None = None) -> list[ServerView]:
        """Begin a look, and return the servers to look at. `floor` is the number of the copy."""
        self.looks, self._floor, self._move = True, floor, move
        self.choose_at, self.look_at = now + self._look_s, NEVER
        if self.lost(now):
            self._look_s = min(LOOK_S_MAX, 2 * self._look_s)
        others = [link for link in self._links if link is not self._lead.active]
        for link in others:
            link.answered = False
        return others

    def end(self) -> list[ServerView]:
        """End the look. Return the servers whose PULSE must be given up."""
        self.looks, self.choose_at = False, NEVER
        return [link for link in self._links if link.looked]

    def heard(self, link: ServerView, now: float) -> None:
        """Note that a server other than the followed one told its state."""
        if not self.looks:
            return
        link.answered = True
        others = [each for each in self._links if each is not self._lead.active]
        # If only servers of the pair are ready, the client waits for the known replicas until the look ends.
        ready = [each for each in others if self._may_follow(each, now)]
        if any(each.replica is not None for each in ready) or (ready and not any(each.replica for each in others)):
            waits_s = 0.0 if all(each.answered for each in others) else CHOOSE_S
            self.choose_at = min(self.choose_at, now + waits_s)

    def lost(self, now: float) -> bool:
        """Return True if the client follows no server, or one that is silent or went away."""
        return self.broken or self._lead.silent(now)

    def lose(self, now: float) -> None:
        """Look at once, because the client has no server."""
        if self._lost_at is None:
            self._lost_at, self._look_s = now, LOOK_S
            if not self.looks:
                self.look_at = now

    def regain(self, now: float) -> None:
        """Note that the followed server is heard."""
        if self._lost_at is not None and not self.broken:
            self._lost_at = None
            self.stay(now)

    def is_back(self, link: ServerView) -> bool:
        """Return True if the replica that this client left is ACTIVE again, and this client still reads there."""
        back = link is self._last and link.used and link.replica is not None
        return back and self._lead.active is None and link.state == State.ACTIVE and self._is_ahead(link, self._floor)

    # -- the choice

    def pick(self, now: float) -> ServerView | None:
        """Return the server to follow after this look, or None to stay with what there is."""
        found = [link for link in self._links if self._may_follow(link, now)]
        # The rules are those of the pair. So if all servers forbid a subtree, the client asks one of them again.
        found = [link for link in found if not link.forbidden] or found
        newest = max((link.epoch for link in found), default=0)
        found = [link for link in found if link.epoch == newest]
        must = self.lost(now) or newest > self._lead.epoch
        replicas = [link for link in found if link.replica is not None]
        if self.list.misfit and self._lead.epoch == 0:
            return None
        if replicas:
            picked = self._lighter(replicas)
            return picked if must or (not picked.forbidden and self._gains_by(picked)) else None
        return found[0] if found and must and not self.waits_for_replicas(now) else None

    def _gains_by(self, picked: ServerView) -> bool:
        """Return True if this client should move, although the followed server is alive."""
        active = self._lead.active
        if self._move is None:
            return active is not None and active.replica is None
        return self._goes(self._move, picked)

    def stay(self, now: float) -> None:
        """Set the time of the next look, while the followed server is alive: never, if it is a replica."""
        active = self._lead.active
        at_home = active is not None and active.replica is None
        self.look_at = now + HOME_S * (0.5 + self._chance()) if self.on and at_home else NEVER

    def _may_follow(self, link: ServerView, now: float) -> bool:
        if link is self._lead.active or not link.answered or link.state != State.ACTIVE or link.denied or link.unspoken:
            return False
        return self._is_ahead(link, self._floor) or self.is_anew(link, now)

    def _is_ahead(self, link: ServerView, floor: int) -> bool:
        """Return True if a server has all that the copy has: a newer epoch, or as high a number."""
        return link.epoch > self._lead.epoch or (link.epoch == self._lead.epoch and link.number >= floor)

    def is_anew(self, link: ServerView, now: float) -> bool:
        """Return True if this server's lower epoch is the newest left, as after a restart with memory stores."""
        return link.epoch < self._lead.epoch and self.lost(now) and self._lead.is_history_over(now)

    def _lighter(self, replicas: list[ServerView]) -> ServerView:
        """Return the one with the lower load of two replicas, which are taken at random."""
        first = replicas.pop(self._below(len(replicas)))
        second = replicas[self._below(len(replicas))] if replicas else first
        return second if load_of(second) < load_of(first) else first

    def _below(self, n: int) -> int:
        return min(n - 1, int(self._chance() * n))

    def _goes(self, move: Move, picked: ServerView) -> bool:
        """Return True if this client should leave for `picked`. Chance decides.

        The server asked several clients to move, and they do not know of one another. So each client moves with the
        probability at which the expected loads become even.
        """
        active = self._lead.active
        answered = [link for link in self._links if link.answered and link is not active]
        others = [link.replica for link in answered if link.replica is not None]
        if active is None or not others or load_of(picked) >= (False, move.readers, BUSY_CPU):
            return False
        mean = (move.readers + sum(each.readers for each in others)) / (len(others) + 1)
        surplus = move.readers - mean
        if active.replica is not None and active.replica.cpu >= BUSY_CPU:
            cpu = (active.replica.cpu + sum(each.cpu for each in others)) / (len(others) + 1)
            surplus = max(surplus, move.readers * (1 - cpu / active.replica.cpu))
        return self._chance() * max(1, move.asked) < surplus

    # -- the pair

    def waits_for_replicas(self, now: float) -> bool:
        """Return True while the client waits for replicas that are alive, and asks no server of the pair."""
        since, active = self._lost_at, self._lead.active
        if since is None:
            return active is not None and active.replica is not None
        alive = any(link.replica and link.heard_at >= since for link in self._links if link is not active)
        return alive and now - since < PATIENCE_S

    def may_vote(self, link: ServerView, now: float) -> bool:
        """Return True if a vote at this server is of use. A replica takes no vote: it votes for its readers itself."""
        if not self.on:
            return True
        looked = self._lost_at is not None and now - self._lost_at >= LOOK_S
        return looked and link.replica is None and not self.waits_for_replicas(now)

    # -- what the caller did

    def followed(self, link: ServerView, now: float) -> None:
        """Note that this server is followed now."""
        self._last, self._lost_at, self._look_s, self.broken = link, None, LOOK_S, False
        self.joining, self.join_until = None, NEVER
        self.stay(now)

    def join(self, link: ServerView, now: float) -> None:
        """Move to this replica as soon as its channels are live."""
        self.joining, self.join_until = link, now + JOIN_S

    def give_up(self) -> ServerView | None:
        """Move nowhere. Return the replica that was to be joined, if there is one."""
        link, self.joining, self.join_until = self.joining, None, NEVER
        return link

    def told(self, active: ServerView) -> dict[str, int]:
        """Return, for a report to a replica, the number of other servers that a MOVE may send this client to."""
        if active.replica is None:
            return {}
        others = [link for link in self._links if link is not active and link not in self.list.pair]
        return {"moves": len(others)}

    def next_deadline(self) -> float:
        """Return the time of the next look or choice."""
        if not self.on:
            return NEVER
        due = min(self.choose_at if self.looks else self.look_at, self.join_until)
        return min(due, self.settles_until) if self.settles_until else due


def load_of(link: ServerView) -> Load:
    """Return the load of a replica: whether it is overloaded, then its readers, then its processor time."""
    replica = link.replica
    return (False, 0, 0) if replica is None else (replica.cpu >= BUSY_CPU, replica.readers, replica.cpu)
