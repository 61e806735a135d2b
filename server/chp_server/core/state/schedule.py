"""Scheduled messages: topics hold them back until their time (SPEC.md, section 35).

    KVSET with "schedule"      [[topic, name, when, every, unless, messages], ...]: keep these messages
    KVSET with "cancel"        [[topic, name], ...]: drop these messages. The server refuses the whole KVSET if one of
                               them is missing. "schedule" in the same KVSET may use a name that "cancel" frees
    record with "scheduled"    [ms, [[topic, name, due, every, unless, messages, user], ...]], in place of "schedule":
                               the time of the record, and the time when each message is due
    record with "fired"        [[topic, name, next due or 0], ...]: these messages were published, or dropped

The record with "fired" also publishes the messages that are due. So a message is published once, by the active that
wrote this record, and a successor goes on with the remaining messages. A message may name a key with `unless`. The
record that changes this key drops the message; each server that follows the records does so by itself.

All times are by the active's wall clock, in milliseconds. Users share the table fairly. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Any

from chp import columns
from chp.batch import Segment
from chp.due import Due
from chp.errors import BadFrame
from chp.keys import check_key
from chp.limits import Limits
from chp.topics import check_name, check_topic, unpack_messages

from .verdicts import Refusal

# The most messages in one chunk of a state, and about the most bytes.
CHUNK_MESSAGES, CHUNK_BYTES = 1024, 1 << 20
# The bytes that a scheduled message takes in memory beside its body, about.
OVERHEAD_BYTES = 300
SEPARATOR = "/"
Place = tuple[str, str]  # the topic, and the name of the message


@dataclass(slots=True)
class ScheduledMessage:
    """A message that waits for its time."""

    due_ms: int
    # The time between two publications; 0 for a message that is published once.
    every_ms: int
    # The key whose change drops the message; "" for none.
    unless: str
    # One message, packed as it travels.
    body: bytes
    user: str

    def next_due(self, now_ms: int) -> int:
        """Return when a repeated message is due next after `now_ms`; 0 if the message is published only once.

        Times that were missed are not made up for.
        """
        if not self.every_ms:
            return 0
        return self.due_ms + self.every_ms * (max(0, now_ms - self.due_ms) // self.every_ms + 1)


def with_user(segment: Segment, user: str) -> Segment:
    """Return a client's segment whose scheduled messages name the user that schedules them."""
    extras = segment.extras or {}
    entries = [[*entry, user] for entry in extras[columns.SCHEDULE]]
    return Segment(segment.keys, segment.values, {**extras, columns.SCHEDULE: entries})


def due_ms(when: int, now_ms: int) -> int:
    """Return the time that a client means by `when`: milliseconds since 1970, or, if negative, a delay from now."""
    return when if when >= 0 else now_ms - when


def timed(segment: Segment, now_ms: int) -> Segment:
    """Return a client's segment as the record has it: each scheduled message has the time when it is due."""
    extras = dict(segment.extras or {})
    entries = [[*entry[:2], due_ms(entry[2], now_ms), *entry[3:]] for entry in extras.pop(columns.SCHEDULE)]
    return Segment(segment.keys, segment.values, {**extras, columns.SCHEDULED: [now_ms, entries]})


def place_of(text: str) -> Place:
    """Return the topic and the name of the message whose text in `Due` this is. A topic's name has no slash."""
    topic, _, name = text.partition(SEPARATOR)
    return topic, name


