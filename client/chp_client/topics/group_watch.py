"""The waits of a Clone for one group of a topic: one thread asks for the positions of the group, for all waits.

    watch_group(writer, servers, topic, group, wait)    adds a wait; the first wait starts the thread

The thread ends with the last wait.

The thread asks the servers at once, then after 20 ms, and then after pauses that grow to one second. A new or a settled
wait makes the pause 20 ms again. Each answer settles all waits that it can. The thread searches the topic once for the
messages of a wait. It does so for all new waits together: it sorts them by revision, and one reading finds the messages
of waits whose messages are near each other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from threading import Condition, Event, Thread
from time import monotonic, thread_time
from typing import Any
from weakref import WeakKeyDictionary

from chp.limits import DEFAULT
from chp.numbers import UNKNOWN, Revision, epoch_of
from chp.topics import ALL_SLOTS, pack_slots, slots_of, unpack_slots

from ..agent.tickets import PublishedMessages
from ..agent.writer import Writer
from ..errors import Closed, Full, NoSuchGroup, NoSuchTopic, Unanswered
from ..locks import Lock
from ..port.ask import QuestionPort
from .groups import groups_of, naming
from .reader import MessageBatch, ReadPosition, batches

# The pauses between two questions: the first, by how much each is longer, and the longest.
PAUSE_S, GROWTH, PAUSE_S_MAX = 0.02, 1.5, 1.0
# A question looks for an active server for this long.
LOOK_S = 5.0
# The search goes back from the topic's end. Each step is this many times longer than the one before.
GALLOP = 8
# A reading passes over at most this many other messages to reach the messages of the next wait. Beyond that a search
# is quicker.
NEAR = 1000
# A set of slots, and the offset that the positions of all of them have to reach.
Target = tuple[int, int]


@dataclass(slots=True, eq=False)
class GroupWait:
    """A wait for the messages of one ticket."""

    published: PublishedMessages
    # The revision of the record that brought the messages.
    revision: Revision
    # Has a result once the messages are consumed, or the error that ends the wait.
    reached: Future[None] = field(default_factory=Future)
    # Set once the servers were asked for this wait.
    asked: Event = field(default_factory=Event)
    last: str = "no server was asked yet"
    # Known after the search: the slots that have to reach offsets, and the offset of the first message.
    targets: list[Target] | None = None
    first: int = 0
    # The `made` of the first answer: it changes if the topic is removed and made again.
    made: object = None

    def __post_init__(self) -> None:
        # A cancelled task must not cancel this future, because the thread settles it.
        self.reached.set_running_or_notify_cancel()

    def is_ours(self, batch: MessageBatch, *, cut: bool) -> bool:
        """Return True if the batch has the keys of the ticket's messages. `cut`: its first messages may be gone."""
        published = self.published
        keys = [key or None for key in published.keys or [""] * published.count]
        return batch.keys == (keys[-len(batch) :] if cut else keys)


