"""Watches: each confirmed change once, in the order of the servers, on the threads of the application.

The agent puts whole columns into the queue of a watch and goes on. The thread that reads the watch takes them apart.
After a resync the queue gets the difference, so no net change is missed.

A queue is bounded. A watch that falls more than `queue_max` changes behind ends with `Lagging`. The largest record that
waits is not counted: a reader can't take a record before it is whole, so one record alone never ends a watch. With
`conflate` no watch falls behind: the queue then keeps only the latest change of each key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress, count, repeat
from operator import gt
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Generic

from ..checks import wait_s
from ..codecs import Decoding, V
from ..core.events import Changed
from ..errors import Forked, Lagging
from ..locks import Lock
from ..starts import BEGIN, END, SNAPSHOT, KeyStart
from .changes import Change, Changes, change_with, changes_from, changes_of, joined, narrow, pick

# The most changes that are joined. Joining more costs more in cold memory than it saves.
TOGETHER = 1000


class WatchQueue:
    """The queue between the agent and one watch. `whole` says that all held keys lie under the prefix."""

    def __init__(
        self, prefix: str, conflate: bool, queue_max: int, start: KeyStart = END, *, whole: bool = False
    ) -> None:
        self.prefix = prefix
        # The prefix to filter by, or "" if there is nothing to filter.
        self._inside = "" if whole else prefix
        # True if the watch also gets the keys held when the copy became complete for the first time.
        self._from_first = start == SNAPSHOT
        self._after = start if isinstance(start, int) else 0
        # True while the watch waits for the changes that it missed. New changes stay in the queue until then.
        self._waits = start == BEGIN or isinstance(start, int)
        self.conflate = conflate
        self.queue_max = queue_max
        self.closed = False
        self.error: Exception | None = None
        self.columns: deque[Changed] = deque()
        self.latest: dict[str, tuple[bytes | None, int, bool]] = {}
        self.waiting = 0
        # The revision of the newest record here, and its changes so far: it comes as one `Changed` for each segment.
        self._newest = self._newest_size = 0
        # The changes of the largest record since the queue was empty.
        self._largest = 0
        # An AsyncClone sets this to be woken.
        self.on_offer: Callable[[], None] | None = None
        self._lock = Lock()
        # The number of threads that wait at the bell and were not rung for. Each needs one ring.
        self._sleepers = 0
        self._bell: SimpleQueue[None] = SimpleQueue()

    def offer(self, *found: Changed) -> None:
        """Take the changes under the prefix, and wake each waiting thread once. The agent calls this."""
        taken = []
        for each in found:
            # The changes that a watch of all held keys has from the first one on need no filter.
            changed = self._wanted(each) if each.first or self._after or self._inside else each
            if changed.keys:
                taken.append(changed)
        if not taken:
            return
        with self._lock:
            if self.error is not None or self.closed:
                return
            for changed in taken:
                if changed.first:
                    self.preload(changed)
                elif self.conflate:
                    self._conflate(changed)
                elif self.error is None:
                    self._append(changed)
            if self._sleepers:
                self._ring()
        # The application's thread may take the function away at any time.
        if (ring := self.on_offer) is not None:
            ring()

    def _wanted(self, changed: Changed) -> Changed:
        if changed.first or self._after:
            changed = self._newer(changed)
        return narrow(changed, self._inside) if self._inside and changed.keys else changed

    def preload(self, changed: Changed) -> None:
        """Begin with the held keys, however many they are.

        It is called before other threads know this queue, or with its lock held.
        """
        if not changed.keys:
            return
        if self.conflate:
            self._conflate(changed)
        else:
            self.columns.append(changed)
            self.waiting += len(changed.keys)
            self.queue_max += len(changed.keys)

    def _newer(self, changed: Changed) -> Changed:
        """Return the changes that are newer than the start of this watch."""
        if changed.first:
            return changed if self._from_first else Changed([], [], 0)
        if isinstance(changed.revisions, int):
            return changed if changed.revisions > self._after else Changed([], [], 0)
        return pick(changed, list(map(gt, changed.revision_column(), repeat(self._after))))

    def begin(self, missed: list[Changed] | Exception) -> None:
        """Take the changes that were missed since the start revision, or the error instead. The agent calls this."""
        with self._lock:
            self._waits = False
            came, self.columns = self.columns, deque()
            latest, self.latest = self.latest, {}
            if isinstance(missed, Exception):
                self.error, self.waiting = missed, 0
            elif self.error is None:
                for changed in missed:
                    self.preload(changed)
                self.columns += came
                self.latest = {**{k: v for k, v in self.latest.items() if k not in latest}, **latest}
            self._ring()
        if (ring := self.on_offer) is not None:
            ring()

    def _conflate(self, changed: Changed) -> None:
        # A key moves to the place of its latest record.
        deque(map(self.latest.pop, changed.keys, repeat(None)), 0)
        expired = list(map(set(changed.expiries).__contains__, range(len(changed.keys))))
        rows = zip(changed.values, changed.revision_column(), expired, strict=True)
        self.latest.update(zip(changed.keys, rows, strict=True))

    def _append(self, changed: Changed) -> None:
        size = len(changed.keys)
        # The difference after a resync has many revisions, and is one whole too.
        revision = 0 if isinstance(changed.revisions, list) else changed.revisions
        if self.waiting == 0:
            self._newest = self._largest = 0
        if revision and revision == self._newest:
            size += self._newest_size
        self._newest, self._newest_size = revision, size
        self._largest = max(self._largest, size)
        self.waiting += len(changed.keys)
        if self.waiting - self._largest > self.queue_max:
            self.error = Lagging(
                f"this watch of {self.prefix!r} fell {self.waiting} changes behind; it may be {self.queue_max} behind, "
                "not counting the largest record",
                "watch again with start='snapshot', read faster, give a larger queue_max=, or use conflate=True",
            )
            self.columns.clear()
            self.waiting = 0
        else:
            self.columns.append(changed)

    def poll(self) -> Changed | None:
        """Return the changes that are here, or None. Raise the error that ended the watch."""
        with self._lock:
            return self._take()

    def _take(self) -> Changed | None:
        if self._waits and self.error is None:
            return None
        if self.latest:
            latest, self.latest = self.latest, {}
            values, revisions, expired = map(list, zip(*latest.values(), strict=True))
            return Changed(list(latest), values, revisions, expiries=list(compress(count(), expired)))
        if self.columns:
            found, n = [], 0
            while self.columns and n < TOGETHER:
                found.append(self.columns.popleft())
                n += len(found[-1].keys)
            self.waiting -= n
            return joined(found)
        if self.error is not None:
            raise self.error
        return None

    def take(self, timeout: float | None) -> Changed | None:
        """Wait for changes, and return them. Return None at the end; raise `TimeoutError` if none came."""
        timeout = wait_s(timeout)
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                came = (self.columns or self.latest) and not self._waits
                if came or self.error is not None or self.closed:
                    return self._take()
                self._sleepers += 1
            try:
                self._bell.get(timeout=None if until is None else max(0.0, until - monotonic()))
            except Empty:
                self._leave()
                raise TimeoutError(f"no change under {self.prefix!r} within {timeout} s") from None

    def _ring(self) -> None:
        """Wake every waiting thread. A ring too many only makes a thread look again."""
        while self._sleepers:
            self._sleepers -= 1
            self._bell.put(None)

    def _leave(self) -> None:
        """Count one waiting thread less. If it was rung for already, the next waiting thread gets the ring."""
        with self._lock:
            self._sleepers -= self._sleepers > 0

    @property
    def waits(self) -> bool:
        """True while it is not known what was missed since the start revision."""
        return self._waits and self.error is None

    def close(self) -> None:
        """End the queue. Queued changes can still be read."""
        with self._lock:
            self.closed = True
            self._ring()
        if (ring := self.on_offer) is not None:
            ring()

    def forked(self) -> None:
        """End the queue in a child process, where no changes come."""
        self._lock, self._bell = Lock(), SimpleQueue()
        self.error = Forked("this watch belongs to the parent process; make a Clone in the child")


class Watch(Generic[V]):
    """An iterator over changes, and a context manager. `close()` ends it, from any thread.

    Several threads may iterate. Each change goes to one of them.
    """

    def __init__(self, queue: WatchQueue, decoding: Decoding | None, end: Callable[[], None], owner: object) -> None:
        self.queue = queue
        self.decoding = decoding
        self._end = end
        # The reference keeps the Clone alive as long as the watch.
        self._owner = owner
        # Changes that were taken from the queue, and are neither read nor decoded yet.
        self._rest: deque[Change[V]] = deque()

    def __iter__(self) -> Watch[V]:
        return self

    def __next__(self) -> Change[V]:
        return self.get()

    def get(self, timeout: float | None = None) -> Change[V]:
        """Return the next change, and wait at most `timeout` seconds for it.

        Raises `TimeoutError` after that time and StopIteration after close. Raises `Lagging` if the watch was read too
        slowly (make another one), and `BadValue` if the codec can't decode a value (see `on_bad`).
        """
        while True:
            # This is not in an exception handler. Otherwise an error here would show that exception as its cause.
            while (change := self._next()) is None:
                changed = self.queue.take(timeout)
                if changed is None:
                    raise StopIteration
                self._rest.extend(changes_of(changed, None))
            if self.decoding is None:
                return change
            if (decoded := change_with(change, self.decoding)) is not None:
                return decoded

    def _next(self) -> Change[V] | None:
        try:
            return self._rest.popleft()
        except IndexError:
            # A check before the popleft would not do, as several threads may iterate.
            return None

    def batches(self, timeout: float | None = None) -> Iterator[Changes[V]]:
        """Yield changes as columns: those that came together, or up to 1,000 that came one after the other.

        A change costs about half as much as one by one. `timeout` is for each batch, and the errors are those of `get`.
        A batch with a value that the codec can't decode is not yielded. Another call continues after it.
        """
        rest, self._rest = self._rest, deque()
        if rest:
            yield changes_from(rest, self.decoding)
        while (changed := self.queue.take(timeout)) is not None:
            yield changes_of(changed, self.decoding)

    def close(self) -> None:
        """End the watch, and wake the threads that wait for a change."""
        self.queue.close()
        self._end()

    def __enter__(self) -> Watch[V]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        queue = self.queue
        waiting = len(self._rest) + queue.waiting + len(queue.latest)
        return f"<Watch {queue.prefix!r}: {waiting} changes to be read{', closed' if queue.closed else ''}>"