class Schedule:
    """All scheduled messages, by topic and name."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_topic: dict[str, dict[str, ScheduledMessage]] = {}
        self.count = self.bytes = 0
        # The number of messages of each user.
        self._of_user: Counter[str] = Counter()
        # key -> the messages that a change of the key drops.
        self.unless: dict[str, dict[Place, None]] = {}
        self._due = Due(self._deadline_of)
        # Messages that are due. The active publishes them in this order.
        self._ready: dict[Place, None] = {}
        # Messages that are due, and whose topic had no room.
        self._waiting: dict[Place, None] = {}

    def _deadline_of(self, text: str) -> float | None:
        found = self.get(*place_of(text))
        return None if found is None else found.due_ms / 1000

    def get(self, topic: str, name: str) -> ScheduledMessage | None:
        """Return a scheduled message, or None."""
        of_topic = self.by_topic.get(topic)
        return None if of_topic is None else of_topic.get(name)

    # -- checks of a batch

    def check(self, extras: dict[str, Any], user: str) -> None:
        """Raise `Refusal` or `BadInput` if a client's batch may not schedule or cancel these messages."""
        if {columns.STAGE, columns.COMMIT, columns.TOPIC} & extras.keys():
            raise BadFrame("'schedule' and 'cancel' can't be used with 'stage', 'commit' or 'topic'; send two batches")
        going = self._check_cancelled(extras.get(columns.CANCEL, ()))
        self._check_scheduled(extras.get(columns.SCHEDULE, ()), user, going)

    def _check_cancelled(self, places: Sequence[list[str]]) -> dict[Place, ScheduledMessage]:
        """Return the messages that a batch cancels. Their names and their room are free for what it schedules."""
        if len(set(map(tuple, places))) < len(places):
            raise BadFrame("'cancel' names a message twice; name it once")
        going: dict[Place, ScheduledMessage] = {}
        for topic, name in places:
            found = self.get(check_topic(topic), check_name(name))
            if found is None:
                raise Refusal("name", f"topic {topic} has no scheduled message {name}; it was published, or dropped")
            going[topic, name] = found
        return going

    def _check_scheduled(
        self, entries: Sequence[list[Any]], user: str, going: Mapping[Place, ScheduledMessage]
    ) -> None:
        taken: set[Place] = set()
        size = 0
        for topic, name, _, _, unless, body in entries:
            place = check_topic(topic), check_name(name)
            if place in taken:
                raise BadFrame(f"'schedule' has the name {name!r:.60} twice; each message of a topic has its own")
            taken.add(place)
            if place not in going and self.get(*place) is not None:
                remedy = "take another name, or cancel that one in the same batch"
                raise Refusal("there", f"topic {topic} has a scheduled message {name} already; {remedy}")
            if unless is not None:
                check_key(unless)
            size += len(body)
        size -= sum(len(message.body) for message in going.values())
        more = len(taken) - sum(message.user == user for message in going.values())
        self._check_room(more, size, user, len(taken) - len(going))

    def _check_room(self, more: int, size: int, user: str, more_of_all: int) -> None:
        limits = self._limits
        if size > 0 and self.bytes + size > limits.scheduled_bytes_max:
            most = f"and {limits.scheduled_bytes_max:,} may be (scheduled_bytes_max)"
            raise Refusal("full", f"{self.bytes:,} bytes of messages are scheduled, {most}; cancel some, or wait")
        if more <= 0 or self.count + more_of_all <= limits.scheduled_max:
            return
        # If the table is full, a user below its share may still add messages. So the table has at most twice the bound.
        share = limits.scheduled_max // max(1, len(self._of_user.keys() | {user}))
        if self._of_user[user] + more > share:
            most = f"and {limits.scheduled_max:,} may be (scheduled_max)"
            raise Refusal("full", f"{self.count:,} messages are scheduled, {most}; cancel some, or wait")

    # -- effects of records

    def apply(self, extras: dict[str, Any]) -> None:
        """Do what the columns of a record say. Names that are there already stay: another server hands them over."""
        for topic, name in extras.get(columns.CANCEL, ()):
            self._drop(topic, name)
        if columns.SCHEDULED in extras:
            self._add(*extras[columns.SCHEDULED])
        for topic, name, due_ms in extras.get(columns.FIRED, ()):
            self._fired(topic, name, due_ms)

    def _add(self, now_ms: int, entries: Iterable[list[Any]]) -> None:
        for topic, name, due_ms, every_ms, unless, body, user in entries:
            of_topic = self.by_topic.setdefault(topic, {})
            if name in of_topic:
                continue
            of_topic[name] = ScheduledMessage(due_ms, every_ms, unless or "", body, user)
            self.count += 1
            self.bytes += len(body) + OVERHEAD_BYTES
            self._of_user[user] += 1
            if unless:
                self.unless.setdefault(unless, {})[topic, name] = None
            self._file(topic, name, due_ms, now_ms)

    def _file(self, topic: str, name: str, due_ms: int, now_ms: int) -> None:
        self._due.add((f"{topic}{SEPARATOR}{name}",), due_ms / 1000, now_ms / 1000, self.count)

    def _drop(self, topic: str, name: str) -> None:
        of_topic = self.by_topic.get(topic, {})
        gone = of_topic.pop(name, None)
        if gone is None:
            return
        if not of_topic:
            del self.by_topic[topic]
        self.count -= 1
        self.bytes -= len(gone.body) + OVERHEAD_BYTES
        self._of_user[gone.user] -= 1
        if not self._of_user[gone.user]:
            del self._of_user[gone.user]
        if gone.unless:
            waiting = self.unless[gone.unless]
            del waiting[topic, name]
            if not waiting:
                del self.unless[gone.unless]

    def _fired(self, topic: str, name: str, due_ms: int) -> None:
        found = self.get(topic, name)
        if found is None:
            return
        if not due_ms:
            self._drop(topic, name)
            return
        before, found.due_ms = found.due_ms, due_ms
        self._file(topic, name, due_ms, before)

    def changed(self, keys: Iterable[str]) -> None:
        """Drop the messages that name one of these keys with `unless`, because the keys have changed."""
        for key in self.unless.keys() & set(keys):
            for topic, name in list(self.unless[key]):
                self._drop(topic, name)

    def removed(self, topic: str) -> None:
        """Drop all messages of a topic, because it was removed."""
        for name in list(self.by_topic.get(topic, ())):
            self._drop(topic, name)

    # -- what is due, on the active

    def next_s(self) -> float | None:
        """Return when to call `due`, by the wall clock, maybe too early; None if nothing is scheduled."""
        if not self.count:
            # All entries that `_due` still has are of messages that are gone.
            return None
        return 0.0 if self._ready else self._due.next()

    def due(self, now_ms: int, most: int) -> list[tuple[Place, ScheduledMessage]]:
        """Return messages that are due, in the order of their times: at most about `most`.

        They stay due until a record has fired them, or `wait` puts them aside.
        """
        if len(self._ready) < most:
            keys, _ = self._due.take(now_ms / 1000, most)
            self._ready |= dict.fromkeys(sorted(map(place_of, keys), key=self._time_of))
        found, gone = [], []
        for place in islice(self._ready, most):
            message = self.get(*place)
            if message is None or message.due_ms > now_ms:
                gone.append(place)
            else:
                found.append((place, message))
        for place in gone:
            del self._ready[place]
        return found

    def _time_of(self, place: Place) -> int:
        found = self.get(*place)
        return 0 if found is None else found.due_ms

    def wait(self, places: Sequence[Place]) -> None:
        """Put these messages aside until `retry`, because their topics have no room now."""
        for place in places:
            del self._ready[place]
        self._waiting |= dict.fromkeys(places)

    def retry(self) -> None:
        """Make the messages that `wait` put aside ready again."""
        self._ready |= self._waiting
        self._waiting.clear()

    # -- what clients and the status are told

    def page(self, topic: str, after: str, most: int) -> list[list[Any]]:
        """Return the next messages of a topic by name: name, due, every, unless, key and size of each."""
        of_topic = self.by_topic.get(topic, {})
        names = nsmallest(most, (name for name in of_topic if name > after))
        return [[name, *_facts(of_topic[name])] for name in names]

    # -- parts of the state

    def measure(self) -> tuple[int, int]:
        """Return the count of messages, and their bytes: a receiver checks with them that it has all."""
        return self.count, self.bytes

    def segments(self, now_ms: int) -> Iterator[bytes]:
        """Yield all that is scheduled now, as encoded segments; more may be scheduled meanwhile."""
        now_here = [
            [topic, name, m.due_ms, m.every_ms, m.unless or None, m.body, m.user]
            for topic, of_topic in self.by_topic.items()
            for name, m in of_topic.items()
        ]
        return _in_chunks(now_ms, now_here)

    def check_all(self) -> None:
        """Assert every invariant."""
        every = [(topic, name, m) for topic, of_topic in self.by_topic.items() for name, m in of_topic.items()]
        assert self.count == len(every), "scheduled messages are counted"
        assert self.bytes == sum(len(m.body) + OVERHEAD_BYTES for *_, m in every), "and weighed"
        assert self._of_user == Counter(m.user for *_, m in every), "each user's messages are counted"
        waiting = {(key, place) for key, places in self.unless.items() for place in places}
        assert waiting == {(m.unless, (topic, name)) for topic, name, m in every if m.unless}, "keys know what waits"


def _facts(message: ScheduledMessage) -> list[Any]:
    keys, values = unpack_messages(message.body)
    return [message.due_ms, message.every_ms, message.unless or None, keys[0] if keys else "", len(values[0])]


def _in_chunks(now_ms: int, entries: list[list[Any]]) -> Iterator[bytes]:
    some: list[list[Any]] = []
    size = 0
    for entry in entries:
        if some and (len(some) >= CHUNK_MESSAGES or size + len(entry[5]) > CHUNK_BYTES):
            yield Segment([], [], {columns.SCHEDULED: [now_ms, some]}).encode()
            some, size = [], 0
        some.append(entry)
        size += len(entry[5])
    if some:
        yield Segment([], [], {columns.SCHEDULED: [now_ms, some]}).encode()