class GroupWatch:
    """The waits for one group, and the thread that asks for it."""

    def __init__(
        self, watches: dict[tuple[str, str], GroupWatch], servers: Callable[[], Sequence[str]], topic: str, group: str
    ) -> None:
        self._watches, self._servers, self._topic, self._group = watches, servers, topic, group
        self._waits: dict[GroupWait, None] = {}
        self._changed, self._fresh = Condition(_LOCK), False
        self._closed: Callable[[], bool] = lambda: False
        self._thread = Thread(target=self._run, name=f"chp-consumed-{group}", daemon=True)

    @property
    def runs(self) -> bool:
        """True if the thread runs. In a forked child no thread runs."""
        return self._thread.is_alive()

    def start(self, closed: Callable[[], bool]) -> None:
        """Start the thread; `closed` tells whether the Clone was closed."""
        self._closed = closed
        self._thread.start()

    def add(self, wait: GroupWait) -> None:
        """Add a wait; the caller holds the lock. Raises `Full`."""
        if len(self._waits) >= DEFAULT.group_waits_max:
            text = f"{len(self._waits):,} waits for group {self._group!r} of topic {self._topic!r} go on already"
            raise Full(f"{text}, as many as there may be; wait for the last ticket of many")
        self._waits[wait] = None
        self._fresh = True
        self._changed.notify()

    def leave(self, wait: GroupWait) -> None:
        """Forget a wait that has ended."""
        with self._changed:
            self._waits.pop(wait, None)
            self._changed.notify()

    # -- the thread

    def _run(self) -> None:
        pause_s = PAUSE_S
        while waits := self._due():
            asked_at, worked_s = monotonic(), thread_time()
            closed = self._closed()
            self._look(waits)
            for wait in waits:
                if closed and not wait.reached.done():
                    wait.reached.set_exception(Closed("the Clone was closed; ask by another Clone's `groups()`"))
                wait.asked.set()
            # A pause is at least as long as the work, so even many waits use at most half of a core.
            worked_s = thread_time() - worked_s
            pause_s = min(pause_s * GROWTH, PAUSE_S_MAX)
            with self._changed:
                for wait in waits:
                    if wait.reached.done():
                        self._waits.pop(wait, None)
                        pause_s = PAUSE_S
                if self._changed.wait_for(lambda: self._fresh or not self._waits, pause_s):
                    pause_s = PAUSE_S
            Event().wait(max(worked_s, asked_at + PAUSE_S - monotonic()))

    def _due(self) -> list[GroupWait]:
        """Return the waits. If there are none, the thread ends, and the next wait begins another."""
        with self._changed:
            if not self._waits and self._watches.get((self._topic, self._group)) is self:
                del self._watches[self._topic, self._group]
            self._fresh = False
            return list(self._waits)

    def _look(self, waits: list[GroupWait]) -> None:
        """Ask once, and settle the waits that are over."""
        try:
            with naming(self._topic, self._group):
                facts = self._facts()
                self._search([wait for wait in waits if wait.targets is None], facts)
                reached = _positions(facts["places"])
                for wait in waits:
                    self._judge(wait, facts, reached)
        except Unanswered as error:
            # A failover takes some seconds, and the next question may find the new active.
            for wait in waits:
                wait.last = str(error)
        except Exception as error:
            for wait in waits:
                if not wait.reached.done():
                    wait.reached.set_exception(error)

    def _judge(self, wait: GroupWait, facts: dict[str, Any], reached: dict[int, int]) -> None:
        """Settle a wait if its messages are consumed, or can't be any more."""
        if wait.reached.done():
            return
        # A server of an older version tells no `made`.
        made = facts.get("made", wait.made)
        wait.made = wait.made or made
        if wait.made != made:
            wait.reached.set_exception(self._remade())
            return
        if (start := facts.get("start", 0)) > wait.first:
            text = f"group {self._group!r} of topic {self._topic!r} began at offset {start}, behind the message at "
            text += f"offset {wait.first}, which it gives to no consumer; subscribe or reset it with an earlier start"
            wait.reached.set_exception(NoSuchGroup(text, "group", self._group))
            return
        low = [reached[slots] for slots, upto in wait.targets or () if reached[slots] < upto]
        wait.last = f"the group is at offset {min(low, default=0)}, see `groups()`"
        if not low:
            wait.reached.set_result(None)

    def _facts(self) -> dict[str, Any]:
        """Return the facts of the topic with the places of the group."""
        with QuestionPort(self._servers(), LOOK_S) as port:
            facts = port.ask("", topic=self._topic, facts=True, group=self._group)
            if "places" in facts:
                return facts
        # A server of an older version tells only the lowest place.
        for group in groups_of(self._servers(), self._topic, LOOK_S):
            if group["name"] == self._group:
                return {**facts, "places": [[pack_slots(ALL_SLOTS), group["position"]]]}
        text = f"there is no group {self._group!r} of topic {self._topic!r}"
        raise NoSuchGroup(text, "group", self._group)

    def _remade(self) -> NoSuchTopic:
        text = f"topic {self._topic!r} was removed after the messages were published, and made again without them"
        return NoSuchTopic(text, "topic", self._topic)

    # -- the search for the offsets

    def _search(self, waits: Iterable[GroupWait], facts: dict[str, Any]) -> None:
        """Note which slots have to reach which offsets. A wait fails if its topic was removed and made again."""
        first, end = facts["first"], facts["next"]
        with closing(_Walk(self._read, first, end)) as walk:
            for revision, of_one in groupby(sorted(waits, key=_revision), _revision):
                if revision == UNKNOWN:
                    for wait in of_one:
                        wait.targets, wait.first = [(ALL_SLOTS, end)], end
                    continue
                found, behind = walk.find(revision)
                for wait in of_one:
                    ours = [batch for batch in found if wait.is_ours(batch, cut=batch.offset == first)]
                    wait.targets, wait.first = [(ALL_SLOTS, end)], end
                    # If `behind` is of the same epoch, no split has moved the messages: the topic has let them go, or
                    # never had them.
                    known = behind is not None and epoch_of(behind.revision) == epoch_of(revision)
                    if ours:
                        wait.targets, wait.first = _targets(ours), ours[0].offset
                    elif not end or (not found and known and behind is not None and behind.offset == 0):
                        wait.reached.set_exception(self._remade())
                    elif not found and known and behind is not None and behind.offset == first:
                        wait.targets, wait.first = [(ALL_SLOTS, first)], first - 1

    def _read(self, offset: int) -> Generator[MessageBatch | None, None, None]:
        place = ReadPosition(offset, inf)
        return batches(self._servers(), self._topic, place, None, wait=False, patience_s=LOOK_S, credit=1)


