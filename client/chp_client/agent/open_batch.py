"""The batches that the application's threads write to: the open one, and those that wait for the agent.

    application  --append-->  open  --seal-->  sealed  --the agent takes all in a turn-->  core (numbered, sent)

No timer forms batches: the next turn takes what was appended during this one. A thread that changes anything here holds
the lock. Ctrl-C interrupts it only before or after the whole change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from chp import columns
from chp.batch import Segment
from chp.topics import NO_HEADERS, Headers, pack_messages

from ..core.outbox import Packed, size_of
from ..locks import Lock
from .tickets import PublishedMessages, Ticket

# The most keys in an open batch. An application sets them in a few milliseconds.
OPEN_ITEMS = 8192
# The most bytes of messages that travel together. A larger message travels alone.
PUBLISHED_BYTES = 1 << 20
# The value of `room` when nothing can be set any more.
SHUT = -1


class PendingBatch:
    """A batch of sets that will travel together."""

    __slots__ = ("_index", "_indexed", "deletes", "extras", "keys", "shown", "size", "ticket", "ttls", "values")

    def __init__(self, ticket: Ticket) -> None:
        self.keys: list[str] = []
        self.values: list[bytes] = []
        self.deletes: list[int] = []
        self.ttls: tuple[list[int], list[int]] = ([], [])
        self.extras: dict[str, Any] = {}
        self.shown = True
        self.size = 0
        self.ticket = ticket
        # The first `_indexed` keys, for `shows`.
        self._index: set[str] = set()
        self._indexed = 0

    def segment(self) -> Segment:
        """Return the columns as they are sent."""
        if self.deletes:
            self.extras[columns.DELETES] = self.deletes
        if self.ttls[0]:
            self.extras[columns.TTLS] = list(self.ttls)
        return Segment(self.keys, self.values, self.extras or None)

    def shows(self, key: str) -> bool:
        """Return True if the batch shows an own set of this key. It indexes each key only once."""
        if self.shown and self._indexed < len(self.keys):
            self._index.update(self.keys[self._indexed :])
            self._indexed = len(self.keys)
        return key in self._index

    def weigh(self) -> int:
        """Return the size of the batch in the window."""
        return size_of(Segment(self.keys, self.values))


class Encoded(PendingBatch):
    """A batch whose segment is encoded already. It is not shown."""

    __slots__ = ("body",)

    def __init__(self, ticket: Ticket, body: bytes) -> None:
        super().__init__(ticket)
        self.body = body
        self.shown = False

    def segment(self) -> Segment:
        """Return the encoded segment."""
        return Packed(self.body)

    def weigh(self) -> int:
        """Return the size of the batch in the window."""
        return len(self.body)


class Published(PendingBatch):
    """A batch of messages for one topic. More may join until the agent takes it."""

    __slots__ = ("_published", "headers", "messages", "topic")

    def __init__(self, ticket: Ticket, topic: str) -> None:
        super().__init__(ticket)
        self.topic = topic
        # The ticket keeps the keys of the messages, but not their values, as long as the application keeps the ticket.
        ticket.published = self._published = PublishedMessages(topic)
        # Each message is a key (or "") and a value, appended in one step.
        self.messages: list[tuple[str, bytes]] = []
        # The headers of some messages, by their places.
        self.headers: dict[int, Headers] = {}
        self.shown = False

    def segment(self) -> Segment:
        """Return the messages as an encoded segment."""
        keys, values = [key for key, _ in self.messages], [value for _, value in self.messages]
        carried = [self.headers.get(at, NO_HEADERS) for at in range(len(values))] if self.headers else None
        named = keys if any(keys) else None
        self._published.keys, self._published.count = named, len(values)
        body = pack_messages(named, values, carried)
        return Packed(Segment([], [], {columns.PUBLISH: [[self.topic, len(values), body]]}).encode())

    def weigh(self) -> int:
        """Return the size of the batch in the window."""
        return sum(len(key) + len(value) + 8 for key, value in self.messages) + self.headers_size + 64

    @property
    def headers_size(self) -> int:
        """The size of all headers in the window."""
        return sum(map(size_of_headers, self.headers.values()))


def size_of_headers(headers: Headers) -> int:
    """Return the size of the headers of one message in the window."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


