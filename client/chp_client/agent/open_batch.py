"""The batch that is open, and those that wait for the agent: what the application's threads write to.

    application  --append-->  open  --seal-->  sealed  --the agent takes all a turn-->  core (numbered, sent)

No timer forms batches: what is appended while the agent's turn runs is taken by the next one. Whoever changes something
here holds the lock, and is interrupted (Ctrl-C) only before or after all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from time import monotonic
from typing import Any

from chp import columns
from chp.batch import Segment
from chp.topics import pack_messages

from ..core.outbox import Packed, size_of
from .tickets import Ticket

OPEN_ITEMS = 8192  # of an open batch: a few milliseconds of an application's time
PUBLISHED_BYTES = 1 << 20  # of messages that travel together, or one
SHUT = -1  # `room` when nothing can be set any more


class PendingBatch:
    """Sets that will travel together."""

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
        self._index: set[str] = set()  # of the first so many keys, for `shows`
        self._indexed = 0

    def segment(self) -> Segment:
        """The columns as the wire has them."""
        if self.deletes:
            self.extras[columns.DELETES] = self.deletes
        if self.ttls[0]:
            self.extras[columns.TTLS] = list(self.ttls)
        return Segment(self.keys, self.values, self.extras or None)

    def shows(self, key: str) -> bool:
        """Whether an own set of this key is shown and in here; however often asked, it looks at each key once."""
        if self.shown and self._indexed < len(self.keys):
            self._index.update(self.keys[self._indexed :])
            self._indexed = len(self.keys)
        return key in self._index

    def weigh(self) -> int:
        """What it counts in the window."""
        return size_of(Segment(self.keys, self.values))


class Encoded(PendingBatch):
    """A batch whose segment is encoded already, and is not shown."""

    __slots__ = ("body",)

    def __init__(self, ticket: Ticket, body: bytes) -> None:
        super().__init__(ticket)
        self.body = body
        self.shown = False

    def segment(self) -> Segment:
        """As it goes out."""
        return Packed(self.body)

    def weigh(self) -> int:
        """What it counts in the window."""
        return len(self.body)


class Published(PendingBatch):
    """Messages for one topic; more may join until the agent takes it."""

    __slots__ = ("messages", "topic")

    def __init__(self, ticket: Ticket, topic: str) -> None:
        super().__init__(ticket)
        self.topic = topic
        self.messages: list[tuple[str, bytes]] = []  # key, or "", and value: appended in one step
        self.shown = False

    def segment(self) -> Segment:
        """As it goes out."""
        keys, values = [key for key, _ in self.messages], [value for _, value in self.messages]
        body = pack_messages(keys if any(keys) else None, values)
        return Packed(Segment([], [], {columns.PUBLISH: [[self.topic, len(values), body]]}).encode())

    def weigh(self) -> int:
        """What it counts in the window."""
        return sum(len(key) + len(value) + 8 for key, value in self.messages) + 64


class OpenBatch:
    """The open batch; every method with "locked" in its first line wants the lock held by the caller."""

    def __init__(self, shown: dict[str, bytes], new_ticket: Callable[[], Ticket]) -> None:
        self.lock = Lock()
        self.room = OPEN_ITEMS  # keys that the open batch may hold; SHUT at the end
        self.sleeping = False  # the agent; who puts something here has to wake it
        self.wake: Callable[[], None] = lambda: None
        self.sealed: deque[PendingBatch] = deque()
        self.sealed_bytes = 0
        self.outstanding: dict[Ticket, float] = {}  # of what was sealed and is not settled, since when
        self._shown = shown
        self._new_ticket = new_ticket
        self.draft = self.new()  # that is open; its columns are here too, for who appends a set
        self.keys, self.values, self.ticket = self.draft.keys, self.draft.values, self.draft.ticket

    def new(self) -> PendingBatch:
        """An empty batch of its own."""
        return PendingBatch(self._new_ticket())

    def encoded(self, body: bytes) -> PendingBatch:
        """A batch that is encoded already."""
        return Encoded(self._new_ticket(), body)

    def seal(self) -> None:
        """Locked: the open batch goes into the queue, a new one is opened."""
        if self.keys:
            self.push(self.draft)

    def push(self, draft: PendingBatch, shown: Iterable[tuple[str, bytes]] | None = None) -> None:
        """Locked: a batch goes into the queue, and `shown` into the map; a new one is opened if it was the open one."""
        draft.size = draft.weigh()
        fresh = self.new() if draft is self.draft else self.draft
        own, now = self._shown, monotonic()
        # no calls from here on: what Ctrl-C raises comes before all of it or after all of it
        if shown is not None:
            own |= shown
        self.draft, self.keys, self.values, self.ticket = fresh, fresh.keys, fresh.values, fresh.ticket
        self.outstanding[draft.ticket] = now
        self.sealed_bytes += draft.size
        self.sealed.append(draft)
        if self.sleeping:
            self.wake()

    def join(
        self, keys: list[str], values: list[bytes], extras: dict[str, Any], shown: Iterable[tuple[str, bytes]]
    ) -> PendingBatch:
        """Locked: sets join the last batch of the queue if that has the same extras, or are one of their own."""
        self.seal()
        own, last = self._shown, self.sealed[-1] if self.sealed else None
        if last is not None and last.extras == extras and keys and len(last.keys) + len(keys) < OPEN_ITEMS:
            last.keys += keys
            last.values += values
            own |= shown
            self._grown(last)
            if self.sleeping:
                self.wake()
            return last
        draft = self.new()
        draft.keys, draft.values, draft.extras = keys, values, extras
        self.push(draft, shown)
        return draft

    def publish(self, topic: str, key: str, value: bytes) -> PendingBatch:
        """Locked: a message joins those for its topic that are the last of the queue, or begins such a batch."""
        self.seal()
        last, size = self.sealed[-1] if self.sealed else None, len(key) + len(value) + 8
        joins = isinstance(last, Published) and last.topic == topic and len(last.messages) < OPEN_ITEMS
        if isinstance(last, Published) and joins and last.size + size <= PUBLISHED_BYTES:
            last.messages.append((key, value))
            last.size += size
            self.sealed_bytes += size
            if self.sleeping:
                self.wake()
            return last
        draft = Published(self._new_ticket(), topic)
        draft.messages.append((key, value))
        self.push(draft)
        return draft

    def _grown(self, draft: PendingBatch) -> None:
        self.sealed_bytes -= draft.size
        draft.size = draft.weigh()
        self.sealed_bytes += draft.size

    def take(self) -> PendingBatch:
        """Locked: the first of the queue, for the agent."""
        draft = self.sealed.popleft()
        self.sealed_bytes = self.sealed_bytes - draft.size if self.sealed else 0
        return draft

    def shows(self, key: str) -> bool:
        """Locked: whether an own set of this key is shown and here."""
        return any(draft.shows(key) for draft in (self.draft, *self.sealed))

    def shown_keys(self) -> set[str]:
        """Locked: the keys of own sets that the agent has not taken yet."""
        return {key for draft in (self.draft, *self.sealed) if draft.shown for key in draft.keys}

    def trim_interrupted(self) -> None:
        """Locked: somebody was interrupted while he appended to the open batch: a key without a value was not set."""
        both = min(len(self.keys), len(self.values))
        del self.keys[both:], self.values[both:]

    def requeue_interrupted(self, draft: PendingBatch, taken: Callable[[Ticket], bool]) -> None:
        """Locked: somebody was interrupted while he did the agent's work with `draft`; the agent does it, if need be.

        `taken` tells whether the core has what has this ticket.
        """
        if draft is not self.draft and draft not in self.sealed and not taken(draft.ticket):
            self.sealed.appendleft(draft)
        self.sealed_bytes = sum(each.size for each in self.sealed)

    def shut(self) -> list[Ticket]:
        """Locked: nothing can be set any more; the tickets of what is unsettled."""
        self.room = SHUT
        self.seal()
        left, self.outstanding = list(self.outstanding), {}
        return left