class _Walk:
    """A way through the messages of a topic, from one revision to later ones."""

    def __init__(self, read: Callable[[int], Generator[MessageBatch | None, None, None]], first: int, end: int) -> None:
        self._read, self._first, self._end = read, first, end
        self._reading: Generator[MessageBatch | None, None, None] | None = None
        # The next batch; None at the end of the topic.
        self._batch: MessageBatch | None = None

    def close(self) -> None:
        """End the reading."""
        if self._reading is not None:
            self._reading.close()

    def find(self, revision: Revision) -> tuple[list[MessageBatch], MessageBatch | None]:
        """Return the batches of a revision, and the batch behind them. Each call takes a higher revision."""
        passed = 0
        while self._batch is not None and self._batch.revision < revision and passed < NEAR:
            passed += len(self._batch)
            self._step()
        if self._reading is None or (self._batch is not None and self._batch.revision < revision):
            self._open(self._first_from(revision, self._first if self._batch is None else self._batch.offset))
        found: list[MessageBatch] = []
        while self._batch is not None and self._batch.revision <= revision:
            if self._batch.revision == revision:
                found.append(self._batch)
            self._step()
        return found, self._batch

    def _open(self, offset: int) -> None:
        self.close()
        self._reading = self._read(offset)
        self._batch = None
        if offset < self._end:
            self._step()

    def _step(self) -> None:
        assert self._reading is not None, "a reading is open"
        self._batch = next(filter(None, self._reading), None)

    def _first_from(self, revision: Revision, low: int) -> int:
        """Return the offset of the first message of this revision or a later one; the topic's end if there is none."""
        high, step = self._end, 1
        galloping = True
        while low < high:
            middle = max(low, high - step) if galloping else (low + high) // 2
            step *= GALLOP
            with closing(self._read(middle)) as found:
                batch = next(filter(None, found), None)
            if batch is None or batch.offset >= high or batch.revision >= revision:
                high = middle
            else:
                low, galloping = batch.offset + len(batch), False
        return low


def _positions(places: list[list[Any]]) -> dict[int, int]:
    """Return the position of each slot, by the set of that slot alone. `ALL_SLOTS` has the lowest position."""
    positions = {ALL_SLOTS: min(at for _, at in places)}
    for packed, at in places:
        slots = unpack_slots(packed)
        while slots:
            slot = slots & -slots
            positions[slot], slots = at, slots ^ slot
    return positions


def _revision(wait: GroupWait) -> Revision:
    return wait.revision


def _targets(found: Iterable[MessageBatch]) -> list[Target]:
    """Return each slot with the offset behind its last message."""
    targets: list[Target] = []
    for batch in found:
        keys = [key or "" for key in batch.keys] if any(batch.keys) else None
        behind = dict(zip(slots_of(keys, batch.offset, len(batch)), (at + 1 for at in batch.offsets), strict=True))
        targets += [(1 << slot, upto) for slot, upto in behind.items()]
    return targets


# The lock of all watches; it is held for microseconds.
_LOCK = Lock()
_WATCHES: WeakKeyDictionary[Writer, dict[tuple[str, str], GroupWatch]] = WeakKeyDictionary()


def watch_group(
    writer: Writer, servers: Callable[[], Sequence[str]], topic: str, group: str, wait: GroupWait
) -> GroupWatch:
    """Add a wait of a Clone for a group, and return its watch. The caller later calls `leave`. Raises `Full`."""
    with _LOCK:
        watches = _WATCHES.setdefault(writer, {})
        watch = watches.get((topic, group))
        if watch is None or not watch.runs:
            if len(watches) >= DEFAULT.watched_groups_max:
                text = f"this Clone waits for {len(watches):,} groups already, as many as it may"
                raise Full(f"{text}; wait for some of them first")
            watch = GroupWatch(watches, servers, topic, group)
            watch.add(wait)
            watch.start(lambda: writer.closed)
            watches[topic, group] = watch
        else:
            watch.add(wait)
    return watch
