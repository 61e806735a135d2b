"""Which connection listens to what on P+1, so that none can speak for another.

libzmq tells the server of each subscription and each cancel, also of a cancel for what its sender never subscribed to,
and of a second subscription to the same. Whoever only counts them lets one stranger end the channel of all its readers.
So each connection has a set of topics of its own: only what it has can it cancel, and when it ends, all of that goes.

A topic that nobody listens to any more lingers for some seconds, since readers come back: it is let go by `abandoned`.

How many listen decides how often they are told that the server lives (`HeartbeatInterval`): what each of them costs is
the same however little there is to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from math import ceil

from chp.limits import Limits

LINGER_S = 3.0  # a reader whose connection broke is back by then
REFUSED_AGAIN = 100  # topics that are refused again with each beat
REFUSED_TIMES = 3  # so often
LINGERING_MAX = 1000  # each costs as much as one that is listened to
HEARTBEATS_A_SECOND = 1000  # to all who listen, together: each takes some 20 us of a core, on this side alone
PACE_S_MAX = 2.0  # a client waits for four of them before it gives up one that was stopped


class Listeners:
    """The topics of every connection, and how many listen to each topic."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._topics: dict[bytes, set[bytes]] = {}  # of each connection
        self.counts: Counter[bytes] = Counter()
        self.total = 0  # of all topics; who listens to two counts twice
        self._lingering: dict[bytes, float] = {}  # since when nobody listens, the longest first
        self._refused: dict[bytes, dict[bytes, int]] = {}  # of each connection: topics without room, to be said again

    def has(self, who: bytes, topic: bytes) -> bool:
        """Whether a connection has subscribed to a topic."""
        return topic in self._topics.get(who, ())

    def room(self, who: bytes) -> bool:
        """Whether a connection may have one topic more."""
        return len(self._topics.get(who, ())) < self._limits.topics_of_one_max

    def refuse(self, who: bytes, topic: bytes) -> None:
        """Note that a connection has subscribed to a topic for which there is no room.

        The shell bounds the bytes of all topics of a connection, these among them.
        """
        self._refused.setdefault(who, {})[topic] = REFUSED_TIMES

    def refused_again(self) -> list[bytes]:
        """Return topics whose subscribers are to be told again that there is no room.

        The first word may have been dropped: a client that subscribes to much at once is sent as many greetings. It is
        said a few times, as a client may count its wait from the last one.
        """
        out: list[bytes] = []
        for who in list(self._refused)[:REFUSED_AGAIN]:
            for topic in list(self._refused[who])[: REFUSED_AGAIN - len(out)]:
                left = self._refused[who].pop(topic) - 1
                if left:
                    self._refused[who][topic] = left
                out.append(topic)
            if not self._refused[who]:
                del self._refused[who]
            if len(out) >= REFUSED_AGAIN:
                break
        return out

    def _unrefuse(self, who: bytes, topic: bytes) -> None:
        topics = self._refused.get(who)
        if topics is not None:
            topics.pop(topic, None)
            if not topics:
                del self._refused[who]

    def join(self, who: bytes, topic: bytes) -> None:
        """A connection listens to a topic."""
        self._unrefuse(who, topic)
        if not self.has(who, topic):
            self._topics.setdefault(who, set()).add(topic)
            self.counts[topic] += 1
            self.total += 1
            self._lingering.pop(topic, None)

    def leave(self, who: bytes, topic: bytes, now: float) -> None:
        """A connection listens to a topic no more; nothing if it never did."""
        self._unrefuse(who, topic)
        if self.has(who, topic):
            self._topics[who].remove(topic)
            if not self._topics[who]:
                del self._topics[who]
            self._uncount(topic, now)

    def gone(self, who: bytes, now: float) -> None:
        """A connection has ended."""
        self._refused.pop(who, None)
        for topic in sorted(self._topics.pop(who, ())):
            self._uncount(topic, now)

    def _uncount(self, topic: bytes, now: float) -> None:
        self.counts[topic] -= 1
        self.total -= 1
        if not self.counts[topic]:
            del self.counts[topic]
            self._lingering[topic] = now

    def abandoned(self, now: float, room: int = LINGERING_MAX) -> list[bytes]:
        """The topics to be let go, and forgotten here: nobody has listened for long, or more than `room` linger."""
        over = len(self._lingering) - room
        out = [topic for i, (topic, since) in enumerate(self._lingering.items()) if i < over or now - since >= LINGER_S]
        for topic in out:
            del self._lingering[topic]
        return out


class HeartbeatInterval:
    """How often each channel has a HEARTBEAT: with each of the server's, while few listen; then less often.

    A round is one HEARTBEAT of each channel, an equal share of them with each beat. How long the next round takes is
    told in this one, as who listens counts silence by what it was told; a shorter one need not be told before.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self.told_s = heartbeat_s
        self._left: list[bytes] = []  # of the round, in no order that matters
        self._share = 0

    def share(self, topics: Iterable[bytes], there: Container[bytes], listening: int) -> list[bytes]:
        """The topics of this beat; `topics` are all, of which those that are not `there` any more are left out."""
        if not self._left:
            wanted_s = min(PACE_S_MAX, listening / HEARTBEATS_A_SECOND)
            wanted_s = max(self._heartbeat_s, wanted_s)
            round_s, self.told_s = min(self.told_s, wanted_s), wanted_s
            self._left = list(reversed(list(topics)))
            self._share = ceil(len(self._left) * self._heartbeat_s / round_s)
        due = self._left[: -self._share - 1 : -1]
        del self._left[len(self._left) - len(due) :]
        return [topic for topic in due if topic in there]
