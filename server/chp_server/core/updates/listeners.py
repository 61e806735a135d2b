"""The topics that each connection listens to on P+1, so that no connection can cancel for another.

libzmq tells the server of each subscription and each cancel. It also tells of a cancel by a connection that never
subscribed to the topic, and of a second subscription to the same topic. If the server only counted these events, one
stranger could end a channel for all its readers. So each connection has its own set of topics. It can cancel only these
topics, and they are removed when the connection ends.

A topic without listeners lingers for some seconds, because readers may come back. Then `abandoned` returns it.

The number of listeners decides how often they get heartbeats (`HeartbeatInterval`), because each heartbeat costs the
same, however little it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from chp.keys import channel_topic
from chp.limits import Limits

# The channel for heartbeats alone. Clients that only watch a server, or only write, listen to no other channel.
PULSE = channel_topic("/.chp/pulse/")
# A topic without listeners is kept for this time, in seconds: a reader whose connection broke is usually back by then.
LINGER_S = 3.0
# With each beat of the server, refusals are repeated for at most this many topics.
REFUSED_AGAIN = 100
# The number of times that a refusal is repeated.
REFUSED_TIMES = 5
# At most this many topics linger. Each costs as much as a topic that has listeners.
LINGERING_MAX = 1000
# The server sends about this many heartbeats to all listeners together in a second. Each takes the server some 20 us.
HEARTBEATS_A_SECOND = 1000
# The longest interval of heartbeats, in seconds. A client waits for four intervals before it gives up a server.
PACE_S_MAX = 2.0
# Floats are compared with this tolerance.
A_LITTLE = 1e-9


class Listeners:
    """The topics of every connection, and how many connections listen to each topic."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._topics: dict[bytes, set[bytes]] = {}  # connection -> topics
        self.counts: Counter[bytes] = Counter()
        # The connections that listen to more than PULSE.
        self.readers = 0
        # The listeners of all topics; a connection with two topics counts twice.
        self.total = 0
        # Topics without listeners, each with the time when the last listener left, the earliest first.
        self._lingering: dict[bytes, float] = {}
        # connection -> topic for which there is no room -> how many times the refusal is still to be repeated.
        self._refused: dict[bytes, dict[bytes, int]] = {}

    def has(self, who: bytes, topic: bytes) -> bool:
        """Return whether a connection has subscribed to a topic."""
        return topic in self._topics.get(who, ())

    def room(self, who: bytes) -> bool:
        """Return whether a connection may have one more topic."""
        return len(self._topics.get(who, ())) < self._limits.topics_of_one_max

    def refuse(self, who: bytes, topic: bytes) -> None:
        """Note that a connection has subscribed to a topic for which there is no room.

        The shell bounds the bytes of all topics of a connection, these among them.
        """
        self._refused.setdefault(who, {})[topic] = REFUSED_TIMES

    def refused_again(self) -> list[bytes]:
        """Return topics whose subscribers are to be told again that there is no room.

        The first refusal may have been dropped: a client that subscribes to many topics at once is sent as many
        greetings. A refusal is repeated a few times, because a client may count its wait from the last refusal.
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
        """Add a connection to the listeners of a topic."""
        self._unrefuse(who, topic)
        if not self.has(who, topic):
            topics = self._topics.setdefault(who, set())
            self.readers += topic != PULSE and not topics - {PULSE}
            topics.add(topic)
            self.counts[topic] += 1
            self.total += 1
            self._lingering.pop(topic, None)

    def leave(self, who: bytes, topic: bytes, now: float) -> None:
        """Take a connection from the listeners of a topic; do nothing if it is not among them."""
        self._unrefuse(who, topic)
        if self.has(who, topic):
            self._topics[who].remove(topic)
            self.readers -= topic != PULSE and not self._topics[who] - {PULSE}
            if not self._topics[who]:
                del self._topics[who]
            self._uncount(topic, now)

    def gone(self, who: bytes, now: float) -> None:
        """Take a connection that has ended from all its topics."""
        self._refused.pop(who, None)
        topics = self._topics.pop(who, set())
        self.readers -= bool(topics - {PULSE})
        for topic in sorted(topics):
            self._uncount(topic, now)

    def _uncount(self, topic: bytes, now: float) -> None:
        self.counts[topic] -= 1
        self.total -= 1
        if not self.counts[topic]:
            del self.counts[topic]
            self._lingering[topic] = now

    def abandoned(self, now: float, room: int = LINGERING_MAX) -> list[bytes]:
        """Forget and return topics that have had no listener for `LINGER_S`.

        If more than `room` topics linger, return those too that have had no listener for longest.
        """
        over = len(self._lingering) - room
        out = [topic for i, (topic, since) in enumerate(self._lingering.items()) if i < over or now - since >= LINGER_S]
        for topic in out:
            del self._lingering[topic]
        return out


class HeartbeatInterval:
    """The interval of HEARTBEATs on each channel. It grows with the number of listeners.

    With few listeners each channel has a HEARTBEAT with each beat of the server. A round is one HEARTBEAT of each
    channel, in equal shares over several beats. The HEARTBEATs of a round tell the listeners how long the next round
    will take, because the listeners judge silence by this time. So a round may be shorter than was told, never longer.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self.told_s = heartbeat_s
        # The topics of this round, how many were told, when it began, and how long it is to take.
        self._topics: list[bytes] = []
        self._told = 0
        self._began = self._round_s = 0.0

    def share(self, topics: Iterable[bytes], there: Container[bytes], listening: int, now: float) -> list[bytes]:
        """Return the topics that get a HEARTBEAT with this beat, without those that are no longer in `there`.

        `topics` are all topics: the next round takes them when this round is over. If a round has few topics, some of
        its beats have none.
        """
        if self._told == len(self._topics):
            wanted_s = min(PACE_S_MAX, listening / HEARTBEATS_A_SECOND)
            wanted_s = max(self._heartbeat_s, wanted_s)
            beats = int(min(self.told_s, wanted_s) / self._heartbeat_s + A_LITTLE)
            self._began = max(now - self._heartbeat_s, min(now, self._began + self._round_s))
            self._round_s, self.told_s = beats * self._heartbeat_s, wanted_s
            self._topics, self._told = list(topics), 0
        part = min(1.0, (now - self._began + self._heartbeat_s) / self._round_s + A_LITTLE)
        start, self._told = self._told, int(len(self._topics) * part)
        return [topic for topic in self._topics[start : self._told] if topic in there]
