"""A reader of a topic: it reads from an offset on, at the active server, and a failover does not end the reading.

A reader asks one question on P, and the answer has no end. The server sends messages while the reader has room for
them, and once a second it says that there are none. The reader leaves a server that is silent for `SILENCE_S`, goes
away or no longer serves. Then it asks the next server for the messages after the last one that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

from chp.errors import BadFrame
from chp.headers import Messages
from chp.numbers import Revision
from chp.topics import NO_HEADERS, Headers, unpack_with_headers

from ..errors import NoSuchTopic, Refused
from ..port.ask import LATER, Interrupted, QuestionPort

# A reader waits this long for an active server.
PATIENCE_S = 30.0
SILENCE_S = 4.0
CREDIT = 8
# The pause before a server that could not answer is asked again.
AGAIN_S = 0.1


class Message(NamedTuple):
    """One message: `revision` is that of its record, and `time` the clock of the active then, in seconds since 1970.

    `headers` are the headers that its publisher gave, by name. `deliveries` is one more than the number of times that
    the message failed. It is 1 unless the group has `max_deliveries`.
    """

    offset: int
    key: str | None
    value: Any
    revision: Revision
    time: float
    headers: Headers = NO_HEADERS
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages that were published together, as columns; iterating gives each `Message`."""

    # The offset of the first message; each next message has the next offset.
    offset: int
    keys: list[str | None]
    values: list[Any]
    revision: Revision
    time: float
    # How many messages between the last batch and this one the topic keeps no more.
    missed: int = 0
    # The headers of each message; None if no message has any.
    headers: Sequence[Headers] | None = None

    @property
    def offsets(self) -> range:
        """The offsets of all messages."""
        return range(self.offset, self.offset + len(self.values))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Message]:
        revision, time = self.revision, self.time
        if self.headers is not None:
            columns = zip(self.offsets, self.keys, self.values, self.headers, strict=True)
            return (Message(offset, key, value, revision, time, carried) for offset, key, value, carried in columns)
        plain = zip(self.offsets, self.keys, self.values, strict=True)
        return (Message(offset, key, value, revision, time) for offset, key, value in plain)


@dataclass(slots=True)
class ReadPosition:
    """The position of a reader: the offset of the next message. -1: the end of the topic, until that is known."""

    offset: int
    # No message at or above this offset is wanted.
    end: float
    missed: int = 0

    @property
    def done(self) -> bool:
        """True if no more messages are wanted."""
        return self.offset >= self.end

    def take(self, item: list[Any], decode: Callable[[bytes], Any] | None) -> Iterator[MessageBatch]:
        """Yield the batches of stored messages, without the messages that were read before or are not wanted."""
        first, _, number, wall_ms, bodies = item
        for body in bodies:
            keys, values, carried = unpack_with_headers(body)
            after = first + len(values)
            start, stop = max(0, self.offset - first), int(max(0, min(len(values), self.end - first)))
            if start < stop:
                chosen = values[start:stop]
                named: list[str | None] = [key or None for key in keys[start:stop]] if keys else [None] * len(chosen)
                data = chosen if decode is None else list(map(decode, chosen))
                missed, self.missed = self.missed + max(0, first - self.offset), 0
                self.offset = first + stop
                some = carried and carried[start:stop]
                yield MessageBatch(first + start, named, data, Revision(number), wall_ms / 1000, missed, some)
            first = after

    def kept(self, first: int) -> None:
        """Pass over messages below `first`, the oldest offset that the topic keeps, even if they come in a batch."""
        if 0 <= self.offset < first and not self.done:
            self.missed += first - self.offset
            self.offset = first

    def told(self, header: Messages) -> None:
        """Note how far the server has read. Messages that it passed over are lost."""
        if self.offset < 0:
            self.offset = header.upto
        elif header.upto > self.offset and not self.done:
            self.missed += header.upto - self.offset
            self.offset = header.upto


def batches(
    servers: Sequence[str],
    name: str,
    place: ReadPosition,
    decode: Callable[[bytes], Any] | None,
    *,
    wait: bool,
    patience_s: float = PATIENCE_S,
    credit: int = CREDIT,
) -> Generator[MessageBatch | None, None, None]:
    """Yield the batches from `place` on, and None about once a second while no batch comes.

    Without `wait` the reading ends when all messages are read.

    Raises `NoSuchTopic`, `Refused`, and `Unanswered` if no server serves for `patience_s`. A busy server is asked
    again, and raises `Refused` after `patience_s` without an answer.
    """
    answered_at = monotonic()
    with QuestionPort(servers, patience_s, silence_s=SILENCE_S) as port:
        while not place.done:
            try:
                for header, items in port.stream("", topic=name, after=place.offset, credit=credit):
                    if not isinstance(header, Messages):
                        raise BadFrame("a server answers a reading with something else; is it of an older version?")
                    answered_at = monotonic()
                    place.kept(header.first)
                    for item in items:
                        yield from place.take(item, decode)
                    place.told(header)
                    if place.done or (not wait and place.offset >= header.topic_next):
                        return
                    if not items:
                        yield None
            except Interrupted:
                continue
            except Refused as refused:
                if refused.code == "topic":
                    text = f"there is no topic {name!r}; its first message makes it, or `create` with settings"
                    raise NoSuchTopic(text, "topic", name, refused.server) from None
                if refused.code not in LATER or monotonic() - answered_at > patience_s:
                    raise
                Event().wait(AGAIN_S)
