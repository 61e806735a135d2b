"""The own channels of a replica's clients. Upstream has them, and the replica subscribes to each at all its servers.

The active publishes the answers of a client there. The replica publishes an answer once it has the record that the
answer is about, because a client takes an answer for a promise that the update came before it. The greetings of a
server on these channels tell whether the server is of this pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from chp import headers
from chp.batch import peek
from chp.numbers import unpack

from ..updates.channels import greeting, is_session_topic
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn

# At most this many answers wait for their records. Nearly all records come within milliseconds.
ANSWERS_MAX = 10_000
ANOTHER_PAIR = "it holds the store {0}, and this replica the store {1}: give --upstream the servers of one pair"


def header_in(body: bytes) -> headers.Header | None:
    """Return the header of a body of upstream, however long it is, or None if this is no body.

    A refusal names each key that failed, and a REPLY may have a page of messages.
    """
    peeked = peek(body) or peek(body, len(body))
    return None if peeked is None else peeked[0]


class OwnChannels:
    """The connections that listen to each own channel, and what the servers of upstream said there."""

    def __init__(
        self,
        turn: CurrentTurn,
        committed: Committed,
        greeting: Callable[[], bytes],
        subscribe: Callable[[bytes, bytes], None],
        servers: int,
    ) -> None:
        # `greeting` makes a GREETING of this moment. `subscribe` takes a topic and a byte: at all servers, 1
        # subscribes to the topic, and 0 ends the subscription.
        self._turn, self._committed, self._greeting, self._subscribe = turn, committed, greeting, subscribe
        # The connections that listen to each channel, and the channels of each connection.
        self._listeners: dict[bytes, set[bytes]] = {}
        self._topics: dict[bytes, set[bytes]] = {}
        # The channels that each server has greeted.
        self._greeted: list[set[bytes]] = [set() for _ in range(servers)]
        # The servers that hold another store than this replica: they are of another pair.
        self._foreign: set[int] = set()
        # Answers with their numbers, until this replica has the record. A client whose answer is lost beyond the bound
        # sends its batch again, and gets the answer again.
        self._answers: deque[tuple[int, list[bytes]]] = deque(maxlen=ANSWERS_MAX)

    def topics(self) -> list[bytes]:
        """Return the channels to which a client listens."""
        return list(self._listeners)

    def takes_sets(self, place: int, source: int | None) -> bool:
        """Return True if a server of upstream is of this pair, as far as it is known, and hears this replica."""
        return place not in self._foreign and (place == source or bool(self._greeted[place]))

    def event(self, frames: list[bytes], source: int | None) -> bool:
        """Take an event of P+1, while the server `source` is followed; return True if it is of an own channel."""
        who, *events = frames
        if not events:
            for topic in sorted(self._topics.pop(who, ())):
                self._leave(topic, who)
            return False
        topic = events[0][1:]
        if not is_session_topic(topic):
            return False
        if events[0][:1] == b"\x01":
            self._join(topic, who, source)
        elif who in self._listeners.get(topic, ()):
            self._topics[who].discard(topic)
            self._leave(topic, who)
        return True

    def _join(self, topic: bytes, who: bytes, source: int | None) -> None:
        listeners = self._listeners.setdefault(topic, set())
        if not listeners:
            self._subscribe(topic, b"\x01")
        elif source is not None and topic in self._greeted[source]:
            self._greet(topic)
        listeners.add(who)
        self._topics.setdefault(who, set()).add(topic)

    def _leave(self, topic: bytes, who: bytes) -> None:
        listeners = self._listeners[topic]
        listeners.discard(who)
        if not listeners:
            del self._listeners[topic]
            self._subscribe(topic, b"\x00")
            for greeted in self._greeted:
                greeted.discard(topic)

    def _greet(self, topic: bytes) -> None:
        self._turn.effects.publish.append(greeting(topic, self._committed.state.number, self._greeting()))

    def followed(self, place: int) -> None:
        """Greet the channels that the newly followed server has greeted."""
        for topic in sorted(self._listeners.keys() & self._greeted[place]):
            self._greet(topic)

    def heard(self, place: int, frames: list[bytes], source: int | None) -> None:
        """Take what a server of upstream published on an own channel."""
        topic = frames[0]
        header = header_in(frames[4]) if topic in self._listeners else None
        if header is None:
            return
        if isinstance(header, headers.Greeting):
            self._greeted[place].add(topic)
            self._note_store(place, header.store)
            if place == source:
                self._greet(topic)
        elif not isinstance(header, headers.Heartbeat):
            # Clients rely on the order: an answer comes after the updates up to the answer's number.
            self._answers.append((unpack(frames[1]), frames))

    def _note_store(self, place: int, store: bytes | None) -> None:
        """Note whether a server that greeted holds the store of this replica. A server of another pair gets no sets."""
        ours = self._committed.state.store
        if not store or not ours or store == ours:
            self._foreign.discard(place)
        elif place not in self._foreign:
            self._foreign.add(place)
            why = ANOTHER_PAIR.format(store.hex(), ours.hex())
            self._turn.effects.fact("upstream does not fit", "warning", server=place, why=why)

    def release(self) -> None:
        """Publish the answers whose records were published here."""
        answers, number = self._answers, self._committed.followed
        while answers and answers[0][0] <= number:
            self._turn.effects.publish.append(answers.popleft()[1])