class OpenBatch:
    """The open batch and the queue. A method with "(locked)" in its docstring needs the lock held by its caller."""

    def __init__(self, new_ticket: Callable[[], Ticket]) -> None:
        self.lock = Lock()
        # The most keys in a batch of several sets.
        self.most = OPEN_ITEMS
        # The number of keys that the open batch may hold; SHUT at the end.
        self.room = OPEN_ITEMS
        # True while the agent sleeps. A thread that puts something here must then wake it.
        self.sleeping = False
        self.wake: Callable[[], None] = lambda: None
        self.sealed: deque[PendingBatch] = deque()
        self.sealed_bytes = 0
        # The tickets of sealed batches that are not settled, with the time of sealing.
        self.outstanding: dict[Ticket, float] = {}
        self._new_ticket = new_ticket
        # The open batch. Its columns are attributes here too, for a thread that appends a set.
        self.pending = self.new()
        self.keys, self.values, self.ticket = self.pending.keys, self.pending.values, self.pending.ticket

    def new(self) -> PendingBatch:
        """Make an empty batch."""
        return PendingBatch(self._new_ticket())

    def encoded(self, body: bytes) -> PendingBatch:
        """Make a batch of an encoded segment."""
        return Encoded(self._new_ticket(), body)

    def seal(self) -> None:
        """Put the open batch into the queue, and open a new one (locked)."""
        if self.keys:
            self.push(self.pending)

    def push(self, pending: PendingBatch, show: Iterable[object] = ()) -> None:
        """Put a batch into the queue, and take the steps that show its sets in the map (locked).

        If it was the open batch, a new one is opened.
        """
        pending.size = pending.weigh()
        fresh = self.new() if pending is self.pending else self.pending
        now = monotonic()
        # There are no calls from here on, so Ctrl-C can only interrupt before or after these steps.
        _ = [*show]
        self.pending, self.keys, self.values, self.ticket = fresh, fresh.keys, fresh.values, fresh.ticket
        self.outstanding[pending.ticket] = now
        self.sealed_bytes += pending.size
        self.sealed.append(pending)
        if self.sleeping:
            self.wake()

    def join(
        self, keys: list[str], values: list[bytes], extras: dict[str, Any], show: Iterable[object]
    ) -> PendingBatch:
        """Add sets to the last batch of the queue if it has the same extras, or queue a new batch (locked)."""
        self.seal()
        last = self.sealed[-1] if self.sealed else None
        if last is not None and last.extras == extras and keys and len(last.keys) + len(keys) < self.most:
            last.keys += keys
            last.values += values
            _ = [*show]
            self._grown(last)
            if self.sleeping:
                self.wake()
            return last
        pending = self.new()
        pending.keys, pending.values, pending.extras = keys, values, extras
        self.push(pending, show)
        return pending

    def publish(self, topic: str, key: str, value: bytes, headers: Headers | None = None) -> PendingBatch:
        """Add a message to the last batch of the queue if that has its topic, or queue a new batch (locked)."""
        self.seal()
        last, size = self.sealed[-1] if self.sealed else None, len(key) + len(value) + 8
        if headers:
            size += size_of_headers(headers)
        joins = isinstance(last, Published) and last.topic == topic and len(last.messages) < OPEN_ITEMS
        if isinstance(last, Published) and joins and last.size + size <= PUBLISHED_BYTES:
            if headers:
                last.headers[len(last.messages)] = headers
            last.messages.append((key, value))
            last.size += size
            self.sealed_bytes += size
            if self.sleeping:
                self.wake()
            return last
        pending = Published(self._new_ticket(), topic)
        if headers:
            pending.headers[0] = headers
        pending.messages.append((key, value))
        self.push(pending)
        return pending

    def _grown(self, pending: PendingBatch) -> None:
        self.sealed_bytes -= pending.size
        pending.size = pending.weigh()
        self.sealed_bytes += pending.size

    def take(self) -> PendingBatch:
        """Remove the first batch of the queue and return it to the agent (locked)."""
        pending = self.sealed.popleft()
        self.sealed_bytes = self.sealed_bytes - pending.size if self.sealed else 0
        return pending

    def shows(self, key: str) -> bool:
        """Return True if a batch here shows an own set of this key (locked)."""
        return any(pending.shows(key) for pending in (self.pending, *self.sealed))

    def shown_keys(self) -> set[str]:
        """Return the keys of own sets that the agent has not taken yet (locked)."""
        return {key for pending in (self.pending, *self.sealed) if pending.shown for key in pending.keys}

    def trim_interrupted(self) -> None:
        """Remove a key without a value, as Ctrl-C interrupted a thread that appended a set (locked)."""
        both = min(len(self.keys), len(self.values))
        del self.keys[both:], self.values[both:]

    def requeue_interrupted(self, pending: PendingBatch, taken: Callable[[Ticket], bool]) -> None:
        """Queue a batch again if Ctrl-C interrupted a thread that sent it in place of the agent (locked).

        `taken` tells if the core has the batch of a ticket. The agent sends a batch that is queued again.
        """
        if pending is not self.pending and pending not in self.sealed and not taken(pending.ticket):
            self.sealed.appendleft(pending)
        self.sealed_bytes = sum(each.size for each in self.sealed)

    def bound(self, items: int | None) -> None:
        """Bound the keys of a batch of several sets to `items`; None stands for the usual bound."""
        most = OPEN_ITEMS if items is None else min(max(1, items), OPEN_ITEMS)
        if most != self.most:
            with self.lock:
                self.most = most
                if self.room != SHUT:
                    self.room = most

    def shut(self) -> list[Ticket]:
        """Refuse all further sets (locked). Return the tickets that are not settled."""
        self.room = SHUT
        self.seal()
        left, self.outstanding = list(self.outstanding), {}
        return left
